"""The map of free /28s is what a search address by address finds, and what EC2 can really give, on 1,000 random subnets."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from random import Random

import pytest

from ipamd.inventory.capacity import free_blocks
from lab.vpc.model import Eni, ReservationKind, Subnet
from tests.lab.inventory.account import InventoryAccount, an_account, report_of

SUBNETS_IN_A_VPC = 50
VPCS = 20


def random_cidrs(rng: Random) -> list[str]:
    """Subnets of random sizes, one in each /22 of the VPC."""
    cidrs = []
    for number in range(SUBNETS_IN_A_VPC):
        length = rng.randint(22, 28)
        cidrs.append(f"10.0.{number * 4}.0/{length}")
    return cidrs


def fill(account: InventoryAccount, subnet: Subnet, rng: Random) -> None:
    """Give a subnet reservations, and ENIs with single addresses and prefixes in random places."""
    for _ in range(rng.choice((0, 0, 1, 2))):
        length = rng.randint(max(subnet.cidr.prefixlen + 1, 25), 30)
        offset = rng.randrange(2 ** (length - subnet.cidr.prefixlen)) << (32 - length)
        network = IPv4Network((int(subnet.cidr.network_address) + offset, length))
        if not any(network.overlaps(other.cidr) for other in account.vpc.world.subnet(subnet.subnet_id).reservations):
            account.vpc.reserve_cidr(subnet.subnet_id, str(network), rng.choice(list(ReservationKind)))
    usable = list(subnet.cidr)[4:-1]
    blocks = [block for block in subnet.cidr.subnets(new_prefix=28) if block[0] in usable and block[-1] in usable]
    prefixes = [block for block in blocks if rng.random() < rng.choice((0.0, 0.3, 0.9))]
    open_addresses = [address for address in usable if not any(address in prefix for prefix in prefixes)]
    crowding = rng.choice((0.005, 0.03, 0.3))
    singles = [address for address in open_addresses if rng.random() < crowding]
    if prefixes and not singles and open_addresses:
        singles = open_addresses[:1]
    account.vpc.add_enis(enis_of(account, subnet, singles, prefixes))


def enis_of(account: InventoryAccount, subnet: Subnet, singles: list[IPv4Address], prefixes: list[IPv4Network]) -> list[Eni]:
    """Share addresses out to ENIs of 15 at most; the first one has the prefixes."""
    enis = []
    for start in range(0, len(singles), 15):
        part = singles[start : start + 15]
        enis.append(account.eni(subnet, part[0], secondary=part[1:], prefixes=prefixes if start == 0 else ()))
    return enis


def brute_force(account: InventoryAccount, subnet: Subnet) -> tuple[list[IPv4Network], int]:
    """Ask of each address whether somebody has it. Returns: the /28s that EC2 can choose, and the number of free addresses."""
    world = account.vpc.world
    addresses = list(subnet.cidr)
    explicit = [item.cidr for item in world.subnet(subnet.subnet_id).reservations if item.kind is ReservationKind.EXPLICIT]

    def is_free(address: IPv4Address) -> bool:
        return account.vpc.owner_of(address) is None and address not in [*addresses[:4], addresses[-1]]

    blocks = []
    for start in range(0, len(addresses), 16):
        block = addresses[start : start + 16]
        if all(is_free(address) and not any(address in cidr for cidr in explicit) for address in block):
            blocks.append(IPv4Network((block[0], 28)))
    return blocks, sum(map(is_free, addresses))


@pytest.mark.parametrize("seed", range(VPCS))
def test_free_blocks_equal_brute_force(seed: int) -> None:
    """Free /28s and free addresses of 50 random subnets; EC2's own choice has the same blocks, and its count is ours."""
    rng = Random(seed)
    with an_account() as account:
        subnets = [account.vpc.add_subnet(cidr) for cidr in random_cidrs(rng)]
        for subnet in subnets:
            fill(account, subnet, rng)
        report = account.take(calls_max=100)
        assert report.gaps == ()
        assert len(report.subnets) == SUBNETS_IN_A_VPC
        for subnet in subnets:
            shown = report_of(report, subnet)
            blocks, free_count = brute_force(account, subnet)
            assert free_blocks(subnet.cidr, shown.capacity.block_map) == blocks
            assert shown.capacity.free_prefix_count == len(blocks)
            assert shown.capacity.free_count == free_count == shown.ec2_free_count
            assert account.vpc.free_prefixes(subnet.subnet_id) == blocks
            parts = (16 * len(blocks), shown.capacity.fragmented_count, shown.capacity.explicit_count)
            assert sum(parts) == free_count
