"""Decide what to request from EC2, or to release, so that the warm pool reaches its target. Pure.

Targets have the names and the meaning of amazon-vpc-cni-k8s (pkg/ipamd/ipamd.go, datastoreTargetState; docs/eni-and-ip-target.md and
docs/prefix-and-ip-target.md there). These differences are intended:

- Cooling addresses are not free (I8). But they may count for up to three quarters of a target in whole ENIs or /28s, because they will
  be free soon.
- Waiting ADDs count as demand.
- The pool does not grow beyond maxPods. There are two exceptions: the last /28 may contain more addresses than maxPods leaves, and an
  ENI that was not usable for a while adds its addresses again when it is usable.
- Existing ENIs are filled before a new one is created, in a fixed order.
- ADDs that follow each other share a call, and a spare ENI is created only after no ADD has come for a while.

`ipamd/model/release.py` releases excess addresses, but only while the pool needs none: growth always comes first. Addresses of an
excluded ENI, which no new pod gets, are also released while the pool needs addresses and cannot grow.
Overview: docs/pool.md, The pool.
"""

from __future__ import annotations

from collections.abc import Iterable

from ipamd.model.auto_target import resolved
from ipamd.model.blocked import Blocked
from ipamd.model.eni import ADDRESSES_PER_PREFIX
from ipamd.model.freeze import barred_enis
from ipamd.model.growth_blocker import PROVISIONING_DISABLED, frozen_creation, full_node, growth_blocker
from ipamd.model.growth_state import GrowthRefusal, growth_refusal
from ipamd.model.placement import (
    STOPGAP_COUNT,
    choose_prefix_eni,
    eni_for_prefix,
    growth_actions,
    is_prefix_mode,
    pending_count,
    room_for_eni,
    vacant_count,
    vacant_slots,
)
from ipamd.model.pool_actions import Action, Allocate, CreateEni
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import EniCapacity, PoolSnapshot
from ipamd.model.prefix_exchange import exchange
from ipamd.model.record import dataclass, replace
from ipamd.model.release import excluded_actions, release_actions, why_kept
from ipamd.model.words import counted


@dataclass(frozen=True, slots=True)
class Plan:
    """The planner's decision.

    `actions`: the actions in their order; they either all grow the pool or all release.
    `sentence`: the decision with its reason, for people.
    `deficit_count`: the addresses that the pool needs now (`deficit_count()`).
    `excess_count`: the free addresses above the target (`excess_count()`).
    `blocked`: why the pool cannot grow now; None if it can.
    `is_postponed`: whether growth waits for a moment, because then fewer calls may suffice.
    `retention_reason`: why excess addresses are not released; "" if there are none, or they are released.
    """

    actions: tuple[Action, ...]
    sentence: str
    deficit_count: int = 0
    excess_count: int = 0
    blocked: GrowthRefusal | None = None
    is_postponed: bool = False
    retention_reason: str = ""

    @property
    def blocked_by(self) -> str:
        """Why the pool cannot grow now, as a sentence; empty if it can."""
        if self.blocked is not None:
            return str(self.blocked)
        return ""


def plan(snapshot: PoolSnapshot, *, settings: PoolSettings) -> Plan:
    """Decide what to request from EC2, or to release, so that the warm pool reaches its target.

    Args:
        snapshot: the pool at one moment; its counts are in addresses.
        settings: the targets of the pool.
    Returns: zero or more actions in their order; ENIs come in the order of their device indexes. The same input gives the same output.
        If capacity is lacking, this is not an error: the plan's field `blocked` has the reason.
    Concurrency: pure. Guards: I7, I8, I13.
    Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, isDatastorePoolTooLow and increaseDatastorePool, with the differences listed at the
    top of this module.
    """
    if settings.is_provisioning_disabled:
        snapshot = replace(snapshot, fault=snapshot.fault or PROVISIONING_DISABLED)
    decided = _plan(snapshot, settings)
    if not snapshot.frozen:
        return decided
    barred = barred_enis(may_grow_for_adds=snapshot.may_grow_for_adds)
    return replace(decided, sentence=f"{decided.sentence}; frozen, {barred} and nothing released: {snapshot.frozen}")


