"""What no ADD waits for yields while EC2 throttles (I13)."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from ipamd.eni.subnets import Subnets
from ipamd.model.errors import ThrottledError
from ipamd.model.growth import AllocateAddresses, CreateEni, Growth, Refusal
from ipamd.model.ids import EniId
from ipamd.pool.refusals import YIELD_ENI_FIRST_S, Refusals
from tests.fakes.clock import FakeClock
from tests.fakes.node import FakeNode


def yielding(throttling: tuple[float, float] | None, *, now_s: float, part: float = 0.0) -> Refusals:
    """The lessons of a node that EC2 throttles; the shortest pauses, unless `part` is more."""
    clock = FakeClock()
    clock.advance(now_s - clock.monotonic())
    return Refusals(clock=clock, subnets=cast("Subnets", NoSubnets()), throttling=lambda: throttling, draw=lambda: part)


class NoSubnets:
    """Subnets of which nothing is known."""

    def home_room(self) -> None:
        """Nothing."""

    def creation_room(self) -> None:
        """Nothing."""

    def creation_refusal(self) -> None:
        """Nothing."""

    def in_force(self) -> tuple[()]:
        """Nothing."""
        return ()


def test_what_nobody_waits_for_yields_while_ec2_throttles() -> None:
    """A throttled node asks for nothing that no ADD waits for: for addresses a minute later, or after twice the time that throttling
    has lasted, for an ENI a quarter of an hour later; what an ADD waits for is asked for at once, because the account's tokens are for
    those who wait (I13)."""
    known = yielding((2000.0, 2100.0), now_s=2130.0)
    spare, urgent = known.state(is_urgent=False), known.state(is_urgent=True)
    assert (urgent.creation, urgent.allocation) == (None, None)
    assert spare.allocation is not None
    assert spare.allocation.left_s == pytest.approx(2100.0 + 2.0 * 100.0 - 2130.0)
    assert spare.creation is not None
    assert spare.creation.left_s == pytest.approx(2100.0 + 900.0 - 2130.0)
    assert known.next_retry_s() == spare.allocation.left_s
    assert yielding((2000.0, 2010.0), now_s=2069.9).state(is_urgent=False).allocation is not None
    assert yielding((2000.0, 2010.0), now_s=2070.1).state(is_urgent=False).allocation is None
    assert yielding((2000.0, 2010.0), now_s=2909.9).state(is_urgent=False).creation is not None
    assert yielding((2000.0, 2010.0), now_s=2910.1).state(is_urgent=False).creation is None
    assert yielding((2000.0, 4000.0), now_s=4000.0 + 1799.0).state(is_urgent=False).creation is not None, (
        "no longer than half an hour"
    )
    assert yielding((2000.0, 4000.0), now_s=5801.0).state(is_urgent=False).creation is None
    assert yielding(None, now_s=2000.0).state(is_urgent=False).creation is None


def test_each_node_yields_for_its_own_time() -> None:
    """Nodes that were throttled together do not come back together: once to twice the time, by draw."""
    told = [yielding((2000.0, 2000.0), now_s=2000.0, part=part).state(is_urgent=False) for part in (0.0, 0.5, 1.0)]
    assert [one.creation.left_s for one in told if one.creation] == pytest.approx([900.0, 1350.0, 1800.0])
    assert [one.allocation.left_s for one in told if one.allocation] == pytest.approx([60.0, 90.0, 120.0])


@pytest.mark.parametrize(
    ("action", "pauses_s"),
    [(CreateEni(1, address_count=9), (900.0, 1800.0, 1800.0)), (AllocateAddresses(EniId("eni-1"), 2), (60.0, 120.0, 240.0))],
)
def test_what_is_throttled_and_nobody_waits_for_stops_nothing_else(action: Growth, pauses_s: tuple[float, ...]) -> None:
    """Its pause doubles, and holds for spare ones of its kind only; a success ends it."""
    known = yielding(None, now_s=2000.0)

    def told(*, is_urgent: bool) -> tuple[Refusal | None, Refusal | None]:
        state = known.state(is_urgent=is_urgent)
        both = (state.creation, state.allocation)
        return both if isinstance(action, CreateEni) else both[::-1]

    for pause_s in pauses_s:
        known.learn(action, ThrottledError("throttled"), attached_count=1, is_urgent=False)
        this, other = told(is_urgent=False)
        assert this is not None
        assert this.left_s == pytest.approx(pause_s)
        assert other is None
        assert told(is_urgent=True) == (None, None)
    known.succeeded(action)
    assert told(is_urgent=False) == (None, None)


def test_a_node_that_yields_lacks_nothing(tmp_path: Path) -> None:
    """EC2 throttles a spare ENI: the sentence of the pool says what it waits for, and no condition stands for half an hour."""
    node = FakeNode(tmp_path)
    node.bring_up()
    node.add("a")
    node.ec2.fail["create_eni"] = [ThrottledError("slow down")]
    node.pool.run_once()
    assert "throttled" in node.demand.status().blocked_by or "slow down" in node.demand.status().blocked_by
    assert [one for one in node.health.conditions() if one.startswith("EC2")] == []
    node.clock.advance(2 * YIELD_ENI_FIRST_S)
    node.pool.run_once()
    assert len(node.datastore.enis()) == 2
    node.datastore.close()


def test_a_condition_of_throttling_ends_with_it(tmp_path: Path) -> None:
    """An ADD waits for what EC2 throttles: a condition, until EC2 has done it; that spare ENIs yield for longer keeps it not."""
    node = FakeNode(tmp_path)
    node.bring_up()
    for number in range(9):
        node.add(f"s{number}")
    node.ec2.throttled = (node.clock.monotonic(), node.clock.monotonic())
    node.ec2.fail["create_eni"] = [ThrottledError("slow down")]
    node.demand.join()
    node.pool.run_once()
    assert [one for one in node.health.conditions() if one.startswith("EC2")]
    node.clock.advance(61)
    node.pool.run_once()
    node.demand.leave()
    assert len(node.datastore.enis()) == 2
    assert [one for one in node.health.conditions() if one.startswith("EC2")] == []
    state = node.pool.snapshot()
    assert state is not None
    assert state.growth.creation is not None, "it yields still"
    node.datastore.close()
