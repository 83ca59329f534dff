"""The priorities of the rules `from ADDRESS lookup TABLE`, chosen so that a packet passes only some of these rules (docs/adr/0088).

The kernel tests a packet against the rules one after the other. So each subnet is cut into 8 groups of 8 blocks, and the rules from
the addresses of a block have one of 64 priorities, the *bucket* of the block. All subnets share the 64 buckets. `goto` rules send a
packet to its group, there to the *landing* of its block, which is the priority before the bucket, and after the bucket to the end:

    1537            from GROUP goto the group's first priority         for each group of each subnet
    1538            from BLOCK goto its landing                        group 0, for each of its blocks
    1539            nop                                                landing of block 0
    1540            from ADDRESS lookup TABLE                          bucket of block 0
    1541            from BLOCK 0 goto 1674                             also the landing of block 1
    1542            from ADDRESS lookup TABLE                          bucket of block 1
    ...
    1554            from ADDRESS lookup TABLE                          bucket of block 7
    1555            from BLOCK 7 goto 1674; from BLOCK goto landing    group 1, as 1538
    ...
    1673            from ADDRESS lookup TABLE                          bucket of the last block
    1674            nop                                                end

A `goto` rule skips only rules that do not match its packets. So if a `goto` rule is missing, each packet is still routed in the same
way, only after more rules. This does not hold if other software has a rule between ours, or if subnets overlap: then there must be
no `goto` rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network
from typing import NamedTuple

from ipamd.model.eni import InstanceLimits
from ipamd.model.family import IpAddress
from ipamd.model.kernel_numbers import FROM_SANDBOX_PRIORITY

GROUP_BITS, BLOCK_BITS = 3, 3
GROUP_COUNT, BLOCK_COUNT = 1 << GROUP_BITS, 1 << BLOCK_BITS
"""The number of groups of a subnet, and of blocks of a group. Ours: with 700 addresses a packet passes on average nine `goto` rules
and six rules of its bucket. With one level of 16 buckets a packet would pass 30 rules, and take a tenth more time than on a node with
10 sandboxes."""

JUMP_PRIORITY = FROM_SANDBOX_PRIORITY + 1
"""Priority of the `goto` rules to the groups. It is directly behind FROM_SANDBOX_PRIORITY, which amazon-vpc-cni-k8s and small nodes
use for rules from single addresses, so that a rule with that priority decides first."""

FIRST_GROUP = JUMP_PRIORITY + 1
GROUP_SPAN = 1 + 2 * BLOCK_COUNT
"""The number of priorities of a group: one for the `goto` rules to its blocks, then a landing and a bucket for each block."""

END_PRIORITY = FIRST_GROUP + GROUP_SPAN * GROUP_COUNT
GROUP_PRIORITIES = range(FIRST_GROUP, END_PRIORITY, GROUP_SPAN)
BUCKET_PRIORITIES = tuple(group + 2 + 2 * block for group in GROUP_PRIORITIES for block in range(BLOCK_COUNT))
NOP_PRIORITIES = (*(group + 1 for group in GROUP_PRIORITIES), END_PRIORITY)
"""Targets of `goto` rules at which there may be no other rule, so that a rule `nop` is needed: the kernel ignores a `goto` rule to a
priority without a rule."""

SINGLE_PRIORITIES = frozenset({FROM_SANDBOX_PRIORITY, *BUCKET_PRIORITIES})
"""All priorities of rules from single addresses."""

WORTHWHILE_COUNT = 100
"""A node uses buckets if more than this number of its single addresses may have rules. Ours: a packet passes this many rules in a
microsecond, and people can still read a list of this length, so fewer rules need no buckets."""


class Jump(NamedTuple):
    """A rule `priority: from source goto target`."""

    priority: int
    source: IPv4Network
    target: int


class RulePlace(NamedTuple):
    """A rule from a single address: its priority, and the table that it looks up."""

    priority: int
    table: int


def is_worthwhile(limits: InstanceLimits, *, has_prefixes: bool) -> bool:
    """Whether a node may have so many single addresses that their rules should be in buckets; False if its limits are only guessed.

    Addresses of the primary ENI have no rule, and a prefix has one rule for all its addresses. ENIs of further network cards are not
    counted.

    Args:
        has_prefixes: whether new addresses are addresses of prefixes.
    """
    secondary_count = limits.eni_count - 1
    return limits.is_known and not has_prefixes and secondary_count * limits.slots_per_eni > WORTHWHILE_COUNT


def single_priority(address: IpAddress, subnet: IPv4Network | None) -> int:
    """Return the priority of the rule from an address: that of its bucket if `subnet` contains the address, else
    FROM_SANDBOX_PRIORITY.
    """
    if subnet is None or not isinstance(address, IPv4Address) or address not in subnet:
        return FROM_SANDBOX_PRIORITY
    return BUCKET_PRIORITIES[bucket_number(address, subnet)]


def bucket_number(address: IPv4Address, subnet: IPv4Network) -> int:
    """Return the number of the bucket of an address. The first bits behind the subnet's prefix give the number of the group, and the
    next bits the number of the block in the group.
    """
    group_bits, block_bits = _bits(subnet)
    host_bits = subnet.max_prefixlen - subnet.prefixlen
    number = (int(address) - int(subnet.network_address)) >> (host_bits - group_bits - block_bits)
    group, block = divmod(number, 1 << block_bits)
    return group * BLOCK_COUNT + block


def jumps(subnets: Iterable[IPv4Network]) -> list[Jump]:
    """Return the `goto` rules for the subnets of a node's secondary ENIs; none for a subnet that overlaps another one."""
    distinct = sorted(set(subnets))
    found: list[Jump] = []
    for subnet in distinct:
        is_alone = not any(other.overlaps(subnet) for other in distinct if other != subnet)
        if is_alone:
            found += _jumps_of(subnet)
    return found


def _jumps_of(subnet: IPv4Network) -> list[Jump]:
    group_bits, block_bits = _bits(subnet)
    found: list[Jump] = []
    for priority, group in zip(GROUP_PRIORITIES, subnet.subnets(prefixlen_diff=group_bits), strict=False):
        found.append(Jump(JUMP_PRIORITY, group, priority))
        for number, block in enumerate(group.subnets(prefixlen_diff=block_bits)):
            landing = priority + 1 + 2 * number
            behind = landing + 2
            found.append(Jump(priority, block, landing))
            if behind < END_PRIORITY:
                found.append(Jump(behind, block, END_PRIORITY))
    return found


def _bits(subnet: IPv4Network) -> tuple[int, int]:
    """Return two counts of bits: those of an address that give the number of its group, and those that give the number of its block in
    the group. They are GROUP_BITS and BLOCK_BITS, except in a very small subnet, whose addresses have fewer bits.
    """
    host_bits = subnet.max_prefixlen - subnet.prefixlen
    group_bits = min(GROUP_BITS, host_bits)
    return group_bits, min(BLOCK_BITS, host_bits - group_bits)
