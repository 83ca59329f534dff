"""The policy agent knows pods by name: which calls follow from what came before, in every order of two sandboxes of one name (I21)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.host.maintenance import INTERVAL_S
from ipamd.model.address import AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.cni_request import AttachRequest, SandboxNames
from ipamd.model.errors import IpamError, PolicyAgentRefusedError, PolicyAgentSilentError
from ipamd.model.finding_codes import FindingCode
from ipamd.model.history_answer import HistoryQuestion
from ipamd.model.ids import PodName
from ipamd.model.sandbox import SandboxState
from ipamd.policy.hook import AGENT, CLEANUP, WAIT_S
from ipamd.report.audit import audit
from ipamd.report.explain import explain
from ipamd.settings import NetworkConfig
from tests.crash.test_simulated import KilledHere, kill_at
from tests.fakes.node import FakeNode
from tests.families import family_for, in_both, network_of

WEB = PodName("default", "web-0")
NAMED = NetworkConfig(pod_veth_names=True)


@pytest.fixture
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FakeNode]:
    """A node whose pods are filtered by the agent, in strict mode."""
    made = FakeNode(tmp_path, network=replace(network_of(family_for(request)), pod_veth_names=True), policy_mode="strict")
    made.bring_up()
    yield made
    assert made.policy_agent.unfiltered == [], "I21"
    made.assert_sound()
    made.datastore.close()


def request(node: FakeNode, sandbox: str, *, pod: str = "web-0", ifname: str = "eth0") -> AttachRequest:
    """An ADD for a sandbox of a pod."""
    made = node.request(sandbox)
    return replace(made, names=SandboxNames("default" if pod else "", pod, "uid"), key=replace(made.key, ifname=ifname))


def add(node: FakeNode, sandbox: str, *, deadline_s: float = 60.0, is_wired_by_caller: bool = False, **of: str) -> Attachment:
    """ADD, at a runtime in which every earlier sandbox of the pod is not ready."""
    node.runtime.listed = {one: replace(found, state=SandboxState.NOTREADY) for one, found in node.runtime.listed.items()}
    asked = replace(request(node, sandbox, **of), is_wired_by_caller=is_wired_by_caller)
    made = node.attacher.attach_sandbox(asked, deadline=Deadline.after(node.clock, deadline_s), steps=StepTimer(node.clock))
    node.runtime.run(sandbox)
    node.runtime.listed[sandbox] = replace(node.runtime.listed[sandbox], pod_name=asked.names.pod_name)
    return made


def refused(node: FakeNode, sandbox: str, error: type[IpamError], **options: float) -> IpamError:
    """An ADD that is refused with code 11; nothing of it remains, and its address cools."""
    before = len(node.wiring.wired), len(node.datastore.attachments())
    with pytest.raises(error) as refusal:
        add(node, sandbox, **options)  # type: ignore[arg-type]  # a deadline alone
    assert refusal.value.cni_code == 11
    assert (len(node.wiring.wired), len(node.datastore.attachments())) == before
    assert node.datastore.addresses(state=AddressState.RESERVED) == ()
    return refusal.value


def settle(node: FakeNode) -> None:
    """A turn of maintenance, as far as the agent is concerned."""
    node.clock.advance(INTERVAL_S)
    assert node.app.policy is not None
    node.app.policy.clean_up()


def restart(node: FakeNode, *, keep_datastore: bool = True) -> None:
    """kill -9, and a start."""
    node.crash(keep_datastore=keep_datastore)
    node.bring_up()


def killed(at: str, act: Callable[[FakeNode], object]) -> Callable[[FakeNode], None]:
    """Something that the daemon dies in; no rollback runs."""

    def done(node: FakeNode) -> None:
        node.failpoint = kill_at(at)
        node.attacher._roll_back = lambda *_, **__: None  # type: ignore[method-assign]
        with pytest.raises(KilledHere):
            act(node)
        restart(node)

    return done


def adds(sandbox: str) -> Callable[[FakeNode], object]:
    """ADD."""
    return lambda node: add(node, sandbox)


def dels(sandbox: str) -> Callable[[FakeNode], object]:
    """DEL."""
    return lambda node: node.delete(sandbox)


def loses(node: FakeNode) -> None:
    """The datastore goes, and the daemon starts."""
    restart(node, keep_datastore=False)


def restarts_twice(node: FakeNode) -> None:
    """What is owed is on disk, as is that rows were lost."""
    restart(node)
    restart(node)


FORGET, ENFORCE = "forget", "enforce"

ORDERS: dict[str, tuple[list[Callable[[FakeNode], object]], list[str], bool]] = {
    "an ADD": ([adds("a"), settle], [ENFORCE], True),
    "a life": ([adds("a"), dels("a"), settle, settle], [ENFORCE, FORGET], False),
    "a life, and another": ([adds("a"), dels("a"), settle, adds("b"), settle], [ENFORCE, FORGET, ENFORCE], True),
    "DEL not told yet": ([adds("a"), dels("a"), adds("b"), settle], [ENFORCE, FORGET, ENFORCE], True),
    "ADD before DEL": ([adds("a"), adds("b"), dels("a"), settle], [ENFORCE, FORGET, ENFORCE], True),
    "ADD before DEL, and its own DEL": (
        [adds("a"), adds("b"), dels("a"), settle, dels("b"), settle],
        [ENFORCE, FORGET, ENFORCE, FORGET],
        False,
    ),
    "DEL twice": ([adds("a"), dels("a"), dels("a"), settle, settle], [ENFORCE, FORGET], False),
    "DEL, restart": ([adds("a"), dels("a"), restart, settle], [ENFORCE, FORGET], False),
    "restart, DEL": ([adds("a"), restart, dels("a"), settle], [ENFORCE, FORGET], False),
    "killed once owed": ([killed("policy.owed", adds("a")), settle], [FORGET], False),
    "killed once owed, ADD at once": ([killed("policy.owed", adds("a")), adds("b"), settle], [FORGET, ENFORCE], True),
    "killed once filtered": ([killed("policy.enforced", adds("a")), settle], [ENFORCE, FORGET], False),
    "killed once filtered, ADD at once": (
        [killed("policy.enforced", adds("a")), adds("b"), settle],
        [ENFORCE, FORGET, ENFORCE],
        True,
    ),
    "killed between both": (
        [adds("a"), killed("policy.forgotten-first", adds("b")), adds("c"), settle],
        [ENFORCE, FORGET, FORGET, ENFORCE],
        True,
    ),
    "killed in DEL": ([adds("a"), killed("detach.committed", dels("a")), settle], [ENFORCE, FORGET], False),
    "killed before it is told": ([adds("a"), dels("a"), killed("policy.due", settle), settle], [ENFORCE, FORGET], False),
    "killed after it was told": (
        [adds("a"), dels("a"), killed("policy.forgotten", settle), settle],
        [ENFORCE, FORGET, FORGET],
        False,
    ),
    "lost, DEL": ([adds("a"), loses, dels("a"), settle], [ENFORCE, FORGET], False),
    "lost, another ADD": ([adds("a"), loses, adds("b"), settle], [ENFORCE, FORGET, ENFORCE], True),
    "lost while only the agent knew": ([adds("a"), dels("a"), loses, adds("b"), settle], [ENFORCE, FORGET, ENFORCE], True),
    "lost, and two starts later": ([adds("a"), dels("a"), loses, restarts_twice, adds("b")], [ENFORCE, FORGET, ENFORCE], True),
}
"""What happens to sandboxes of one pod -> the calls that the agent gets, and whether it knows the name at the end."""


@in_both("node")
@pytest.mark.parametrize("order", ORDERS)
def test_calls_follow_from_what_came_before(node: FakeNode, order: str) -> None:
    """Told of an end before a filter is asked for anew, never while a sandbox has the name, and once only if no kill came between."""
    events, calls, is_known = ORDERS[order]
    for event in events:
        event(node)
    assert node.policy_agent.calls == calls
    assert (WEB in node.policy_agent.known) == is_known == (WEB in node.datastore.policy_pods())
    assert node.app.policy is not None
    assert not node.app.policy.pending_cleanups(), "nothing is left to tell"
    assert node.health.conditions_by_subject().keys() <= {"unrecorded sandboxes"}


def test_it_is_told_the_mode(node: FakeNode) -> None:
    """As the setting has it."""
    add(node, "a")
    assert node.policy_agent.modes == {"strict"}


@pytest.mark.parametrize("how", [{"pod": ""}, {"ifname": "net1"}])
def test_what_it_could_not_find_is_not_asked_for(node: FakeNode, how: dict[str, str]) -> None:
    """A sandbox without a pod's name, and a further interface of one: no link has the name."""
    add(node, "a", **how)
    node.detacher.detach_sandbox(
        replace(node.key("a"), ifname=how.get("ifname", "eth0")),  # type: ignore[arg-type]  # text of a table
        deadline=Deadline.after(node.clock, 30.0),
        steps=StepTimer(node.clock),
        reason="DEL",
    )
    settle(node)
    assert (node.policy_agent.calls, node.datastore.policy_pods()) == ([], {})