def _plan(snapshot: PoolSnapshot, settings: PoolSettings) -> Plan:
    if settings.family.is_sparse:
        return _plan_of_ipv6(snapshot, settings)
    settings = resolved(snapshot, settings)
    deficit = deficit_count(snapshot, settings)
    # If ADDs wait because an ENI's host routing is missing, although addresses are free, the host routing is the obstacle, not EC2.
    host = _host_obstacle(snapshot)
    blocked = host or growth_blocker(snapshot, settings)
    if deficit == 0:
        return _at_target(snapshot, settings, host, blocked)
    decided = _growth(snapshot, settings, deficit) or _without_growth(snapshot, settings, deficit, blocked)
    return replace(decided, deficit_count=deficit, excess_count=excess_count(snapshot, settings))


def _host_obstacle(snapshot: PoolSnapshot) -> GrowthRefusal | None:
    """Return why the host's routing of an ENI is not in place, if ADDs wait because of it; else None."""
    if snapshot.waiting_count > snapshot.supply_count:
        return snapshot.growth.host
    return None


def _growth(snapshot: PoolSnapshot, settings: PoolSettings, deficit: int) -> Plan | None:
    """Return the plan that grows the pool by the deficit, or postpones the growth; None if the pool cannot grow."""
    short = _short_of(deficit)
    want = _request_count(snapshot, settings, deficit) - snapshot.growth.pending_address_count
    if _is_better_later(snapshot, settings, want):
        return Plan((), f"{short}: they are requested a moment later, in one call", is_postponed=True)
    exchanged = exchange(snapshot, settings, want)
    if exchanged is not None:
        return Plan((exchanged,), f"{short}: {exchanged}, because every slot is taken and a /28 in one has 16")
    if snapshot.fault is not None:
        return None
    actions = tuple(growth_actions(snapshot, settings, want))
    if not actions:
        return None
    if isinstance(actions[0], CreateEni) and _is_spare_eni_better_later(snapshot, settings):
        return Plan((), f"{short}: a spare ENI is requested once no ADD has come for a while", is_postponed=True)
    return Plan(actions, f"{short}: {_listed(actions)}")


def _without_growth(snapshot: PoolSnapshot, settings: PoolSettings, deficit: int, blocked: GrowthRefusal | None) -> Plan:
    """Return the plan of a pool that needs addresses and does not grow: it has the reason, and releases addresses of excluded ENIs."""
    short = _short_of(deficit)
    if pending_count(snapshot) >= deficit:
        reason = snapshot.growth.pending or "EC2 is asked"
        return Plan((), f"{short}, which may be on their way: {reason}")
    leaving = excluded_actions(snapshot)
    if leaving:
        sentence = f"{short}; no pod may have the addresses of an excluded ENI: {_listed(leaving)}"
        return Plan(leaving, sentence, blocked=blocked)
    blocked = blocked or snapshot.growth.prefixes
    if blocked is None or (_is_full(snapshot, settings) and not snapshot.share):
        return Plan((), _fullness(snapshot), blocked=blocked)
    return Plan((), f"{short}, and cannot grow: {blocked}", blocked=blocked)


def _fullness(snapshot: PoolSnapshot) -> str:
    """Return a sentence that says how many of the slots for pods are used."""
    enis = [eni for eni in snapshot.enis if not eni.is_excluded]
    used = sum(eni.used_slot_count for eni in enis)
    slot_count = len(enis) * snapshot.limits.slots_per_eni
    return f"full: {used} of {counted(slot_count, 'slot')} hold addresses, free ones included"


def _is_full(snapshot: PoolSnapshot, settings: PoolSettings) -> bool:
    """Whether the limits of the instance keep the pool from growing: no slot is vacant, and no ENI may be added.

    A node on which EC2 has refused further ENIs (`eni_cap`) does not count as full.
    """
    if any(vacant_slots(eni, snapshot) for eni in snapshot.enis):
        return False
    return snapshot.growth.eni_cap is None and not room_for_eni(snapshot, settings)


def _short_of(deficit: int) -> str:
    return f"short of {counted(deficit, 'address')}"


def _listed(actions: Iterable[Action]) -> str:
    return "; ".join(str(action) for action in actions)


