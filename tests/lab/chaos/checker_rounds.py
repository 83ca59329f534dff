"""Rounds made by hand, with sandboxes of either family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from lab.chaos.checker import Checker, NodeState, Round
from lab.chaos.expected_state import ExpectedSnapshot, PodRecord
from lab.chaos.observation import NodeObservation
from lab.node.kernel_view import KernelView, Route, Rule, Veth

T = TypeVar("T")

A, B = "10.0.0.10", "10.0.0.11"
IN_IPV6 = {A: "2600:1f14:abc:de00:7::a", B: "2600:1f14:abc:de00:7::b"}
E, F = "169.254.172.2", "169.254.172.3"
IN_IPV4 = {E: "fd00::ac:2", F: "fd00::ac:3"}
"""What sandboxes have for egress where A and B are IPv6, and what where A and B are IPv4."""

POD = PodRecord("node-a", "p1", "c1", A, "/run/netns/1", 1.0)
VETH = Veth("eni1", "c1", A, is_up=True, is_dying=False)
KERNEL = KernelView((VETH,), (Route(A, "eni1"),), (Rule(512, "all", A),))
SEEN = NodeObservation(KERNEL, {"c1": A}, {"c1": A})
EMPTY = NodeObservation(rows={})
READY = NodeState(ready_since=0.0)


def of_family(value: T, version: int) -> T:
    """The same value with the addresses that a sandbox of a pool of that family would have, wherever they stand in it."""
    names = IN_IPV6 if version == 6 else IN_IPV4

    def translated(one: Any) -> Any:
        if isinstance(one, str):
            return names.get(one, one)
        if is_dataclass(one) and not isinstance(one, type):
            return replace(one, **{each.name: translated(getattr(one, each.name)) for each in fields(one)})
        if isinstance(one, dict):
            return {translated(key): translated(each) for key, each in one.items()}
        if isinstance(one, tuple | frozenset):
            return type(one)(translated(each) for each in one)
        return one

    found: T = translated(value)
    return found


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