@pytest.mark.parametrize("slow_s", [WAIT_S + 0.1, 60.0])
def test_a_slow_agent(node: FakeNode, slow_s: float) -> None:
    """It has 2 s in all: then the ADD is refused with its cause; the condition ends with its first answer."""
    node.policy_agent.slow_s = slow_s
    began = node.clock.monotonic()
    refused(node, "a", PolicyAgentSilentError)
    assert node.clock.monotonic() - began == pytest.approx(WAIT_S)
    assert AGENT in node.health.conditions_by_subject()
    node.health.require_status()
    node.policy_agent.slow_s = WAIT_S / 2
    add(node, "b")
    assert node.policy_agent.timeouts_s == pytest.approx([WAIT_S, WAIT_S, WAIT_S / 2])
    assert AGENT not in node.health.conditions_by_subject()


def test_a_slow_agent_acts_all_the_same(node: FakeNode) -> None:
    """Nobody waits for its answer any more, and it remembers the name of a sandbox that was never promised."""
    agent = node.policy_agent
    agent.slow_s, agent.meanwhile = WAIT_S + 1.0, lambda: agent.known.add(WEB)
    refused(node, "a", PolicyAgentSilentError)
    agent.slow_s, agent.meanwhile = 0.0, lambda: None
    add(node, "b")
    assert agent.calls == [FORGET, ENFORCE]


