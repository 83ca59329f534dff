"""Which subnets may have new ENIs, and which ENIs get nothing new: observed rules of amazon-vpc-cni-k8s (`vectors_subnets.json`)."""

from __future__ import annotations

import json
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest

from ipamd.model.eni import Eni, EniState, InstanceLimits
from ipamd.model.growth_state import GrowthState, growth_refusal
from ipamd.model.ids import EniId, MacAddress, SubnetId
from ipamd.model.plan import plan
from ipamd.model.pool_actions import Allocate, CreateEni
from ipamd.model.pool_counts import EniStock, PoolCounts, Stock
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import EniCapacity, PoolSnapshot, pool_snapshot
from ipamd.model.subnets import (
    OTHER_GROUPS,
    OTHER_SUBNET,
    PRIMARY_WITHOUT_PODS,
    CustomNetwork,
    DescribedSubnet,
    SubnetPolicy,
    ZoneNetwork,
    by_room,
    exclusion,
    matches_cluster,
    why_unusable,
)

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "vectors_subnets.json").read_text())
SUBNET = DescribedSubnet(SubnetId("subnet-1"), IPv4Network("10.0.0.0/24"), "us-west-2a", "vpc-1", 10)
ENI = Eni(
    EniId("eni-1"),
    MacAddress("02:00:00:00:00:01"),
    0,
    0,
    SUBNET.subnet_id,
    SUBNET.cidr,
    IPv4Address("10.0.0.10"),
    is_primary=True,
)


def named(vector: dict[str, Any]) -> str:
    """A test's ID: what is asked, and of which tags."""
    return f"{vector['rule']} {json.dumps(vector['tags'])} {vector.get('cluster', '')} {vector.get('is_primary', '')}"


@pytest.mark.parametrize("vector", VECTORS, ids=named)
def test_like_amazon_vpc_cni_k8s(vector: dict[str, Any]) -> None:
    """The same tags mean the same, so that a VPC tagged for it needs no change."""
    tags, cluster = vector["tags"], vector.get("cluster", "")
    match vector["rule"]:
        case "cluster":
            found = matches_cluster(tags, cluster)
        case "usable":
            found = not why_unusable(tags, is_primary=vector["is_primary"], cluster_name=cluster)
        case "excluded":
            subnets = {} if tags is None else {SUBNET.subnet_id: replace(SUBNET, tags=tags)}
            found = bool(exclusion(ENI, SubnetPolicy(cluster_name=cluster), subnets))
    assert found == vector["expect"]


@pytest.mark.parametrize("is_primary", [True, False])
@pytest.mark.parametrize("cluster", ["", "mine"])
@pytest.mark.parametrize("role", ["1", "0"])
def test_a_role_tag_means_the_same_for_new_and_old(role: str, cluster: str, is_primary: bool) -> None:
    """Only a missing role tag makes a difference between a subnet's new ENIs and those it has."""
    for other in ({}, {"cni.networking.k8s.aws/cluster/other": ""}, {"cni.networking.k8s.aws/cluster/mine": "x"}):
        tags = {"kubernetes.io/role/cni": role, **other}
        unusable = why_unusable(tags, is_primary=is_primary, cluster_name=cluster)
        excluded = exclusion(ENI, SubnetPolicy(cluster_name=cluster), {SUBNET.subnet_id: replace(SUBNET, tags=tags)})
        assert excluded == (f"its subnet {SUBNET.subnet_id} is {unusable}" if unusable else "")


def test_the_roomiest_comes_first_and_equals_keep_their_order() -> None:
    """Most free addresses first; a stable order, so that the same answer gives the same choice."""
    subnets = [replace(SUBNET, subnet_id=SubnetId(name), free_count=count) for name, count in (("a", 5), ("b", 9), ("c", 5))]
    assert [one.subnet_id for one in by_room(subnets)] == ["b", "a", "c"]


def test_before_the_first_answer_the_record_stands() -> None:
    """An ENI that was excluded before a restart stays so until EC2 answers: silence is no evidence (I11)."""
    known = replace(ENI, excluded="its subnet is excluded")
    assert exclusion(known, SubnetPolicy(), None) == known.excluded
    assert exclusion(known, SubnetPolicy(), {SUBNET.subnet_id: SUBNET}) == ""


@pytest.mark.parametrize(("is_primary", "carries", "expected"), [(True, False, True), (True, True, False), (False, False, False)])
def test_custom_networking_keeps_pods_off_the_primary_eni(is_primary: bool, carries: bool, expected: bool) -> None:
    """Unless its file says otherwise; those of the subnet that it names always carry pods, and tags do not matter."""
    policy = SubnetPolicy(custom=CustomNetwork({"default": ZoneNetwork(SUBNET.subnet_id)}, primary_carries_pods=carries))
    excluded = {SUBNET.subnet_id: replace(SUBNET, tags={"kubernetes.io/role/cni": "0"})}
    assert bool(exclusion(replace(ENI, is_primary=is_primary), policy, excluded)) == expected