def _plan_of_ipv6(snapshot: PoolSnapshot, settings: PoolSettings) -> Plan:
    """Plan for an IPv6 node: keep one /80, which has more addresses than any node can use. Nothing is released.

    Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, setupENI and StartNodeIPPoolManager.
    """
    growth, deficit = snapshot.growth, deficit_count(snapshot, settings)
    if not deficit:
        return _ipv6_at_target(snapshot, settings)
    short = "short of a /80"
    if growth.pending_address_count or growth.pending_enis:
        return Plan((), f"{short}, which may be on its way: {growth.pending or 'EC2 is asked'}", deficit)
    eni = choose_prefix_eni(snapshot)
    action = Allocate(eni.eni_id, prefix_count=1) if eni else eni_for_prefix(snapshot, settings)
    blocked = _ipv6_blocker(snapshot, settings, eni, has_place=action is not None)
    if blocked is not None or action is None:
        return Plan((), f"{short}, and cannot get one: {blocked}", deficit, blocked=blocked)
    return Plan((action,), f"{short}: {action}", deficit)


def _ipv6_at_target(snapshot: PoolSnapshot, settings: PoolSettings) -> Plan:
    """Return the plan of an IPv6 node that has its /80: nothing to do, or the reason why waiting ADDs cannot use the /80."""
    host = _host_obstacle(snapshot)
    if host is not None:
        return Plan((), str(host), blocked=host)
    ignored = f"; without meaning here: {', '.join(settings.meaningless)}" if settings.meaningless else ""
    return Plan((), f"at target: one /80 has more than this node can use{ignored}")


def _ipv6_blocker(
    snapshot: PoolSnapshot, settings: PoolSettings, eni: EniCapacity | None, *, has_place: bool
) -> GrowthRefusal | None:
    """Return why the node gets no /80 now; None if it may. `eni`: the ENI that would get it, None if one must be created."""
    growth, instance_type = snapshot.growth, snapshot.limits.instance_type
    if not snapshot.limits.supports_prefixes:
        step = "use a Nitro or bare-metal type, or a cluster of IPv4"
        return growth_refusal(f"{instance_type} is not built on Nitro and has no /80", step)
    if snapshot.fault is not None:
        return snapshot.fault
    if eni is not None:
        refusal = growth.allocation or growth.prefixes
        if refusal is None and eni.eni_id in growth.slot_caps:
            step = "check that ENI: EC2 refused a prefix for it, or its link is missing"
            return growth_refusal(f"{eni.eni_id} takes no /80 now", step, kind=Blocked.ENI_LIMIT)
        return refusal
    if growth.creation is not None:
        return growth.creation
    if snapshot.bars_enis:
        return frozen_creation(snapshot)
    if has_place:
        return None
    return full_node(snapshot, settings)


def _at_target(snapshot: PoolSnapshot, settings: PoolSettings, host: GrowthRefusal | None, blocked: GrowthRefusal | None) -> Plan:
    """Return the plan of a pool at its target: release what was in excess for long enough, or nothing, with the reason."""
    excess, surplus = excess_count(snapshot, settings), surplus_count(snapshot, settings)
    if host is not None:
        return Plan((), str(host), excess_count=excess, blocked=blocked)
    actions = release_actions(snapshot, settings, surplus=surplus)
    if actions:
        sentence = f"{counted(excess, 'address')} in excess: {_listed(actions)}"
        return Plan(actions, sentence, excess_count=excess, blocked=blocked)
    retention_reason = why_kept(snapshot, settings, surplus=surplus) if excess else ""
    sentence = "at target: nothing to do"
    if retention_reason:
        sentence = f"at target; {counted(excess, 'address')} in excess kept: {retention_reason}"
    return Plan((), sentence, excess_count=excess, blocked=blocked, retention_reason=retention_reason)