def test_off_for_a_while(node: FakeNode) -> None:
    """Nothing is asked meanwhile, and nothing is forgotten of what the agent knows: it is told when it is on again."""
    add(node, "a")
    node.policy_mode = "none"
    restart(node)
    node.delete("a")
    add(node, "b")
    assert node.policy_agent.calls == [ENFORCE]
    assert WEB in node.policy_agent.known
    node.policy_mode = "strict"
    restart(node)
    node.delete("b")
    add(node, "c")
    assert node.policy_agent.calls == [ENFORCE, FORGET, ENFORCE]


def test_a_caller_with_less_time(node: FakeNode) -> None:
    """Its deadline, if that is sooner."""
    node.policy_agent.slow_s = 1.0
    refused(node, "a", PolicyAgentSilentError, deadline_s=0.3)
    assert node.policy_agent.timeouts_s == pytest.approx([0.3])


def test_an_agent_that_is_away(node: FakeNode) -> None:
    """DELs are done without it, and made up for once it is back; each turn asks once at most, and waits for nobody."""
    for sandbox in ("a", "b"):
        add(node, sandbox, pod=sandbox)
    node.policy_agent.is_silent = True
    began = node.clock.monotonic()
    assert node.delete("a")
    assert node.delete("b")
    assert node.clock.monotonic() == began
    for _ in range(20):
        settle(node)
    assert node.clock.monotonic() - began == pytest.approx(20 * INTERVAL_S), "no turn waited"
    assert 4 <= len(node.policy_agent.timeouts_s) - 2 <= 8, "5 s at first, 30 s in the end"
    assert AGENT in node.health.conditions_by_subject()
    node.health.require_status()
    node.policy_agent.is_silent = False
    for _ in range(7):
        settle(node)
    assert node.policy_agent.calls == [ENFORCE, ENFORCE, FORGET, FORGET]
    assert AGENT not in node.health.conditions_by_subject()


def test_success_is_false(node: FakeNode) -> None:
    """A refused filter fails the ADD, and is no silence."""
    node.policy_agent.refuses = ENFORCE
    refused(node, "a", PolicyAgentRefusedError)
    assert node.health.conditions_by_subject() == {}
    settle(node)
    assert (node.policy_agent.calls, node.datastore.policy_pods()) == ([ENFORCE, FORGET], {})


def test_what_it_refuses_to_forget(node: FakeNode) -> None:
    """Kept as owed, and named; other names are told. A new pod of that name is refused: it would run without a filter."""
    add(node, "a")
    node.policy_agent.refuses = FORGET
    node.delete("a")
    for _ in range(3):
        settle(node)
    assert str(WEB) in node.health.conditions_by_subject()[CLEANUP]
    refused(node, "b", PolicyAgentRefusedError)
    assert ENFORCE not in node.policy_agent.calls[1:]
    add(node, "c", pod="other")
    node.policy_agent.refuses = ""
    for _ in range(7):
        settle(node)
    assert node.health.conditions_by_subject() == {}
    assert WEB not in node.datastore.policy_pods()
    add(node, "d")


