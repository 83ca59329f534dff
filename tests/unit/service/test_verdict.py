"""The one line of `ipamctl status`: each situation in which a node can or cannot run pods has its own words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ipamd.core.deadline import Deadline
from ipamd.core.demand import WAIT, PoolStatus
from ipamd.core.health import Health, Phase, StageReport, StageState
from ipamd.model.blocked import Blocked
from ipamd.model.cause import Cause, CausePart, Ec2Refusal, Form, joined
from ipamd.model.cloud import CallUnderWay
from ipamd.model.condition_messages import condition_text
from ipamd.model.conditions import ConditionCode, Problem, problem
from ipamd.model.errors import (
    CloudError,
    DatastoreError,
    InvariantError,
    IpamError,
    NotServingError,
    PolicyAgentSilentError,
    PoolEmptyError,
    ThrottledError,
    WiringError,
    cause_of_error,
)
from ipamd.pb import cni_pb2
from ipamd.process.reload import RESTART
from ipamd.report.verdict import ADVICE, ASK_EC2, LINE_MAX, Facts, advice, condition_reports, facts, verdict
from ipamd.settings.current import INVALID_SETTINGS
from tests.fakes.clock import FakeClock
from tests.fakes.node import FakeNode

ROOT = Path(__file__).parents[3]

CONFIG = b'{"cniVersion":"1.0.0","name":"net","type":"vpc-cni"}'


def refused(operation: str, code: str, *, words: str = "no", advice: str = "") -> Cause:
    """EC2 refuses a call; `advice` follows its words."""
    text = f"EC2 {operation} failed for i-1: {code}: {words}"
    return Cause((CausePart(refusal=Ec2Refusal(operation, "i-1", code, text), note=advice),))


DENIED = refused("DescribeNetworkInterfaces", "UnauthorizedOperation", advice="; allow ec2:DescribeNetworkInterfaces")
THROTTLED = refused("DescribeNetworkInterfaces", "RequestLimitExceeded", advice="; if it lasts, ask for a higher limit")
FULL = refused("AssignPrivateIpAddresses", "InsufficientFreeAddressesInSubnet")
LONG = refused("AssignPrivateIpAddresses", "InsufficientFreeAddressesInSubnet", words="no " * 200)
EMPTY = problem(ConditionCode.NO_ADDRESS, cause=FULL)
EC2_DENIES = problem(ConditionCode.EC2_REFUSED, cause=DENIED)
EC2_IS_FULL = problem(ConditionCode.EC2_REFUSED, cause=FULL.noted("; use a larger subnet"))
RESTORING = (StageReport("cri", StageState.DEGRADED), StageReport("ec2", StageState.RUNNING, 4200.0))


def known(
    *,
    is_ready: bool = False,
    phase: Phase = Phase.SERVING,
    count: int = 0,
    conditions: Mapping[str, str | Problem] | None = None,
    stages: tuple[StageReport, ...] = (),
    refusal: Cause | None = None,
    cut_off: int = 0,
) -> Facts:
    """A situation."""
    texts, problems = dict[str, str](), dict[str, tuple[Problem, ...]]()
    for subject, condition in (conditions or {}).items():
        if isinstance(condition, Problem):
            texts[subject], problems[subject] = condition_text(subject, condition), (condition,)
        else:
            texts[subject] = condition
    return Facts(is_ready, phase, count, texts, stages, refusal, problems=problems, cut_off_count=cut_off)


def said(**situation: Any) -> str:
    """The verdict in a situation."""
    return verdict(known(**situation))


@pytest.mark.parametrize("is_ready", [True, False])
@pytest.mark.parametrize(
    "pool",
    [{}, {"pool": EMPTY}, {"pool": problem(ConditionCode.NO_ADDRESS, cause=LONG)}],
    ids=["free", "empty", "long"],
)
@pytest.mark.parametrize("count", [0, 1, 2, 7, 40])
@pytest.mark.parametrize("cut_off", [0, 1, 100_000])
def test_the_line_is_short_whatever_is_amiss(is_ready: bool, pool: dict[str, Problem], count: int, cut_off: int) -> None:
    """LINE_MAX characters, however many conditions there are and however long their words."""
    many = {f"repair conflict link eni-0123456789abcdef{number}": "repair conflict: " + "x" * 5000 for number in range(count)}
    for phase in Phase:
        line = said(
            is_ready=is_ready,
            phase=phase,
            conditions=many | pool,
            refusal=joined([DENIED, LONG, FULL]),
            cut_off=cut_off,
            stages=RESTORING * 9,
        )
        assert len(line) <= LINE_MAX


def test_each_condition_is_told_once_with_since_what_to_do_and_a_page_that_there_is() -> None:
    """A cause that is a condition itself is told by that; advice of its own comes before the table's."""
    since = datetime(2026, 11, 25, 10, tzinfo=UTC)
    situation = known(is_ready=True, conditions={"ec2": EC2_IS_FULL, "other": "other: x", "pool": EMPTY})
    found = condition_reports(replace(situation, since={"ec2": since}, next_steps={"other": "call somebody"}))
    assert [one.subject for one in found] == ["ec2", "pool", "other"]
    assert [one.refusals for one in found] == [FULL.refusals, FULL.refusals, ()]
    assert sum(str(FULL) in one.text for one in found) == 1
    assert (found[0].since, found[1].since, found[2].next) == (since, None, "call somebody")
    for subject in [*ADVICE, "frozen eni-1", "repair conflict link x", "whatever"]:
        step, page = advice(subject)
        file, _, anchor = page.partition("#")
        text = (ROOT / file).read_text()
        assert step
        assert not anchor or anchor in {anchor_of(line) for line in text.splitlines() if line.startswith("#")}, page


