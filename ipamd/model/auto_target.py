"""`VPC_IPAMD_WARM_TARGET_MODE=auto`: the warm target that follows measured demand. Pure; ADR 0032 has the reasons.

    target  = reserve + (peak - busy)
    reserve = max(FLOOR_COUNT, ADDs that arrive while the pool grows, recent growth of demand, expected demand of a new node)

An address is *busy* if it is in use, cooling or waited for. Addresses of earlier sandboxes of a pod are not counted (`repeats.py`).
Addresses that were busy at the same time lately may be needed again, so the pool keeps them, and a burst that comes again causes no
EC2 call. Cooling addresses count as busy: they become free by themselves (I8), so no other address is needed for them. The reserve is
for demand beyond the peak: for the ADDs that arrive while the pool grows, and for as much growth as there was lately. The target stays
below the least count that WARM_ENI_TARGET=1 (in prefix mode WARM_PREFIX_TARGET=1) keeps free, and within maxPods.
"""

from __future__ import annotations

from math import ceil, sqrt

from ipamd.model.eni import ADDRESSES_PER_PREFIX
from ipamd.model.placement import eni_limit, is_prefix_mode, vacant_count
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import PoolSnapshot
from ipamd.model.record import dataclass, replace
from ipamd.model.seen_demand import SHORT_S, SeenDemand

FLOOR_COUNT = 2
"""The reserve of a node without measured demand. Ours: it serves one ADD, and one more ADD that comes before the pool has grown."""

SPREAD = 2.0
"""Standard deviations above the mean that the reserve covers. Ours: if ADDs arrive independently (Poisson), then in at least 97 of 100
cases the pool has grown before the ADDs exhaust the reserve."""


@dataclass(frozen=True, slots=True)
class AutoTarget:
    """The target and its parts, in addresses.

    count: the target, the free addresses to keep: effective_reserve_count + peak_count - busy_count, but from 1 to most_count.
    reserve_count: the reserve from measured demand.
    start_count: the addresses that a new node is expected to need; while the node fills, at most what fits on attached ENIs.
    effective_reserve_count: the reserve that is used: the higher of `reserve_count` and `start_count`.
    arriving_count: the ADDs that arrive while the pool grows.
    grow_s: how many seconds the pool takes to grow.
    growth_count: the greatest recent rise of demand within about `grow_s` seconds.
    peak_count: the most addresses that were busy at the same time lately.
    busy_count: the addresses that are busy now.
    most_count: the upper bound of the target (`most_count()`).
    needs_eni: whether growth by the reserve takes a new ENI, so that `grow_s` is the time for a new ENI.
    """

    count: int
    reserve_count: int
    effective_reserve_count: int
    arriving_count: int
    growth_count: int
    grow_s: float
    peak_count: int
    busy_count: int
    most_count: int
    needs_eni: bool
    start_count: int

    def __str__(self) -> str:
        growth = "a new ENI" if self.needs_eni else "an allocation"
        start = f", expected since the start {self.start_count}" if self.start_count else ""
        reasons = (
            f"a reserve of {self.effective_reserve_count} ({self.arriving_count} arrive in the {self.grow_s:.1f} s of {growth}, "
        )
        reasons += f"growth seen {self.growth_count}{start})"
        if self.peak_count > self.busy_count:
            reasons += f" and {self.peak_count - self.busy_count} below the peak of {self.peak_count} in use or cooling"
        bound = f", at most {self.most_count}" if self.count == self.most_count else ""
        return f"auto: {self.count} because {reasons}{bound}"


def resolved(snapshot: PoolSnapshot, settings: PoolSettings) -> PoolSettings:
    """Return the settings with `warm_ip_target` set to the auto target; unchanged unless the mode is auto. Idempotent."""
    if not settings.warm_target_auto:
        return settings
    return replace(settings, warm_ip_target=auto_target(snapshot, settings).count)


def auto_target(snapshot: PoolSnapshot, settings: PoolSettings) -> AutoTarget:
    """Compute from the demand (`snapshot.growth.demand`) how many free addresses to keep.

    Returns: `count` is at most `most_count()`, but at least 1. While the pool's counts stay the same, more demand never lowers it.
    Concurrency: pure.
    """
    demand, counts = snapshot.growth.demand, snapshot.counts
    busy = max(counts.in_use + counts.cooling - demand.repeats.count, 0) + snapshot.waiting_count
    vacant = _unit(snapshot, settings) * vacant_count(snapshot)
    reserve = _reserve(demand, needs_eni=False)
    if reserve.count > vacant:
        reserve = _reserve(demand, needs_eni=True)
    start = demand.start_count
    if demand.is_filling:
        # Many nodes may start together, and they share EC2's limit on calls. The calls are for the nodes' first pods; an ENI for
        # later pods can wait.
        start = min(start, max(counts.free - counts.withheld, 0) + vacant)
    expected = max(reserve.count, start)
    peak = max(demand.peak_count, busy)
    most = most_count(snapshot, settings)
    return AutoTarget(
        count=max(min(expected + peak - busy, most), 1),
        reserve_count=reserve.count,
        effective_reserve_count=expected,
        arriving_count=reserve.arriving_count,
        growth_count=reserve.growth_count,
        grow_s=reserve.grow_s,
        peak_count=peak,
        busy_count=busy,
        most_count=most,
        needs_eni=reserve.needs_eni,
        start_count=start,
    )


def most_count(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """Return the bound of the target; at least 1.

    The bound is the lowest of three counts: one address less than a whole ENI has (in prefix mode, than a /28 has); half of the
    addresses that the node can still take, but at least FLOOR_COUNT; and the addresses that maxPods leaves. The second count is there
    because the fuller a node is, the fewer addresses it can still need.
    """
    limits, counts = snapshot.limits, snapshot.counts
    unit = ADDRESSES_PER_PREFIX if is_prefix_mode(snapshot, settings) else limits.slots_per_eni
    capacity = eni_limit(limits, settings) * limits.slots_per_eni * (ADDRESSES_PER_PREFIX if settings.prefix_delegation else 1)
    bound = unit
    if settings.max_pods:
        capacity = min(capacity, settings.max_pods)
        bound = settings.max_pods - counts.in_use
    room = capacity - counts.in_use - counts.cooling
    return max(min(unit - 1, max(ceil(room / 2), FLOOR_COUNT), bound), 1)


@dataclass(frozen=True, slots=True)
class _Reserve:
    """The reserve for one way of growth: by an allocation, or by a new ENI. `count` is the reserve; other fields as in
    `AutoTarget`.
    """

    count: int
    arriving_count: int
    growth_count: int
    grow_s: float
    needs_eni: bool


def _reserve(demand: SeenDemand, *, needs_eni: bool) -> _Reserve:
    """Compute the reserve from the arrivals and the growth within the time that the pool needs to grow."""
    grow_s = demand.creation_s if needs_eni else demand.allocation_s
    mean = max(demand.minute_rate, demand.ten_minute_rate) * grow_s
    arriving = ceil(mean + SPREAD * sqrt(mean))
    growth = demand.long_growth_count if needs_eni or grow_s > SHORT_S else demand.short_growth_count
    return _Reserve(max(FLOOR_COUNT, arriving, growth), arriving, growth, grow_s, needs_eni)


def _unit(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """Return how many addresses fit in one vacant slot."""
    if is_prefix_mode(snapshot, settings):
        return ADDRESSES_PER_PREFIX
    return 1
