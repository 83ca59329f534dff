"""Addresses and prefixes through the wire: assign, unassign, limits, and what a subnet has left."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.vpc.addresses import AddressRequest
from lab.vpc.errors import Ec2Error
from lab.vpc.space import AddressChoice
from lab.vpc.state import Vpc


def assign(cloud: Any, eni_id: str, **params: object) -> tuple[list[str], list[str]]:
    """Assign, and return the addresses and the prefixes answered."""
    answer = cloud.ec2.assign_private_ip_addresses(NetworkInterfaceId=eni_id, **params)
    prefixes = [entry["Ipv4Prefix"] for entry in answer.get("AssignedIpv4Prefixes", [])]
    return [entry["PrivateIpAddress"] for entry in answer["AssignedPrivateIpAddresses"]], prefixes


def test_assign_answers_with_the_new_addresses_only(cloud: Any) -> None:
    """Assign by count names what it added, not what was there (moto differs), and owns it."""
    eni_id = cloud.create(SecondaryPrivateIpAddressCount=2)
    added, prefixes = assign(cloud, eni_id, SecondaryPrivateIpAddressCount=3)
    assert (len(set(added)), prefixes) == (3, [])
    assert [str(a) for a in cloud.vpc.eni(eni_id).secondary_addresses[2:]] == added
    assert {cloud.vpc.owner_of(IPv4Address(a)) for a in added} == {eni_id}


def test_assign_named_addresses(cloud: Any) -> None:
    """Addresses asked for by name come; one that is there already is no error and no second address."""
    eni_id = cloud.create()
    assert assign(cloud, eni_id, PrivateIpAddresses=["10.0.1.50", "10.0.1.51"])[0] == ["10.0.1.50", "10.0.1.51"]
    assign(cloud, eni_id, PrivateIpAddresses=["10.0.1.50"])
    assert [str(a) for a in cloud.vpc.eni(eni_id).secondary_addresses] == ["10.0.1.50", "10.0.1.51"]


def test_assign_moves_only_when_allowed(cloud: Any, refused: Any) -> None:
    """Another ENI's secondary address moves with AllowReassignment only, its primary address never."""
    owner, other = cloud.create(), cloud.create()
    assign(cloud, owner, PrivateIpAddresses=["10.0.1.50"])
    with refused("InvalidParameterValue", "[10.0.1.50] assigned, but move is not allowed."):
        assign(cloud, other, PrivateIpAddresses=["10.0.1.50"])
    assign(cloud, other, PrivateIpAddresses=["10.0.1.50"], AllowReassignment=True)
    assert cloud.vpc.owner_of(IPv4Address("10.0.1.50")) == other
    assert cloud.vpc.eni(owner).secondary_addresses == ()
    with refused("InvalidParameterValue", "move is not allowed"):
        primary = str(cloud.vpc.eni(owner).primary_address)
        assign(cloud, other, PrivateIpAddresses=[primary], AllowReassignment=True)


def test_assign_prefixes(cloud: Any) -> None:
    """Prefixes come by count and by name, and every address in one is owned."""
    eni_id = cloud.create(PrivateIpAddress="10.0.1.40")
    addresses, by_count = assign(cloud, eni_id, Ipv4PrefixCount=2)
    _, by_name = assign(cloud, eni_id, Ipv4Prefixes=["10.0.1.64/28"] if "10.0.1.64/28" not in by_count else by_count[:1])
    assert addresses == []
    inside = [address for text in [*by_count, *by_name] for address in IPv4Network(text)]
    assert {cloud.vpc.owner_of(address) for address in inside} == {eni_id}


@pytest.mark.parametrize(
    ("prefix", "part"),
    [("10.0.1.64/27", "not a /28"), ("10.0.2.64/28", "not a /28"), ("10.0.1.0/28", "not available"), ("x", "invalid value")],
)
def test_assign_refuses_prefixes_that_cannot_be(cloud: Any, refused: Any, prefix: str, part: str) -> None:
    """Wrong size, foreign subnet, reserved block and unreadable text are refused."""
    eni_id = cloud.create()
    with refused("InvalidParameterValue", part):
        assign(cloud, eni_id, Ipv4Prefixes=[prefix])


