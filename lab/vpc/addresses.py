"""The addresses and prefixes that an ENI gets and loses: the rules of Create, Assign and UnassignPrivateIpAddresses.

All functions read and write an open transaction of the store. Source: the API reference of the three calls. The order of the checks is
ours: syntax, then limit, then the subnet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Generic, TypeVar

from lab.vpc import errors
from lab.vpc.model import Eni
from lab.vpc.store import Transaction

A = TypeVar("A", IPv4Address, IPv6Address)
N = TypeVar("N", IPv4Network, IPv6Network)


@dataclass(frozen=True, kw_only=True)
class Request(Generic[A, N]):
    """A request for addresses of one family: single addresses or prefixes, by count or by name."""

    addresses: tuple[A, ...] = ()
    address_count: int = 0
    prefixes: tuple[N, ...] = ()
    prefix_count: int = 0

    def __post_init__(self) -> None:
        """Check the request as EC2 does. Raises: Ec2Error, for example if a count is combined with names or with a second count."""
        asked = [bool(self.addresses), bool(self.address_count), bool(self.prefixes), bool(self.prefix_count)]
        if min(self.address_count, self.prefix_count) < 0:
            raise errors.invalid_value("The number of addresses or prefixes must not be negative")
        if sum(asked) > 1 and (self.address_count or self.prefix_count):
            raise errors.invalid_combination(
                "A count of addresses or prefixes cannot be combined with a second request for addresses or prefixes"
            )
        if len(set(self.addresses)) < len(self.addresses) or len(set(self.prefixes)) < len(self.prefixes):
            raise errors.invalid_value("An address or prefix is specified twice")
        if any(address in prefix for address in self.named for prefix in self.prefixes):
            raise errors.invalid_value("A specified address lies within a specified prefix")

    @property
    def named(self) -> tuple[A, ...]:
        """All addresses that the request names."""
        return self.addresses

    @property
    def slot_count(self) -> int:
        """Number of requested slots besides that of the primary address; a prefix takes one slot."""
        return len(self.addresses) + self.address_count + len(self.prefixes) + self.prefix_count


@dataclass(frozen=True, kw_only=True)
class AddressRequest(Request[IPv4Address, IPv4Network]):
    """A request for IPv4. `primary`: the primary address of a new ENI; None lets EC2 choose it."""

    primary: IPv4Address | None = None

    @property
    def named(self) -> tuple[IPv4Address, ...]:
        """All addresses that the request names, the primary address included."""
        return self.addresses if self.primary is None else (self.primary, *self.addresses)


@dataclass(frozen=True)
class Choice:
    """Addresses chosen for a new ENI."""

    primary: IPv4Address
    secondary: tuple[IPv4Address, ...]
    prefixes: tuple[IPv4Network, ...]


def choose_for_new(tx: Transaction, subnet_id: str, want: AddressRequest, *, limit: int) -> Choice:
    """Choose all addresses of an ENI to be created, without assigning them. `limit`: most addresses and prefixes. Raises: Ec2Error."""
    if 1 + want.slot_count > limit:
        raise errors.address_limit()
    space = tx.space(subnet_id)
    named = want.named
    for address in named:
        space.check_assignable(address)
        if space.owner_of(address) is not None:
            raise errors.address_taken(address)
    for prefix in want.prefixes:
        space.check_prefix(prefix)
    prefixes = want.prefixes or tuple(space.pick_prefixes(want.prefix_count, exclude=named))
    within = [address for prefix in prefixes for address in prefix]
    primary = want.primary or space.pick_addresses(1, exclude=[*named, *within])[0]
    secondary = want.addresses or tuple(space.pick_addresses(want.address_count, exclude=[*named, *within, primary]))
    if primary in secondary:
        raise errors.invalid_value(f"Address {primary} is specified twice")
    return Choice(primary, secondary, prefixes)


def assign(
    tx: Transaction, eni: Eni, want: AddressRequest, *, limit: int, allow_reassignment: bool
) -> tuple[tuple[IPv4Address, ...], tuple[IPv4Network, ...]]:
    """Assign more addresses or prefixes to an ENI.

    Returns: the addresses and prefixes that the request names, also those that the ENI had already; if it names none, those that were
        chosen. Raises: Ec2Error.
    """
    if not want.slot_count:
        raise errors.missing_parameter("privateIpAddress, secondaryPrivateIpAddressCount, Ipv4Prefix or Ipv4PrefixCount")
    space = tx.space(eni.subnet_id)
    new_addresses = tuple(a for a in want.addresses if a not in eni.addresses)
    new_prefixes = tuple(p for p in want.prefixes if p not in eni.prefixes)
    used = len(eni.addresses) + len(eni.prefixes)
    if used + len(new_addresses) + len(new_prefixes) + want.address_count + want.prefix_count > limit:
        raise errors.address_limit()
    for address in new_addresses:
        space.check_assignable(address)
    for prefix in new_prefixes:
        space.check_prefix(prefix)
    _take_from_others(tx, new_addresses, space_owner={a: space.owner_of(a) for a in new_addresses}, allowed=allow_reassignment)
    new_addresses += tuple(space.pick_addresses(want.address_count))
    new_prefixes += tuple(space.pick_prefixes(want.prefix_count))
    tx.put_eni(
        replace(
            eni,
            secondary_addresses=eni.secondary_addresses + new_addresses,
            prefixes=eni.prefixes + new_prefixes,
        )
    )
    return want.addresses or new_addresses, want.prefixes or new_prefixes


def unassign(tx: Transaction, eni: Eni, *, addresses: Iterable[IPv4Address], prefixes: Iterable[IPv4Network]) -> None:
    """Remove addresses and prefixes from an ENI. Nothing is removed if any of them is not on the ENI, or is its primary address.

    Raises: Ec2Error.
    """
    gone, gone_prefixes = set(addresses), set(prefixes)
    if not gone and not gone_prefixes:
        raise errors.missing_parameter("privateIpAddress or Ipv4Prefix")
    if eni.primary_address in gone:
        raise errors.invalid_value(
            f"Value ({eni.primary_address}) for parameter privateIpAddress is invalid. "
            "The primary IP address of an interface cannot be unassigned."
        )
    if not gone <= set(eni.secondary_addresses) or not gone_prefixes <= set(eni.prefixes):
        raise errors.not_assigned(eni.eni_id)
    tx.put_eni(
        replace(
            eni,
            secondary_addresses=tuple(a for a in eni.secondary_addresses if a not in gone),
            prefixes=tuple(p for p in eni.prefixes if p not in gone_prefixes),
        )
    )


def _take_from_others(
    tx: Transaction, addresses: Iterable[IPv4Address], *, space_owner: dict[IPv4Address, str | None], allowed: bool
) -> None:
    """Remove addresses from the other ENIs that have them.

    Raises: Ec2Error if another ENI has one of them and `allowed` is false, or has it as its primary address or in a prefix.
    """
    taken = [address for address in addresses if space_owner[address] is not None]
    if taken and not allowed:
        raise errors.addresses_in_use(taken)
    for address in taken:
        other = tx.world.enis.get(space_owner[address] or "")
        if other is None or address not in other.secondary_addresses:
            raise errors.addresses_in_use([address])
        rest = tuple(a for a in other.secondary_addresses if a != address)
        tx.put_eni(replace(other, secondary_addresses=rest))
