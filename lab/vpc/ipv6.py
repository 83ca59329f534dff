"""The IPv6 addresses and prefixes that an ENI gets and loses: the rules of AssignIpv6Addresses and UnassignIpv6Addresses.

There is no record of free addresses, because a /64 has 65,536 prefixes. Instead each random choice is compared with the ENIs of the
world. EC2 keeps the first four addresses and the last one of each subnet ("Subnet sizing", VPC user guide). A prefix is always a /80
("Prefix delegation", EC2 user guide). Refusals have the codes of IPv4 (ours: for IPv6 no code is documented).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from ipaddress import IPv6Address, IPv6Network
from random import Random

from lab.vpc import errors
from lab.vpc.addresses import Request
from lab.vpc.model import Eni, Subnet
from lab.vpc.store import Transaction
from lab.vpc.world import World

PREFIX_LENGTH = 80
SUBNET_LENGTH = 64
PREFIX_SIZE = 1 << 128 - PREFIX_LENGTH
PREFIXES_OF_SUBNET = 1 << PREFIX_LENGTH - SUBNET_LENGTH
RESERVED_HEAD = 4


Ipv6Request = Request[IPv6Address, IPv6Network]
"""A request for IPv6: addresses or /80 prefixes, by count or by name."""


def choose(
    world: World, subnet: Subnet, want: Ipv6Request, *, rng: Random, eni: Eni | None = None, limit: int
) -> tuple[tuple[IPv6Address, ...], tuple[IPv6Network, ...]]:
    """Choose the addresses and prefixes of a request, without assigning them.

    Args:
        eni: the ENI that gets them; None for a new ENI.
        limit: most addresses and prefixes of the ENI.
    Raises: Ec2Error.
    """
    used = len(eni.ipv6_addresses) + len(eni.ipv6_prefixes) if eni is not None else 0
    if used + want.slot_count > limit:
        raise errors.address_limit()
    if not want.slot_count:
        return (), ()
    if subnet.ipv6_cidr is None:
        raise errors.invalid_value(f"Subnet {subnet.subnet_id} does not have an IPv6 CIDR block")
    for address in want.addresses:
        _check_address(world, subnet.ipv6_cidr, address)
    for prefix in want.prefixes:
        if prefix.prefixlen != PREFIX_LENGTH or not prefix.subnet_of(subnet.ipv6_cidr) or not _is_free(world, prefix):
            raise errors.invalid_value(f"Prefix {prefix} is not a free /{PREFIX_LENGTH} within the subnet's address range")
    if want.prefix_count and subnet.ipv6_prefixes_held:
        raise errors.no_free_prefixes()
    prefixes, addresses = list(want.prefixes), list(want.addresses)
    base = int(subnet.ipv6_cidr.network_address)
    while len(prefixes) < len(want.prefixes) + want.prefix_count:
        # The first prefix is left out, because the subnet's reserved addresses are in it.
        prefix = IPv6Network((base + rng.randrange(1, PREFIXES_OF_SUBNET) * PREFIX_SIZE, PREFIX_LENGTH))
        if prefix not in prefixes and _is_free(world, prefix):
            prefixes.append(prefix)
    while len(addresses) < len(want.addresses) + want.address_count:
        address = IPv6Address(base + rng.randrange(RESERVED_HEAD, (1 << 128 - SUBNET_LENGTH) - 1))
        if address not in addresses and _is_free(world, IPv6Network(address)):
            addresses.append(address)
    return tuple(addresses), tuple(prefixes)


def assign(
    tx: Transaction, eni: Eni, want: Ipv6Request, *, rng: Random, limit: int
) -> tuple[tuple[IPv6Address, ...], tuple[IPv6Network, ...]]:
    """Assign more addresses or prefixes to an ENI. Returns: those that were named or chosen. Raises: Ec2Error."""
    if not want.slot_count:
        raise errors.missing_parameter("ipv6Addresses, ipv6AddressCount, Ipv6Prefix or Ipv6PrefixCount")
    addresses, prefixes = choose(tx.world, tx.world.subnet(eni.subnet_id), want, rng=rng, eni=eni, limit=limit)
    tx.put_eni(replace(eni, ipv6_addresses=eni.ipv6_addresses + addresses, ipv6_prefixes=eni.ipv6_prefixes + prefixes))
    return addresses, prefixes


def unassign(tx: Transaction, eni: Eni, *, addresses: Iterable[IPv6Address], prefixes: Iterable[IPv6Network]) -> None:
    """Remove addresses and prefixes from an ENI. Nothing is removed if any of them is not on the ENI. Raises: Ec2Error."""
    gone, gone_prefixes = set(addresses), set(prefixes)
    if not gone and not gone_prefixes:
        raise errors.missing_parameter("ipv6Addresses or Ipv6Prefix")
    if not gone <= set(eni.ipv6_addresses) or not gone_prefixes <= set(eni.ipv6_prefixes):
        raise errors.not_assigned(eni.eni_id)
    tx.put_eni(
        replace(
            eni,
            ipv6_addresses=tuple(address for address in eni.ipv6_addresses if address not in gone),
            ipv6_prefixes=tuple(prefix for prefix in eni.ipv6_prefixes if prefix not in gone_prefixes),
        )
    )


def _check_address(world: World, cidr: IPv6Network, address: IPv6Address) -> None:
    if address not in cidr:
        raise errors.invalid_value(f"Address {address} does not fall within the subnet's address range")
    if int(address) - int(cidr.network_address) < RESERVED_HEAD or address == cidr[-1]:
        raise errors.invalid_value(f"Address {address} is in subnet's reserved address range")
    if not _is_free(world, IPv6Network(address)):
        raise errors.address_taken(address)


def _is_free(world: World, block: IPv6Network) -> bool:
    """Whether no ENI has an address or a prefix that overlaps the block."""
    return not any(
        block.overlaps(taken)
        for eni in world.enis.values()
        for taken in (*eni.ipv6_prefixes, *map(IPv6Network, eni.ipv6_addresses))
    )
