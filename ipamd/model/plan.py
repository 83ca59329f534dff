"""Decide what to request from EC2, or to release, so that the warm pool reaches its target. Pure.

Targets have the names and the meaning of amazon-vpc-cni-k8s (pkg/ipamd/ipamd.go, datastoreTargetState; docs/eni-and-ip-target.md and
docs/prefix-and-ip-target.md there). Different on purpose: cooling addresses are not free (I8), and count for three quarters of a
target of whole ENIs or /28s at most; waiting ADDs count as demand; the pool never grows beyond maxPods, but for the rest of a last
/28 and for what an ENI holds that could not be used when the others were filled; existing ENIs are filled before a new one is
created, in a fixed order; ADDs that come one after the other share a call; a spare ENI is made once no ADD has come for a while.
What is in excess is released by `ipamd/model/release.py`, and only while the pool is short of nothing: growth always comes first.
What is on an excluded ENI, which nobody may have, also goes while the pool is short and cannot grow.
Overview: docs/pool.md, The pool.
"""

from __future__ import annotations

from math import ceil, sqrt

from ipamd.model.eni import ADDRESSES_PER_PREFIX, EniState
from ipamd.model.freeze import barred_enis
from ipamd.model.placement import (
    STOPGAP_COUNT,
    eni_for_prefix,
    eni_limit,
    growth_actions,
    is_prefix_mode,
    pending_count,
    room_for_eni,
    serving_eni,
    trunk_places,
    vacant_count,
    vacant_slots,
)
from ipamd.model.pool import SHORT_S, Action, Allocate, Blocked, CreateEni, PoolSettings, PoolSnapshot, Refusal
from ipamd.model.record import dataclass, replace
from ipamd.model.release import exchange, excluded_actions, release_actions, why_kept
from ipamd.model.words import counted, of_limit

# `WARM_TARGET=auto`: the warm target that follows measured demand. Pure; ADR 0032 has the reasons.
#
#     target  = reserve + (peak - busy)                       busy: in use, cooling, or waited for
#     reserve = max(floor, rate x time to grow, growth seen, what a new node expects)
#
# What has been busy at once lately may be so again, and is kept, whatever is busy of it now: a burst that comes back finds its
# addresses, and costs no call. Cooling addresses count as busy, because they come back by themselves (I8). The reserve is for what
# goes beyond: what arrives while the pool grows, and as much again as it has grown lately. The target stays below what
# WARM_ENI_TARGET=1 (in prefix mode WARM_PREFIX_TARGET=1) keeps free at least, and within maxPods.


FLOOR_COUNT = 2
"""Reserve of a node that has seen nothing. Ours: one ADD, and the next before the pool has grown."""

SPREAD = 2.0
"""Standard deviations above the mean that the reserve covers. Ours: of arrivals independent of each other, as Poisson has them, fewer
than 3 in 100 times to grow bring more."""


@dataclass(frozen=True, slots=True)
class AutoTarget:
    """The target and what it is made of, in addresses.

    `reserve_count`: from what was seen; `held_count`: the one that counts, with `start_count`, what a new node expects (while it fills
    as far as attached ENIs have room). `arriving_count`: what arrives while the pool grows, `grow_s` seconds. `growth_count`: growth
    seen within such a time. `most_count`: the bound.
    """

    count: int
    reserve_count: int
    held_count: int
    arriving_count: int
    growth_count: int
    grow_s: float
    peak_count: int
    busy_count: int
    most_count: int
    needs_eni: bool
    start_count: int

    def __str__(self) -> str:
        way = "a new ENI" if self.needs_eni else "an allocation"
        start = f", expected since the start {self.start_count}" if self.start_count else ""
        why = f"a reserve of {self.held_count} ({self.arriving_count} arrive in the {self.grow_s:.1f} s of {way}, "
        why += f"growth seen {self.growth_count}{start})"
        if self.peak_count > self.busy_count:
            why += f" and {self.peak_count - self.busy_count} below the peak of {self.peak_count} in use or cooling"
        bound = f", at most {self.most_count}" if self.count == self.most_count else ""
        return f"auto: {self.count} because {why}{bound}"


