"""What is released of ENIs whose subnet is excluded: all that nobody has, at once; nothing that somebody has or had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest

from ipamd.model.address import Address, AddressState
from ipamd.model.eni import Eni, EniState
from ipamd.model.ids import EniId, MacAddress, SubnetId
from ipamd.model.pool_actions import CreateEni, ReleaseAddresses, ReleaseEni
from ipamd.model.pool_counts import EniStock, PoolCounts, Stock
from ipamd.model.pool_snapshot import EniCapacity, PoolSnapshot, pool_snapshot
from ipamd.model.release import releasable
from ipamd.model.snapshot import Snapshot
from ipamd.model.surplus import Hold
from tests.unit.model.test_release import LIMITS, an_eni, decide, pool

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FULL = an_eni(0, PoolCounts(free=10))
ENI = Eni(
    eni_id=EniId("eni-1"),
    mac=MacAddress("02:00:00:00:00:01"),
    device_index=1,
    network_card=0,
    subnet_id=SubnetId("subnet-1"),
    subnet_cidr=IPv4Network("10.0.0.0/20"),
    primary_address=IPv4Address("10.0.1.200"),
    is_primary=False,
    state=EniState.ATTACHED,
    created_by_us=True,
    managed=True,
    excluded="its subnet is excluded",
)
FREE = tuple(IPv4Address(f"10.0.1.{number}") for number in (1, 2, 3))


def excluded(counts: PoolCounts, **changes: Any) -> EniCapacity:
    """ENI 1, in an excluded subnet."""
    return replace(an_eni(1, counts), is_excluded=True, **changes)


def barely_full(eni: EniCapacity, *, others: Sequence[EniCapacity] = (FULL,), **hold: Any) -> PoolSnapshot:
    """A pool nothing of which was in excess for long: what the other ENIs have is no reason to give anything back."""
    snapshot = pool(*others, eni, limits=LIMITS)
    free = sum(other.counts.free for other in others)
    counts = replace(snapshot.counts, free=free)  # as `pool_snapshot`: what is excluded is no supply
    return replace(snapshot, counts=counts, hold=replace(snapshot.hold, stable_surplus=None, **hold))


@pytest.mark.parametrize(
    "counts",
    [
        PoolCounts(free=3, assigned=1),
        PoolCounts(free=3, reserved=1),
        PoolCounts(free=3, cooling=2),
        PoolCounts(free=3, quarantined=1),
        PoolCounts(free=3, lost=1, lost_in_use=1),
    ],
)
def test_free_addresses_go_at_once_and_the_eni_stays_for_what_is_left(counts: PoolCounts) -> None:
    """No window is waited for and no surplus needed; an address that somebody has or had keeps the ENI, whatever its state."""
    assert decide(barely_full(excluded(counts))).actions == (ReleaseAddresses(EniId("eni-1"), FREE),)


def test_nothing_is_asked_once_nothing_of_it_is_free() -> None:
    """All of it in use, cooling or lost: no action, and no call in a loop."""
    assert decide(barely_full(excluded(PoolCounts(assigned=1, cooling=1, lost=1)))).actions == ()


def test_an_empty_one_of_ours_goes_whole_however_young() -> None:
    """Nobody will ever get its addresses, so its age proves nothing."""
    snapshot = barely_full(excluded(PoolCounts(free=3)), ages={EniId("eni-1"): 0.0})
    assert decide(snapshot).actions == (ReleaseEni(EniId("eni-1")),)


@pytest.mark.parametrize("change", [{"is_primary": True}, {"created_by_us": False}])
def test_one_that_we_may_not_delete_keeps_its_place(change: dict[str, bool]) -> None:
    """The primary one, and one that somebody else made: only its free addresses go (I9)."""
    snapshot = barely_full(excluded(PoolCounts(free=3), **change))
    assert decide(snapshot).actions == (ReleaseAddresses(EniId("eni-1"), FREE),)


def test_a_pool_that_is_short_and_cannot_grow_gives_it_back_too() -> None:
    """All places are taken, one by an ENI that nobody may use: it goes, and then another can come."""
    full = [an_eni(index, PoolCounts(assigned=LIMITS.slots_per_eni)) for index in (0, 2, 3)]
    decided = decide(barely_full(excluded(PoolCounts(free=3)), others=full))
    assert decided.deficit_count > 0
    assert decided.actions == (ReleaseEni(EniId("eni-1")),)
    assert "excluded" in decided.sentence


def test_growth_comes_first() -> None:
    """Short, and a place is left: an ENI is made, and nothing is released in the same plan."""
    full = [an_eni(0, PoolCounts(assigned=LIMITS.slots_per_eni))]
    (action,) = decide(barely_full(excluded(PoolCounts(free=3)), others=full)).actions
    assert isinstance(action, CreateEni)


@pytest.mark.parametrize("obstacle", [{"waiting_count": 1}, {"frozen": "the node is being drained"}])
def test_it_waits_like_any_release(obstacle: dict[str, Any]) -> None:
    """An ADD that waits comes first, and a frozen node gives nothing back."""
    assert decide(replace(barely_full(excluded(PoolCounts(free=3))), **obstacle)).actions == ()


def test_only_what_is_free_may_be_named() -> None:
    """Of an excluded ENI as of any: not what is reserved, assigned, cooling, quarantined, lost, or held."""
    states = [state for state in AddressState if state is not AddressState.FREE]
    rows = [Address(IPv4Address(f"10.0.1.{10 + n}"), ENI.eni_id, state, NOW) for n, state in enumerate(states)]
    rows.append(Address(IPv4Address("10.0.1.30"), ENI.eni_id, AddressState.FREE, NOW, lost_since=NOW))
    rows += [Address(address, ENI.eni_id, AddressState.FREE, NOW) for address in FREE]
    snapshot = Snapshot({ENI.eni_id: ENI}, {row.address: row for row in rows}, {}, {}, {})
    assert releasable(snapshot, withheld=frozenset(FREE[2:])) == {ENI.eni_id: ReleaseAddresses(ENI.eni_id, FREE[:2])}


def test_one_that_is_not_managed_is_no_part_of_the_pool() -> None:
    """Tagged no_manage, in an excluded subnet: nothing of it may be named, and no action is about it."""
    foreign = replace(ENI, managed=False, created_by_us=False)
    rows = {address: Address(address, foreign.eni_id, AddressState.FREE, NOW) for address in FREE}
    assert releasable(Snapshot({foreign.eni_id: foreign}, rows, {}, {}, {}), withheld=frozenset()) == {}
    stock = Stock((EniStock(foreign, PoolCounts(free=3), 3, 0, 0),), PoolCounts())
    named = Hold(100, releasable={foreign.eni_id: ReleaseAddresses(foreign.eni_id, FREE)})
    assert decide(replace(pool_snapshot(stock, limits=LIMITS), hold=named, counts=PoolCounts(free=10))).actions == ()
