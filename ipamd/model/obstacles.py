"""Why the pool cannot grow, in words that help in this case (I14). Pure."""

from __future__ import annotations

from datetime import datetime

from ipamd.model.blocked import Blocked
from ipamd.model.eni import EniState
from ipamd.model.growth import Refusal
from ipamd.model.placement import eni_limit, pending_count, room_for_eni, vacant_slots
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import PoolSnapshot
from ipamd.model.words import counted

THAW = "use another node; `ipamctl thaw` ends an operator's freeze, the others end with their cause"


def growth_blocker(snapshot: PoolSnapshot, settings: PoolSettings, now: datetime) -> Refusal | None:
    """Return why the pool cannot grow now, and what helps; None if it can, or if something is on its way."""
    known = snapshot.growth
    if settings.max_pods and snapshot.pool_count >= settings.max_pods:
        reason = f"the pool has reached maxPods ({settings.max_pods})"
        return Refusal(reason, "raise MAX_PODS if it is set, or use more nodes", kind=Blocked.MAX_PODS)
    if snapshot.retry_at is not None and now < snapshot.retry_at:
        return Refusal(snapshot.blocked_reason, left_s=(snapshot.retry_at - now).total_seconds())
    has_slot = any(vacant_slots(eni, snapshot) for eni in snapshot.enis)
    has_place = room_for_eni(snapshot, settings)
    is_asked_again_soon = has_slot and known.allocation is not None and not known.allocation.is_lasting
    can_allocate = has_slot and known.allocation is None
    can_create = has_place and known.creation is None and not snapshot.frozen
    if can_allocate or (can_create and not is_asked_again_soon) or pending_count(snapshot, settings):
        return None
    if has_slot and known.allocation is not None:
        return known.allocation
    if has_place and snapshot.frozen:
        return Refusal(f"another ENI is needed and the pool is frozen: {snapshot.frozen}", THAW, kind=Blocked.FROZEN)
    if has_place and known.creation is not None:
        return known.creation
    if known.cap is not None and known.eni_cap is not None and known.eni_cap < eni_limit(snapshot.limits, settings):
        return known.cap
    return _full(snapshot, settings)


def is_full(snapshot: PoolSnapshot, settings: PoolSettings) -> bool:
    """Whether there is no vacant slot, no ENI on its way that has some, and no place for another ENI by the limits."""
    vacant = any(vacant_slots(eni, snapshot) or eni.state is EniState.ATTACHING for eni in snapshot.enis)
    return not vacant and snapshot.growth.eni_cap is None and not room_for_eni(snapshot, settings)


def fullness(snapshot: PoolSnapshot) -> str:
    """Say how many slots of all are used."""
    enis = [eni for eni in snapshot.enis if not eni.is_excluded]
    used = sum(eni.used_slot_count for eni in enis)
    return f"full: {used} of {counted(len(enis) * snapshot.limits.slots_per_eni, 'slot')} are in use"


def _full(snapshot: PoolSnapshot, settings: PoolSettings) -> Refusal:
    limits, foreign, hidden = snapshot.limits, snapshot.unmanaged_eni_count, len(snapshot.refused_device_indexes)
    others = [f"{foreign} that are not ours to use"] * bool(foreign) + [f"{hidden} that EC2 has and does not show"] * bool(hidden)
    count = f"{len(snapshot.enis) + foreign + hidden}" + (f" (with {' and '.join(others)})" if others else "")
    reason = (
        f"all {count} of {eni_limit(limits, settings)} ENIs that {limits.instance_type} may have are attached "
        f"and their {limits.slots_per_eni} slots each are taken"
    )
    excluded = sum(eni.is_excluded for eni in snapshot.enis)
    if excluded:
        reason += f", but for {excluded} that get no new pods (`ipamctl enis` says why)"
    steps = ["remove pods from this node"]
    if settings.max_eni and settings.max_eni < limits.eni_count:
        steps.append(f"raise MAX_ENI ({settings.max_eni}; the instance may have {limits.eni_count})")
    if foreign:
        steps.append("detach ENIs that others attached")
    if hidden:
        steps.append("wait: the places of those that EC2 does not show are asked for again")
    larger = "a larger instance type"
    if not settings.prefix_delegation and limits.supports_prefixes:
        larger = f"ENABLE_PREFIX_DELEGATION=true (16 addresses a slot) or {larger} for new nodes"
    return Refusal(reason, f"{', '.join(steps)}, or use {larger}", kind=Blocked.NODE_FULL)
