"""Where the pool grows: which ENIs get how much, and whether another ENI fits. Pure; `ipamd/model/plan.py` decides how much.

Existing ENIs come first, because an allocation is one call, and a new ENI four and some seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import count as count_from

from ipamd.model.eni import ADDRESSES_PER_PREFIX, EniState, InstanceLimits
from ipamd.model.family import IPV4, IPV6, Egress, Family
from ipamd.model.pool import Allocate, CreateEni, EniCapacity, Growth, PoolSettings, PoolSnapshot
from ipamd.model.record import dataclass, replace
from ipamd.model.words import counted

STOPGAP_COUNT = 4
"""Free single addresses to keep while the subnet has no /28 and no IP target is set. Ours: enough for the next few ADDs; each takes a
slot that a prefix of 16 could have, as soon as there is one again."""


def eni_limit(limits: InstanceLimits, settings: PoolSettings) -> int:
    """Return the ENIs that this node may have: the instance's limit, or MAX_ENI if lower.

    Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, getMaxENI.
    """
    return min(limits.eni_count, settings.max_eni) if settings.max_eni >= 1 else limits.eni_count


def trunk_places(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """Places that no ENI of ours takes: one for the trunk, while there is none and the instance type can have one.

    Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, hasRoomForEni.
    """
    return int(settings.leaves_trunk_place and snapshot.limits.branch_count != 0 and not snapshot.has_trunk)


def room_for_eni(snapshot: PoolSnapshot, settings: PoolSettings) -> bool:
    """Whether another ENI may be attached. Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, hasRoomForEni."""
    return _places(snapshot, settings) > 0


def is_prefix_mode(snapshot: PoolSnapshot, settings: PoolSettings) -> bool:
    """Whether prefixes are wanted, and the instance type can have them."""
    return settings.prefix_delegation and snapshot.limits.supports_prefixes


def vacant_slots(eni: EniCapacity, snapshot: PoolSnapshot) -> int:
    """Slots of an attached ENI that can be asked for: neither used, nor perhaps allocated already, nor refused. An ENI whose host
    routing has failed for long gets no more: nobody could have it. Nor does one that is excluded."""
    known, slots = snapshot.growth, snapshot.limits.slots_per_eni
    is_stuck = known.has_stuck_eni and not eni.host_ready
    if is_stuck or eni.used_slot_count >= slots or eni.is_excluded or eni.state is not EniState.ATTACHED:
        return 0
    taken = eni.used_slot_count + known.pending_slots.get(eni.eni_id, 0)
    return max(min(slots, known.slot_caps.get(eni.eni_id, slots)) - taken, 0)


def vacant_count(snapshot: PoolSnapshot) -> int:
    """Slots of all ENIs that can be asked for."""
    return sum(vacant_slots(eni, snapshot) for eni in snapshot.enis)


def asks_for_prefixes(snapshot: PoolSnapshot, settings: PoolSettings) -> bool:
    """Whether growth is by /28s now. The last addresses below maxPods are single ones if slots are left for all of them; else one
    more /28 is taken, as amazon-vpc-cni-k8s does: it takes one slot, and an ENI less."""
    if not is_prefix_mode(snapshot, settings) or not snapshot.prefixes_available:
        return False
    left = settings.max_pods - snapshot.pool_count
    if not settings.max_pods or left >= ADDRESSES_PER_PREFIX:
        return True
    return left > vacant_count(snapshot)


def pending_eni_address_count(snapshot: PoolSnapshot, unit: int) -> int:
    """Addresses that ENIs under way will bring, or may."""
    attaching = sum(eni.state is EniState.ATTACHING for eni in snapshot.enis)
    return attaching * snapshot.limits.slots_per_eni * unit + sum(
        pending.address_count for pending in snapshot.growth.pending_enis
    )


def pending_count(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """Addresses that ENIs and allocations under way will bring, or may."""
    unit = ADDRESSES_PER_PREFIX if asks_for_prefixes(snapshot, settings) else 1
    return pending_eni_address_count(snapshot, unit) + snapshot.growth.pending_address_count


def growth_actions(snapshot: PoolSnapshot, settings: PoolSettings, count: int) -> Iterator[Growth]:
    """Place `count` addresses, in order of device index. Yields: actions that fit slots, places, maxPods and the subnet's room."""
    known, by_prefix = snapshot.growth, asks_for_prefixes(snapshot, settings)
    unit = ADDRESSES_PER_PREFIX if by_prefix else 1
    slots, want = snapshot.limits.slots_per_eni, -(-count // unit)
    if by_prefix and known.prefix_cap is not None:
        want = min(want, known.prefix_cap)
    # Without IP targets amazon-vpc-cni-k8s fills an ENI at once (tryAssignIPs), and so do we: fewer, larger calls. Prefixes are
    # requested as needed, and so is everything in a subnet that is short of addresses.
    whole = not settings.ip_targets_defined and not is_prefix_mode(snapshot, settings) and known.room is None
    cap = max((settings.max_pods - snapshot.pool_count) // unit, 1) if settings.max_pods else slots * snapshot.limits.eni_count
    room = cap if by_prefix or known.room is None else min(cap, known.room)
    can_wait, placed = False, 0
    for eni in sorted(snapshot.enis, key=lambda eni: (eni.device_index, eni.eni_id)):
        vacant = vacant_slots(eni, snapshot)
        if want <= 0 or room <= 0 or vacant <= 0:
            continue
        if known.allocation is not None:
            can_wait = can_wait or not known.allocation.is_lasting
            continue
        share = min(vacant if whole else want, vacant, room)
        yield Allocate(eni.eni_id, prefix_count=share) if by_prefix else Allocate(eni.eni_id, share)
        want, room, placed = want - share, room - share, placed + share
    if snapshot.frozen:  # only what ADDs wait for
        want = min(want, -(-(snapshot.waiting_count - snapshot.supply_count) // unit) - placed)
    # ENIs that are being attached, or may be, will bring addresses: counted, or a burst would create one ENI too many.
    want -= -(-pending_eni_address_count(snapshot, unit) // unit)
    if known.creation is not None or can_wait or snapshot.bars_enis:
        return  # a pause of seconds is no reason for an ENI that is not needed, and a node that leaves needs no other
    limit = known.room if known.creation_room is None else known.creation_room
    if known.creation_room is not None:
        room = cap - placed  # another subnet: what the node's own lacks is no bound
        whole = not settings.ip_targets_defined and not is_prefix_mode(snapshot, settings)
    for device_index, others in zip(_free_indexes(snapshot), reversed(range(_places(snapshot, settings))), strict=False):
        if limit is not None and not by_prefix:
            room = min(room, limit - 1)  # its primary address is of the same subnet
        if want <= 0 or room <= 0:
            return
        share = min(slots if whole else want, slots, room, known.creation_cap or slots)
        addresses, prefixes = (0, share) if by_prefix else (share, 0)
        yield CreateEni(device_index, addresses, prefixes, others)
        want, room = want - share, room - share


def serving_eni(snapshot: PoolSnapshot) -> EniCapacity | None:
    """The ENI for the one /80 of a node of IPv6: the primary one, or if that is excluded one of ours; another's may have no IPv6."""
    return min(
        (
            eni
            for eni in snapshot.enis
            if (eni.is_primary or eni.created_by_us) and eni.state is EniState.ATTACHED and not eni.is_excluded
        ),
        key=lambda eni: (not eni.is_primary, eni.device_index),
        default=None,
    )


def eni_for_prefix(snapshot: PoolSnapshot, settings: PoolSettings) -> CreateEni | None:
    """A new ENI for that /80; None if there is no place."""
    count = _places(snapshot, settings)
    return CreateEni(next(_free_indexes(snapshot)), other_place_count=count - 1) if count else None


def _places(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """ENIs that may be added: below the limit, and below what EC2 attached at most, which was counted in ENIs that it shows."""
    known = snapshot.growth
    used = snapshot.known_eni_count + len(known.pending_enis) + trunk_places(snapshot, settings)
    places = eni_limit(snapshot.limits, settings) - used - len(snapshot.refused_device_indexes)
    return max(places if known.eni_cap is None else min(places, known.eni_cap - used), 0)


def _free_indexes(snapshot: PoolSnapshot) -> Iterator[int]:
    """Device indexes for new ENIs. 0 is never free, even if no ENI shows it: on some nodes the primary ENI is device 1
    (amazon-vpc-cni-k8s issue 3753)."""
    taken = {0} | {eni.device_index for eni in snapshot.enis} | snapshot.unmanaged_device_indexes
    taken |= snapshot.refused_device_indexes | {pending.device_index for pending in snapshot.growth.pending_enis}
    return free_indexes(taken)


def free_indexes(taken: Collection[int]) -> Iterator[int]:
    """Device indexes beside those that are taken, lowest first, without end: EC2 knows which is too high."""
    return (index for index in count_from() if index not in taken)


# How many pods a node can hold in each mode, what limits it, and the formula. Pure; for `ipamctl capacity`.


HOST_NETWORK_PODS = 2
"""Pods without an address that maxPods counts: the CNI's own and kube-proxy. Source: amazon-vpc-cni-k8s misc/eni-max-pods.txt."""

ADDRESSES_MAX = (1 << 32) - 1
"""What stands for more. Ours: the field of the proto has 32 bits."""

MANY_VCPUS = 30
MAX_PODS_FEW, MAX_PODS_MANY = 110, 250
"""Most pods that EKS lets its managed node groups have, below 30 vCPUs and above.

Source: https://docs.aws.amazon.com/eks/latest/userguide/choosing-instance-type.html, How maxPods is determined."""


@dataclass(frozen=True, slots=True)
class NodeBounds:
    """What narrows a node besides its type. Counts; 0: no bound. `trunk_places`: left free for the trunk ENI.

    `subnet_free_count`: free addresses of the subnet beside the `held_count` that the node has, None if EC2 has not been asked.
    `vcpu_count` 0: not known. `egress`: the range of which every pod needs an address besides, or None.
    """

    max_eni: int = 0
    max_pods: int = 0
    unmanaged_eni_count: int = 0
    trunk_places: int = 0
    held_count: int = 0
    subnet_free_count: int | None = None
    vcpu_count: int = 0
    egress: Egress | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """One mode. `address_count`: pods with an address of their own, ADDRESSES_MAX for more. `max_pods`: that and the pods on the
    host's network. `recommended`: the same within what EKS caps; 0 if the vCPUs are not known."""

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
    """Count the pods in each mode.

    Args:
        prefixes, primary_carries_pods: the mode in force; the primary ENI carries none with custom networking.
    Returns: single addresses and prefixes, with the primary ENI and without; prefixes only where the type can have them. With IPv6
    there is one mode.
    """
    if family is IPV6:
        return (_sparse_capacity(limits, bounds, family),)
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
    return max(eni_limit(snapshot.limits, settings) - snapshot.unmanaged_eni_count - trunk_places(snapshot, settings), 0)


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
    carrying = max(enis - bounds.unmanaged_eni_count - bounds.trunk_places - (not primary), 0)
    by_enis = carrying * slots * unit
    bound = [(by_enis, _of_enis(limits, bounds, primary=primary))]
    if bounds.subnet_free_count is not None:
        free = bounds.held_count + bounds.subnet_free_count
        bound.append(
            (free, f"the subnet's {counted(bounds.subnet_free_count, 'free address')} beside the {bounds.held_count} held")
        )
    formula = f"{carrying} ENIs x {slots} slots" + (f" x {unit}" if of_prefixes else "") + f" = {by_enis}"
    mode = ("prefixes" if of_prefixes else "single addresses") + ("" if primary else ", custom networking")
    return _narrowest(mode, bound, bounds, formula=formula, in_force=in_force)


def _sparse_capacity(limits: InstanceLimits, bounds: NodeBounds, family: Family) -> Capacity:
    """One prefix holds more pods than any node: what bounds them is the number that kubelet is given.

    Source: https://github.com/awslabs/amazon-eks-ami, nodeadm: max-pods from the limits of IPv4, whatever the family.
    """
    count = (1 << family.any_route.max_prefixlen - family.prefix_length) - 2
    mode, formula = f"IPv6, one /{family.prefix_length}", f"one /{family.prefix_length} but for its first and last = {count}"
    if not limits.supports_prefixes:
        no_prefix = (0, f"no prefix can be delegated to {limits.instance_type}: only Nitro types and bare metal have them")
        return _narrowest(mode, [no_prefix], bounds, formula=formula, in_force=True)
    found = _narrowest(mode, [(min(count, ADDRESSES_MAX), "not by addresses")], bounds, formula=formula, in_force=True)
    kubelet = (
        f"nodeadm gives kubelet {limits.max_pods}, by the type's IPv4 slots whatever the family; maxPodsExpression raises it"
    )
    return replace(found, limited_by=f"{found.limited_by}; {kubelet}")


def _narrowest(mode: str, bound: list[tuple[int, str]], bounds: NodeBounds, *, formula: str, in_force: bool) -> Capacity:
    """Of these bounds and those of every mode."""
    if bounds.max_pods:
        bound.append((bounds.max_pods, f"MAX_PODS={bounds.max_pods}"))
    if bounds.egress:
        range_count = len(bounds.egress.addresses())
        bound.append((range_count, f"{range_count} addresses for egress in {bounds.egress.network}"))
    address_count, limited_by = min(bound, key=lambda one: one[0])
    max_pods = min(address_count + HOST_NETWORK_PODS, ADDRESSES_MAX)
    recommended = min(max_pods, eks_cap(bounds.vcpu_count)) if bounds.vcpu_count else 0
    return Capacity(mode, address_count, max_pods, recommended, formula, limited_by, in_force)


def _of_enis(limits: InstanceLimits, bounds: NodeBounds, *, primary: bool) -> str:
    why = [f"{counted(limits.eni_count, 'ENI')} of {limits.ipv4_per_eni} addresses, one of them its own ({limits.instance_type})"]
    if bounds.max_eni and bounds.max_eni < limits.eni_count:
        why = [f"MAX_ENI={bounds.max_eni} (the type may have {limits.eni_count})"]
    if bounds.unmanaged_eni_count:
        why.append(f"{counted(bounds.unmanaged_eni_count, 'ENI')} not ours to use")
    if bounds.trunk_places:
        why.append("one place left for the trunk")
    if not primary:
        why.append("the primary ENI carries no pods")
    return ", ".join(why)
