"""Rounds made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lab.chaos.checker import Checker, NodeState, Round
from lab.chaos.expected_state import ExpectedSnapshot, PodRecord
from lab.chaos.observation import NodeObservation
from lab.node.kernel_view import KernelView, Route, Rule, Veth

A, B = "10.0.0.10", "10.0.0.11"
POD = PodRecord("node-a", "p1", "c1", A, "/run/netns/1", 1.0)
VETH = Veth("eni1", "c1", A, is_up=True, is_dying=False)
KERNEL = KernelView((VETH,), (Route(A, "eni1"),), (Rule(512, "all", A),))
SEEN = NodeObservation(KERNEL, {"c1": A}, {"c1": A})
EMPTY = NodeObservation(rows={})
READY = NodeState(ready_since=0.0)


def round_(
    at_s: float, *, record: PodRecord | None = POD, seen: NodeObservation = SEEN, state: NodeState = READY, **rest: Any
) -> Round:
    """A round on two nodes: one sandbox on node-a, nothing on node-b."""
    view = ExpectedSnapshot({record.sandbox_id: record} if record else {}, {})
    on_enis = {A: "node-a", B: "node-a"} | rest.pop("on_enis", {})
    observations = {"node-a": seen, "node-b": rest.pop("other", EMPTY)}
    return Round(
        at_s=at_s,
        before=rest.pop("before", view),
        after=rest.pop("after", view),
        nodes={"node-a": state, "node-b": READY},
        observations=observations,
        on_enis=on_enis,
        **rest,
    )


def broken(*rounds: Round) -> list[str]:
    """The invariants that a checker finds broken in rounds one after another."""
    checker = Checker(cooldown_s=5.0)
    return [violation.invariant for one in rounds for violation in checker.check(one)]


def lasting(make: Callable[[float], Round], seconds: float) -> list[str]:
    """The same difference, seen every second from 100 s on for so long."""
    return broken(*(make(100.0 + second) for second in range(int(seconds) + 2)))
