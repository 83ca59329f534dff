"""Explain why the pool cannot grow, and what an operator can do (I14). Pure."""

from __future__ import annotations

from ipamd.model.blocked import Blocked
from ipamd.model.cause import cause_of_text, joined
from ipamd.model.eni import InstanceLimits
from ipamd.model.growth_state import GrowthRefusal, growth_refusal
from ipamd.model.placement import eni_limit, free_places, pending_count, room_for_eni, trunk_places, vacant_count
from ipamd.model.pod_pools import pool_word
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import PoolSnapshot
from ipamd.model.record import replace
from ipamd.model.repeats import UNDELETED_STEP
from ipamd.model.words import counted, of_limit

PROVISIONING_DISABLED = growth_refusal(
    "DISABLE_NETWORK_RESOURCE_PROVISIONING=true",
    "have the software that attaches this instance's ENIs attach ENIs with addresses, or remove the setting",
    kind=Blocked.FROZEN,
)

THAW = "use another node; `ipamctl thaw` ends an operator's freeze, the others end with their cause"


def growth_blocker(snapshot: PoolSnapshot, settings: PoolSettings) -> GrowthRefusal | None:
    """Return why the pool cannot grow now, and the next step; None if it can.

    While addresses are under way, only maxPods and a fault count as reasons.
    """
    if settings.max_pods and snapshot.pool_count >= settings.max_pods:
        reason = f"the pool has reached maxPods ({settings.max_pods})"
        refusal = growth_refusal(reason, "raise VPC_IPAMD_MAX_PODS if it is set, or use more nodes", kind=Blocked.MAX_PODS)
        return _unless_undeleted(refusal, snapshot)
    if snapshot.fault is not None:
        return snapshot.fault
    if pending_count(snapshot):
        return None
    if vacant_count(snapshot) > 0:
        return _allocation_blocker(snapshot, settings)
    if room_for_eni(snapshot, settings):
        return _creation_blocker(snapshot)
    growth = snapshot.growth
    cap_refusal = growth.eni_cap_refusal
    if cap_refusal is not None and growth.eni_cap is not None and growth.eni_cap < eni_limit(snapshot.limits, settings):
        return cap_refusal
    return _unless_undeleted(full_node(snapshot, settings), snapshot)


def _unless_undeleted(refusal: GrowthRefusal, snapshot: PoolSnapshot) -> GrowthRefusal:
    """Return the refusal of a full pool or node. If sandboxes that were never deleted hold addresses, the refusal names them as a
    cause, and advises how these addresses come back (UNDELETED_STEP) instead of a larger node. Otherwise `refusal` is returned
    unchanged.
    """
    count = snapshot.growth.demand.repeats.recorded_count
    if not count:
        return refusal
    undeleted = f"earlier sandboxes of pods, which were never deleted, hold {counted(count, 'address')}"
    cause = joined((refusal.cause, cause_of_text(undeleted)))
    return replace(refusal, cause=cause, next_step=UNDELETED_STEP, kind=Blocked.UNDELETED)


def frozen_creation(snapshot: PoolSnapshot) -> GrowthRefusal:
    """Return the refusal of a new ENI on a frozen node."""
    reason = f"another ENI is needed and the pool is frozen: {snapshot.frozen}"
    return growth_refusal(reason, THAW, kind=Blocked.FROZEN)


def both(first: GrowthRefusal, second: GrowthRefusal | None) -> GrowthRefusal:
    """Join two refusals, with each reason and step once, so that an operator sees both.

    `left_s` is the shorter of the two times; all other fields are those of the first refusal.
    """
    if second is None or second.cause == first.cause:
        return first
    steps = dict.fromkeys(filter(None, (first.next_step, second.next_step)))
    left_s = min((refusal.left_s for refusal in (first, second) if refusal.left_s is not None), default=None)
    return replace(first, cause=joined((first.cause, second.cause)), next_step="; ".join(steps), left_s=left_s)


