"""Compute how many pods a node can hold in each mode, what limits this number, and its formula. Pure; for `ipamctl capacity`."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from ipamd.model.eni import ADDRESSES_PER_PREFIX, InstanceLimits
from ipamd.model.family import IPV4, IPV6, Family, LocalRange
from ipamd.model.placement import eni_limit, is_prefix_mode, trunk_places
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import PoolSnapshot
from ipamd.model.record import dataclass, replace
from ipamd.model.words import counted

HOST_NETWORK_PODS = 2
"""The number of pods that maxPods counts although they have no address of their own: the CNI's pod and kube-proxy's. Source:
amazon-vpc-cni-k8s misc/eni-max-pods.txt."""

ADDRESSES_MAX = (1 << 32) - 1
"""The highest count of addresses that is shown; instead of a higher count this number is shown. Ours: the field of the proto has 32
bits."""

MANY_VCPUS = 30

MAX_PODS_FEW, MAX_PODS_MANY = 110, 250
"""The most pods that EKS allows on a node of its managed node groups: the first number if the node has fewer than MANY_VCPUS vCPUs,
else the second.

Source: https://docs.aws.amazon.com/eks/latest/userguide/choosing-instance-type.html, How maxPods is determined."""


@dataclass(frozen=True, slots=True)
class SubnetRoom:
    """The free addresses of the subnets in which new ENIs may be created.

    free_count: the number of free addresses in all of them.
    answer_age_s: seconds since EC2's oldest answer about one of them; None if it is not known.
    """

    free_count: int
    subnet_count: int = 1
    answer_age_s: float | None = None

    def __str__(self) -> str:
        addresses = counted(self.free_count, "free address")
        text = f"the subnet's {addresses}"
        if self.subnet_count > 1:
            text = f"the {addresses} of {self.subnet_count} subnets"
        if self.answer_age_s is None:
            return text
        return f"{text} (by EC2's answer {self.answer_age_s:.0f} s ago)"


