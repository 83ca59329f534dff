"""Instance limits: EC2's answer, the built-in table, the default."""

from __future__ import annotations

from typing import Any

import pytest

from ipamd.cloud import limits
from ipamd.cloud.limits import TABLE
from tests.unit.cloud import limits_source

# Source: amazon-vpc-cni-k8s misc/eni-max-pods.txt (pods) and DescribeInstanceTypes (the rest)
TYPES = [
    ("m4.4xlarge", 8, 30, "xen", False, 234),
    ("m5.large", 3, 10, "nitro", True, 29),
    ("p3dn.24xlarge", 15, 50, "nitro", True, 737),
    ("a1.2xlarge", 4, 15, "nitro", True, 58),
    ("a1.4xlarge", 8, 30, "nitro", True, 234),
    ("c3.large", 3, 10, "xen", False, 29),
    ("t3.small", 3, 4, "nitro", True, 11),
    ("p5.48xlarge", 2, 50, "nitro", True, 100),
    ("m5.metal", 15, 50, "", True, 737),
]


@pytest.mark.parametrize(("name", "enis", "addresses", "hypervisor", "prefixes", "max_pods"), TYPES)
def test_the_table_holds_the_numbers_of_vpc_cni(
    name: str, enis: int, addresses: int, hypervisor: str, prefixes: bool, max_pods: int
) -> None:
    """ENIs, addresses, prefix support and maximum pods are those that amazon-vpc-cni-k8s publishes."""
    found = limits.from_table(name)
    assert found is not None
    assert (found.eni_count, found.ipv4_per_eni, found.hypervisor) == (enis, addresses, hypervisor)
    assert (found.supports_prefixes, found.max_pods, found.source) == (prefixes, max_pods, "table")


def test_the_table_equals_its_source() -> None:
    """The table is what its generator makes from the recorded facts, and every type of them is found with its numbers."""
    assert TABLE.splitlines() == limits_source.rows()
    for name, (enis, addresses, cards, kind) in limits_source.facts().items():
        found = limits.from_table(name)
        assert found is not None, name
        assert (found.eni_count, found.ipv4_per_eni, found.network_card_count) == (enis, addresses, cards)
        assert found.is_bare_metal is (kind == "metal")


@pytest.mark.parametrize("name", ["large", "", ".", "m5", "m5.", "zz9.large", "m5.huge", "m5.large "])
def test_an_unknown_type_is_not_in_the_table(name: str) -> None:
    """What the table does not know it does not guess; the default does not panic on it either."""
    assert limits.from_table(name) is None
    fallback = limits.safe_default(name)
    assert (fallback.source, fallback.max_pods > 2) == ("default", True)


def test_the_default_is_carried_by_every_type_that_can_be_unknown() -> None:
    """No Nitro type carries less than the default, but nano, micro, d3 and hpc6id, which the table knows."""
    smaller = {
        name
        for name, (enis, addresses, _, kind) in limits_source.facts().items()
        if kind != "xen" and (enis < limits.DEFAULT_ENIS or addresses < limits.DEFAULT_ADDRESSES)
    }
    burstable = {name for name in smaller if name.partition(".")[2] in {"nano", "micro"}}
    assert {name.partition(".")[0] for name in smaller - burstable} == {"d3", "d3en", "hpc6id"}


def entry(**network: Any) -> dict[str, Any]:
    """One DescribeInstanceTypes answer of type x9.huge."""
    return {"InstanceTypes": [{"InstanceType": "x9.huge", "Hypervisor": "nitro", "BareMetal": False, "NetworkInfo": network}]}


def test_ec2_is_read_by_its_default_card() -> None:
    """On a type with several network cards, the ENIs of the default card count, and the cards are told."""
    cards = [{"NetworkCardIndex": index, "MaximumNetworkInterfaces": 7 - index} for index in range(3)]
    found = limits.from_ec2(
        "x9.huge",
        entry(
            MaximumNetworkInterfaces=18,
            Ipv4AddressesPerInterface=50,
            MaximumNetworkCards=3,
            DefaultNetworkCardIndex=1,
            NetworkCards=cards,
        ),
    )
    assert found is not None
    assert (found.eni_count, found.ipv4_per_eni, found.network_card_count, found.source) == (6, 50, 3, "ec2")


def test_an_answer_without_cards_is_enough() -> None:
    """Without card information there is one card."""
    found = limits.from_ec2("x9.huge", entry(MaximumNetworkInterfaces=4, Ipv4AddressesPerInterface=15))
    assert found is not None
    assert (found.eni_count, found.network_card_count) == (4, 1)


@pytest.mark.parametrize(
    "answer", [{}, {"InstanceTypes": []}, entry(), entry(MaximumNetworkInterfaces=0, Ipv4AddressesPerInterface=9)]
)
def test_an_empty_answer_tells_nothing(answer: dict[str, Any]) -> None:
    """Silence and zeros are not limits: the table is asked next (I11)."""
    assert limits.from_ec2("x9.huge", answer) is None
