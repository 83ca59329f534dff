"""The pools of the network file: what is read, that everything wrong is named at once, and which ENIs a pool still serves."""

from __future__ import annotations

import json
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from ipamd.model.eni import OPERATOR, Eni
from ipamd.model.errors import SettingsError
from ipamd.model.ids import EniId, MacAddress, SubnetId
from ipamd.model.network_file import parse
from ipamd.model.pod_pools import (
    NOT_IN_FILE,
    OTHER_GROUPS,
    OTHER_SUBNET,
    POOLS_MAX,
    PodPool,
    PodPools,
    pool_exclusion,
)
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.subnets import DescribedSubnet

CARDS = {"subnets": ["subnet-0b", "subnet-0a"], "securityGroups": ["sg-0b", "sg-0a"], "warmIpTarget": 2, "maxEnis": 2}
A, B = SubnetId("subnet-0a"), SubnetId("subnet-0b")
BY_LIST = PodPool("cards", (A,), security_group_ids=("sg-0a",))
BY_TAG = PodPool("cards", subnet_tags={"team": "cards"})
ENI = Eni(
    EniId("eni-1"),
    MacAddress("02:00:00:00:00:02"),
    1,
    0,
    A,
    IPv4Network("10.1.0.0/24"),
    IPv4Address("10.1.0.9"),
    False,
    pool="cards",
)


def pools_of(pools: object) -> PodPools:
    """The pools of a file."""
    return parse(json.dumps({"pools": pools}), source="network.json", is_custom=False).pools


def test_a_pool_is_read_with_its_defaults() -> None:
    """Subnets in their order, groups ascending; a reservation of one ENI unless the file says otherwise."""
    pools = pools_of({"cards": CARDS, "batch": {"subnetTags": {"team": "batch"}, "reservedEnis": 0}})
    assert pools.names == ("", "cards", "batch")
    assert pools.by_name["cards"] == PodPool("cards", (B, A), {}, ("sg-0a", "sg-0b"), 2, 0, 1, 2)
    assert pools.by_name["batch"] == PodPool("batch", (), {"team": "batch"}, (), 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("pools", "places"),
    [
        ({"default": {"subnets": ["subnet-0a"]}}, ["pools: "]),
        ({"Cards": {"subnets": ["subnet-0a"]}}, ["pools: "]),
        ({"a" * 33: {"subnets": ["subnet-0a"]}}, ["pools: "]),
        ({"cards": []}, ["pools.cards: "]),
        ({"cards": {}}, ["pools.cards: "]),
        ({"cards": {"subnets": ["subnet-0a"], "subnetTags": {"a": "b"}}}, ["pools.cards: "]),
        ({"cards": {"subnets": ["vpc-1", 2]}}, ["pools.cards: ", "pools.cards: "]),
        ({"cards": {"subnets": ["subnet-0a"], "securityGroups": ["all"]}}, ["pools.cards: "]),
        ({"cards": {"subnetTags": {"team": 1}}}, ["pools.cards: "]),
        ({"cards": {"subnets": ["subnet-0a"], "warmIpTarget": -1}}, ["pools.cards: "]),
        ({"cards": {"subnets": ["subnet-0a"], "warmIpTarget": True}}, ["pools.cards: "]),
        ({"cards": {"subnets": ["subnet-0a"], "minimumIpTarget": 1001}}, ["pools.cards: "]),
        ({"cards": {"subnets": ["subnet-0a"], "reservedEnis": 3, "maxEnis": 2}}, ["pools.cards: "]),
        ({"cards": {"subnets": ["subnet-0a"], "warmEniTarget": 1}}, ["pools.cards: "]),
        ({f"pool-{n}": {"subnets": ["subnet-0a"]} for n in range(POOLS_MAX + 1)}, ["pools: "]),
        ({"cards": {"subnets": ["x"]}, "Batch": {}}, ["pools.cards: ", "pools: "]),
    ],
)
def test_every_fault_is_named(pools: object, places: list[str]) -> None:
    """One sentence for each, which begins with the place."""
    with pytest.raises(SettingsError) as refusal:
        pools_of(pools)
    problems = refusal.value.details.split("; ")
    assert len(problems) == len(places)
    assert all(problem.startswith(place) for problem, place in zip(problems, places, strict=True))


def test_its_targets_replace_those_of_the_node() -> None:
    """No warm ENI and no automatic target; the rest is the node's."""
    own = PoolSettings(warm_eni_target=2, warm_target_auto=True, prefix_delegation=True, max_pods=29, release_hold_s=5.0)
    settings = replace(BY_LIST, warm_ip_target=3).settings(own, max_pods=7)
    assert settings == PoolSettings(
        warm_eni_target=0, warm_ip_target=3, prefix_delegation=True, max_pods=7, release_hold_s=5.0, keeps_one_free=False
    )


def described(subnet_id: SubnetId, **tags: str) -> DescribedSubnet:
    """A subnet as EC2 shows it."""
    return DescribedSubnet(subnet_id, IPv4Network("10.1.0.0/24"), "us-west-2a", "vpc-1", 100, tags)


@pytest.mark.parametrize(
    ("pool", "eni", "subnets", "groups", "expected"),
    [
        (BY_LIST, ENI, None, (), ""),
        (BY_LIST, ENI, None, ("sg-0a",), ""),
        (BY_LIST, ENI, None, ("sg-0b",), f"{OTHER_GROUPS}cards"),
        (BY_LIST, replace(ENI, excluded=f"{OTHER_GROUPS}cards"), None, (), f"{OTHER_GROUPS}cards"),
        (BY_LIST, replace(ENI, subnet_id=B), None, ("sg-0a",), f"{OTHER_SUBNET}cards"),
        (BY_LIST, replace(ENI, excluded=f"{OPERATOR}eks"), None, ("sg-0a",), f"{OPERATOR}eks"),
        (BY_LIST, replace(ENI, pool="gone"), None, ("sg-0a",), f"{NOT_IN_FILE}gone"),
        (BY_TAG, ENI, None, ("sg-0b",), ""),
        (BY_TAG, replace(ENI, excluded=f"{OTHER_SUBNET}cards"), None, (), f"{OTHER_SUBNET}cards"),
        (BY_TAG, replace(ENI, excluded=f"{OTHER_SUBNET}cards"), {A: described(A, team="cards")}, (), ""),
        (BY_TAG, ENI, {A: described(A, team="batch")}, (), f"{OTHER_SUBNET}cards"),
        (BY_TAG, ENI, {}, (), ""),
    ],
)
def test_an_eni_that_the_file_describes_no_longer_drains(
    pool: PodPool, eni: Eni, subnets: dict[SubnetId, DescribedSubnet] | None, groups: tuple[str, ...], expected: str
) -> None:
    """By subnet, groups and name; what is not known excludes nothing new."""
    pools = PodPools({"cards": pool})
    assert pool_exclusion(eni, pools, subnets, security_group_ids=groups) == expected
