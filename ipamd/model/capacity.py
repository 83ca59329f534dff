"""How many pods a node can hold in each mode, what limits it, and the formula. Pure; for `ipamctl capacity`."""

from __future__ import annotations

from dataclasses import dataclass

from ipamd.model.eni import ADDRESSES_PER_PREFIX, InstanceLimits
from ipamd.model.placement import eni_limit, is_prefix_mode
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import PoolSnapshot
from ipamd.model.words import counted

HOST_NETWORK_PODS = 2
"""Pods without an address that maxPods counts: the CNI's own and kube-proxy. Source: amazon-vpc-cni-k8s misc/eni-max-pods.txt."""

MANY_VCPUS = 30
MAX_PODS_FEW, MAX_PODS_MANY = 110, 250
"""Most pods that EKS lets its managed node groups have, below 30 vCPUs and above.

Source: https://docs.aws.amazon.com/eks/latest/userguide/choosing-instance-type.html, How maxPods is determined."""


@dataclass(frozen=True, slots=True)
class NodeBounds:
    """What narrows a node besides its type. Counts; 0: no bound. `subnet_free_count`: free addresses of the subnet beside the
    `held_count` that the node has, None if EC2 has not been asked. `vcpu_count` 0: not known."""

    max_eni: int = 0
    max_pods: int = 0
    unmanaged_eni_count: int = 0
    held_count: int = 0
    subnet_free_count: int | None = None
    vcpu_count: int = 0


@dataclass(frozen=True, slots=True)
class Capacity:
    """One mode. `address_count`: pods with an address of their own. `max_pods`: that and the pods on the host's network.
    `recommended`: the same within what EKS caps; 0 if the vCPUs are not known."""

    mode: str
    address_count: int
    max_pods: int
    recommended: int
    formula: str
    limited_by: str
    in_force: bool = False


def capacities(limits: InstanceLimits, bounds: NodeBounds, *, prefixes: bool, primary_carries_pods: bool) -> tuple[Capacity, ...]:
    """Count the pods in each mode.

    Args:
        prefixes, primary_carries_pods: the mode in force; the primary ENI carries none with custom networking.
    Returns: single addresses and prefixes, with the primary ENI and without; prefixes only where the type can have them.
    """
    modes = [(of_prefixes, primary) for primary in (True, False) for of_prefixes in (False, True)]
    return tuple(
        _capacity(limits, bounds, of_prefixes=of_prefixes, primary=primary, in_force=mode == (prefixes, primary_carries_pods))
        for mode in modes
        for of_prefixes, primary in (mode,)
        if not of_prefixes or limits.supports_prefixes
    )


def usable_eni_count(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """Count the ENIs that may be attached for pods: the limit, less the places that ENIs have which are not ours to use.

    Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, updateIPStats.
    """
    return max(eni_limit(snapshot.limits, settings) - snapshot.unmanaged_eni_count, 0)


def most_addresses(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """Count the addresses that this node can have at most: what is there, and what vacant slots and places can still take.

    A slot takes one address, or in prefix mode 16; one that is taken counts with what is in it, so that a node with both kinds is
    counted right. An ENI that gets no new sandbox (the primary one with custom networking, one of an excluded subnet) counts with what
    is in use on it. MAX_PODS is no part of it. On a node of one kind the formula of amazon-vpc-cni-k8s (pkg/ipamd/ipamd.go,
    updateIPStats) gives the same number.
    """
    unit, slots = ADDRESSES_PER_PREFIX if is_prefix_mode(snapshot, settings) else 1, snapshot.limits.slots_per_eni
    attached = sum(
        eni.counts.in_use if eni.is_excluded else eni.counts.total - eni.counts.lost + max(slots - eni.used_slot_count, 0) * unit
        for eni in snapshot.enis
    )
    return attached + max(usable_eni_count(snapshot, settings) - len(snapshot.enis), 0) * slots * unit


def eks_cap(vcpu_count: int) -> int:
    """Return EKS's cap on maxPods."""
    return MAX_PODS_FEW if vcpu_count < MANY_VCPUS else MAX_PODS_MANY


def _capacity(limits: InstanceLimits, bounds: NodeBounds, *, of_prefixes: bool, primary: bool, in_force: bool) -> Capacity:
    unit, slots = ADDRESSES_PER_PREFIX if of_prefixes else 1, limits.slots_per_eni
    enis = min(limits.eni_count, bounds.max_eni) if bounds.max_eni else limits.eni_count
    carrying = max(enis - bounds.unmanaged_eni_count - (not primary), 0)
    by_enis = carrying * slots * unit
    bound = [(by_enis, _of_enis(limits, bounds, primary=primary))]
    if bounds.max_pods:
        bound.append((bounds.max_pods, f"MAX_PODS={bounds.max_pods}"))
    if bounds.subnet_free_count is not None:
        free = bounds.held_count + bounds.subnet_free_count
        bound.append(
            (free, f"the subnet's {counted(bounds.subnet_free_count, 'free address')} beside the {bounds.held_count} held")
        )
    address_count, limited_by = min(bound, key=lambda one: one[0])
    max_pods = address_count + HOST_NETWORK_PODS
    formula = f"{carrying} ENIs x {slots} slots" + (f" x {unit}" if of_prefixes else "") + f" = {by_enis}"
    mode = ("prefixes" if of_prefixes else "single addresses") + ("" if primary else ", custom networking")
    recommended = min(max_pods, eks_cap(bounds.vcpu_count)) if bounds.vcpu_count else 0
    return Capacity(mode, address_count, max_pods, recommended, formula, limited_by, in_force)


def _of_enis(limits: InstanceLimits, bounds: NodeBounds, *, primary: bool) -> str:
    why = [f"{counted(limits.eni_count, 'ENI')} of {limits.ipv4_per_eni} addresses, one of them its own ({limits.instance_type})"]
    if bounds.max_eni and bounds.max_eni < limits.eni_count:
        why = [f"MAX_ENI={bounds.max_eni} (the type may have {limits.eni_count})"]
    if bounds.unmanaged_eni_count:
        why.append(f"{counted(bounds.unmanaged_eni_count, 'ENI')} not ours to use")
    if not primary:
        why.append("the primary ENI carries no pods")
    return ", ".join(why)