def test_slots_are_counted_with_primary_and_prefixes(cloud: Any, refused: Any) -> None:
    """An m5.large interface has ten slots: primary, secondary addresses and prefixes together."""
    eni_id = cloud.primary().eni_id
    assign(cloud, eni_id, SecondaryPrivateIpAddressCount=4)
    assign(cloud, eni_id, Ipv4PrefixCount=5)
    with refused("PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit."):
        assign(cloud, eni_id, SecondaryPrivateIpAddressCount=1)
    with refused("PrivateIpAddressLimitExceeded"):
        assign(cloud, eni_id, Ipv4PrefixCount=1)


def test_refused_assign_changes_nothing(cloud: Any, refused: Any) -> None:
    """A call that fails on its second address gives neither."""
    owner, other = cloud.create(), cloud.create()
    assign(cloud, owner, PrivateIpAddresses=["10.0.1.50"])
    with refused("InvalidParameterValue"):
        assign(cloud, other, PrivateIpAddresses=["10.0.1.60", "10.0.1.50"])
    assert cloud.vpc.owner_of(IPv4Address("10.0.1.60")) is None


def test_contradictory_requests(cloud: Any, refused: Any) -> None:
    """Count and names together, and nothing at all, are refused."""
    eni_id = cloud.create()
    with refused("InvalidParameterCombination"):
        assign(cloud, eni_id, SecondaryPrivateIpAddressCount=1, PrivateIpAddresses=["10.0.1.50"])
    with refused("InvalidParameterCombination"):
        assign(cloud, eni_id, SecondaryPrivateIpAddressCount=1, Ipv4PrefixCount=1)
    with refused("MissingParameter"):
        assign(cloud, eni_id)


def test_unassign_addresses_and_prefixes(cloud: Any) -> None:
    """Unassigned addresses and prefixes are nobody's."""
    eni_id = cloud.create()
    (address, _), _ = assign(cloud, eni_id, SecondaryPrivateIpAddressCount=2)
    _, (prefix, _) = assign(cloud, eni_id, Ipv4PrefixCount=2)
    cloud.ec2.unassign_private_ip_addresses(NetworkInterfaceId=eni_id, PrivateIpAddresses=[address])
    cloud.ec2.unassign_private_ip_addresses(NetworkInterfaceId=eni_id, Ipv4Prefixes=[prefix])
    assert cloud.vpc.owner_of(IPv4Address(address)) is None
    assert cloud.vpc.owner_of(IPv4Network(prefix)[3]) is None
    eni = cloud.vpc.eni(eni_id)
    assert (len(eni.secondary_addresses), len(eni.prefixes)) == (1, 1)


def test_unassign_is_all_or_nothing(cloud: Any, refused: Any) -> None:
    """One address that is not there, or the primary one, and none is unassigned."""
    eni_id = cloud.create()
    (address,), _ = assign(cloud, eni_id, SecondaryPrivateIpAddressCount=1)
    message = f"Some of the specified addresses are not assigned to interface {eni_id}"
    with refused("InvalidParameterValue", message):
        cloud.ec2.unassign_private_ip_addresses(NetworkInterfaceId=eni_id, PrivateIpAddresses=[address, "10.0.1.9"])
    with refused("InvalidParameterValue", "primary"):
        primary = str(cloud.vpc.eni(eni_id).primary_address)
        cloud.ec2.unassign_private_ip_addresses(NetworkInterfaceId=eni_id, PrivateIpAddresses=[address, primary])
    with refused("MissingParameter"):
        cloud.ec2.unassign_private_ip_addresses(NetworkInterfaceId=eni_id)
    assert cloud.vpc.owner_of(IPv4Address(address)) == eni_id


def free_count(cloud: Any) -> int:
    """Return AvailableIpAddressCount."""
    answer = cloud.ec2.describe_subnets(SubnetIds=[cloud.subnet.subnet_id])
    return int(answer["Subnets"][0]["AvailableIpAddressCount"])


def test_available_addresses_are_counted(cloud: Any) -> None:
    """A /24 offers 251; an address takes one, a prefix sixteen."""
    assert free_count(cloud) == 250
    cloud.create(SecondaryPrivateIpAddressCount=4)
    assert free_count(cloud) == 245
    cloud.create(Ipv4PrefixCount=2)
    assert free_count(cloud) == 212


