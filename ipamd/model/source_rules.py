"""Where the rules from single addresses are, so that a packet does not have to pass those of all other sandboxes (docs/adr/0088).

The kernel walks rules as a list. A subnet is cut into blocks, and the rules from the addresses of block `b` are in bucket `b`, which
all subnets share. In front of the buckets a `goto` rule leads each block to its bucket, and behind each bucket one leads it past the
others:

    1537            from BLOCK goto its landing                        one for each block of each subnet
    1538            nop                                                landing of block 0
    1539            from ADDRESS lookup TABLE                          bucket 0
    1540            from BLOCK 0 goto 1570, for each subnet            also the landing of block 1
    1541            from ADDRESS lookup TABLE                          bucket 1
    ...
    1569            from ADDRESS lookup TABLE                          bucket 15
    1570            nop                                                end

A `goto` rule passes only rules that cannot select its packets. So where one is missing each packet goes the same way, after more
rules. This does not hold if other software has a rule between them, or if subnets overlap: then there must be no `goto` rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network
from typing import NamedTuple

from ipamd.model.eni import InstanceLimits
from ipamd.model.family import IpAddress
from ipamd.model.kernel_numbers import FROM_SANDBOX_PRIORITY

BUCKET_BITS = 4
BUCKET_COUNT = 1 << BUCKET_BITS
"""Ours: with 700 addresses a packet passes as many `goto` rules as rules of its bucket. Twice as many buckets measured the same."""

JUMP_PRIORITY = FROM_SANDBOX_PRIORITY + 1
"""Directly behind the place of such rules that amazon-vpc-cni-k8s and small nodes use, so a rule there decides first."""

FIRST_LANDING = JUMP_PRIORITY + 1
END_PRIORITY = FIRST_LANDING + 2 * BUCKET_COUNT
BUCKET_PRIORITIES = range(FIRST_LANDING + 1, END_PRIORITY, 2)
NOP_PRIORITIES = (FIRST_LANDING, END_PRIORITY)
"""Targets of `goto` rules at which no other rule is for certain. Without its target the kernel ignores a `goto` rule."""

SINGLE_PRIORITIES = frozenset({FROM_SANDBOX_PRIORITY, *BUCKET_PRIORITIES})
"""All places of rules from single addresses."""

WORTHWHILE_COUNT = 100
"""A node that may have more single addresses with rules than this uses buckets. Ours: a packet passes as many in a microsecond, and
the list of rules stays short for people."""


class Jump(NamedTuple):
    """A rule `priority: from source goto target`."""

    priority: int
    source: IPv4Network
    target: int


class RulePlace(NamedTuple):
    """Where a rule from a single address is, and the table that it looks up."""

    priority: int
    table: int


def is_worthwhile(limits: InstanceLimits, *, has_prefixes: bool) -> bool:
    """Whether a node may have so many single addresses that their rules should be in buckets.

    Addresses of the primary ENI have no rule, and a prefix has one for all its addresses. ENIs of further network cards do not count.
    `has_prefixes`: new addresses are those of prefixes. Limits that are guessed prove nothing.
    """
    secondary_count = limits.eni_count - 1
    return limits.is_known and not has_prefixes and secondary_count * limits.slots_per_eni > WORTHWHILE_COUNT


def single_priority(address: IpAddress, subnet: IPv4Network | None) -> int:
    """Return the priority of the rule from a single address: that of its bucket if its subnet is given, or else the common one."""
    if subnet is None or not isinstance(address, IPv4Address) or address not in subnet:
        return FROM_SANDBOX_PRIORITY
    return BUCKET_PRIORITIES[block_number(address, subnet)]


def block_number(address: IPv4Address, subnet: IPv4Network) -> int:
    """Return the number of the block that has an address of a subnet: the bits behind the length of the subnet's prefix."""
    host_bits = subnet.max_prefixlen - subnet.prefixlen
    offset = int(address) - int(subnet.network_address)
    return offset >> (host_bits - _block_bits(subnet))


def jumps(subnets: Iterable[IPv4Network]) -> list[Jump]:
    """Return the `goto` rules for the subnets of a node's secondary ENIs; none for subnets that overlap others."""
    distinct = sorted(set(subnets))
    found: list[Jump] = []
    for subnet in distinct:
        is_alone = not any(other.overlaps(subnet) for other in distinct if other != subnet)
        if is_alone:
            found += _jumps_of(subnet)
    return found


def _jumps_of(subnet: IPv4Network) -> list[Jump]:
    found: list[Jump] = []
    for number, block in enumerate(subnet.subnets(prefixlen_diff=_block_bits(subnet))):
        landing = FIRST_LANDING + 2 * number
        behind = landing + 2
        found.append(Jump(JUMP_PRIORITY, block, landing))
        if behind < END_PRIORITY:
            found.append(Jump(behind, block, END_PRIORITY))
    return found


def _block_bits(subnet: IPv4Network) -> int:
    """Bits of an address that number its block; a subnet of fewer than 16 addresses has a block for each."""
    return min(BUCKET_BITS, subnet.max_prefixlen - subnet.prefixlen)