def resolved(snapshot: PoolSnapshot, settings: PoolSettings) -> PoolSettings:
    """Return the settings with `warm_ip_target` as it follows from demand; unchanged without WARM_TARGET=auto. Idempotent."""
    if not settings.warm_target_auto:
        return settings
    return replace(settings, warm_ip_target=auto_target(snapshot, settings).count)


def auto_target(snapshot: PoolSnapshot, settings: PoolSettings) -> AutoTarget:
    """Compute the free addresses to keep from the demand in `snapshot.growth.demand`.

    Returns: at least 1, at most what WARM_ENI_TARGET=1 keeps free less one, and what maxPods leaves; no less for more demand.
    Concurrency: pure.
    """
    seen, counts = snapshot.growth.demand, snapshot.counts
    busy = counts.in_use + counts.cooling + snapshot.waiting_count
    unit = ADDRESSES_PER_PREFIX if is_prefix_mode(snapshot, settings) else 1
    vacant = unit * vacant_count(snapshot)
    reserve, grow_s, arriving, growth, needs_eni = FLOOR_COUNT, seen.allocation_s, 0, 0, False
    for needs_eni, grow_s in ((False, seen.allocation_s), (True, seen.creation_s)):
        mean = max(seen.minute_rate, seen.ten_minute_rate) * grow_s
        arriving = ceil(mean + SPREAD * sqrt(mean))
        growth = seen.long_growth_count if needs_eni or grow_s > SHORT_S else seen.short_growth_count
        reserve = max(FLOOR_COUNT, arriving, growth)
        if vacant >= reserve:
            break
    # Nodes start together, and their first pods need the calls: an ENI for what may come after them can wait.
    start = min(seen.start_count, max(counts.free - counts.held, 0) + vacant) if seen.is_filling else seen.start_count
    held, peak, most = max(reserve, start), max(seen.peak_count, busy), most_count(snapshot, settings)
    return AutoTarget(
        count=max(min(held + peak - busy, most), 1),
        reserve_count=reserve,
        held_count=held,
        arriving_count=arriving,
        growth_count=growth,
        grow_s=grow_s,
        peak_count=peak,
        busy_count=busy,
        most_count=most,
        needs_eni=needs_eni,
        start_count=start,
    )


