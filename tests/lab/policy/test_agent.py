"""Pods on a node with a policy agent: no pod whose ADD was answered with success runs unfiltered, whatever the agent does.

Real packets: the agent's filters are eBPF programs on host veths. What the agent remembers and did is its own record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from lab.vpc.family import IPV4, IPV6
from tests.lab.policy.policed import Policed, link, policed
from tests.rig import wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.slow]

WAIT_S, MARGIN_S = 2.0, 2.0
"""How long an ADD waits for the agent; and what else an ADD on a busy machine may take."""

Harm = Callable[[Policed], AbstractContextManager[None]]
DEL_S = 1.0
"""Half of that: a DEL that waited for the agent would take longer, and one that does not takes some 20 ms."""


def test_a_pod_is_cut_off_until_its_policy_comes(node: Policed) -> None:
    """Strict: the ADD is answered when the filter is there, and nobody hears the pod before its policy says so. The agent started with
    the mode that we told it."""
    assert [entry.rest["mode"] for entry in node.agent.record() if entry.did == "started"] == ["strict"]
    pod = node.run("web-0")
    node.assert_policed(pod)
    node.remove(pod)
    node.await_forgotten("web-0")


def test_a_second_sandbox_of_a_name_is_filtered(node: Policed) -> None:
    """The agent was away at the DEL and remembers the name: it is told to forget it first, or it would attach nothing."""
    first = node.run("twice-0")
    with silent(node):
        assert node.remove(first) < DEL_S
    second = node.run("twice-0")
    assert [entry.did for entry in node.did("twice-0")] == ["attached", "deleted", "attached"]
    node.assert_policed(second)
    node.remove(second)


def test_a_late_delete_is_not_sent(node: Policed) -> None:
    """The old sandbox's DEL comes after its successor's ADD: sent on, it would take the pins of what the successor uses."""
    old = node.run("late-0")
    node.lose(old)
    new = node.run("late-0")
    node.delete(old)
    turns = node.run("turns-0")
    node.remove(turns)
    node.await_forgotten("turns-0")  # what is due has been told
    node.assert_policed(new)
    assert [entry.did for entry in node.did("late-0")] == ["attached", "deleted", "attached"]
    node.remove(new)


@contextmanager
def dead(node: Policed) -> Iterator[None]:
    """Nobody listens at its socket."""
    node.agent.kill()
    yield
    node.agent.start()


@contextmanager
def silent(node: Policed) -> Iterator[None]:
    """It takes the connection, and never answers."""
    node.agent.fall_silent()
    try:
        yield
    finally:
        node.agent.speak()


@contextmanager
def refusing(node: Policed) -> Iterator[None]:
    """It answers success=false."""
    node.agent.order(refuses=True)
    try:
        yield
    finally:
        node.agent.order(refuses=False)


def complaints(node: Policed) -> list[str]:
    """What the daemon's status says of the agent, while it serves ADD."""
    status = node.rig.status()
    assert status is not None
    assert status["ready"]
    return [one for one in status["degraded"] if "policy agent" in one]


@pytest.mark.parametrize(("harm", "words"), [(dead, "does not answer"), (silent, "does not answer"), (refusing, "refused")])
def test_an_add_without_the_agent_is_refused(node: Policed, harm: Harm, words: str) -> None:
    """Retryable, with the cause, after at most two seconds; nothing of it stays. STATUS says that ADD is served: one sidecar makes no
    node NotReady. An agent that is silent is a condition, which goes with its next answer."""
    with harm(node):
        began = time.monotonic()
        _, reply = node.add(f"{harm.__name__}-0")
        assert time.monotonic() - began < WAIT_S + MARGIN_S
        assert (reply.ok, reply.code) == (False, 11)
        assert reply.body is not None
        assert words in reply.body["msg"]
        assert node.rig.cni("STATUS", "", netns="", version="1.1.0").ok
        assert len(complaints(node)) == (harm is not refusing)
        assert node.rig.attachments() == {}
    pod = node.run(f"{harm.__name__}-0")
    node.assert_policed(pod)
    assert complaints(node) == []
    node.remove(pod)


def test_a_del_without_the_agent_is_done_and_paid_when_it_is_back(node: Policed) -> None:
    """DEL succeeds at once; the daemon owes the agent a name, which it is told when it answers again."""
    pod = node.run("owed-0")
    with silent(node):
        assert node.remove(pod) < DEL_S
        assert "default/owed-0" in node.agent.names()
        node.rig.restart()  # what is owed is on disk
    node.await_forgotten("owed-0")


def test_a_restarted_agent_filters_the_next_pod_and_keeps_the_last(node: Policed) -> None:
    """It has forgotten every name, and its filters stay where they are."""
    before = node.run("kept-0")
    node.agent.restart()
    assert node.filtered("kept-0").is_whole
    after = node.run("new-0")
    node.assert_policed(after)
    node.assert_policed(before)
    node.remove(before)
    node.remove(after)


def test_after_a_lost_datastore_a_name_is_forgotten_first(node: Policed) -> None:
    """No row tells which names the agent knows, so each is forgotten before it is filtered."""
    pod = node.run("amnesia-0")
    node.rig.kill()
    node.rig.driver.lose_datastore()
    node.lose(pod)
    node.rig.start()
    again = node.run("amnesia-0")
    node.assert_policed(again)
    node.remove(again)
    wait_until(lambda: node.rig.attachments() == {}, what="nothing is left")


def test_standard_filters_and_passes_until_a_policy_comes(node: Policed) -> None:
    """The other mode: the filter is there, and passes everything until a policy denies. Without the agent no pod starts either."""
    node.rig.restart(env={"NETWORK_POLICY_ENFORCING_MODE": "standard"})
    try:
        pod = node.run("std-0")
        assert node.filtered("std-0").is_whole
        assert node.is_heard(pod)
        assert node.agent.policy_comes("default", "std-0", passes=False)
        assert not node.is_heard(pod, expected=False)
        node.remove(pod)
        with silent(node):
            assert node.add("std-1")[1].code == 11
    finally:
        node.rig.restart()


def test_what_an_ipv6_pod_sends_by_its_ipv4_link_is_not_filtered() -> None:
    """The agent hangs its filter on the pod's own link; the second one, for IPv4 outside, has none, which the docs say."""
    with policed(family=IPV6) as node:
        assert node.rig.driver.egress is IPV4
        pod = node.run("six-0")
        egress = node.rig.kernel().wired_for_egress[pod]
        assert egress.name != link("six-0")
        node.assert_policed(pod)
        assert not node.agent.filtered(egress.name).is_whole
        node.remove(pod)
