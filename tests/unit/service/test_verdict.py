"""The one line of `ipamctl status`: each situation in which a node can or cannot run pods has its own words."""

from __future__ import annotations

import pytest

from ipamd.core.health import Phase, StageReport, StageState
from ipamd.model.cloud import CallUnderWay
from ipamd.report.verdict import Facts, facts, verdict
from tests.fakes.node import FakeNode

DENIED = "EC2 DescribeNetworkInterfaces failed for i-1: UnauthorizedOperation: no; allow ec2:DescribeNetworkInterfaces"
THROTTLED = "EC2 DescribeNetworkInterfaces failed for i-1: RequestLimitExceeded: slow down; if it lasts, ask for a higher limit"
FULL = "EC2 AssignPrivateIpAddresses failed: InsufficientFreeAddressesInSubnet"
EMPTY = {"pool": f"pool: no address is assignable: {FULL}"}
RESTORING = (StageReport("cri", StageState.DEGRADED), StageReport("ec2", StageState.RUNNING, 4200.0))


def said(
    *,
    is_ready: bool = False,
    phase: Phase = Phase.SERVING,
    count: int = 0,
    conditions: dict[str, str] | None = None,
    stages: tuple[StageReport, ...] = (),
    refusal: str = "",
) -> str:
    """The verdict in a situation."""
    return verdict(Facts(is_ready, phase, count, conditions or {}, stages, refusal))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (said(is_ready=True, count=14), "ready: 14 addresses can be given"),
        (said(is_ready=True, count=1), "ready: 1 address can be given"),
        (
            said(is_ready=True, count=3, conditions={"cri": "CRI: it is silent", "a": "a: b"}),
            "ready, with 2 conditions: 3 addresses can be given; CRI: it is silent; a: b",
        ),
        (said(is_ready=True, conditions=EMPTY), f"ready, with 1 condition: pool: no address is assignable: {FULL}"),
        # EC2's refusal is a condition of its own, and the cause of the empty pool: it is told once
        (
            said(is_ready=True, conditions=EMPTY | {"ec2": f"EC2: {FULL}; use a larger subnet"}),
            f"ready, with 2 conditions: pool: no address is assignable: {FULL}",
        ),
    ],
)
def test_a_ready_node_says_what_it_can_give_and_what_it_lacks(line: str, expected: str) -> None:
    """Counts with their nouns, and every condition."""
    assert line == expected


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (said(phase=Phase.DRAINING, conditions={"ec2": f"EC2: {DENIED}"}), "vpc-ipamd is shutting down"),
        (said(phase=Phase.RESTORING, conditions={"start": "start: it stopped"}), "start: it stopped"),
        (said(phase=Phase.RESTORING, conditions={"kernel": "kernel: no", "ec2": f"EC2: {DENIED}"}), "kernel: no"),
        (said(phase=Phase.RESTORING, conditions={"ec2": f"EC2: {DENIED}"}), DENIED),
        (said(phase=Phase.RESTORING, conditions={"ec2": f"EC2: {DENIED}"}, refusal=THROTTLED), THROTTLED),
        (said(phase=Phase.RESTORING, conditions={"cri": "CRI: away"}, stages=RESTORING), "CRI: away"),
        (said(phase=Phase.RESTORING, conditions={"cri": "CRI is off: nothing is reaped"}, refusal=DENIED), DENIED),
        (said(phase=Phase.RESTORING, stages=RESTORING), "restoring, at work on ec2 for 4.2 s"),
        (said(phase=Phase.STARTING), "starting, at work on nothing"),
        (said(phase=Phase.RESTORING, conditions={"aws-node": "aws-node: it serves", "cri": "CRI: away"}), "aws-node: it serves"),
        (said(conditions={"export": "export: this node goes back", "frozen": "frozen: no"}), "export: this node goes back"),
        (said(conditions={"conflist": "conflist: read-only", "first address": "first address: none"}), "conflist: read-only"),
        (said(conditions={"first address": f"first address: none: {FULL}"}), f"first address: none: {FULL}"),
        (said(conditions={"first address": f"first address: none: {FULL}; next: free some"}), f"first address: none: {FULL}"),
    ],
)
def test_a_node_that_is_not_ready_says_why_and_what_comes_next(line: str, cause: str) -> None:
    """What blocks the start comes first; a refusal of a call that is being retried is the newest word about EC2."""
    assert line.startswith(f"NOT READY: {cause}; next: ")
    assert line.rpartition("; next: ")[2] != ""
    assert "\n" not in line


def test_the_facts_come_from_memory_and_an_empty_pool_is_a_condition_that_ends_by_itself(node: FakeNode) -> None:
    """Derived at each look: it appears with the last address given, names the pool's cause, and goes with the first free one."""
    node.ec2.under_way = (CallUnderWay("AttachNetworkInterface", "eni-2", 1.0, 2, THROTTLED), CallUnderWay("Other", "x", 0.1))
    node.health.mark_ready()
    sources = node.app.introspection.sources
    known = facts(sources)
    assert (known.is_ready, known.assignable_count, known.refusal) == (True, node.datastore.counts().free, THROTTLED)
    assert known.conditions == {}
    for number in range(27):  # all that an m5.large can have
        node.add(f"s{number}")
        node.pool.cycle()
    empty = facts(sources)
    assert (empty.assignable_count, empty.is_ready) == (0, True)
    assert empty.conditions["pool"].startswith("pool: no address is assignable: all 3 of 3 ENIs")
    node.health.require_status()
    calls = sum(node.ec2.calls.values())
    node.delete("s0")
    node.cool()
    assert facts(sources).conditions == {}
    assert sum(node.ec2.calls.values()) == calls