def test_exhausted_subnet(cloud: Any, refused: Any) -> None:
    """A subnet with two addresses left gives two, then refuses; restored, it gives again."""
    eni_id = cloud.create()
    cloud.vpc.exhaust_subnet(cloud.subnet.subnet_id, leave=2)
    assert free_count(cloud) == 2
    with refused("InsufficientFreeAddressesInSubnet"):
        assign(cloud, eni_id, SecondaryPrivateIpAddressCount=3)
    with refused("InvalidParameterValue", "There aren't sufficient free Ipv4 addresses or prefixes"):
        assign(cloud, eni_id, Ipv4PrefixCount=1)
    assign(cloud, eni_id, SecondaryPrivateIpAddressCount=2)
    with refused("InsufficientFreeAddressesInSubnet"):
        cloud.create()
    cloud.vpc.restore_subnet(cloud.subnet.subnet_id)
    cloud.create(SecondaryPrivateIpAddressCount=5)


def test_fragmented_subnet(cloud: Any, refused: Any) -> None:
    """A fragmented subnet has plenty of addresses and not one prefix."""
    eni_id = cloud.create()
    cloud.vpc.fragment_subnet(cloud.subnet.subnet_id)
    assert free_count(cloud) > 200
    with refused("InsufficientCidrBlocks", "enough free cidr blocks"):
        assign(cloud, eni_id, Ipv4PrefixCount=1)
    with refused("InsufficientCidrBlocks"):
        cloud.create(Ipv4PrefixCount=1)
    assign(cloud, eni_id, SecondaryPrivateIpAddressCount=9)
    cloud.vpc.restore_subnet(cloud.subnet.subnet_id)
    assign(cloud, eni_id, Ipv4PrefixCount=1)


@pytest.mark.parametrize("choice", list(AddressChoice))
@given(counts=st.lists(st.integers(1, 12), min_size=1, max_size=12), seed=st.integers(0, 2**16))
def test_no_choice_hands_out_a_reserved_or_owned_address(choice: AddressChoice, counts: list[int], seed: int) -> None:
    """Whatever the order of choice, addresses handed out are distinct, usable, and end exactly when the subnet does."""
    vpc = Vpc(choice=choice, seed=seed)
    subnet = vpc.add_subnet("10.0.0.0/26")
    wanted = sum(counts)
    given_out: list[IPv4Address] = []
    for count in counts:
        try:
            eni = vpc.interfaces.create(subnet.subnet_id, _count(count - 1), groups=())
        except Ec2Error as exc:
            assert exc.code == "InsufficientFreeAddressesInSubnet"  # noqa: PT017  a refusal is one of two right outcomes
            assert 59 - len(given_out) < count
            continue
        given_out.extend(eni.addresses)
    usable = set(list(subnet.cidr)[4:-1])
    assert len(set(given_out)) == len(given_out) <= wanted
    assert set(given_out) <= usable
    assert all(vpc.owner_of(address) is not None for address in given_out)


def _count(count: int) -> AddressRequest:
    return AddressRequest(address_count=count)


def test_an_interface_does_not_overlap_itself(cloud: Any, refused: Any) -> None:
    """The primary address chosen lies outside the prefixes chosen with it; named ones that overlap are refused."""
    lowest = Vpc(choice=AddressChoice.LOWEST)
    subnet = lowest.add_subnet("10.0.0.0/26")
    lowest.interfaces.create(subnet.subnet_id, _count(11), groups=())
    eni = lowest.interfaces.create(subnet.subnet_id, AddressRequest(prefix_count=1), groups=())
    assert (str(eni.prefixes[0]), str(eni.primary_address)) == ("10.0.0.16/28", "10.0.0.32")
    with refused("InvalidParameterValue", "within a specified prefix"):
        cloud.create(PrivateIpAddress="10.0.1.70", Ipv4Prefixes=[{"Ipv4Prefix": "10.0.1.64/28"}])


def test_lowest_and_recent_first() -> None:
    """LOWEST starts at .4; RECENT_FIRST hands out at once what was just released (the worst case for cooling, I8)."""
    lowest = Vpc(choice=AddressChoice.LOWEST)
    subnet = lowest.add_subnet("10.0.0.0/24")
    assert str(lowest.interfaces.create(subnet.subnet_id, _count(0), groups=()).primary_address) == "10.0.0.4"
    recent = Vpc(choice=AddressChoice.RECENT_FIRST)
    subnet = recent.add_subnet("10.0.0.0/24")
    eni = recent.interfaces.create(subnet.subnet_id, _count(3), groups=())
    released = eni.secondary_addresses[1]
    recent.interfaces.unassign(eni.eni_id, addresses=(released,), prefixes=())
    assert recent.interfaces.assign(eni.eni_id, _count(1))[0] == (released,)
