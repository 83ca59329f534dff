"""The taken addresses of one subnet, and the choice of free ones.

An address has at most one owner, and a prefix and a single address never overlap. EC2 reserves the first four addresses and the last
one of each subnet. `pick_*` chooses addresses without taking them, so that a transaction can still fail afterwards. Not thread-safe:
the caller holds the store's lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network
from random import Random

from lab.vpc import errors
from lab.vpc.model import ReservationKind

PREFIX_LENGTH = 28  # EC2's only IPv4 prefix size
BLOCK_SIZE = 16
RESERVED_HEAD = 4  # network, router, DNS, future use (VPC user guide, "Subnet sizing")
_PROBES = 512  # ours: enough random draws to fill an ENI in a subnet of which nine tenths are taken; a scan follows them


class AddressChoice(StrEnum):
    """Which free address EC2 chooses. RECENT_FIRST: the one released last, which is the worst case for the daemon's cooldown."""

    RANDOM = "random"
    LOWEST = "lowest"
    RECENT_FIRST = "recent-first"


class SubnetSpace:
    """The owners of the addresses of one subnet."""

    def __init__(self, cidr: IPv4Network, *, rng: Random, choice: AddressChoice = AddressChoice.RANDOM) -> None:
        self.cidr = cidr
        self._rng = rng
        self._choice = choice
        self._first = int(cidr.network_address) + RESERVED_HEAD
        self._last = int(cidr.broadcast_address) - 1
        self._single: dict[int, str] = {}
        self._block: dict[int, str] = {}
        self._in_block: Counter[int] = Counter()
        self._released: dict[int, None] = {}  # an ordered set, in the order of release
        self._reserved: list[tuple[IPv4Network, ReservationKind]] = []

    @property
    def free_count(self) -> int:
        """Number of addresses without an owner. The owner of a prefix owns its sixteen addresses."""
        return self._last - self._first + 1 - len(self._single) - BLOCK_SIZE * len(self._block)

    def reserve(self, network: IPv4Network, kind: ReservationKind) -> None:
        """Reserve a range. It does not change AvailableIpAddressCount (ours: whether EC2 subtracts it is not documented)."""
        self._reserved.append((network, kind))

    def owner_of(self, address: IPv4Address) -> str | None:
        """Return the owner of an address, or of the prefix that contains it; None if it has no owner."""
        value = int(address)
        return self._single.get(value) or self._block.get(_base(value))

    def check_assignable(self, address: IPv4Address) -> None:
        """Raise Ec2Error for an address outside the subnet, or in the part that EC2 reserves."""
        if address not in self.cidr:
            raise errors.invalid_value(f"Address {address} does not fall within the subnet's address range")
        if not self._first <= int(address) <= self._last:
            raise errors.invalid_value(f"Address {address} is in subnet's reserved address range")

    def check_prefix(self, prefix: IPv4Network) -> None:
        """Raise Ec2Error for a prefix that has the wrong size, is outside the subnet, or contains a taken address."""
        if prefix.prefixlen != PREFIX_LENGTH or not prefix.subnet_of(self.cidr):
            raise errors.invalid_value(f"Prefix {prefix} is not a /{PREFIX_LENGTH} within the subnet's address range")
        if not self._block_is_free(int(prefix.network_address)):
            raise errors.invalid_value(f"Prefix {prefix} is not available")

    def pick_addresses(self, count: int, *, exclude: Iterable[IPv4Address] = ()) -> list[IPv4Address]:
        """Choose `count` free addresses that are not in `exclude`, without taking them.

        Raises: Ec2Error InsufficientFreeAddressesInSubnet if fewer are free.
        """
        chosen: list[int] = []
        avoid = {int(address) for address in exclude}
        for value in self._candidates():
            if len(chosen) == count:
                break
            if value not in avoid and self._is_free(value) and not self._is_address_reserved(value):
                chosen.append(value)
                avoid.add(value)
        if len(chosen) < count:
            raise errors.no_free_addresses()
        return [IPv4Address(value) for value in chosen]

    def pick_prefixes(self, count: int, *, exclude: Iterable[IPv4Address] = ()) -> list[IPv4Network]:
        """Choose `count` free aligned /28 blocks that contain no address of `exclude`, without taking them.

        Raises: Ec2Error InvalidParameterValue if too few addresses are free, InsufficientCidrBlocks if they form too few whole blocks.
        """
        avoid = {_base(int(address)) for address in exclude}
        free = [prefix for prefix in self.free_prefixes() if int(prefix.network_address) not in avoid]
        if len(free) < count:
            if self.free_count < count * BLOCK_SIZE:
                raise errors.no_room_for_prefixes()
            raise errors.no_free_prefixes()
        return self._rng.sample(free, count) if self._choice is AddressChoice.RANDOM else free[:count]

    def free_addresses(self) -> list[IPv4Address]:
        """List the addresses without an owner, lowest first."""
        return [IPv4Address(value) for value in range(self._first, self._last + 1) if self._is_free(value)]

    def free_blocks(self) -> list[int]:
        """List the free aligned blocks, also those in reservations, by their first addresses as integers."""
        return [base for base in self._blocks() if self._block_is_free(base)]

    def free_prefixes(self) -> list[IPv4Network]:
        """List the blocks that EC2 may choose for a prefix, lowest first."""
        return [IPv4Network((base, PREFIX_LENGTH)) for base in self.free_blocks() if not self._is_block_reserved(base)]

    def take(self, addresses: Iterable[IPv4Address], prefixes: Iterable[IPv4Network], *, owner: str) -> None:
        """Record an owner. The caller has checked that all are free, so an address that is taken is a defect: AssertionError."""
        for address in addresses:
            value = int(address)
            if not self._is_free(value):
                raise AssertionError(f"{address} given to {owner} but owned by {self.owner_of(address)}")
            self._single[value] = owner
            self._released.pop(value, None)
            self._in_block[_base(value)] += 1
        for prefix in prefixes:
            base = int(prefix.network_address)
            if not self._block_is_free(base):
                raise AssertionError(f"{prefix} given to {owner} but not free")
            self._block[base] = owner

    def release(self, addresses: Iterable[IPv4Address], prefixes: Iterable[IPv4Network]) -> None:
        """Remove the owner of addresses and prefixes. As in EC2, they may be chosen again at once."""
        for address in addresses:
            value = int(address)
            del self._single[value]
            self._in_block[_base(value)] -= 1
            self._released[value] = None
        for prefix in prefixes:
            del self._block[int(prefix.network_address)]

    def _candidates(self) -> Iterator[int]:
        if self._choice is AddressChoice.RECENT_FIRST:
            yield from reversed(self._released)
        start = self._first
        if self._choice is AddressChoice.RANDOM:
            for _ in range(_PROBES):
                yield self._rng.randint(self._first, self._last)
            start = self._rng.randint(self._first, self._last)
        yield from range(start, self._last + 1)
        yield from range(self._first, start)

    def _blocks(self) -> range:
        """Aligned blocks that contain no reserved address."""
        first = _base(self._first + BLOCK_SIZE - 1)
        return range(first, int(self.cidr.broadcast_address) + 1 - BLOCK_SIZE, BLOCK_SIZE)

    def _is_free(self, value: int) -> bool:
        return self._first <= value <= self._last and value not in self._single and _base(value) not in self._block

    def _is_address_reserved(self, value: int) -> bool:
        """Whether an address lies in a reservation of either kind."""
        return any(IPv4Address(value) in network for network, _ in self._reserved)

    def _is_block_reserved(self, base: int) -> bool:
        """Whether a part of a block is reserved explicitly."""
        block = IPv4Network((base, PREFIX_LENGTH))
        return any(block.overlaps(network) and kind is ReservationKind.EXPLICIT for network, kind in self._reserved)

    def _block_is_free(self, base: int) -> bool:
        return base in self._blocks() and base not in self._block and not self._in_block[base]


def _base(value: int) -> int:
    return value - value % BLOCK_SIZE
