"""The arithmetic of buckets, and that no `goto` rule decides: a walk of the rules ends alike, whichever of them are missing."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipamd.model.eni import InstanceLimits
from ipamd.model.kernel_numbers import FROM_SANDBOX_PRIORITY
from ipamd.model.source_rules import (
    BUCKET_PRIORITIES,
    END_PRIORITY,
    GROUP_PRIORITIES,
    JUMP_PRIORITY,
    NOP_PRIORITIES,
    Jump,
    bucket_number,
    is_worthwhile,
    jumps,
    single_priority,
)

LENGTHS = st.integers(min_value=16, max_value=30)


@st.composite
def subnets(draw: st.DrawFn) -> list[IPv4Network]:
    """Subnets of a VPC, which never overlap."""
    count = draw(st.integers(min_value=1, max_value=4))
    return [IPv4Network((f"10.{number}.0.0", draw(LENGTHS))) for number in range(count)]


def address_in(subnet: IPv4Network, draw: st.DataObject) -> IPv4Address:
    """Any address of a subnet."""
    return subnet[draw.draw(st.integers(min_value=0, max_value=subnet.num_addresses - 1))]


@given(subnets(), st.data())
def test_jumps_lead_right_before_the_bucket_of_an_address(wanted: list[IPv4Network], data: st.DataObject) -> None:
    """Each address of a subnet is in one group and one block of it, whose `goto` rules land at the bucket with the rule from it."""
    subnet = data.draw(st.sampled_from(wanted))
    address = address_in(subnet, data)
    bucket = single_priority(address, subnet)
    (to_group,) = [jump.target for jump in jumps(wanted) if jump.priority == JUMP_PRIORITY and address in jump.source]
    own = [jump for jump in jumps(wanted) if jump.priority > JUMP_PRIORITY and address in jump.source]
    leading = [jump for jump in own if jump.target != END_PRIORITY]
    assert [(jump.priority, jump.target) for jump in leading] == [(to_group, bucket - 1)]
    assert {jump.priority for jump in own if jump.target == END_PRIORITY} == {bucket + 1} - {END_PRIORITY}
    assert all(jump.priority < jump.target <= END_PRIORITY for jump in jumps(wanted))


@given(subnets(), st.data())
def test_missing_jumps_change_no_decision(wanted: list[IPv4Network], data: st.DataObject) -> None:
    """The flat list and any part of the tree decide alike, for addresses with a rule and without one."""
    chosen = {address_in(data.draw(st.sampled_from(wanted)), data) for _ in range(data.draw(st.integers(0, 12)))}
    tables = {address: number for number, address in enumerate(sorted(chosen), start=2)}
    kept = data.draw(st.sets(st.sampled_from(jumps(wanted))))
    singles = []
    for address in tables:
        subnet = next(subnet for subnet in wanted if address in subnet)
        singles.append((single_priority(address, subnet), address))
    nops = data.draw(st.sets(st.sampled_from(NOP_PRIORITIES)))
    strangers = [IPv4Address("192.0.2.1"), *(address_in(subnet, data) for subnet in wanted)]
    for address in [*tables, *strangers]:
        assert walk(address, singles, kept, nops) == (address if address in tables else None)


def walk(source: IPv4Address, singles: list[tuple[int, IPv4Address]], kept: set[Jump], nops: set[int]) -> IPv4Address | None:
    """Walk the rules as the kernel does: a `goto` without a rule at its target is ignored. Returns: whose rule decides."""
    rules = sorted(
        [(priority, "single", address, 0) for priority, address in singles]
        + [(jump.priority, "goto", jump.source, jump.target) for jump in kept]
        + [(priority, "nop", "", 0) for priority in nops],
        key=lambda rule: rule[0],
    )
    index = 0
    while index < len(rules):
        _, kind, selector, target = rules[index]
        index += 1
        if kind == "single" and selector == source:
            return source
        if kind == "goto" and source in selector:
            index = next((place for place, rule in enumerate(rules) if rule[0] == target), index)
    return None


def test_addresses_outside_have_the_common_place() -> None:
    """So has an address whose subnet is not known, and one of IPv6."""
    subnet = IPv4Network("10.0.0.0/20")
    assert single_priority(IPv4Address("10.1.0.1"), subnet) == FROM_SANDBOX_PRIORITY
    assert single_priority(IPv4Address("10.0.0.1"), None) == FROM_SANDBOX_PRIORITY


@pytest.mark.parametrize(
    ("subnet", "address", "number", "priority"),
    [
        ("10.0.0.0/16", "10.0.0.4", 0, 1540),
        ("10.0.0.0/16", "10.0.3.255", 0, 1540),
        ("10.0.0.0/16", "10.0.4.0", 1, 1542),
        ("10.0.0.0/16", "10.0.32.0", 8, 1557),
        ("10.0.0.0/16", "10.0.255.255", 63, 1673),
        ("10.0.16.0/20", "10.0.17.0", 4, 1548),
        ("10.0.1.0/24", "10.0.1.20", 5, 1550),
        ("10.0.1.16/28", "10.0.1.16", 0, 1540),
        ("10.0.1.16/28", "10.0.1.31", 57, 1661),
        ("10.0.1.16/30", "10.0.1.19", 24, 1591),
    ],
)
def test_numbers_of_buckets(subnet: str, address: str, number: int, priority: int) -> None:
    """Three bits behind the subnet's prefix, then three more; fewer where there are fewer."""
    network = IPv4Network(subnet)
    assert bucket_number(IPv4Address(address), network) == number
    assert single_priority(IPv4Address(address), network) == BUCKET_PRIORITIES[number] == priority


def test_places_are_disjoint() -> None:
    """No bucket is where a `goto` rule or a landing is."""
    skips = {jump.priority for jump in jumps([IPv4Network("10.0.0.0/16")])} | set(NOP_PRIORITIES)
    assert skips.isdisjoint(BUCKET_PRIORITIES)
    assert (JUMP_PRIORITY, GROUP_PRIORITIES[0], len(BUCKET_PRIORITIES), END_PRIORITY) == (1537, 1538, 64, 1674)


def test_subnets_that_overlap_have_no_jumps() -> None:
    """Subnets of one VPC never do. A third one keeps its own; the same subnet of two ENIs is one."""
    wide, narrow, other = map(IPv4Network, ("10.0.0.0/20", "10.0.1.0/24", "10.1.0.0/24"))
    assert jumps([wide, narrow, other]) == jumps([other, other])
    assert len(jumps([other])) == 8 + 64 + 63


@pytest.mark.parametrize(
    ("enis", "per_eni", "source", "has_prefixes", "wanted"),
    [
        (3, 10, "ec2", False, False),
        (4, 15, "ec2", False, False),
        (8, 30, "ec2", False, True),
        (15, 50, "table", False, True),
        (15, 50, "ec2", True, False),
        (15, 50, "default", False, False),
        (1, 50, "ec2", False, False),
    ],
)
def test_which_nodes_use_buckets(enis: int, per_eni: int, source: str, has_prefixes: bool, wanted: bool) -> None:
    """Those that may have more than 100 single addresses on secondary ENIs, if that is known."""
    limits = InstanceLimits("any", enis, per_eni, source=source)
    assert is_worthwhile(limits, has_prefixes=has_prefixes) is wanted
