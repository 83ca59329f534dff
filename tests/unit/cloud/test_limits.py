"""Instance limits: EC2's answer, the built-in table, the default."""

from __future__ import annotations

from typing import Any

import pytest

from ipamd.cloud import limits
from ipamd.cloud.legs import trunk_capacity as trunk_capacity_table
from ipamd.cloud.legs.trunk_capacity import trunk_capacity
from ipamd.cloud.limits import OLDER_TABLE, TABLE
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


# Source: amazon-vpc-cni-k8s misc/eni-max-pods.txt
OLDER = {
    **{"g4ad.xlarge": 8, "g4ad.2xlarge": 8, "g4ad.4xlarge": 29, "g4ad.8xlarge": 58, "g4ad.16xlarge": 234},
    **{"p3.2xlarge": 58, "p3.8xlarge": 234, "p3.16xlarge": 234, "f1.2xlarge": 58, "f1.4xlarge": 234, "f1.16xlarge": 394},
    **{"cr1.8xlarge": 234, "hs1.8xlarge": 234, "dl1.24xlarge": 737, "c7i.32xlarge": 737, "bmn-sf1.metal": 737},
    **{"c5a.metal": 737, "c5ad.metal": 737, "u-6tb1.metal": 147, "u-9tb1.metal": 147, "u-12tb1.metal": 147},
    **{"u-18tb1.metal": 737, "u-24tb1.metal": 737},
}


def test_types_that_ec2s_record_lacks_are_known() -> None:
    """The union of both tables: the 23 types that amazon-vpc-cni-k8s has besides, with its numbers, and none of them twice."""
    recorded = limits_source.facts()
    older = {
        f"{part.partition(':')[0]}.{size}"
        for row in OLDER_TABLE.splitlines()
        for part in row.split()[4:]
        for size in part.partition(":")[2].split(",")
    }
    assert older == set(OLDER)
    assert not older & set(recorded)
    for name, max_pods in OLDER.items():
        found = limits.from_table(name)
        assert found is not None, name
        assert found.max_pods == max_pods
        assert found.is_bare_metal is name.endswith(".metal")
    multi_card = limits.from_table("dl1.24xlarge")
    assert multi_card is not None
    assert multi_card.network_card_count == 4


# Source: amazon-vpc-resource-controller-k8s pkg/aws/vpc/limits.go
BRANCHES = {
    **{
        "m5.large": 9,
        "m5.xlarge": 18,
        "m5.4xlarge": 54,
        "m5.16xlarge": 107,
        "m5.metal": 120,
        "c6g.medium": 4,
        "c7i-flex.large": 3,
    },
    **{"g4dn.xlarge": 39, "p4d.24xlarge": 62, "m8i.96xlarge": 98, "c8gn.12xlarge": 50, "i3en.metal": 107, "d3en.12xlarge": 119},
    **{
        "t3.large": 0,
        "t4g.nano": 0,
        "m4.large": 0,
        "i3.large": 0,
        "i3.metal": 120,
        "i4i.large": 0,
        "i4i.xlarge": 6,
        "mac1.metal": 6,
    },
}


@pytest.mark.parametrize(("name", "count"), BRANCHES.items())
def test_branch_enis_are_those_of_the_controller(name: str, count: int) -> None:
    """The number that the control plane advertises as `vpc.amazonaws.com/pod-eni`; 0: the type can have no trunk."""
    assert trunk_capacity(name) == count
    found = limits.from_table(name) or limits.safe_default(name)
    assert found.trunk_capacity == count


@pytest.mark.parametrize("name", ["zz9.large", "m5", "", "m5.", "m5.huge", "c9g.large", "m5 m5a.large"])
def test_branch_enis_of_an_unknown_type_are_not_guessed(name: str) -> None:
    """A type that the controller's table has not, or no type at all."""
    assert trunk_capacity(name) is None
    assert limits.safe_default(name).trunk_capacity is None


def test_the_table_of_branches_contradicts_nothing() -> None:
    """No family is in two paragraphs, no size twice in one, no number above the VLAN IDs; every type of more than 10 is Nitro."""
    seen: set[str] = set()
    for paragraph in trunk_capacity_table.BRANCHES.replace("\n  ", " ").splitlines():
        families, _, counts = paragraph.partition("=")
        sizes = [size for part in counts.split() for size in part.partition(":")[2].split(",")]
        assert len(sizes) == len(set(sizes)), families
        assert not seen & set(families.split())
        seen |= set(families.split())
        assert all(0 <= int(part.partition(":")[0]) <= 120 for part in counts.split())
    kinds = {name: kind for name, (_, _, _, kind) in limits_source.facts().items() if (trunk_capacity(name) or 0) > 10}
    assert len(kinds) > 700
    assert set(kinds.values()) == {"nitro", "metal"}


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
