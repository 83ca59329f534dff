"""Where the pool grows: which ENIs get how much, and whether another ENI fits. Pure; `ipamd/model/plan.py` decides how much.

Existing ENIs come first, because an allocation is one call, and a new ENI four and some seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import count as count_from

from ipamd.model.eni import ADDRESSES_PER_PREFIX, EniState, InstanceLimits
from ipamd.model.growth import AllocateAddresses, AllocatePrefixes, CreateEni, Growth
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import EniCapacity, PoolSnapshot

STOPGAP_COUNT = 4
"""Free single addresses to keep while the subnet has no /28 and no IP target is set. Ours: enough for the next few ADDs; each takes a
slot that a prefix of 16 could have, as soon as there is one again."""


def eni_limit(limits: InstanceLimits, settings: PoolSettings) -> int:
    """Return the ENIs that this node may have: the instance's limit, or MAX_ENI if lower.

    Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, getMaxENI.
    """
    return min(limits.eni_count, settings.max_eni) if settings.max_eni >= 1 else limits.eni_count


def room_for_eni(snapshot: PoolSnapshot, settings: PoolSettings) -> bool:
    """Whether another ENI may be attached. Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, hasRoomForEni."""
    return _places(snapshot, settings) > 0


def is_prefix_mode(snapshot: PoolSnapshot, settings: PoolSettings) -> bool:
    """Whether prefixes are wanted, and the instance type can have them."""
    return settings.prefix_delegation and snapshot.limits.supports_prefixes


def vacant_slots(eni: EniCapacity, snapshot: PoolSnapshot) -> int:
    """Slots of an attached ENI that can be asked for: neither used, nor perhaps allocated already, nor refused. An ENI whose host
    routing has failed for long gets no more: nobody could have it. Nor does one that is excluded."""
    if eni.is_excluded or eni.state is not EniState.ATTACHED or (snapshot.growth.has_stuck_eni and not eni.host_ready):
        return 0
    known, slots = snapshot.growth, snapshot.limits.slots_per_eni
    taken = eni.used_slot_count + known.pending_slots.get(eni.eni_id, 0)
    return max(min(slots, known.slot_caps.get(eni.eni_id, slots)) - taken, 0)


def asks_for_prefixes(snapshot: PoolSnapshot, settings: PoolSettings) -> bool:
    """Whether growth is by /28s now. The last addresses below maxPods are single ones if slots are left for all of them; else one
    more /28 is taken, as amazon-vpc-cni-k8s does: it takes one slot, and an ENI less."""
    if not is_prefix_mode(snapshot, settings) or not snapshot.prefixes_available:
        return False
    left = settings.max_pods - snapshot.pool_count
    if not settings.max_pods or left >= ADDRESSES_PER_PREFIX:
        return True
    return left > sum(vacant_slots(eni, snapshot) for eni in snapshot.enis)


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
        yield AllocatePrefixes(eni.eni_id, share) if by_prefix else AllocateAddresses(eni.eni_id, share)
        want, room, placed = want - share, room - share, placed + share
    if snapshot.frozen:  # only what ADDs wait for
        want = min(want, -(-(snapshot.waiting_count - snapshot.counts.free + snapshot.counts.held) // unit) - placed)
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


def _places(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """ENIs that may be added: below the limit, and below what EC2 attached at most, which was counted in ENIs that it shows."""
    known = snapshot.growth
    used = snapshot.known_eni_count + len(known.pending_enis)
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