def full_node(snapshot: PoolSnapshot, settings: PoolSettings) -> GrowthRefusal:
    """Return the refusal of a node whose ENIs and slots are all taken, or of a pool if only its share of the ENIs is used up."""
    limits, limit = snapshot.limits, eni_limit(snapshot.limits, settings)
    if snapshot.share and free_places(replace(snapshot, place_cap=None), settings):
        return _full_share(snapshot)
    foreign_count = snapshot.unmanaged_eni_count - snapshot.other_pool_eni_count
    hidden_count = len(snapshot.refused_device_indexes)
    trunk_count = trunk_places(snapshot, settings)
    count = len(snapshot.enis) + snapshot.unmanaged_eni_count + hidden_count + trunk_count
    occupants = _enis_without_slots(foreign_count, hidden_count, trunk_count, snapshot.other_pool_eni_count)
    enis = f"all {count}{occupants} of {limit} ENIs" if count <= limit else f"all {of_limit(count, limit, 'ENI')}{occupants}"
    reason = f"{enis} that {limits.instance_type} may have are attached and their {limits.slots_per_eni} slots each are taken"
    excluded_count = sum(eni.is_excluded for eni in snapshot.enis)
    if excluded_count:
        reason += f", but for {excluded_count} that get no new pods (`ipamctl enis` says why)"
    return growth_refusal(reason, _steps_of_full_node(limits, settings, foreign_count, hidden_count), kind=Blocked.NODE_FULL)


def _steps_of_full_node(limits: InstanceLimits, settings: PoolSettings, foreign_count: int, hidden_count: int) -> str:
    """Return the next steps for a full node. `foreign_count`: ENIs of other software; `hidden_count`: ENIs that EC2 does not show."""
    steps = ["remove pods from this node"]
    if settings.max_eni and settings.max_eni < limits.eni_count:
        steps.append(f"raise MAX_ENI ({settings.max_eni}; the instance may have {limits.eni_count})")
    if foreign_count:
        steps.append("detach ENIs that others attached")
    if hidden_count:
        steps.append("wait: the places of ENIs that EC2 does not show are tried again")
    larger = "a larger instance type"
    if not settings.prefix_delegation and limits.supports_prefixes:
        larger = f"ENABLE_PREFIX_DELEGATION=true (16 addresses a slot) or {larger} for new nodes"
    return f"{', '.join(steps)}, or use {larger}"


def _allocation_blocker(snapshot: PoolSnapshot, settings: PoolSettings) -> GrowthRefusal | None:
    """Return why no address is allocated in the vacant slots of attached ENIs; None if one may be, or if a new ENI may be created."""
    growth = snapshot.growth
    if growth.allocation is None:
        return None
    if not room_for_eni(snapshot, settings) or snapshot.bars_enis:
        return growth.allocation
    if growth.creation is None and growth.allocation.is_lasting:
        return None  # a new ENI may be created; if the refusal ended soon, the pool would wait instead
    return both(growth.allocation, growth.creation)


def _creation_blocker(snapshot: PoolSnapshot) -> GrowthRefusal | None:
    """Return why no ENI is created although there is a place for one; None if one may be created."""
    if snapshot.bars_enis:
        return frozen_creation(snapshot)
    return snapshot.growth.creation


def _full_share(snapshot: PoolSnapshot) -> GrowthRefusal:
    """Return the refusal of a pool that has all the ENIs of its share, although the node has places for more."""
    pool = pool_word(snapshot.pool)
    reason = f"pool {pool} may have no more than its {counted(len(snapshot.enis), 'ENI')} on this node: {snapshot.share}"
    step = "remove pods of the pool from this node, change reservedEnis or maxEnis in the network file, or use a larger instance type"
    return growth_refusal(reason, step, kind=Blocked.NODE_FULL)


def _enis_without_slots(foreign_count: int, hidden_count: int, trunk_count: int, other_pool_count: int) -> str:
    """Name, in brackets, the places for ENIs that this pool cannot use; "" if there are none."""
    occupants = []
    if other_pool_count:
        occupants.append(f"{other_pool_count} of other pools")
    if foreign_count:
        occupants.append(f"{foreign_count} that are not ours to use")
    if hidden_count:
        occupants.append(f"{hidden_count} that EC2 has and does not show")
    if trunk_count:
        occupants.append("one place left for the trunk ENI")
    if occupants:
        return f" (with {' and '.join(occupants)})"
    return ""
