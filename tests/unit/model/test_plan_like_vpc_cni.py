"""The pool planner against the behaviour of amazon-vpc-cni-k8s (`vectors_pool.json`)."""

from __future__ import annotations

from typing import Any

import pytest

from ipamd.model.eni import EniState, InstanceLimits
from ipamd.model.ids import EniId
from ipamd.model.placement import room_for_eni
from ipamd.model.plan import deficit_count, excess_count
from ipamd.model.pool_counts import PoolCounts
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import EniCapacity, PoolSnapshot
from tests.unit.model.plan_vectors import converge, settings_of, snapshot_of, vectors


@pytest.mark.parametrize(("given_", "expect"), vectors("warm_pool_short_over", only={"mode": "secondary_ip"}))
def test_short_and_over_equal_vpc_cni(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    """With nothing cooling, deficit and excess equal short and over of amazon-vpc-cni-k8s."""
    snapshot = snapshot_of(given_["total_ips"], given_["assigned_ips"], limits=InstanceLimits("t", 15, 50))
    settings = settings_of(given_)
    assert (deficit_count(snapshot, settings), excess_count(snapshot, settings)) == (expect["short"], expect["over"])
    assert settings.ip_targets_defined == expect["targets_defined"]


@pytest.mark.parametrize(("given_", "expect"), vectors("warm_pool_short_over", only={"mode": "prefix_delegation"}))
def test_short_in_prefixes_equals_vpc_cni(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    """In prefix mode the deficit, rounded up to /28s, equals short of amazon-vpc-cni-k8s; the excess, in whole free /28s, its over."""
    snapshot = snapshot_of(given_["total_ips"], given_["assigned_ips"], limits=InstanceLimits("t", 15, 50))
    assert -(-deficit_count(snapshot, settings_of(given_)) // 16) == expect["short"]
    assert min(excess_count(snapshot, settings_of(given_)) // 16, given_["free_prefixes"]) == expect["over"]


@pytest.mark.parametrize(
    ("given_", "expect"),
    [vector for vector in vectors("pool_too_low") if "total_ips" in vector.values[0]],
)
def test_low_equals_vpc_cni(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    """Whether the pool is low equals the answer of amazon-vpc-cni-k8s, maxPods included."""
    slots = given_.get("max_ips_per_eni") or given_["max_prefixes_per_eni"]
    snapshot = snapshot_of(given_["total_ips"], given_["assigned_ips"], limits=InstanceLimits("t", given_["max_eni"], slots + 1))
    settings = settings_of(given_, max_pods=given_["max_pods"])
    assert (deficit_count(snapshot, settings) > 0) == expect["low"]


@pytest.mark.parametrize(("given_", "expect"), vectors("room_for_eni"))
def test_room_for_an_eni_equals_vpc_cni(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    """A trunk's reserved place is one more that is not ours."""
    snapshot = PoolSnapshot(
        enis=tuple(EniCapacity(EniId(f"eni-{n}"), n, EniState.ATTACHED, 0) for n in range(given_["enis_in_store"])),
        counts=PoolCounts(),
        limits=InstanceLimits("t", given_["max_eni"], 10),
        unmanaged_eni_count=given_["unmanaged"] + given_["trunk_slot_reserved"],
    )
    assert room_for_eni(snapshot, PoolSettings()) == expect["result"]


@pytest.mark.parametrize(("given_", "expect"), [v for v in vectors("instance_limits") if "max_pods" in v.values[1]])
def test_max_pods_equals_vpc_cni(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    """maxPods = ENIs x (addresses - 1) + 2."""
    assert InstanceLimits(given_["instance_type"], given_["enis"], given_["ipv4_per_eni"]).max_pods == expect["max_pods"]


@pytest.mark.parametrize(("given_", "expect"), vectors("warm_pool_steady_state"))
def test_the_steady_state_equals_vpc_cni(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    """From empty to steady state: ENIs, addresses and prefixes as the tables of amazon-vpc-cni-k8s have them."""
    limits = InstanceLimits("t", given_.get("eni_limit", 15), given_.get("ipv4_limit_per_eni", 50))
    enis = converge(limits, settings_of(given_), given_["pods"])
    by_prefix = given_["mode"] == "prefix_delegation"
    total = sum(addresses for _, addresses in enis)
    found = {
        "attached_enis": len(enis),
        "total_secondary_ips": 0 if by_prefix else total,
        "free_ips": total - given_["pods"],
        "attached_prefixes": total // 16 if by_prefix else 0,
        "ips_per_eni": sorted((addresses for _, addresses in enis), reverse=True),
    }
    for name in ("attached_enis", "total_secondary_ips", "free_ips", "attached_prefixes", "ips_per_eni"):
        if name in expect:
            wanted = sorted(expect[name], reverse=True) if isinstance(expect[name], list) else expect[name]
            assert found[name] == wanted, name
