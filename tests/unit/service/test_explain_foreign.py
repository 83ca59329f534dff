"""`ipamctl explain` of an address that is not of this node: it says so, and asks EC2 only if that is wanted."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Network

import pytest

from ipamd.model.errors import CloudDeniedError
from ipamd.model.ids import EniId, MacAddress
from ipamd.pb import introspection_pb2 as pb
from tests.fakes.node import FakeNode

OTHER = EniId("eni-0b")
ADDRESS, IN_PREFIX = IPv4Address("10.0.0.200"), IPv4Address("10.0.3.20")


@pytest.fixture
def beside(node: FakeNode) -> FakeNode:
    """A node beside which another has an ENI in the same subnet."""
    mine = node.ec2.attached()[0]
    node.ec2.enis[OTHER] = replace(
        mine,
        eni_id=OTHER,
        mac=MacAddress("02:00:00:00:00:99"),
        primary_address=IPv4Address("10.0.0.199"),
        secondary_addresses=frozenset({ADDRESS}),
        prefixes=frozenset({IPv4Network("10.0.3.16/28")}),
        instance_id="i-other",
        description="aws-K8S-i-other",
    )
    return node


def explained(node: FakeNode, address: object, *, find: bool) -> list[str]:
    """The sentences."""
    return list(node.app.introspection.Explain(pb.ExplainRequest(subject=str(address), find=find)).sentences)


@pytest.mark.parametrize(("address", "describes"), [(ADDRESS, 1), (IN_PREFIX, 2), ("10.0.0.199", 1)])
def test_it_is_told_whose_it_is_if_that_is_asked(beside: FakeNode, address: object, describes: int) -> None:
    """One Describe, and a second for what only a prefix covers; without the flag none."""
    said = explained(beside, address, find=False)
    assert f"{address} is not of this node" in said[0]
    assert "--find" in said[1]
    assert beside.ec2.calls["find_address"] == 0
    found = explained(beside, address, find=True)
    assert [OTHER in one and "instance i-other" in one for one in found[1:]] == [True]
    assert beside.ec2.calls["find_address"] == describes


def test_a_pods_ipv6_address_is_found_by_its_prefix(beside: FakeNode) -> None:
    """Every pod's is of a /80, and no ENI of this node says which range its subnet has."""
    beside.ec2.enis[OTHER] = replace(beside.ec2.enis[OTHER], prefixes=frozenset({IPv6Network("2001:db8::/80")}))
    assert OTHER in explained(beside, "2001:db8::7", find=True)[1]
    assert "on no ENI of this VPC" in explained(beside, "2001:db8:0:0:9::7", find=True)[1]


def test_nobodys_address_is_said_to_be_on_no_eni(beside: FakeNode) -> None:
    """And where EC2 could not find it, that is said too."""
    assert "on no ENI of this VPC" in explained(beside, "192.0.2.9", find=True)[-1]
    assert "of a prefix" in explained(beside, "192.0.2.9", find=True)[-1]


def test_an_address_of_this_node_is_explained_without_ec2(beside: FakeNode) -> None:
    """Also with the flag."""
    address = beside.datastore.addresses()[0].address
    assert "is not of this node" not in str(explained(beside, address, find=True))
    assert beside.ec2.calls["find_address"] == 0


def test_a_refusal_of_ec2_is_the_answer(beside: FakeNode) -> None:
    """The caller turns it into a refused question."""
    beside.ec2.fail["find_address"] = [CloudDeniedError("EC2 DescribeNetworkInterfaces failed", details="UnauthorizedOperation")]
    with pytest.raises(CloudDeniedError):
        explained(beside, ADDRESS, find=True)