@dataclass(frozen=True, slots=True)
class NodeBounds:
    """The bounds of a node besides those of its instance type.

    max_eni, max_pods: the settings MAX_ENI and VPC_IPAMD_MAX_PODS; 0: no bound.
    unmanaged_eni_count: the number of attached ENIs that are not for pods.
    trunk_places: the number of places that are left free for the trunk ENI.
    own_address_count: the number of addresses that the node has already.
    subnet_room: the free addresses of the subnets for new ENIs; None if their number is not known.
    vcpu_count: the number of vCPUs; 0: not known.
    local_range: the range from which every pod also gets an address of the other family; None: pods get none.
    """

    max_eni: int = 0
    max_pods: int = 0
    unmanaged_eni_count: int = 0
    trunk_places: int = 0
    own_address_count: int = 0
    subnet_room: SubnetRoom | None = None
    vcpu_count: int = 0
    local_range: LocalRange | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many pods a node can run in one mode.

    mode: the mode in words.
    address_count: the number of pods with an address of their own, at most ADDRESSES_MAX.
    max_pods: `address_count` and the pods on the host's network (HOST_NETWORK_PODS).
    recommended: `max_pods`, but at most what EKS allows (`eks_cap`); 0 if the number of vCPUs is not known.
    formula: how the addresses are counted, for people.
    limited_by: the bound that decides, for people.
    in_force: whether the node is in this mode.
    """

    mode: str
    address_count: int
    max_pods: int
    recommended: int
    formula: str
    limited_by: str
    in_force: bool = False


def capacities(
    limits: InstanceLimits, bounds: NodeBounds, *, prefixes: bool, primary_carries_pods: bool, family: Family = IPV4
) -> tuple[Capacity, ...]:
    """Compute how many pods a node can hold in each mode.

    Args:
        prefixes: whether the node is in prefix mode.
        primary_carries_pods: whether the primary ENI carries pods; with custom networking it usually carries none.
    Returns: with IPv4 the mode of single addresses and the mode of prefixes, each once with pods on the primary ENI and once without.
        The modes of prefixes are left out if the instance type cannot have prefixes. With IPv6 there is one mode.
    """
    if family is IPV6:
        return (_sparse_capacity(limits, bounds, family),)
    modes = []
    for primary in (True, False):
        for of_prefixes in (False, True):
            if of_prefixes and not limits.supports_prefixes:
                continue
            in_force = (of_prefixes, primary) == (prefixes, primary_carries_pods)
            modes.append(_capacity(limits, bounds, of_prefixes=of_prefixes, primary=primary, in_force=in_force))
    return tuple(modes)


def usable_eni_count(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """Compute how many ENIs may be attached for pods: the limit, less the places of unmanaged ENIs and of the trunk ENI.

    Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, updateIPStats.
    """
    return max(eni_limit(snapshot.limits, settings) - snapshot.unmanaged_eni_count - trunk_places(snapshot, settings), 0)


def most_addresses(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """Compute how many addresses this node can have: the present ones, and those that fit in vacant slots and on new ENIs.

    A vacant slot counts as one address, or in prefix mode as 16. A used slot counts with its addresses, so the count is correct if a
    node has both single addresses and prefixes. An ENI whose addresses no new sandbox gets (the primary ENI with custom networking, an
    ENI of an excluded subnet) counts with its addresses in use. VPC_IPAMD_MAX_PODS does not bound the count. On a node with only
    single addresses or only prefixes the formula of amazon-vpc-cni-k8s (pkg/ipamd/ipamd.go, updateIPStats) gives the same number.
    """
    unit, slots = ADDRESSES_PER_PREFIX if is_prefix_mode(snapshot, settings) else 1, snapshot.limits.slots_per_eni
    count = 0
    for eni in snapshot.enis:
        if eni.is_excluded:
            count += eni.counts.in_use
        else:
            count += eni.counts.total - eni.counts.lost + max(slots - eni.used_slot_count, 0) * unit
    vacant_places = max(usable_eni_count(snapshot, settings) - len(snapshot.enis), 0)
    if snapshot.place_cap is not None:
        vacant_places = min(vacant_places, snapshot.place_cap)
    return count + vacant_places * slots * unit


def eks_cap(vcpu_count: int) -> int:
    """Return the most pods that EKS allows on a node of its managed node groups (MAX_PODS_FEW, MAX_PODS_MANY)."""
    if vcpu_count < MANY_VCPUS:
        return MAX_PODS_FEW
    return MAX_PODS_MANY


def _capacity(limits: InstanceLimits, bounds: NodeBounds, *, of_prefixes: bool, primary: bool, in_force: bool) -> Capacity:
    """Compute how many pods an IPv4 node can hold in one mode. `primary`: whether the primary ENI carries pods."""
    unit, slots = ADDRESSES_PER_PREFIX if of_prefixes else 1, limits.slots_per_eni
    enis = min(limits.eni_count, bounds.max_eni) if bounds.max_eni else limits.eni_count
    carrying = max(enis - bounds.unmanaged_eni_count - bounds.trunk_places - (not primary), 0)
    by_enis = carrying * slots * unit
    mode_bounds = [(by_enis, _eni_bound(limits, bounds, primary=primary))]
    if bounds.subnet_room is not None:
        by_subnets = bounds.own_address_count + bounds.subnet_room.free_count
        mode_bounds.append((by_subnets, f"{bounds.subnet_room} besides the {bounds.own_address_count} of this node"))
    formula = f"{carrying} ENIs x {slots} slots" + (f" x {unit}" if of_prefixes else "") + f" = {by_enis}"
    mode = ("prefixes" if of_prefixes else "single addresses") + ("" if primary else ", custom networking")
    return _narrowest(mode, mode_bounds, bounds, formula=formula, in_force=in_force)


def _sparse_capacity(limits: InstanceLimits, bounds: NodeBounds, family: Family) -> Capacity:
    """Compute how many pods an IPv6 node can hold; 0 if the instance type cannot have prefixes.

    One prefix has addresses for more pods than any node runs, so with a prefix kubelet's maxPods is the bound.

    Source: https://github.com/awslabs/amazon-eks-ami, nodeadm, which computes max-pods from the limits of IPv4, whatever the family
        is.
    """
    count = (1 << family.any_route.max_prefixlen - family.prefix_length) - 2
    mode, formula = f"IPv6, one /{family.prefix_length}", f"one /{family.prefix_length} but for its first and last = {count}"
    if not limits.supports_prefixes:
        no_prefix = (0, f"no prefix can be delegated to {limits.instance_type}: only Nitro types and bare metal have them")
        return _narrowest(mode, [no_prefix], bounds, formula=formula, in_force=True)
    capacity = _narrowest(mode, [(min(count, ADDRESSES_MAX), "not by addresses")], bounds, formula=formula, in_force=True)
    kubelet = (
        f"nodeadm gives kubelet {limits.max_pods}, by the type's IPv4 slots whatever the family; maxPodsExpression raises it"
    )
    return replace(capacity, limited_by=f"{capacity.limited_by}; {kubelet}")


def _narrowest(
    mode: str, mode_bounds: Sequence[tuple[int, str]], bounds: NodeBounds, *, formula: str, in_force: bool
) -> Capacity:
    """Return the capacity in a mode: the lowest bound decides.

    Args:
        mode_bounds: the bounds of this mode, each as a number of addresses and the cause of the bound.
        bounds: the bounds of the node, which hold in every mode.
    """
    all_bounds = list(mode_bounds)
    if bounds.max_pods:
        all_bounds.append((bounds.max_pods, f"VPC_IPAMD_MAX_PODS={bounds.max_pods}"))
    if bounds.local_range:
        range_count = len(bounds.local_range.addresses())
        all_bounds.append((range_count, f"{range_count} addresses of the other family in {bounds.local_range.network}"))
    address_count, limited_by = min(all_bounds, key=itemgetter(0))
    max_pods = min(address_count + HOST_NETWORK_PODS, ADDRESSES_MAX)
    recommended = min(max_pods, eks_cap(bounds.vcpu_count)) if bounds.vcpu_count else 0
    return Capacity(mode, address_count, max_pods, recommended, formula, limited_by, in_force)


def _eni_bound(limits: InstanceLimits, bounds: NodeBounds, *, primary: bool) -> str:
    """Describe what bounds the number of ENIs that carry pods."""
    reasons = [
        f"{counted(limits.eni_count, 'ENI')} of {limits.ipv4_per_eni} addresses, one of them its own ({limits.instance_type})"
    ]
    if bounds.max_eni and bounds.max_eni < limits.eni_count:
        reasons = [f"MAX_ENI={bounds.max_eni} (the type may have {limits.eni_count})"]
    if bounds.unmanaged_eni_count:
        reasons.append(f"{counted(bounds.unmanaged_eni_count, 'ENI')} not ours to use")
    if bounds.trunk_places:
        reasons.append("one place left for the trunk")
    if not primary:
        reasons.append("the primary ENI carries no pods")
    return ", ".join(reasons)