@pytest.mark.parametrize("subject", ["ec2", "release"])
def test_one_order_for_each_cause(subject: str) -> None:
    """While EC2 only throttles, waiting is the step; after any other refusal, also beside throttling, a person has to act."""
    throttled = cause_of_error(ThrottledError("EC2 Describe failed", code="RequestLimitExceeded", operation="Describe"))
    steps = [
        condition_reports(known(is_ready=True, conditions={subject: problem(ConditionCode.EC2_REFUSED, cause=cause)}))[0].next
        for cause in (throttled, DENIED, joined([throttled, DENIED]))
    ]
    assert steps == [WAIT, ASK_EC2, ASK_EC2]


def test_wrong_settings_and_settings_that_wait_have_steps_of_their_own() -> None:
    """To correct the file mends the one, a restart the other."""
    assert advice(INVALID_SETTINGS) == ADVICE["settings"] != advice(RESTART) == ADVICE["settings restart"]


def anchor_of(heading: str) -> str:
    """As GitHub makes it of a heading."""
    return re.sub(r"[^a-z0-9 -]", "", heading.lstrip("# ").lower()).replace(" ", "-")


def test_an_error_that_was_corrected_says_so() -> None:
    """Of a condition that ended, of a verb that has succeeded since, and of an ENI's routing; another's success says nothing."""
    clock = FakeClock()
    health = Health(clock, ())
    for what, other in (("ec2", "pool"), ("ADD 0123456789abc", "DEL"), ("host routing of eni-1", "host routing of eni-10")):
        health.record_error(what, CloudError("no"))
        clock.advance(5)
        health.resolve(other)
        last = health.last_error
        assert last is not None
        assert last.resolved_at is None
        health.report(what.partition(" 0")[0], None)
        last = health.last_error
        assert last is not None
        assert last.resolved_at == clock.now()


ENDS: dict[str, Callable[[Health], None]] = {
    "supply": lambda health: health.resolve("supply"),
    "datastore": lambda health: health.report("datastore", None),
    "policy agent": lambda health: health.report("policy agent", None),
    "service": lambda health: health.enter(Phase.SERVING),
    "DEL": lambda health: health.resolve_deleted("ADD 0123456789abc"),
    "DEL of another": lambda health: health.resolve_deleted("ADD 0123456789abd"),
}
"""What may end an ADD's error, by what it is that ends."""


@pytest.mark.parametrize(
    ("error", "ended_by"),
    [
        (PoolEmptyError("no address"), "supply"),
        (DatastoreError("full"), "datastore"),
        (PolicyAgentSilentError("away"), "policy agent"),
        (NotServingError("starting"), "service"),
        (WiringError("the kernel refused"), "DEL"),
        (InvariantError("refused"), "DEL"),
    ],
)
@pytest.mark.parametrize("end", ENDS)
def test_a_refused_add_is_over_with_its_cause(error: IpamError, ended_by: str, end: str) -> None:
    """What refused it tells when it is over; only what nothing else tells ends with the sandbox's DEL. Others' ends say nothing."""
    clock = FakeClock()
    health = Health(clock, ())
    health.record_error("ADD 0123456789abc", error)
    clock.advance(5)
    ENDS[end](health)
    last = health.last_error
    assert last is not None
    assert last.resolved_at == (clock.now() if end == ended_by else None)