def test_an_add_has_its_name_for_itself(node: FakeNode) -> None:
    """While an ADD asks for a filter nobody tells the agent that the name is gone."""
    add(node, "a")
    node.delete("a")
    told: list[list[str]] = []

    def meanwhile() -> None:
        node.policy_agent.meanwhile = lambda: None
        settle(node)
        told.append(list(node.policy_agent.calls))

    node.policy_agent.meanwhile = meanwhile
    add(node, "b")
    assert told == [[ENFORCE]]
    assert node.policy_agent.calls == [ENFORCE, FORGET, ENFORCE]


def test_a_run_directory_that_is_gone(node: FakeNode) -> None:
    """A link of ours tells that a daemon has run: the agent may know the pod's name, and forgets it before its successor's filter."""
    add(node, "first")
    add(node, "other", pod="other-0")
    first = next(one for one in node.datastore.attachments() if one.key == node.key("first"))
    node.crash(keep_datastore=False)
    node.has_run_before = False  # no file says so
    node.datastore.close()
    for path in node.run_dir.glob("state.db*"):
        path.unlink()
    del node.wiring.wired[first.host_veth]  # its pod ended, and the spooled DEL went with the directory
    del node.wiring.routes[first.address]
    del node.runtime.listed["first"]
    node.start()
    node.bring_up()
    assert node.app.adapters.is_datastore_lost
    add(node, "second")


def test_sandboxes_from_before_the_setting(tmp_path: Path) -> None:
    """The agent may have found them by their policies: they are told as gone when they go."""
    node = FakeNode(tmp_path, network=NAMED)
    node.bring_up()
    add(node, "a")
    add(node, "x", pod="other")
    assert node.datastore.policy_pods() == {}
    node.policy_mode = "standard"
    restart(node)
    node.policy_agent.known = {WEB, PodName("default", "other")}
    add(node, "b")
    node.delete("x")
    settle(node)
    assert node.policy_agent.calls == [FORGET, ENFORCE, FORGET]
    assert node.policy_agent.unfiltered == []
    node.datastore.close()


def test_one_that_its_caller_wires(node: FakeNode) -> None:
    """The plugin of amazon-vpc-cni-k8s asks for the filter after the reply: the name is owed, and told as gone if need be."""
    add(node, "a", is_wired_by_caller=True)
    assert (node.policy_agent.calls, [*node.datastore.policy_pods()]) == ([], [WEB])
    node.policy_agent.known.add(WEB)
    node.delete("a")
    add(node, "b", is_wired_by_caller=True)
    assert (node.policy_agent.calls, node.policy_agent.known) == ([FORGET], set())


def test_people_are_told(node: FakeNode) -> None:
    """Status, audit and explain name what is owed; a sandbox that lives is not in them."""
    add(node, "a")
    add(node, "x", pod="other")
    node.policy_agent.is_silent = True
    node.delete("a")
    settle(node)
    sources = node.app.introspection.sources
    status = node.app.introspection.GetStatus(None)  # type: ignore[arg-type]  # the request has no field
    assert (status.policy_mode, status.pending_policy_cleanup_count) == ("strict", 1)
    (condition,) = [one for one in status.conditions if one.subject == AGENT]
    assert condition.page == "docs/policy.md"
    assert [one.subject for one in audit(sources, ask_ec2=False).findings if one.code is FindingCode.POLICY_OWED] == [str(WEB)]
    said = explain(sources, HistoryQuestion("web-0", limit=5)).sentences
    assert [one for one in said if "network policy agent may remember it" in one and "default/web-0" in one]
    assert not [one for one in explain(sources, HistoryQuestion("other", limit=5)).sentences if "policy agent" in one]


def test_nothing_of_it_is_there_when_it_is_off(tmp_path: Path) -> None:
    """Neither imported nor made, in a process that adds and deletes (memory: `make bench`)."""
    code = f"""
import sys
from pathlib import Path
from ipamd.settings import NetworkConfig
from tests.fakes.node import FakeNode
node = FakeNode(Path({str(tmp_path)!r}), network=NetworkConfig(pod_veth_names=True))
node.bring_up()
node.add("a"), node.delete("a")
assert node.app.policy is None and node.app.cni_backend is None and node.datastore.policy_pods() == {{}}
assert not [name for name in sys.modules if name.startswith(("ipamd.policy", "ipamd.pb.network_policy"))]
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=Path(__file__).parents[3])