def deficit_count(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """Compute how many addresses the pool needs now, including those for waiting ADDs.

    With IP targets it is max(WARM_IP_TARGET - free, MINIMUM_IP_TARGET - total, 0), where `free` excludes cooling addresses (I8).
    Without IP targets it is the number of addresses that the pool lacks to have WARM_ENI_TARGET whole ENIs of free addresses (in
    prefix mode WARM_PREFIX_TARGET prefixes), where some of the cooling addresses count as free (`_cooling_credit`). If these targets
    are 0, a pool with `keeps_one_free` needs one free address. Addresses of earlier sandboxes of a pod count as free, because they
    come back (`repeats.py`), but not for waiting ADDs. Free addresses on an ENI without host routing count, because they will be
    usable soon. They do not count if the host routing has failed for a long time. The deficit is never more than maxPods leaves. On an
    IPv6 node it is 0 if there is a usable /80 (`_ipv6_deficit_count`).
    """
    if settings.family.is_sparse:
        return _ipv6_deficit_count(snapshot)
    settings, free = resolved(snapshot, settings), _coming_count(snapshot)
    warm = free + snapshot.growth.demand.repeats.count
    if settings.max_pods and snapshot.pool_count >= settings.max_pods:
        return 0
    if settings.ip_targets_defined:
        short = max(settings.warm_ip_target - warm, settings.minimum_ip_target - snapshot.pool_count, 0)
    else:
        unit, target = _warm_unit(snapshot, settings)
        coming = warm + _cooling_credit(snapshot, unit * target)
        least = 1 if target == 0 and warm == 0 and settings.keeps_one_free else 0
        short = max(unit * target - coming, least, 0)
    short = max(short, snapshot.waiting_count - free)
    if settings.max_pods:
        return min(short, settings.max_pods - snapshot.pool_count)
    return short


def excess_count(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """Compute how many free addresses are above the target, in whole units of the target: addresses, /28s or ENIs."""
    settings = resolved(snapshot, settings)
    unit = 1 if settings.ip_targets_defined else max(_warm_unit(snapshot, settings)[0], 1)
    return surplus_count(snapshot, settings) // unit * unit


def surplus_count(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """Compute how many addresses that ADDs can have now or soon (`_cooling_credit`) the target does not need.

    The surplus is the counterpart of the deficit: after a release of this many addresses `deficit_count` is still 0. With IP targets
    it is min(free - WARM_IP_TARGET, total - MINIMUM_IP_TARGET), at least 0.
    """
    if settings.family.is_sparse:
        return 0
    settings, free = resolved(snapshot, settings), snapshot.supply_count - snapshot.waiting_count
    if settings.ip_targets_defined:
        return max(min(free - settings.warm_ip_target, snapshot.pool_count - settings.minimum_ip_target), 0)
    unit, target = _warm_unit(snapshot, settings)
    return max(free + _cooling_credit(snapshot, unit * target) - max(unit * target, int(settings.keeps_one_free)), 0)


def _ipv6_deficit_count(snapshot: PoolSnapshot) -> int:
    """Compute how many addresses an IPv6 node needs now.

    The count is 0 if the node has one usable /80, even if another /80 is lost. Otherwise it is the number of waiting ADDs, at least 1.
    """
    for eni in snapshot.enis:
        if eni.prefix_count and eni.counts.free and not eni.is_excluded:
            return 0
    return max(snapshot.waiting_count, 1)


def _cooling_credit(snapshot: PoolSnapshot, target: int) -> int:
    """Compute how many cooling addresses count as free in a target of whole ENIs or /28s, because they will be free soon.

    The count is at most three quarters of the target, so that the last quarter is free even under a load that changes all the time.
    Cooling addresses of earlier sandboxes of a pod are left out, because `deficit_count` counts them as free already.
    """
    repeat_count = snapshot.growth.demand.repeats.cooling_count
    cooling_count = max(snapshot.counts.cooling - snapshot.leaving_cooling_count - repeat_count, 0)
    return min(cooling_count, target - target // 4)


def _warm_unit(snapshot: PoolSnapshot, settings: PoolSettings) -> tuple[int, int]:
    """Return the target without IP targets: how many addresses a unit has, and how many units are to be kept free.

    The unit is a /28 in prefix mode, else a whole ENI.

    Source for a full ENI: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, GetIPv4Limit.
    """
    if is_prefix_mode(snapshot, settings):
        return ADDRESSES_PER_PREFIX, settings.warm_prefix_target
    by_prefix = settings.prefix_delegation and snapshot.limits.supports_prefixes
    return snapshot.limits.slots_per_eni * (ADDRESSES_PER_PREFIX if by_prefix else 1), settings.warm_eni_target


def _coming_count(snapshot: PoolSnapshot) -> int:
    """Compute how many free addresses ADDs can have now, or once the host routing of the addresses' ENI is in place."""
    counts = snapshot.counts
    unreachable = snapshot.unready_free_count if snapshot.growth.has_stuck_eni else snapshot.unplugged_free_count
    return max(counts.free - counts.withheld - unreachable, 0)


def wanted_count(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """Compute how many addresses to request now, ignoring obstacles: the deficit, and more while ADDs follow each other
    (`_ahead_count`).

    Without IP targets single addresses are requested for whole ENIs, so their count is rounded up to whole ENIs. On an IPv6 node the
    count is 1 if the node needs a /80, else 0.
    """
    settings, deficit = resolved(snapshot, settings), deficit_count(snapshot, settings)
    if settings.family.is_sparse:
        return min(deficit, 1)
    if not deficit:
        return 0
    wanted = max(_request_count(snapshot, settings, deficit), deficit)
    unit = 1 if settings.ip_targets_defined or is_prefix_mode(snapshot, settings) else snapshot.limits.slots_per_eni
    return -(-wanted // unit) * unit


def _request_count(snapshot: PoolSnapshot, settings: PoolSettings, deficit: int) -> int:
    """Compute how many addresses to request for a deficit, not rounded up to whole ENIs or /28s.

    The count is higher than the deficit while ADDs follow each other (`_ahead_count`), and lower while single addresses replace /28s
    that the subnet does not have (STOPGAP_COUNT).
    """
    if not is_prefix_mode(snapshot, settings):
        wanted = deficit + _ahead_count(snapshot, settings, deficit)
        if settings.max_pods:
            return min(wanted, settings.max_pods - snapshot.pool_count)
        return wanted
    if snapshot.prefixes_available or settings.ip_targets_defined:
        return deficit
    free = _coming_count(snapshot)
    return max(min(deficit, STOPGAP_COUNT - free), snapshot.waiting_count - free)


def _ahead_count(snapshot: PoolSnapshot, settings: PoolSettings, deficit: int) -> int:
    """Compute how many addresses to request in addition to the deficit while ADDs follow each other, because more will come."""
    demand, target = snapshot.growth.demand, settings.warm_ip_target
    # If an ADD waits, and ADDs have just taken twice the target, more ADDs will probably follow, each as soon as its predecessor has
    # finished.
    are_adds_chained = snapshot.waiting_count and demand.lately_count >= 2 * target
    extra = target if are_adds_chained else min(demand.lasting_count, target)
    # After the waiting ADDs have taken their addresses, WARM_IP_TARGET free addresses are needed again. So these are requested in the
    # same call as the addresses of the waiting ADDs. A single waiting ADD does not count: it may be the demand that the start
    # registers, and that takes no address (`ipamd/process/first_address.py`).
    if snapshot.waiting_count >= 2 and target:
        extra = max(extra, target + snapshot.waiting_count - _coming_count(snapshot) - deficit)
    return extra


def _is_better_later(snapshot: PoolSnapshot, settings: PoolSettings, want: int) -> bool:
    """Whether the request for more addresses can wait, because ADDs follow each other and enough addresses are free.

    Then one call serves several ADDs. If more than half of WARM_IP_TARGET is free, addresses are requested once no ADD has come for a
    moment. A new ENI, which takes seconds, is not postponed.
    """
    growth = snapshot.growth
    if not growth.demand.is_settling or is_prefix_mode(snapshot, settings) or snapshot.waiting_count:
        return False
    if snapshot.pool_count < settings.minimum_ip_target or growth.allocation is not None:
        return False
    has_slots = vacant_count(snapshot) >= want
    return has_slots and _coming_count(snapshot) > settings.warm_ip_target // 2 and settings.ip_targets_defined


def _is_spare_eni_better_later(snapshot: PoolSnapshot, settings: PoolSettings) -> bool:
    """Whether a new ENI that only WARM_ENI_TARGET or WARM_PREFIX_TARGET needs can wait.

    It can wait if ADDs came lately, no ADD waits, free addresses are at least a quarter of the target, and free and cooling addresses
    together are at least half of it. Then the new pods may end soon, and other nodes that got pods at the same moment may have waiting
    ADDs that need EC2's calls.
    """
    if not snapshot.growth.is_spare_eni_settling or not settings.spare_eni_delay_s:
        return False
    if snapshot.waiting_count or settings.ip_targets_defined:
        return False
    unit, target = _warm_unit(snapshot, settings)
    free = _coming_count(snapshot)
    return 4 * free >= unit * target and 2 * (free + _cooling_credit(snapshot, unit * target)) >= unit * target
