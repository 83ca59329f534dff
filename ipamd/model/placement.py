"""Decide which ENIs get addresses, and whether another ENI fits. Pure; `ipamd/model/plan.py` decides by how much the pool grows.

Existing ENIs come first, because an allocation takes one call, and a new ENI four calls and some seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import count as count_from

from ipamd.model.eni import ADDRESSES_PER_PREFIX, EniState, InstanceLimits
from ipamd.model.ids import EniId
from ipamd.model.pool_actions import Allocate, CreateEni, Growth
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import EniCapacity, PoolSnapshot
from ipamd.model.record import replace

STOPGAP_COUNT = 4
"""How many single addresses the pool keeps free in prefix mode while the subnet has no /28 and no IP target is set. Ours: enough for
the next few ADDs, and not more, because each uses a slot in which a /28 would have 16 addresses."""


def eni_limit(limits: InstanceLimits, settings: PoolSettings) -> int:
    """Return how many ENIs the network card of these limits may have: the card's limit, or MAX_ENI if that is lower.

    Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, getMaxENI.
    """
    if settings.max_eni >= 1:
        return min(limits.eni_count, settings.max_eni)
    return limits.eni_count


def trunk_places(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """Return how many places are left free for the trunk ENI: 0 if it is attached, not wanted, or impossible on the type; else 1.

    Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, hasRoomForEni.
    """
    return int(settings.leaves_trunk_place and snapshot.limits.trunk_capacity != 0 and not snapshot.has_trunk)


def room_for_eni(snapshot: PoolSnapshot, settings: PoolSettings) -> bool:
    """Whether another ENI may be attached. Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, hasRoomForEni."""
    return free_places(snapshot, settings) > 0


def is_prefix_mode(snapshot: PoolSnapshot, settings: PoolSettings) -> bool:
    """Whether the settings ask for prefixes, and the instance type can have them."""
    return settings.prefix_delegation and snapshot.limits.supports_prefixes


def vacant_slots(eni: EniCapacity, snapshot: PoolSnapshot) -> int:
    """Compute for how many slots of an ENI addresses can be requested: slots that are not used, not in a pending allocation, and not
    refused by EC2.

    The count is 0 for an excluded ENI, for an ENI that is not attached, and for one whose host routing has failed for a long time: no
    pod could use its addresses.
    """
    growth, slots = snapshot.growth, snapshot.limits.slots_per_eni
    is_stuck = growth.has_stuck_eni and not eni.host_ready
    if is_stuck or eni.used_slot_count >= slots or eni.is_excluded or eni.state is not EniState.ATTACHED:
        return 0
    taken = eni.used_slot_count + growth.pending_slots.get(eni.eni_id, 0)
    slot_cap = growth.slot_caps.get(eni.eni_id, slots)
    return max(min(slots, slot_cap) - taken, 0)


def vacant_count(snapshot: PoolSnapshot) -> int:
    """Count the slots of all ENIs for which addresses can be requested (`vacant_slots`)."""
    return sum(vacant_slots(eni, snapshot) for eni in snapshot.enis)


def with_room_elsewhere(snapshot: PoolSnapshot, home_enis: Collection[EniId]) -> PoolSnapshot:
    """Let the pool grow on its ENIs in other subnets while the default subnet has no free address.

    Args:
        home_enis: the ENIs in the default subnet.
    Returns: a snapshot in which only ENIs in other subnets have vacant slots; the same snapshot if the default subnet is not known to
        be full, or if the ENIs in other subnets have no vacant slots.
    """
    growth = snapshot.growth
    if growth.room != 0:
        return snapshot
    slot_caps = {**growth.slot_caps, **dict.fromkeys(home_enis, 0)}
    elsewhere = replace(growth, slot_caps=slot_caps, room=None, allocation=growth.allocation_elsewhere)
    open_snapshot = replace(snapshot, growth=elsewhere)
    return open_snapshot if vacant_count(open_snapshot) else snapshot


def asks_for_prefixes(snapshot: PoolSnapshot, settings: PoolSettings) -> bool:
    """Whether the pool grows by /28s now; False while EC2 refuses /28s.

    If maxPods leaves room for fewer than 16 more addresses, single addresses are requested, provided that there are slots for all of
    them. Otherwise the pool takes one more /28, as amazon-vpc-cni-k8s does: that takes one slot, and saves an ENI.
    """
    if not is_prefix_mode(snapshot, settings) or not snapshot.prefixes_available:
        return False
    room = settings.max_pods - snapshot.pool_count
    if not settings.max_pods or room >= ADDRESSES_PER_PREFIX:
        return True
    return room > vacant_count(snapshot)


def pending_eni_address_count(snapshot: PoolSnapshot) -> int:
    """Count the addresses of ENIs that EC2 may have created."""
    return sum(pending.address_count for pending in snapshot.growth.pending_enis)


def pending_count(snapshot: PoolSnapshot) -> int:
    """Count the addresses that the pool will or may get by ENIs and allocations that are under way."""
    return pending_eni_address_count(snapshot) + snapshot.growth.pending_address_count


def growth_actions(snapshot: PoolSnapshot, settings: PoolSettings, count: int) -> Iterator[Growth]:
    """Choose on which ENIs `count` more addresses are requested: first in vacant slots, by device index, then on new ENIs.

    Yields: actions that stay within slots, places for ENIs, maxPods and the free addresses of the subnet.
    """
    growth, by_prefix = snapshot.growth, asks_for_prefixes(snapshot, settings)
    unit = ADDRESSES_PER_PREFIX if by_prefix else 1
    want = _rounded_up(count, unit)
    if by_prefix and growth.prefix_cap is not None:
        want = min(want, growth.prefix_cap)
    pod_room = _room_for_pods(snapshot, settings, unit)
    room = pod_room if by_prefix or growth.room is None else min(pod_room, growth.room)
    may_create = _may_create(snapshot, want, room)
    allocations = _allocations(snapshot, settings, want, room)
    yield from allocations
    placed = sum(action.address_count + action.prefix_count for action in allocations)
    want -= placed
    if snapshot.frozen:  # request only what waiting ADDs need
        want = min(want, _rounded_up(snapshot.waiting_count - snapshot.supply_count, unit) - placed)
    # Subtract the addresses of ENIs that are, or may be, under way. Otherwise a burst would create one ENI too many.
    want -= _rounded_up(pending_eni_address_count(snapshot), unit)
    if not may_create:
        return
    if growth.has_other_candidate:
        room = pod_room  # the new ENI may be in another subnet, so the room of the default subnet is not a bound
    yield from _creations(snapshot, settings, want, room - placed)


def _rounded_up(count: int, unit: int) -> int:
    """Return how many units (single addresses or /28s) `count` addresses need."""
    return -(-count // unit)


def _fills_enis(snapshot: PoolSnapshot, settings: PoolSettings, *, is_subnet_short: bool) -> bool:
    """Whether one call requests all addresses that an ENI can take.

    Without IP targets amazon-vpc-cni-k8s fills an ENI at once (tryAssignIPs), and so do we, because fewer, larger calls suffice. But
    prefixes are requested only as needed, and so are single addresses if the subnet is short of addresses.
    """
    return not settings.ip_targets_defined and not is_prefix_mode(snapshot, settings) and not is_subnet_short


def _room_for_pods(snapshot: PoolSnapshot, settings: PoolSettings, unit: int) -> int:
    """Return how many units (single addresses or /28s) fit below maxPods, at least 1; without maxPods the number of all slots."""
    if settings.max_pods:
        return max((settings.max_pods - snapshot.pool_count) // unit, 1)
    return snapshot.limits.slots_per_eni * snapshot.limits.eni_count


def _may_create(snapshot: PoolSnapshot, want: int, room: int) -> bool:
    """Whether new ENIs may be created for the units that do not fit on the attached ENIs."""
    growth = snapshot.growth
    if growth.creation is not None or snapshot.bars_enis:
        return False
    if growth.allocation is None or growth.allocation.is_lasting:
        return True
    # The refusal of allocations will end soon. While an attached ENI has room, it is not a reason to create another ENI.
    return want <= 0 or room <= 0 or not vacant_count(snapshot)


def _allocations(snapshot: PoolSnapshot, settings: PoolSettings, want: int, room: int) -> list[Allocate]:
    """Return the requests for `want` units (single addresses or /28s), at most `room`, in vacant slots of attached ENIs."""
    actions: list[Allocate] = []
    if snapshot.growth.allocation is not None:
        return actions
    by_prefix = asks_for_prefixes(snapshot, settings)
    fills_enis = _fills_enis(snapshot, settings, is_subnet_short=snapshot.growth.room is not None)
    for eni in sorted(snapshot.enis, key=lambda eni: (eni.device_index, eni.eni_id)):
        if want <= 0 or room <= 0:
            break
        vacant = vacant_slots(eni, snapshot)
        if vacant <= 0:
            continue
        share = min(vacant, room) if fills_enis else min(want, vacant, room)
        actions.append(Allocate(eni.eni_id, prefix_count=share) if by_prefix else Allocate(eni.eni_id, address_count=share))
        want, room = want - share, room - share
    return actions


def _creations(snapshot: PoolSnapshot, settings: PoolSettings, want: int, room: int) -> Iterator[CreateEni]:
    """Yield the requests for new ENIs with `want` units (single addresses or /28s) in all, at most `room`."""
    growth, by_prefix, slots = snapshot.growth, asks_for_prefixes(snapshot, settings), snapshot.limits.slots_per_eni
    fills_enis = _fills_enis(snapshot, settings, is_subnet_short=growth.creation_room is not None)
    if growth.creation_room is not None and not by_prefix:
        room = min(room, growth.creation_room - 1)  # the new ENI's primary address takes one address of the subnet
    eni_max = min(slots, growth.creation_cap or slots)
    places_left = reversed(range(free_places(snapshot, settings)))
    for device_index, other_place_count in zip(_free_indexes(snapshot), places_left, strict=False):
        if want <= 0 or room <= 0:
            return
        share = min(eni_max, room) if fills_enis else min(want, eni_max, room)
        created = _new_eni(device_index, share, other_place_count, by_prefix=by_prefix)
        yield replace(created, pool=snapshot.pool)
        want, room = want - share, room - share


def _new_eni(device_index: int, unit_count: int, other_place_count: int, *, by_prefix: bool) -> CreateEni:
    if by_prefix:
        return CreateEni(device_index, prefix_count=unit_count, other_place_count=other_place_count)
    return CreateEni(device_index, address_count=unit_count, other_place_count=other_place_count)


def choose_prefix_eni(snapshot: PoolSnapshot) -> EniCapacity | None:
    """Choose the attached ENI for the one /80 of an IPv6 node: the primary ENI, or if that is excluded an ENI that we created.

    ENIs of other software are not chosen, because their subnets may have no IPv6. Returns: None if there is no such ENI.
    """
    candidates = []
    for eni in snapshot.enis:
        may_serve = eni.is_primary or eni.created_by_us
        if may_serve and eni.state is EniState.ATTACHED and not eni.is_excluded:
            candidates.append(eni)
    return min(candidates, key=lambda eni: (not eni.is_primary, eni.device_index), default=None)


def eni_for_prefix(snapshot: PoolSnapshot, settings: PoolSettings) -> CreateEni | None:
    """Return the action that creates an ENI for the one /80 of an IPv6 node; None if the instance has no place for an ENI."""
    place_count = free_places(snapshot, settings)
    if not place_count:
        return None
    return CreateEni(next(_free_indexes(snapshot)), other_place_count=place_count - 1, pool=snapshot.pool)


def free_places(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """Compute how many ENIs may be added.

    There are three bounds: the node's limit of ENIs; `eni_cap`, the number of ENIs beyond which EC2 refused to attach more; and
    `place_cap`, which bounds the ENIs to add. Attached ENIs, pending ENIs and the place for a trunk ENI are subtracted from the first
    two. A refused device index, which has an ENI that EC2 does not show, is subtracted only from the node's limit: `eni_cap` is a
    number of ENIs that EC2 showed.
    """
    growth = snapshot.growth
    used = snapshot.known_eni_count + len(growth.pending_enis) + trunk_places(snapshot, settings)
    places = eni_limit(snapshot.limits, settings) - used - len(snapshot.refused_device_indexes)
    if growth.eni_cap is not None:
        places = min(places, growth.eni_cap - used)
    if snapshot.place_cap is not None:
        places = min(places, snapshot.place_cap)
    return max(places, 0)


def _free_indexes(snapshot: PoolSnapshot) -> Iterator[int]:
    """Yield device indexes for new ENIs.

    Index 0 is never used, even if no ENI has it: on some nodes the primary ENI has device index 1 (amazon-vpc-cni-k8s issue 3753).
    """
    taken = {0} | {eni.device_index for eni in snapshot.enis} | snapshot.unmanaged_device_indexes
    taken |= snapshot.refused_device_indexes | {pending.device_index for pending in snapshot.growth.pending_enis}
    return free_indexes(taken)


def free_indexes(taken: Collection[int]) -> Iterator[int]:
    """Yield the device indexes that are not taken, lowest first, without end; EC2 refuses an index that is too high."""
    return (index for index in count_from() if index not in taken)
