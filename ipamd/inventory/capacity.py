"""Decide which addresses of a subnet are free, and which whole /28s EC2 can still choose for a prefix. Pure.

EC2 reports how many addresses of a subnet are free, and not where they are. A prefix needs an aligned /28 in which no address is
taken, so a subnet with hundreds of free addresses may have room for no prefix. This module makes a map with one character for each
/28, from the addresses of all ENIs and the subnet's CIDR reservations. Sources:
https://docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html (the first four addresses and the last one are AWS's);
https://docs.aws.amazon.com/vpc/latest/userguide/subnet-cidr-reservation.html (kinds of reservations);
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-prefix-eni.html (a prefix is a /28).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network

from ipamd.model.eni import ADDRESSES_PER_PREFIX
from ipamd.model.record import dataclass

AWS_HEAD_COUNT = 4
"""Addresses at the beginning of a subnet that AWS keeps; it keeps the last one too."""

PREFIX_LENGTH = 28


class ReservedFor(StrEnum):
    """Kinds of CIDR reservations, with EC2's names.

    PREFIX: EC2 chooses only prefixes from it.
    EXPLICIT: EC2 chooses neither addresses nor prefixes from it; a request must name the address.
    """

    PREFIX = "prefix"
    EXPLICIT = "explicit"


class BlockState(StrEnum):
    """The state of one /28; its value is the character on the map of a subnet.

    FREE: no address is taken, and EC2 can choose the /28 for a prefix.
    KEPT: as FREE, and the /28 lies in a reservation for prefixes.
    WITHHELD: no address is taken, but an explicit reservation keeps EC2 from choosing the /28.
    PARTLY: some addresses are taken.
    FULL: all addresses are taken.
    """

    FREE = "."
    KEPT = "p"
    WITHHELD = "x"
    PARTLY = "+"
    FULL = "#"


@dataclass(frozen=True, slots=True)
class CidrReservation:
    """One reservation of a subnet."""

    cidr: IPv4Network
    reserved_for: ReservedFor


@dataclass(frozen=True, slots=True)
class SubnetCapacity:
    """The free addresses and /28s of a subnet.

    `block_map`: the character of a `BlockState` for each /28, lowest first.
    `free_count`: free addresses, which neither AWS nor an ENI has. It is the sum of `fragmented_count`, `explicit_count`, and 16 for
        each /28 that EC2 can choose.
    `fragmented_count`: free addresses outside those /28s and outside explicit reservations.
    `explicit_count`: free addresses in explicit reservations.
    """

    block_map: str
    free_count: int
    fragmented_count: int
    explicit_count: int

    @property
    def free_prefix_count(self) -> int:
        """Whole /28s that EC2 can choose for a prefix."""
        return self.block_map.count(BlockState.FREE) + self.block_map.count(BlockState.KEPT)


def usable_count(cidr: IPv4Network) -> int:
    """Return the number of addresses of a subnet without the five that AWS keeps."""
    return cidr.num_addresses - AWS_HEAD_COUNT - 1


def measure(
    cidr: IPv4Network,
    *,
    addresses: Iterable[IPv4Address],
    prefixes: Iterable[IPv4Network],
    reservations: Collection[CidrReservation] = (),
) -> SubnetCapacity:
    """Measure the free capacity of a subnet.

    Args:
        cidr: the subnet's range, a /16 to /28.
        addresses: the single addresses of all its ENIs, primary ones included. Addresses outside the subnet are ignored.
        prefixes: the /28s of all its ENIs.
    """
    taken_by_block = _taken_by_block(cidr, addresses=addresses, prefixes=prefixes)
    explicit = [item.cidr for item in reservations if item.reserved_for is ReservedFor.EXPLICIT]
    for_prefixes = [item.cidr for item in reservations if item.reserved_for is ReservedFor.PREFIX]
    explicit_by_block = _addresses_by_block(cidr, explicit)
    kept_by_block = _addresses_by_block(cidr, for_prefixes)
    states = []
    free_count = explicit_count = fragmented_count = 0
    for block in range(0, cidr.num_addresses, ADDRESSES_PER_PREFIX):
        taken = taken_by_block.get(block, frozenset())
        explicit_here = explicit_by_block.get(block, frozenset())
        state = _state(len(taken), is_explicit=bool(explicit_here), is_kept=block in kept_by_block)
        states.append(state)
        free = ADDRESSES_PER_PREFIX - len(taken)
        free_count += free
        explicit_free = len(explicit_here - taken)
        explicit_count += explicit_free
        if state not in (BlockState.FREE, BlockState.KEPT):
            fragmented_count += free - explicit_free
    return SubnetCapacity("".join(states), free_count, fragmented_count, explicit_count)


def free_blocks(cidr: IPv4Network, block_map: str) -> list[IPv4Network]:
    """Return the whole /28s of a map that EC2 can choose, lowest first."""
    first = int(cidr.network_address)
    return [
        IPv4Network((first + number * ADDRESSES_PER_PREFIX, PREFIX_LENGTH))
        for number, state in enumerate(block_map)
        if state in (BlockState.FREE, BlockState.KEPT)
    ]


def _state(taken_count: int, *, is_explicit: bool, is_kept: bool) -> BlockState:
    if taken_count == ADDRESSES_PER_PREFIX:
        return BlockState.FULL
    if taken_count:
        return BlockState.PARTLY
    if is_explicit:
        return BlockState.WITHHELD
    if is_kept:
        return BlockState.KEPT
    return BlockState.FREE


def _taken_by_block(
    cidr: IPv4Network, *, addresses: Iterable[IPv4Address], prefixes: Iterable[IPv4Network]
) -> dict[int, frozenset[int]]:
    """Return the taken addresses as offsets in the subnet, by the offset of their /28. AWS's five addresses are included."""
    first, count = int(cidr.network_address), cidr.num_addresses
    offsets = {*range(AWS_HEAD_COUNT), count - 1}
    offsets.update(int(address) - first for address in addresses)
    for prefix in prefixes:
        start = int(prefix.network_address) - first
        offsets.update(range(start, start + prefix.num_addresses))
    return _by_block(offset for offset in offsets if 0 <= offset < count)


def _addresses_by_block(cidr: IPv4Network, ranges: Iterable[IPv4Network]) -> dict[int, frozenset[int]]:
    """Return the addresses of some ranges as offsets in the subnet, by the offset of their /28."""
    first, count = int(cidr.network_address), cidr.num_addresses
    offsets: set[int] = set()
    for network in ranges:
        start = int(network.network_address) - first
        offsets.update(range(max(start, 0), min(start + network.num_addresses, count)))
    return _by_block(offsets)


def _by_block(offsets: Iterable[int]) -> dict[int, frozenset[int]]:
    blocks: dict[int, set[int]] = {}
    for offset in offsets:
        blocks.setdefault(offset - offset % ADDRESSES_PER_PREFIX, set()).add(offset)
    return {block: frozenset(members) for block, members in blocks.items()}


def state_counts(block_map: str) -> Counter[BlockState]:
    """Count the /28s of a map by their state."""
    return Counter(map(BlockState, block_map))
