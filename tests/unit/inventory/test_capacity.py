"""The map of a subnet: what is free, what EC2 can choose for a prefix, and what is kept from it."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest

from ipamd.inventory.capacity import (
    BlockState,
    CidrReservation,
    ReservedFor,
    SubnetCapacity,
    free_blocks,
    measure,
    state_counts,
    usable_count,
)

CIDR = IPv4Network("10.0.0.0/25")


def at(offset: int) -> IPv4Address:
    """An address of the subnet."""
    return CIDR[offset]


def capacity(*offsets: int, prefixes: tuple[str, ...] = (), reservations: tuple[CidrReservation, ...] = ()) -> SubnetCapacity:
    """Measure the subnet with these single addresses."""
    return measure(CIDR, addresses=map(at, offsets), prefixes=map(IPv4Network, prefixes), reservations=reservations)


def test_an_empty_subnet_has_no_prefix_at_its_ends() -> None:
    """AWS has the first four addresses and the last one."""
    empty = capacity()
    assert empty == SubnetCapacity("+......+", free_count=123, fragmented_count=27, explicit_count=0)
    assert (empty.free_prefix_count, usable_count(CIDR)) == (6, 123)
    assert free_blocks(CIDR, empty.block_map)[0] == IPv4Network("10.0.0.16/28")


def test_one_address_takes_a_whole_block() -> None:
    """Fragmentation: 15 addresses are left that no prefix can have."""
    assert capacity(20) == SubnetCapacity("++.....+", free_count=122, fragmented_count=42, explicit_count=0)


def test_a_prefix_and_a_full_block() -> None:
    """Both are full."""
    full = capacity(*range(48, 64), prefixes=("10.0.0.16/28",))
    assert full.block_map == "+#.#...+"
    assert state_counts(full.block_map)[BlockState.FULL] == 2


def test_a_full_subnet() -> None:
    """Nothing is free."""
    full = capacity(*range(128))
    assert full == SubnetCapacity("########", free_count=0, fragmented_count=0, explicit_count=0)


def test_reservations() -> None:
    """For prefixes a block stays free; an explicit one keeps it, whole or in part, and its addresses are nobody's to choose."""
    reservations = (
        CidrReservation(IPv4Network("10.0.0.32/27"), ReservedFor.PREFIX),
        CidrReservation(IPv4Network("10.0.0.64/28"), ReservedFor.EXPLICIT),
        CidrReservation(IPv4Network("10.0.0.84/30"), ReservedFor.EXPLICIT),
    )
    measured = capacity(35, 85, reservations=reservations)
    assert measured.block_map == "+.+px+.+"
    assert (measured.free_count, measured.explicit_count) == (121, 16 + 3)
    assert measured.fragmented_count == 27 + 15 + 12
    assert 16 * measured.free_prefix_count + measured.fragmented_count + measured.explicit_count == measured.free_count


def test_foreign_addresses_count_for_nothing() -> None:
    """An ENI may have addresses of a block that was added to the VPC later."""
    assert measure(CIDR, addresses=[IPv4Address("10.0.1.5")], prefixes=[IPv4Network("10.0.9.0/28")]) == capacity()


@pytest.mark.parametrize(("cidr", "block_map"), [("10.0.0.0/28", "+"), ("10.0.0.0/27", "++"), ("10.0.0.0/26", "+..+")])
def test_small_subnets(cidr: str, block_map: str) -> None:
    """Down to EC2's smallest."""
    assert measure(IPv4Network(cidr), addresses=(), prefixes=()).block_map == block_map
