"""What the planner is told of a pool, from what the datastore counts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network

from ipamd.datastore.memory_state import MemoryState
from ipamd.model.address import Address, AddressState
from ipamd.model.eni import Eni, EniState, InstanceLimits
from ipamd.model.growth_state import GrowthState, growth_refusal
from ipamd.model.ids import EniId, MacAddress, SubnetId
from ipamd.model.pool_counts import PoolCounts, Stock
from ipamd.model.pool_snapshot import EniCapacity, pool_snapshot
from ipamd.model.snapshot import Snapshot
from tests.fakes.clock import FakeClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = InstanceLimits("m5.large", eni_count=3, ipv4_per_eni=10)
FREE, ASSIGNED, COOLING = AddressState.FREE, AddressState.ASSIGNED, AddressState.COOLING


def an_eni(number: int, **changes: object) -> Eni:
    """An attached, ready, managed ENI with device index `number`."""
    eni = Eni(
        eni_id=EniId(f"eni-{number}"),
        mac=MacAddress(f"02:00:00:00:00:0{number}"),
        device_index=number,
        network_card=0,
        subnet_id=SubnetId("subnet-1"),
        subnet_cidr=IPv4Network("10.0.0.0/16"),
        primary_address=IPv4Address(f"10.0.{number}.4"),
        is_primary=number == 0,
        state=EniState.ATTACHED,
        host_ready=True,
    )
    return replace(eni, **changes)  # type: ignore[arg-type]  # a builder of tests


def taken(enis: list[Eni], rows: list[Address]) -> Stock:
    """What the datastore counts of these ENIs and addresses."""
    snapshot = Snapshot({eni.eni_id: eni for eni in enis}, {row.address: row for row in rows}, {}, {}, {})
    return MemoryState(snapshot, clock=FakeClock()).stock()


def row(text: str, number: int, state: AddressState = FREE, prefix: str | None = None) -> Address:
    """One address of ENI `number`."""
    return Address(IPv4Address(text), EniId(f"eni-{number}"), state, NOW, None if prefix is None else IPv4Network(prefix))


def test_a_prefix_takes_one_slot() -> None:
    """Single addresses take a slot each, a prefix one for all of its addresses, and it is free only if all of them are."""
    rows = [row("10.0.0.100", 0), row("10.0.0.101", 0, ASSIGNED)]
    rows += [row(f"10.0.0.{16 + last}", 0, prefix="10.0.0.16/28") for last in range(16)]
    rows += [row(f"10.0.0.{32 + last}", 0, COOLING if last else FREE, prefix="10.0.0.32/28") for last in range(16)]
    found = pool_snapshot(taken([an_eni(0)], rows), limits=LIMITS)
    (eni,) = found.enis
    assert eni == EniCapacity(EniId("eni-0"), 0, EniState.ATTACHED, 4, is_primary=True, counts=eni.counts, prefix_count=2)
    assert found.free_prefix_count == 1
    assert found.counts == PoolCounts(free=18, assigned=1, cooling=15)


def test_enis_are_in_order_and_unmanaged_ones_apart() -> None:
    """Managed ENIs come by device index; an unmanaged one takes a place on card 0, and its addresses are not the pool's."""
    enis = [an_eni(2), an_eni(3, managed=False), an_eni(4, managed=False, network_card=1), an_eni(1)]
    found = pool_snapshot(taken(enis, [row("10.0.3.9", 3), row("10.0.1.9", 1)]), limits=LIMITS)
    assert [eni.device_index for eni in found.enis] == [1, 2]
    assert (found.unmanaged_eni_count, found.unmanaged_device_indexes) == (1, frozenset({3}))
    assert found.counts == PoolCounts(free=1)


def test_free_addresses_without_host_routing_are_told_apart() -> None:
    """Free addresses of an ENI whose routing is not in place are counted, because no ADD can have them (I7)."""
    rows = [row("10.0.1.9", 1), row("10.0.1.10", 1, COOLING), row("10.0.0.9", 0)]
    found = pool_snapshot(taken([an_eni(0), an_eni(1, host_ready=False)], rows), limits=LIMITS)
    assert (found.counts.free, found.unready_free_count) == (2, 1)


def test_what_the_datastore_does_not_know_is_passed_on() -> None:
    """Waiting ADDs and what stands in the way of growth come from the caller."""
    fault, growth = growth_refusal("broken", left_s=9.0), GrowthState(prefixes=growth_refusal("no /28"))
    found = pool_snapshot(taken([], []), limits=LIMITS, waiting_count=3, fault=fault, growth=growth)
    assert (found.waiting_count, found.fault, found.prefixes_available) == (3, fault, False)


def test_places_of_enis_that_are_gone_going_or_not_recorded() -> None:
    """An absent ENI, whose addresses are all lost, takes no place; one that is being detached, and one that is not recorded, do."""
    enis = [an_eni(0), an_eni(1, state=EniState.DETACHING, host_ready=False), an_eni(2, state=EniState.DETACHING)]
    rows = [
        replace(row("10.0.1.9", 1, COOLING), cooling_until=NOW, lost_since=NOW),
        replace(row("10.0.2.9", 2, COOLING), cooling_until=NOW, lost_since=NOW),
        row("10.0.2.10", 2),
    ]
    found = pool_snapshot(taken(enis, rows), limits=LIMITS, occupied=[(0, 3), (1, 1), (0, -1)])
    assert [eni.device_index for eni in found.enis] == [0, 2]
    assert (found.unmanaged_eni_count, found.unmanaged_device_indexes) == (2, frozenset({3}))