def most_count(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """Bound the target: less than a whole ENI (in prefix mode a /28) free; half of what the node can still take, the floor
    excepted; no more than maxPods leaves; at least 1. The fuller a node, the less can still come."""
    limits, counts = snapshot.limits, snapshot.counts
    unit = ADDRESSES_PER_PREFIX if is_prefix_mode(snapshot, settings) else limits.slots_per_eni
    capacity = eni_limit(limits, settings) * limits.slots_per_eni * (ADDRESSES_PER_PREFIX if settings.prefix_delegation else 1)
    room = (min(capacity, settings.max_pods) if settings.max_pods else capacity) - counts.in_use - counts.cooling
    left = settings.max_pods - counts.in_use if settings.max_pods else unit
    return max(min(unit - 1, max(ceil(room / 2), FLOOR_COUNT), left), 1)


# Why the pool cannot grow, in words that help in this case (I14). Pure.


THAW = "use another node; `ipamctl thaw` ends an operator's freeze, the others end with their cause"


def growth_blocker(snapshot: PoolSnapshot, settings: PoolSettings) -> Refusal | None:
    """Return why the pool cannot grow now, and what helps; None if it can, or if something is on its way."""
    known = snapshot.growth
    if settings.max_pods and snapshot.pool_count >= settings.max_pods:
        reason = f"the pool has reached maxPods ({settings.max_pods})"
        return Refusal(reason, "raise MAX_PODS if it is set, or use more nodes", kind=Blocked.MAX_PODS)
    if snapshot.fault is not None:
        return snapshot.fault
    has_slot = vacant_count(snapshot) > 0
    has_place = room_for_eni(snapshot, settings)
    is_asked_again_soon = has_slot and known.allocation is not None and not known.allocation.is_lasting
    can_allocate = has_slot and known.allocation is None
    can_create = has_place and known.creation is None and not snapshot.bars_enis
    if can_allocate or (can_create and not is_asked_again_soon) or pending_count(snapshot, settings):
        return None
    if has_slot and known.allocation is not None:
        return known.allocation
    if has_place and snapshot.bars_enis:
        return Refusal(f"another ENI is needed and the pool is frozen: {snapshot.frozen}", THAW, kind=Blocked.FROZEN)
    if has_place and known.creation is not None:
        return known.creation
    if known.cap is not None and known.eni_cap is not None and known.eni_cap < eni_limit(snapshot.limits, settings):
        return known.cap
    return _full(snapshot, settings)


def _full(snapshot: PoolSnapshot, settings: PoolSettings) -> Refusal:
    limits, foreign, hidden = snapshot.limits, snapshot.unmanaged_eni_count, len(snapshot.refused_device_indexes)
    left = trunk_places(snapshot, settings)
    others = [f"{foreign} that are not ours to use"] * bool(foreign) + [f"{hidden} that EC2 has and does not show"] * bool(hidden)
    others += ["one place left for the trunk ENI"] * left
    count, limit = len(snapshot.enis) + foreign + hidden + left, eni_limit(limits, settings)
    named = f" (with {' and '.join(others)})" if others else ""
    every = f"all {count}{named} of {limit} ENIs" if count <= limit else f"all {of_limit(count, limit, 'ENI')}{named}"
    reason = f"{every} that {limits.instance_type} may have are attached and their {limits.slots_per_eni} slots each are taken"
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


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, in order, and one sentence with the reason.

    `actions` grow the pool or give something back, never both. `blocked`: why the pool cannot grow now, None if it can.
    `is_postponed`: a moment later less calls do the same. `excess_count`: free addresses above the target, `kept`: why they are kept.
    """

    actions: tuple[Action, ...]
    sentence: str
    deficit_count: int = 0
    excess_count: int = 0
    blocked: Refusal | None = None
    is_postponed: bool = False
    kept: str = ""

    @property
    def blocked_by(self) -> str:
        """Why the pool cannot grow now, as a sentence; empty if it can."""
        return str(self.blocked) if self.blocked is not None else ""


def plan(snapshot: PoolSnapshot, *, settings: PoolSettings) -> Plan:
    """Decide what to request from EC2, or to release, so that the warm pool reaches its target.

    Args:
        snapshot: one consistent read; counts in addresses.
        settings: targets.
    Returns: zero or more actions in order, ENIs by device index (same input, same output).
    Raises: nothing for lack of capacity; `blocked` reports it.
    Concurrency: pure. Guards: I7, I8, I13.
    Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, isDatastorePoolTooLow and increaseDatastorePool, with the differences above.
    """
    decided = _plan(snapshot, settings)
    if not snapshot.frozen:
        return decided
    what = barred_enis(is_ahead_of_need=snapshot.is_frozen_ahead)
    return replace(decided, sentence=f"{decided.sentence}; frozen, {what} and nothing released: {snapshot.frozen}")


def _plan(snapshot: PoolSnapshot, settings: PoolSettings) -> Plan:
    if settings.family.is_sparse:
        return _plan_of_ipv6(snapshot, settings)
    settings = resolved(snapshot, settings)
    deficit, excess = deficit_count(snapshot, settings), excess_count(snapshot, settings)
    host = snapshot.growth.host if snapshot.waiting_count > snapshot.supply_count else None
    # Addresses that the host's routing keeps from waiting ADDs are there: it is the obstacle, not EC2.
    blocked = host or growth_blocker(snapshot, settings)
    if deficit == 0:
        return _at_target(snapshot, settings, host, blocked)
    short = f"short of {counted(deficit, 'address')}"
    want = _wanted_count(snapshot, settings, deficit) - snapshot.growth.pending_address_count
    if _is_better_later(snapshot, settings, want):
        return Plan((), f"{short}: more is asked for a moment later, in one call", deficit, excess, is_postponed=True)
    exchanged = exchange(snapshot, settings, want)
    if exchanged is not None:
        sentence = f"{short}: {exchanged}, because every slot is taken and a /28 in one has 16"
        return Plan((exchanged,), sentence, deficit, excess)
    actions = () if snapshot.fault is not None else tuple(growth_actions(snapshot, settings, want))
    if actions and isinstance(actions[0], CreateEni) and _is_spare_eni_better_later(snapshot, settings):
        return Plan((), f"{short}: a spare ENI is asked for once no ADD has come for a while", deficit, excess, is_postponed=True)
    if actions:
        sentence = f"{short}: " + "; ".join(str(action) for action in actions)
        return Plan(actions, sentence, deficit, excess)
    if pending_count(snapshot, settings) >= deficit:
        why = snapshot.growth.pending or "an ENI is being attached"
        return Plan((), f"{short}, which may be on their way: {why}", deficit, excess)
    leaving = excluded_actions(snapshot)
    if leaving:
        sentence = f"{short}; nobody may have what is on an excluded ENI: " + "; ".join(str(action) for action in leaving)
        return Plan(leaving, sentence, deficit, excess, blocked)
    blocked = blocked or snapshot.growth.prefixes
    # Full: no vacant slot, no ENI on its way that has some, and no place for another ENI by the limits.
    vacant = any(vacant_slots(eni, snapshot) or eni.state is EniState.ATTACHING for eni in snapshot.enis)
    sentence = f"{short}, and cannot grow: {blocked}"
    if blocked is None or not (vacant or snapshot.growth.eni_cap is not None or room_for_eni(snapshot, settings)):
        enis = [eni for eni in snapshot.enis if not eni.is_excluded]
        used = sum(eni.used_slot_count for eni in enis)
        sentence = f"full: {used} of {counted(len(enis) * snapshot.limits.slots_per_eni, 'slot')} are in use"
    return Plan((), sentence, deficit, excess, blocked)


def _plan_of_ipv6(snapshot: PoolSnapshot, settings: PoolSettings) -> Plan:
    """A /80 holds more than any node can use: one is wanted, nothing else grows, and nothing goes.

    Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, setupENI and StartNodeIPPoolManager.
    """
    known, deficit = snapshot.growth, deficit_count(snapshot, settings)
    if not deficit:
        host = known.host if snapshot.waiting_count > snapshot.supply_count else None
        without = f"; without meaning here: {', '.join(settings.meaningless)}" if settings.meaningless else ""
        return Plan((), str(host or f"at target: one /80 has more than this node can use{without}"), blocked=host)
    eni, short = serving_eni(snapshot), "short of a /80"
    if known.pending_address_count or known.pending_enis or any(one.state is EniState.ATTACHING for one in snapshot.enis):
        return Plan((), f"{short}, which may be on its way: {known.pending or 'EC2 is asked'}", deficit)
    action = Allocate(eni.eni_id, prefix_count=1) if eni else eni_for_prefix(snapshot, settings)
    if not snapshot.limits.supports_prefixes:
        step = "use a Nitro or bare-metal type, or a cluster of IPv4"
        blocked: Refusal | None = Refusal(f"{snapshot.limits.instance_type} is not built on Nitro and has no /80", step)
    elif snapshot.fault is not None:
        blocked = snapshot.fault
    elif eni is None:
        barred = Refusal(f"another ENI is needed and the pool is frozen: {snapshot.frozen}", THAW, kind=Blocked.FROZEN)
        blocked = known.creation or (barred if snapshot.bars_enis else None) or (None if action else _full(snapshot, settings))
    else:
        step = "find out what is on that ENI: EC2 or its link keeps it from having one"
        refused = Refusal(f"{eni.eni_id} takes no /80 now", step, kind=Blocked.ENI_LIMIT)
        blocked = known.allocation or known.prefixes or (refused if eni.eni_id in known.slot_caps else None)
    if blocked is not None or action is None:
        return Plan((), f"{short}, and cannot get one: {blocked}", deficit, blocked=blocked)
    return Plan((action,), f"{short}: {action}", deficit)


def _at_target(snapshot: PoolSnapshot, settings: PoolSettings, host: Refusal | None, blocked: Refusal | None) -> Plan:
    """Give back what was in excess for long enough, or say why it is kept."""
    excess, surplus = excess_count(snapshot, settings), surplus_count(snapshot, settings)
    if host is not None:
        return Plan((), str(host), excess_count=excess, blocked=blocked)
    actions = release_actions(snapshot, settings, surplus=surplus)
    if actions:
        sentence = f"{counted(excess, 'address')} in excess: " + "; ".join(str(action) for action in actions)
        return Plan(actions, sentence, excess_count=excess, blocked=blocked)
    kept = why_kept(snapshot, settings, surplus=surplus) if excess else ""
    sentence = f"at target; what is in excess is kept: {kept}" if kept else "at target: nothing to do"
    return Plan((), sentence, excess_count=excess, blocked=blocked, kept=kept)


def deficit_count(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """Count the addresses that the pool is short of, waiting ADDs included.

    With IP targets: max(W - free, M - total, 0), where free excludes cooling (I8). Without: what makes the free count reach
    WARM_ENI_TARGET whole ENIs (in prefix mode WARM_PREFIX_TARGET prefixes), of which cooling ones may be half, and at least one free
    address. Free addresses on an ENI whose host routing is not in place yet count, because they will come; unless it has failed for
    long.
    """
    if settings.family.is_sparse:
        # One /80 that may be given is enough, whatever was in use of another that is lost.
        serves = any(eni.prefix_count and eni.counts.free and not eni.is_excluded for eni in snapshot.enis)
        return 0 if serves else max(snapshot.waiting_count, 1)
    settings, free = resolved(snapshot, settings), _coming_count(snapshot)
    if settings.max_pods and snapshot.pool_count >= settings.max_pods:
        return 0
    if settings.ip_targets_defined:
        short = max(settings.warm_ip_target - free, settings.minimum_ip_target - snapshot.pool_count, 0)
    else:
        unit, target = _warm_unit(snapshot, settings)
        coming = free + _cooling_credit(snapshot, unit * target)
        short = max(unit * target - coming, 1 if target == 0 and free == 0 else 0, 0)
    short = max(short, snapshot.waiting_count - free)
    return min(short, settings.max_pods - snapshot.pool_count) if settings.max_pods else short


def excess_count(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """Count the free addresses above the target, in whole units of what the target counts: addresses, /28s or ENIs."""
    settings = resolved(snapshot, settings)
    unit = 1 if settings.ip_targets_defined else max(_warm_unit(snapshot, settings)[0], 1)
    return surplus_count(snapshot, settings) // unit * unit


def surplus_count(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """Count the addresses that ADDs can have now, or soon (`_cooling_credit`), and without which the pool would be short of nothing.

    The opposite of `deficit_count`: taking away so many leaves it at 0. With IP targets: min(free - W, total - M), 0 at least.
    """
    if settings.family.is_sparse:
        return 0
    settings, free = resolved(snapshot, settings), snapshot.supply_count - snapshot.waiting_count
    if settings.ip_targets_defined:
        return max(min(free - settings.warm_ip_target, snapshot.pool_count - settings.minimum_ip_target), 0)
    unit, target = _warm_unit(snapshot, settings)
    return max(free + _cooling_credit(snapshot, unit * target) - max(unit * target, 1), 0)


def _cooling_credit(snapshot: PoolSnapshot, target: int) -> int:
    """Count cooling addresses that stand for free ones in a target of whole ENIs or /28s, because they soon will be: at most three
    quarters of it, so that a load that changes all the time cannot keep the last quarter from growing."""
    return min(snapshot.counts.cooling - snapshot.leaving_cooling_count, target - target // 4)


def _warm_unit(snapshot: PoolSnapshot, settings: PoolSettings) -> tuple[int, int]:
    """What a target counts and how many of them. A full ENI: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, GetIPv4Limit."""
    if is_prefix_mode(snapshot, settings):
        return ADDRESSES_PER_PREFIX, settings.warm_prefix_target
    by_prefix = settings.prefix_delegation and snapshot.limits.supports_prefixes
    return snapshot.limits.slots_per_eni * (ADDRESSES_PER_PREFIX if by_prefix else 1), settings.warm_eni_target


def _coming_count(snapshot: PoolSnapshot) -> int:
    """Free addresses that ADDs can have now, or as soon as the host's routing of their ENI is in place."""
    counts = snapshot.counts
    lacking = snapshot.unready_free_count if snapshot.growth.has_stuck_eni else snapshot.taken_free_count
    return max(counts.free - counts.held - lacking, 0)


def wanted_count(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """Count the addresses to ask for now, whatever stands in the way: the deficit, and what a ramp will take besides.

    Without IP targets single addresses are asked for by the ENI: whole ones are wanted then.
    """
    settings, deficit = resolved(snapshot, settings), deficit_count(snapshot, settings)
    if settings.family.is_sparse:
        return min(deficit, 1)
    wanted = max(_wanted_count(snapshot, settings, deficit), deficit) if deficit else 0
    unit = 1 if settings.ip_targets_defined or is_prefix_mode(snapshot, settings) else snapshot.limits.slots_per_eni
    return -(-wanted // unit) * unit


def _wanted_count(snapshot: PoolSnapshot, settings: PoolSettings, deficit: int) -> int:
    """What to ask for to make up a deficit: more while a ramp lasts, less while single addresses stand in for missing /28s."""
    if not is_prefix_mode(snapshot, settings):
        demand = snapshot.growth.demand
        # An ADD that waits although twice the target has just been taken is not the last: each comes when the one before was served.
        is_chased = snapshot.waiting_count and demand.lately_count >= 2 * settings.warm_ip_target
        extra = settings.warm_ip_target if is_chased else min(demand.lasting_count, settings.warm_ip_target)
        # What WARM_IP_TARGET needs besides once the ADDs that wait have taken theirs: one call then serves both. One that waits may be
        # the start's, which takes no address (`ipamd/ready_marks.py`).
        if snapshot.waiting_count >= 2 and settings.warm_ip_target:
            extra = max(extra, settings.warm_ip_target + snapshot.waiting_count - _coming_count(snapshot) - deficit)
        return min(deficit + extra, settings.max_pods - snapshot.pool_count) if settings.max_pods else deficit + extra
    if snapshot.prefixes_available or settings.ip_targets_defined:
        return deficit
    free = _coming_count(snapshot)
    return max(min(deficit, STOPGAP_COUNT - free), snapshot.waiting_count - free)


def _is_better_later(snapshot: PoolSnapshot, settings: PoolSettings, want: int) -> bool:
    """Whether ADDs come one after the other, and enough is left for the next: then one call serves several of them.

    Between half of WARM_IP_TARGET and all of it the pool is topped up once no ADD has come for a moment. Not where a new ENI is
    needed, which takes seconds.
    """
    known = snapshot.growth
    if not known.demand.is_settling or is_prefix_mode(snapshot, settings) or snapshot.waiting_count:
        return False
    if snapshot.pool_count < settings.minimum_ip_target or known.allocation is not None:
        return False
    has_slots = vacant_count(snapshot) >= want
    return has_slots and _coming_count(snapshot) > settings.warm_ip_target // 2 and settings.ip_targets_defined


def _is_spare_eni_better_later(snapshot: PoolSnapshot, settings: PoolSettings) -> bool:
    """Whether half of WARM_ENI_TARGET or WARM_PREFIX_TARGET is there, no more than half of that cooling, no ADD waits, and ADDs came
    lately: they may go as they came, and other nodes that got pods in the same moment may have ADDs that wait for calls."""
    if not snapshot.growth.is_spare_eni_settling or not settings.spare_eni_delay_s:
        return False
    if snapshot.waiting_count or settings.ip_targets_defined:
        return False
    unit, target = _warm_unit(snapshot, settings)
    free = _coming_count(snapshot)
    return 4 * free >= unit * target and 2 * (free + _cooling_credit(snapshot, unit * target)) >= unit * target
