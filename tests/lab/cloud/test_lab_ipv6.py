"""IPv6 of a VPC through the wire: addresses and /80 prefixes of ENIs, what Describe and metadata show, and every refusal."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv6Address, IPv6Network
from typing import Any

import pytest

from lab.ec2 import Ec2Server
from lab.errors import LabError
from lab.imds import ImdsServer
from lab.vpc.state import Vpc
from tests.lab.cloud.conftest import Cloud, ManualClock
from tests.lab.cloud.test_lab_imds import Metadata

VPC_CIDR, SUBNET_CIDR = IPv6Network("2600:1f14:abc:de00::/56"), IPv6Network("2600:1f14:abc:de01::/64")


@pytest.fixture
def dual(clock: ManualClock, make_client: Any) -> Iterator[Cloud]:
    """Return a VPC with both families, and a node in its subnet."""
    with Vpc(clock=clock, ipv6_cidr=str(VPC_CIDR)) as vpc:
        subnet = vpc.add_subnet("10.0.1.0/24", ipv6_cidr=str(SUBNET_CIDR))
        node = vpc.add_instance(name="node-a", subnet_id=subnet.subnet_id)
        with Ec2Server(vpc, sockets=[("127.0.0.1", 0)]) as server:
            yield Cloud(vpc, clock, server, make_client(server.url), subnet, node)


def prefixes_of(shown: dict[str, Any]) -> list[str]:
    """The /80 prefixes in an ENI as Describe shows it."""
    return [each["Ipv6Prefix"] for each in shown.get("Ipv6Prefixes", [])]


def test_one_prefix_on_the_primary_eni(dual: Cloud) -> None:
    """As amazon-vpc-cni-k8s asks for it: the answer, Describe and metadata name the same /80, and it goes by name."""
    eni = dual.primary()
    answer = dual.ec2.assign_ipv6_addresses(NetworkInterfaceId=eni.eni_id, Ipv6PrefixCount=1)
    (prefix,) = answer["AssignedIpv6Prefixes"]
    assert answer["AssignedIpv6Addresses"] == []
    assert IPv6Network(prefix).prefixlen == 80
    assert IPv6Network(prefix).subnet_of(SUBNET_CIDR)
    assert prefixes_of(dual.show(eni.eni_id)) == [prefix]
    with ImdsServer(dual.vpc, dual.node.instance_id, socket=("127.0.0.1", 0)) as server:
        metadata = Metadata(server)
        here = f"network/interfaces/macs/{eni.mac}/"
        assert metadata.get(here + "ipv6-prefix") == prefix
        assert metadata.get(here + "ipv6s") == metadata.get("ipv6") == str(eni.ipv6_addresses[0])
        assert metadata.get(here + "subnet-ipv6-cidr-blocks") == str(SUBNET_CIDR)
        assert metadata.get(here + "vpc-ipv6-cidr-blocks") == str(VPC_CIDR)
        dual.ec2.unassign_ipv6_addresses(NetworkInterfaceId=eni.eni_id, Ipv6Prefixes=[prefix])
        assert metadata.status(here + "ipv6-prefix") == 404
    assert prefixes_of(dual.show(eni.eni_id)) == []


def test_an_instance_shows_the_first_ipv6_address_of_its_primary_eni(dual: Cloud, cloud: Cloud) -> None:
    """One without IPv6 has no such field."""
    (address,) = dual.primary().ipv6_addresses
    (shown,) = dual.ec2.describe_instances()["Reservations"][0]["Instances"]
    assert shown["Ipv6Address"] == str(address)
    (shown,) = cloud.ec2.describe_instances()["Reservations"][0]["Instances"]
    assert "Ipv6Address" not in shown


def test_without_ipv6_nothing_of_it_is_shown(cloud: Cloud, refused: Any) -> None:
    """Every leaf is a 404, Describe shows no address, and a request is refused."""
    eni = cloud.primary()
    shown = cloud.show(eni.eni_id)
    assert (shown["Ipv6Addresses"], prefixes_of(shown)) == ([], [])
    with ImdsServer(cloud.vpc, cloud.node.instance_id, socket=("127.0.0.1", 0)) as server:
        metadata = Metadata(server)
        for leaf in ("ipv6s", "ipv6-prefix", "subnet-ipv6-cidr-blocks", "vpc-ipv6-cidr-blocks"):
            assert metadata.status(f"network/interfaces/macs/{eni.mac}/{leaf}") == 404
        assert metadata.status("ipv6") == 404
    with refused("InvalidParameterValue", "does not have an IPv6 CIDR block"):
        cloud.ec2.assign_ipv6_addresses(NetworkInterfaceId=eni.eni_id, Ipv6PrefixCount=1)


def test_subnets_are_shown_with_both_families(dual: Cloud) -> None:
    """A subnet has one /64, whose ENIs get an address of their own."""
    (shown,) = dual.ec2.describe_subnets()["Subnets"]
    (block,) = shown["Ipv6CidrBlockAssociationSet"]
    assert (shown["CidrBlock"], block["Ipv6CidrBlock"]) == ("10.0.1.0/24", str(SUBNET_CIDR))
    assert block["Ipv6CidrBlockState"]["State"] == "associated"
    eni_id = dual.create(Ipv6AddressCount=2, Ipv6PrefixCount=0)
    first, second = (IPv6Address(each["Ipv6Address"]) for each in dual.show(eni_id)["Ipv6Addresses"])
    assert first != second
    assert {first, second} <= set(dual.vpc.eni(eni_id).ipv6_addresses)
    assert first in SUBNET_CIDR


def test_nothing_has_two_owners(dual: Cloud, refused: Any) -> None:
    """By name: what an ENI has, or has a /80 around it, no other gets; the reserved addresses nobody."""
    mine, other = dual.create(), dual.create()
    named, inside = SUBNET_CIDR[77], IPv6Network((int(SUBNET_CIDR[0]) + (5 << 48), 80))
    dual.ec2.assign_ipv6_addresses(NetworkInterfaceId=mine, Ipv6Addresses=[str(named)])
    dual.ec2.assign_ipv6_addresses(NetworkInterfaceId=mine, Ipv6Prefixes=[str(inside)])
    with refused("InvalidIPAddress.InUse", str(named)):
        dual.ec2.assign_ipv6_addresses(NetworkInterfaceId=other, Ipv6Addresses=[str(named)])
    with refused("InvalidIPAddress.InUse", str(inside[9])):
        dual.ec2.assign_ipv6_addresses(NetworkInterfaceId=other, Ipv6Addresses=[str(inside[9])])
    for prefix in (inside, IPv6Network((int(SUBNET_CIDR[0]), 80)), IPv6Network("2600:1f14:abc:de02::/80")):
        with refused("InvalidParameterValue", str(prefix)):  # taken; with an address in it; of another subnet
            dual.ec2.assign_ipv6_addresses(NetworkInterfaceId=other, Ipv6Prefixes=[str(prefix)])
    for address in (SUBNET_CIDR[3], SUBNET_CIDR[-1]):
        with refused("InvalidParameterValue", "reserved"):
            dual.ec2.assign_ipv6_addresses(NetworkInterfaceId=other, Ipv6Addresses=[str(address)])
    assert dual.vpc.eni(other).ipv6_addresses == dual.vpc.eni(other).ipv6_prefixes == ()


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({}, "MissingParameter"),
        ({"Ipv6PrefixCount": 1, "Ipv6AddressCount": 1}, "InvalidParameterCombination"),
        ({"Ipv6AddressCount": 10}, "PrivateIpAddressLimitExceeded"),
    ],
)
def test_refusals(dual: Cloud, refused: Any, params: dict[str, int], code: str) -> None:
    """An m5.large carries ten of each family, its first one included."""
    with refused(code):
        dual.ec2.assign_ipv6_addresses(NetworkInterfaceId=dual.primary().eni_id, **params)
    with refused("MissingParameter" if not params else "InvalidParameterValue"):
        gone = {"Ipv6Addresses": [str(SUBNET_CIDR[99])]} if params else {}
        dual.ec2.unassign_ipv6_addresses(NetworkInterfaceId=dual.primary().eni_id, **gone)


def test_a_subnet_without_a_free_prefix(dual: Cloud, refused: Any) -> None:
    """Addresses can still be had, and prefixes again when there is room."""
    dual.vpc.hold_ipv6_prefixes(dual.subnet.subnet_id)
    eni_id = dual.primary().eni_id
    with refused("InsufficientCidrBlocks"):
        dual.ec2.assign_ipv6_addresses(NetworkInterfaceId=eni_id, Ipv6PrefixCount=1)
    dual.ec2.assign_ipv6_addresses(NetworkInterfaceId=eni_id, Ipv6AddressCount=1)
    dual.vpc.hold_ipv6_prefixes(dual.subnet.subnet_id, is_held=False)
    dual.ec2.assign_ipv6_addresses(NetworkInterfaceId=eni_id, Ipv6PrefixCount=1)


def test_a_denied_call_and_a_lagging_describe(dual: Cloud, refused: Any) -> None:
    """The faults of all calls hold for these: a policy without AssignIpv6Addresses, and a Describe that is behind."""
    eni_id = dual.primary().eni_id
    dual.vpc.faults.apply({"iam": [{"action": "AssignIpv6Addresses"}]})
    with refused("UnauthorizedOperation", "ec2:AssignIpv6Addresses", status=403):
        dual.ec2.assign_ipv6_addresses(NetworkInterfaceId=eni_id, Ipv6PrefixCount=1)
    dual.vpc.faults.clear()
    dual.advance(20)
    dual.vpc.faults.apply({"apis": {"DescribeNetworkInterfaces": {"lag_s": 5}}})
    dual.ec2.assign_ipv6_addresses(NetworkInterfaceId=eni_id, Ipv6PrefixCount=1)
    assert prefixes_of(dual.show(eni_id)) == []
    dual.advance(6)
    assert len(prefixes_of(dual.show(eni_id))) == 1


@pytest.mark.parametrize("cidr", ["2600:1f14:abc:de01::/80", "2600:1f14:abd::/64", str(SUBNET_CIDR)])
def test_a_subnet_is_a_free_64_of_the_vpc(dual: Cloud, cidr: str) -> None:
    """Of another size, outside, or taken: refused, and so is IPv6 in a VPC without it."""
    with pytest.raises(LabError):
        dual.vpc.add_subnet("10.0.2.0/24", ipv6_cidr=cidr)
    with Vpc() as plain, pytest.raises(LabError, match="a VPC with IPv6"):
        plain.add_subnet("10.0.2.0/24", ipv6_cidr=cidr)


def test_a_prefix_is_shown_late_or_not_at_all(dual: Cloud) -> None:
    """Describe that lies about addresses lies about a /80 too: what Assign and Unassign changed, and what is left out."""
    eni_id = dual.primary().eni_id
    (prefix,) = dual.ec2.assign_ipv6_addresses(NetworkInterfaceId=eni_id, Ipv6PrefixCount=1)["AssignedIpv6Prefixes"]
    dual.vpc.faults.apply({"describe": {"stale_s": {"AssignIpv6Addresses": 30, "UnassignIpv6Addresses": 30}}})
    assert prefixes_of(dual.show(eni_id)) == []
    dual.advance(31)
    assert prefixes_of(dual.show(eni_id)) == [prefix]
    dual.ec2.unassign_ipv6_addresses(NetworkInterfaceId=eni_id, Ipv6Prefixes=[prefix])
    assert prefixes_of(dual.show(eni_id)) == [prefix]
    dual.advance(31)
    assert prefixes_of(dual.show(eni_id)) == []
    (other,) = dual.ec2.assign_ipv6_addresses(NetworkInterfaceId=eni_id, Ipv6PrefixCount=1)["AssignedIpv6Prefixes"]
    dual.vpc.faults.apply({"describe": {"omit": {"addresses": [other]}}})
    assert prefixes_of(dual.show(eni_id)) == []


def test_a_subnet_loses_its_prefixes_by_a_fault(dual: Cloud, refused: Any) -> None:
    """As an operator's own word does, until the fault is cleared."""
    eni_id = dual.primary().eni_id
    dual.vpc.faults.apply({"subnets": {"*": {"without_ipv6_prefixes": True}}})
    with refused("InsufficientCidrBlocks"):
        dual.ec2.assign_ipv6_addresses(NetworkInterfaceId=eni_id, Ipv6PrefixCount=1)
    dual.vpc.faults.apply({"subnets": None})
    dual.ec2.assign_ipv6_addresses(NetworkInterfaceId=eni_id, Ipv6PrefixCount=1)
