"""How many pods a node can hold: EKS's own figures, each bound that can be the narrowest, and the modes that a type has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ipamd.model.capacity import Capacity, NodeBounds, capacities, eks_cap
from ipamd.model.eni import InstanceLimits

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
        (NodeBounds(max_pods=20), 20, "MAX_PODS=20"),
        (NodeBounds(max_pods=110), 27, "3 ENIs of 10 addresses, one of them its own (m5.large)"),
        (NodeBounds(held_count=9, subnet_free_count=3), 12, "the subnet's 3 free addresses beside the 9 held"),
    ],
)
def test_the_narrowest_bound_is_named(bounds: NodeBounds, count: int, limited_by: str) -> None:
    """ENIs, MAX_ENI, ENIs of others, MAX_PODS, and the subnet where EC2 has told its room."""
    found = modes_of(bounds=bounds)["single addresses"]
    assert (found.address_count, found.limited_by) == (count, limited_by)


def test_the_primary_without_pods_is_said() -> None:
    """Custom networking costs an ENI, and the row says so."""
    assert modes_of()["prefixes, custom networking"].limited_by.endswith(", the primary ENI carries no pods")


def test_a_xen_type_has_no_prefixes() -> None:
    """Modes that the type cannot have are not listed."""
    assert list(modes_of(replace(M5_LARGE, hypervisor="xen"))) == ["single addresses", "single addresses, custom networking"]


def test_eks_caps_what_is_recommended() -> None:
    """110 below 30 vCPUs, 250 from there; nothing is recommended for vCPUs that nobody knows."""
    assert (eks_cap(2), eks_cap(29), eks_cap(30), eks_cap(96)) == (110, 110, 250, 250)
    found = modes_of(bounds=NodeBounds(vcpu_count=2))
    assert (found["single addresses"].recommended, found["prefixes"].recommended) == (29, 110)
    assert modes_of()["prefixes"].recommended == 0
