"""The planner's vectors from amazon-vpc-cni-k8s (`vectors_pool.json`), and pools for its tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ipamd.model.eni import EniState, InstanceLimits
from ipamd.model.ids import EniId
from ipamd.model.plan import plan
from ipamd.model.pool_actions import Allocate, CreateEni
from ipamd.model.pool_counts import PoolCounts
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import EniCapacity, PoolSnapshot

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "vectors_pool.json").read_text())


def vectors(area: str, *, only: Mapping[str, Any] | None = None) -> list[Any]:
    """Vectors of one area as test parameters; `only` narrows by fields of `given`."""
    wanted = only or {}
    return [
        pytest.param(vector["given"], vector["expect"], id=f"{area}-{number}")
        for number, vector in enumerate(VECTORS)
        if vector["area"] == area and all(vector["given"].get(key) == value for key, value in wanted.items())
    ]


def settings_of(given_: Mapping[str, Any], *, max_pods: int = 0) -> PoolSettings:
    """Settings from a vector's environment; amazon-vpc-cni-k8s ignores WARM_ENI_TARGET in prefix mode."""
    env = given_.get("env", {})
    return PoolSettings(
        warm_eni_target=env.get("WARM_ENI_TARGET", 1),
        warm_ip_target=env.get("WARM_IP_TARGET", 0),
        minimum_ip_target=env.get("MINIMUM_IP_TARGET", 0),
        warm_prefix_target=env.get("WARM_PREFIX_TARGET", 0),
        max_eni=env.get("MAX_ENI", 0),
        max_pods=max_pods,
        prefix_delegation=given_.get("mode") == "prefix_delegation",
    )


def snapshot_of(total: int, assigned: int, *, limits: InstanceLimits) -> PoolSnapshot:
    """A pool with so many addresses on the primary ENI, none cooling."""
    return PoolSnapshot(
        enis=(EniCapacity(EniId("eni-0"), 0, EniState.ATTACHED, min(total, limits.slots_per_eni)),),
        counts=PoolCounts(free=total - assigned, assigned=assigned),
        limits=limits,
    )


def converge(limits: InstanceLimits, settings: PoolSettings, pods: int) -> list[list[int]]:
    """Place pods one by one as the pool loop would see them.

    Returns: per ENI, the slots used and the addresses it gives. EC2 does what it is asked at once; placement is dense.
    """
    enis: list[list[int]] = [[0, 0]]
    placed = 0
    for _ in range(10_000):
        total = sum(addresses for _, addresses in enis)
        snapshot = PoolSnapshot(
            enis=tuple(EniCapacity(EniId(f"eni-{n}"), n, EniState.ATTACHED, used) for n, (used, _) in enumerate(enis)),
            counts=PoolCounts(free=total - placed, assigned=placed),
            limits=limits,
            waiting_count=int(placed < pods and total == placed),
        )
        decided = plan(snapshot, settings=settings)
        if not decided.actions:
            if placed == pods or total == placed:
                return enis
            placed += 1
            continue
        match decided.actions[0]:
            case Allocate(eni_id, count, 0):
                enis[int(eni_id[4:])][0] += count
                enis[int(eni_id[4:])][1] += count
            case Allocate(eni_id, 0, count):
                enis[int(eni_id[4:])][0] += count
                enis[int(eni_id[4:])][1] += count * 16
            case CreateEni(_, address_count, prefix_count):
                enis.append([address_count + prefix_count, address_count + prefix_count * 16])
    raise AssertionError("the planner never comes to rest")
