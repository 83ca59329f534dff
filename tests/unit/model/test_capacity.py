"""How many pods a node can hold: EKS's own figures, each bound that can be the narrowest, and the modes that a type has."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipamd.model.capacity import (
    ADDRESSES_MAX,
    Capacity,
    NodeBounds,
    SubnetRoom,
    capacities,
    eks_cap,
    most_addresses,
    usable_eni_count,
)
from ipamd.model.eni import EniState, InstanceLimits
from ipamd.model.family import IPV4, IPV6
from ipamd.model.ids import EniId
from ipamd.model.pool_counts import PoolCounts
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import EniCapacity, PoolSnapshot

M5_LARGE = InstanceLimits("m5.large", 3, 10)
NO_BOUNDS = NodeBounds()


def modes_of(limits: InstanceLimits = M5_LARGE, bounds: NodeBounds = NO_BOUNDS, *, prefixes: bool = False) -> dict[str, Capacity]:
    """Capacities by mode."""
    return {one.mode: one for one in capacities(limits, bounds, prefixes=prefixes, primary_carries_pods=True)}


def test_an_m5_large_in_each_mode() -> None:
    """3 x 9 single addresses and 29 pods as EKS says; 16 times as many in /28s; an ENI less with custom networking."""
    found = {mode: (one.address_count, one.max_pods, one.formula) for mode, one in modes_of().items()}
    assert found == {
        "single addresses": (27, 29, "3 ENIs x 9 slots = 27"),
        "prefixes": (432, 434, "3 ENIs x 9 slots x 16 = 432"),
        "single addresses, custom networking": (18, 20, "2 ENIs x 9 slots = 18"),
        "prefixes, custom networking": (288, 290, "2 ENIs x 9 slots x 16 = 288"),
    }
    assert [one.mode for one in modes_of().values() if one.in_force] == ["single addresses"]
    assert [one.mode for one in modes_of(prefixes=True).values() if one.in_force] == ["prefixes"]


@pytest.mark.parametrize(
    ("bounds", "count", "limited_by"),
    [
        (NO_BOUNDS, 27, "3 ENIs of 10 addresses, one of them its own (m5.large)"),
        (NodeBounds(max_eni=2), 18, "MAX_ENI=2 (the type may have 3)"),
        (NodeBounds(max_eni=5), 27, "3 ENIs of 10 addresses, one of them its own (m5.large)"),
        (NodeBounds(max_eni=2, unmanaged_eni_count=1), 9, "MAX_ENI=2 (the type may have 3), 1 ENI not ours to use"),
        (NodeBounds(unmanaged_eni_count=4), 0, "3 ENIs of 10 addresses, one of them its own (m5.large), 4 ENIs not ours to use"),
        (
            NodeBounds(trunk_places=1),
            18,
            "3 ENIs of 10 addresses, one of them its own (m5.large), one place left for the trunk",
        ),
        (NodeBounds(max_pods=20), 20, "VPC_IPAMD_MAX_PODS=20"),
        (NodeBounds(max_pods=110), 27, "3 ENIs of 10 addresses, one of them its own (m5.large)"),
        (
            NodeBounds(own_address_count=9, subnet_room=SubnetRoom(3)),
            12,
            "the subnet's 3 free addresses besides the 9 of this node",
        ),
        (
            NodeBounds(own_address_count=9, subnet_room=SubnetRoom(1, subnet_count=2, answer_age_s=7.4)),
            10,
            "the 1 free address of 2 subnets (by EC2's answer 7 s ago) besides the 9 of this node",
        ),
        (
            NodeBounds(own_address_count=9, subnet_room=SubnetRoom(250)),
            27,
            "3 ENIs of 10 addresses, one of them its own (m5.large)",
        ),
    ],
)
def test_the_narrowest_bound_is_named(bounds: NodeBounds, count: int, limited_by: str) -> None:
    """ENIs, MAX_ENI, ENIs of others, VPC_IPAMD_MAX_PODS, and the subnet where EC2 has told its room."""
    found = modes_of(bounds=bounds)["single addresses"]
    assert (found.address_count, found.limited_by) == (count, limited_by)


def test_the_primary_without_pods_is_said() -> None:
    """Custom networking costs an ENI, and the row says so."""
    assert modes_of()["prefixes, custom networking"].limited_by.endswith(", the primary ENI carries no pods")


def test_a_xen_type_has_no_prefixes() -> None:
    """Modes that the type cannot have are not listed."""
    assert list(modes_of(replace(M5_LARGE, hypervisor="xen"))) == ["single addresses", "single addresses, custom networking"]


@pytest.mark.parametrize(
    ("limits", "bounds", "count", "limited_by"),
    [
        (M5_LARGE, NO_BOUNDS, ADDRESSES_MAX, "not by addresses"),
        (M5_LARGE, NodeBounds(local_range=IPV4.local_range), 1021, "1021 addresses of the other family in 169.254.172.0/22"),
        (M5_LARGE, NodeBounds(max_pods=110, local_range=IPV4.local_range), 110, "VPC_IPAMD_MAX_PODS=110"),
        (replace(M5_LARGE, hypervisor="xen"), NO_BOUNDS, 0, "no prefix can be delegated to m5.large"),
    ],
)
def test_a_node_of_ipv6_has_one_mode(limits: InstanceLimits, bounds: NodeBounds, count: int, limited_by: str) -> None:
    """Addresses bound nothing: the row says what does, and which number nodeadm gives kubelet, and why."""
    (found,) = capacities(limits, replace(bounds, vcpu_count=2), prefixes=False, primary_carries_pods=True, family=IPV6)
    assert (found.mode, found.address_count, found.in_force) == ("IPv6, one /80", count, True)
    assert found.formula == f"one /80 but for its first and last = {2**48 - 2}", "neither is ever given"
    assert found.limited_by.startswith(limited_by)
    assert ("nodeadm gives kubelet 29, by the type's IPv4 slots" in found.limited_by) == limits.supports_prefixes
    assert found.recommended == min(count + 2, 110)


def test_egress_bounds_large_nodes_of_ipv4() -> None:
    """Every pod needs an address of that range too."""
    found = modes_of(InstanceLimits("m5.24xlarge", 15, 50), NodeBounds(local_range=IPV6.local_range), prefixes=True)
    assert (found["prefixes"].address_count, found["single addresses"].address_count) == (1022, 735)
    assert found["prefixes"].limited_by == "1022 addresses of the other family in fd00::ac:0/118"


def test_eks_caps_what_is_recommended() -> None:
    """110 below 30 vCPUs, 250 from there; nothing is recommended for vCPUs that nobody knows."""
    assert (eks_cap(2), eks_cap(29), eks_cap(30), eks_cap(96)) == (110, 110, 250, 250)
    found = modes_of(bounds=NodeBounds(vcpu_count=2))
    assert (found["single addresses"].recommended, found["prefixes"].recommended) == (29, 110)
    assert modes_of()["prefixes"].recommended == 0


@given(
    prefixes=st.booleans(),
    used=st.lists(st.integers(0, 9), max_size=3),
    foreign_count=st.integers(0, 4),
    max_eni=st.integers(0, 4),
)
def test_most_addresses_of_a_node_of_one_kind(prefixes: bool, used: list[int], foreign_count: int, max_eni: int) -> None:
    """Whatever is attached and taken: amazon-vpc-cni-k8s's formula, addresses of a full ENI times ENIs that may be ours; but what is
    attached beyond a lowered limit counts too."""
    unit = 16 if prefixes else 1
    enis = tuple(
        EniCapacity(EniId(f"eni-{at}"), at, EniState.ATTACHED, slots, counts=PoolCounts(free=slots * unit))
        for at, slots in enumerate(used)
    )
    snapshot = PoolSnapshot(enis, PoolCounts(), M5_LARGE, unmanaged_eni_count=foreign_count)
    settings = PoolSettings(prefix_delegation=prefixes, max_eni=max_eni)
    limit = max(min(3, max_eni or 3) - foreign_count, 0)
    assert usable_eni_count(snapshot, settings) == limit
    assert most_addresses(snapshot, settings) == max(limit, len(enis)) * 9 * unit