def test_a_refused_add_is_over_when_an_address_is_free_and_not_before(node: FakeNode) -> None:
    """The sandbox's own DEL changes nothing while the node is full; an address that has cooled does."""
    for number in range(27):
        node.add(f"s{number}")
        node.pool.cycle()
    node.health.record_error("ADD more", PoolEmptyError("no address"))
    node.app.context.demand.announce_supply()
    gone = cni_pb2.ExecRequest(protocol_min=1, protocol_max=1, verb="DEL", container_id="more", ifname="eth0", config=CONFIG)
    assert not node.app.cni.execute(gone, Deadline.after(node.clock, 30)).HasField("error")
    last = node.health.last_error
    assert last is not None
    assert (last.subject, last.resolved_at) == ("ADD more", None)
    node.delete("s0")
    node.cool()
    last = node.health.last_error
    assert last is not None
    assert last.resolved_at is not None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (said(is_ready=True, count=14), "ready: 14 addresses can be given"),
        (said(is_ready=True, count=1), "ready: 1 address can be given"),
        (
            said(is_ready=True, count=3, conditions={"cri": "CRI: it is silent", "a": "a: b"}),
            "ready, with 2 conditions: 3 addresses can be given; a; cri",
        ),
        (
            said(is_ready=True, conditions={"pool": EMPTY}),
            "ready, with 1 condition: pool: no address is assignable: EC2 AssignPrivateIpAddresses: InsufficientFreeAddressesInSubnet",
        ),
        (
            said(is_ready=True, count=3, conditions={"plugins": "plugins: /opt/cni/bin/vpc-cni is missing", "cri": "CRI: away"}),
            "ready, with 2 conditions: plugins: /opt/cni/bin/vpc-cni is missing; cri",
        ),
        (
            said(is_ready=True, count=3, conditions={"policy agent": "policy agent: it does not answer"}),
            "ready, with 1 condition: policy agent: it does not answer",
        ),
        # EC2's refusal is a condition of its own, and the cause of the empty pool: it is told once
        (
            said(is_ready=True, conditions={"pool": EMPTY, "ec2": EC2_IS_FULL}),
            "ready, with 2 conditions: pool: no address is assignable: InsufficientFreeAddressesInSubnet; ec2",
        ),
        (said(is_ready=True, count=3, cut_off=5), "ready, but 5 pods without network: 3 addresses can be given"),
        (
            said(is_ready=True, count=3, cut_off=1, conditions={"frozen eni-1": "x"}),
            "ready, but 1 pod without network, with 1 condition: 3 addresses can be given; frozen eni-1",
        ),
    ],
)
def test_a_ready_node_says_what_it_can_give_and_what_it_lacks(line: str, expected: str) -> None:
    """Counts with their nouns, the conditions by name, and pods without network before all else."""
    assert line == expected


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (said(phase=Phase.DRAINING, conditions={"ec2": EC2_DENIES}), "vpc-ipamd is shutting down"),
        (said(phase=Phase.RESTORING, conditions={"start": "start: it stopped"}), "start: it stopped"),
        (said(phase=Phase.RESTORING, conditions={"kernel": "kernel: no", "ec2": EC2_DENIES}), "kernel: no"),
        (said(phase=Phase.RESTORING, conditions={"ec2": EC2_DENIES}), DENIED),
        (
            said(phase=Phase.RESTORING, conditions={"ec2": EC2_DENIES}, refusal=THROTTLED),
            THROTTLED,
        ),
        (said(phase=Phase.RESTORING, conditions={"cri": "CRI: away"}, stages=RESTORING), "CRI: away"),
        (
            said(phase=Phase.RESTORING, conditions={"cri": "CRI is off: nothing is reaped"}, refusal=DENIED),
            DENIED,
        ),
        (said(phase=Phase.RESTORING, stages=RESTORING), "restoring, at work on ec2 for 4.2 s"),
        (said(phase=Phase.STARTING), "starting, at work on nothing"),
        (said(phase=Phase.RESTORING, conditions={"aws-node": "aws-node: it serves", "cri": "CRI: away"}), "aws-node: it serves"),
        (said(conditions={"export": "export: this node goes back", "frozen": "frozen: no"}), "export: this node goes back"),
        (said(conditions={"conflist": "conflist: read-only", "first address": "first address: none"}), "conflist: read-only"),
        (
            said(conditions={"first address": problem(ConditionCode.NO_FIRST_ADDRESS, cause=FULL)}),
            FULL,
        ),
    ],
)
def test_a_node_that_is_not_ready_says_why_and_what_comes_next(line: str, cause: str | Cause) -> None:
    """What blocks the start comes first; a refusal of a call that is being retried is the newest word about EC2."""
    assert line.startswith("NOT READY: ")
    forms = [cause] if isinstance(cause, str) else [cause.render(form) for form in Form]
    assert any(form in line for form in forms)
    assert "\n" not in line