def test_without_custom_networking_the_primary_eni_carries_pods_again() -> None:
    """The setting of now counts, also before EC2 has answered."""
    assert exclusion(replace(ENI, excluded=PRIMARY_WITHOUT_PODS), SubnetPolicy(), None) == ""


LIMITS = InstanceLimits("m5.large", 3, 10)


def test_an_excluded_eni_is_no_supply_and_gets_nothing() -> None:
    """Its free addresses do not count, its slots are not filled; its sandboxes count for maxPods, and it keeps its place."""
    counts = PoolCounts(free=6, assigned=3)
    stock = Stock((EniStock(replace(ENI, excluded="its subnet"), counts, 9, 0, 0),), counts)
    snapshot = pool_snapshot(stock, limits=LIMITS)
    assert (snapshot.counts.free, snapshot.counts.assigned, snapshot.supply_count, snapshot.pool_count) == (0, 3, 0, 3)
    half_full = replace(snapshot, enis=(replace(snapshot.enis[0], used_slot_count=4),))
    assert plan(half_full, settings=PoolSettings(warm_ip_target=2)).actions == (CreateEni(1, address_count=2),)


def test_a_full_subnet_of_the_node_does_not_bound_an_eni_elsewhere() -> None:
    """What the node's own subnet still has goes to the ENIs there; the new ENI is bounded by the subnet that it goes to."""
    snapshot = PoolSnapshot((EniCapacity(EniId("eni-1"), 0, EniState.ATTACHED, 0),), PoolCounts(), LIMITS)
    short = growth_refusal("the subnet is short", left_s=60.0, is_lasting=True)
    for creation_room, expected in ((50, 7), (4, 3)):
        known = replace(snapshot, growth=GrowthState(room=2, creation_room=creation_room, has_other_candidate=True))
        actions = plan(known, settings=PoolSettings(warm_ip_target=9)).actions
        assert actions == (Allocate(EniId("eni-1"), 2), CreateEni(1, address_count=expected))
    empty = replace(snapshot, growth=GrowthState(allocation=short, room=0, creation_room=50, has_other_candidate=True))
    assert plan(empty, settings=PoolSettings(warm_ip_target=9)).actions == (CreateEni(1, address_count=9),)


@pytest.mark.parametrize(("creation_room", "expected"), [(None, 9), (5, 1)])
def test_an_eni_elsewhere_is_filled_only_where_the_subnets_are_not_short(creation_room: int | None, expected: int) -> None:
    """One ADD waits, and no target is set: where addresses are short, it gets one."""
    full = EniCapacity(EniId("eni-1"), 0, EniState.ATTACHED, 9)
    growth = GrowthState(creation_room=creation_room, has_other_candidate=True)
    snapshot = PoolSnapshot((full,), PoolCounts(assigned=9), LIMITS, waiting_count=1, growth=growth)
    assert plan(snapshot, settings=PoolSettings(warm_eni_target=0)).actions == (CreateEni(1, address_count=expected),)


FILE = CustomNetwork(
    {"us-west-2a": ZoneNetwork(SUBNET.subnet_id, ("sg-1", "sg-2")), "us-west-2b": ZoneNetwork(SubnetId("subnet-b"))}
)


@pytest.mark.parametrize(
    ("zone", "subnet_id", "groups", "recorded", "expected"),
    [
        ("us-west-2a", SUBNET.subnet_id, ("sg-2", "sg-1"), OTHER_SUBNET, ""),
        ("us-west-2a", SUBNET.subnet_id, ("sg-1",), "", OTHER_GROUPS),
        ("us-west-2a", SUBNET.subnet_id, (), OTHER_GROUPS, OTHER_GROUPS),
        ("us-west-2a", SUBNET.subnet_id, (), "", ""),
        ("us-west-2a", "subnet-b", ("sg-1", "sg-2"), "", OTHER_SUBNET),
        ("us-west-2b", "subnet-b", ("sg-9",), "", ""),
        ("", "subnet-b", (), "", ""),
        ("", "subnet-c", (), "", OTHER_SUBNET),
        ("us-west-2c", "subnet-c", (), "", ""),
        ("us-west-2c", "subnet-c", (), OTHER_SUBNET, OTHER_SUBNET),
    ],
)
def test_custom_networking_excludes_what_was_made_otherwise(
    zone: str, subnet_id: str, groups: tuple[str, ...], recorded: str, expected: str
) -> None:
    """By the entry of the node's zone: its subnet, and its groups if it names any; what is not known excludes nothing new."""
    eni = replace(ENI, is_primary=False, subnet_id=SubnetId(subnet_id), excluded=recorded)
    assert exclusion(eni, SubnetPolicy(custom=FILE), None, zone=zone, security_group_ids=groups) == expected
    assert exclusion(replace(eni, excluded=expected), SubnetPolicy(), None) == "", "custom networking was switched off"