def test_sandboxes_without_network_are_counted_once(node: FakeNode) -> None:
    """On an ENI whose link is gone, with an address that EC2 does not show, or that could not be repaired; of what is gone none."""
    node.health.mark_ready()
    for name in ("a", "b"):
        node.add(name)
    sources = node.app.introspection.sources
    assert facts(sources).cut_off_count == 0
    key = str(node.datastore.attachments()[0].key)
    node.app.host_network.failed_sandboxes.report(key, CloudError("no way"))
    node.app.host_network.failed_sandboxes.report("c/eth0", CloudError("gone"))
    assert facts(sources).cut_off_count == 1
    node.app.pool.enis.routing.freeze(node.datastore.attachments()[0].eni_id)
    assert verdict(facts(sources)).startswith("ready, but 2 pods without network, with 3 conditions: ")


def test_the_facts_come_from_memory_and_an_empty_pool_is_a_condition_that_ends_by_itself(node: FakeNode) -> None:
    """Derived at each look: it appears with the last address given, names the pool's cause, and goes with the first free one."""
    node.ec2.under_way = (CallUnderWay("AttachNetworkInterface", "eni-2", 1.0, 2, THROTTLED), CallUnderWay("Other", "x", 0.1))
    node.health.mark_ready()
    sources = node.app.introspection.sources
    full = facts(sources)
    assert (full.is_ready, full.assignable_count, full.refusal) == (True, node.datastore.counts().free, THROTTLED)
    assert full.conditions == {}
    for number in range(27):  # all that an m5.large can have
        node.add(f"s{number}")
        node.pool.cycle()
    empty = facts(sources)
    assert (empty.assignable_count, empty.is_ready) == (0, True)
    assert [each.code for each in empty.problems["pool"]] == [ConditionCode.NO_ADDRESS]
    assert node.demand.status.kind is Blocked.NODE_FULL
    node.health.require_status()
    node.app.context.demand.publish(PoolStatus(sentence="short of 1 address"))
    node.ec2.throttled = (node.clock.monotonic(),) * 2
    (delayed,) = condition_reports(facts(sources))
    assert delayed.codes == [ConditionCode.NO_ADDRESS]
    assert delayed.next == WAIT
    calls = sum(node.ec2.calls.values())
    node.delete("s0")
    node.cool()
    assert facts(sources).conditions == {}
    assert sum(node.ec2.calls.values()) == calls


def test_a_shortage_begins_once(node: FakeNode) -> None:
    """A DEL, whose address cools, does not move its start; an address that stays free ends it, also if an ADD waits meanwhile."""
    node.health.mark_ready()
    for number in range(27):
        node.add(f"s{number}")
        node.pool.cycle()
    sources, demand = node.app.introspection.sources, node.demand
    began = facts(sources).since["pool"]
    node.clock.advance(60.0)
    node.delete("s0")
    node.pool.cycle()
    assert facts(sources).since["pool"] == began
    demand.record_supply(1, node.clock.now())
    assert demand.short_since is None
    demand.record_supply(0, began)
    demand.join()
    demand.record_supply(1, node.clock.now())
    assert demand.short_since == began


def test_no_address_is_promised_while_no_pod_can_have_one() -> None:
    """With security groups for pods, and neither kubelet nor the runtime telling which pods have them."""
    said = "pod security groups: kubelet does not answer; new pods get no address, whether they have security groups or not"
    assert "can be given" not in verdict(Facts(True, Phase.SERVING, 12, {"pod security groups": said}))
