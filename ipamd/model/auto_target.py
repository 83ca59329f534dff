"""`WARM_TARGET=auto`: the warm target that follows measured demand. Pure; ADR 0032 has the reasons.

    target  = reserve + (peak - busy)                       busy: in use, cooling, or waited for
    reserve = max(floor, rate x time to grow, growth seen, what a new node expects)

What has been busy at once lately may be so again, and is kept, whatever is busy of it now: a burst that comes back finds its
addresses, and costs no call. Cooling addresses count as busy, because they come back by themselves (I8). The reserve is for what goes
beyond: what arrives while the pool grows, and as much again as it has grown lately. The target stays below what WARM_ENI_TARGET=1
(in prefix mode WARM_PREFIX_TARGET=1) keeps free at least, and within maxPods.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, sqrt

from ipamd.model.eni import ADDRESSES_PER_PREFIX
from ipamd.model.growth import SHORT_S
from ipamd.model.placement import eni_limit, is_prefix_mode, vacant_slots
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import PoolSnapshot

FLOOR_COUNT = 2
"""Reserve of a node that has seen nothing. Ours: one ADD, and the next before the pool has grown."""

SPREAD = 2.0
"""Standard deviations above the mean that the reserve covers. Ours: of arrivals independent of each other, as Poisson has them, fewer
than 3 in 100 times to grow bring more."""


@dataclass(frozen=True, slots=True)
class AutoTarget:
    """The target and what it is made of, in addresses.

    `reserve_count`: from what was seen; `held_count`: the one that counts, with the hold and `start_count`, what a new node expects
    (while it fills as far as attached ENIs have room). `arriving_count`: what arrives while the pool grows, `grow_s` seconds.
    `growth_count`: growth seen within such a time. `most_count`: the bound.
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
    needs_eni: bool = False
    start_count: int = 0

    def __str__(self) -> str:
        way = "a new ENI" if self.needs_eni else "an allocation"
        start = f", expected since the start {self.start_count}" if self.start_count else ""
        why = [f"a reserve of {self.held_count}"]
        if self.held_count > max(self.reserve_count, self.start_count):
            why[0] += f" (held; now {self.reserve_count})"
        why[0] += f" ({self.arriving_count} arrive in the {self.grow_s:.1f} s of {way}, growth seen {self.growth_count}{start})"
        if self.peak_count > self.busy_count:
            why.append(f"{self.peak_count - self.busy_count} below the peak of {self.peak_count} in use or cooling")
        bound = f", at most {self.most_count}" if self.count == self.most_count else ""
        return f"auto: {self.count} because {' and '.join(why)}{bound}"


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
    vacant = _vacant_count(snapshot, settings)
    # Nodes start together, and their first pods need the calls: an ENI for what may come after them can wait.
    start = min(seen.start_count, max(counts.free - counts.held, 0) + vacant) if seen.is_filling else seen.start_count
    reserve, arriving, growth, grow_s = _reserve(snapshot, is_creation=False)
    needs_eni = vacant < reserve
    if needs_eni:
        reserve, arriving, growth, grow_s = _reserve(snapshot, is_creation=True)
    held, peak = max(reserve, start, seen.held_count), max(seen.peak_count, busy)
    most = most_count(snapshot, settings)
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


def _reserve(snapshot: PoolSnapshot, *, is_creation: bool) -> tuple[int, int, int, float]:
    """Returns: the reserve, what arrives while the pool grows, the growth seen within such a time, and that time in seconds."""
    seen = snapshot.growth.demand
    grow_s = seen.creation_s if is_creation else seen.allocation_s
    mean = max(seen.minute_rate, seen.ten_minute_rate) * grow_s
    arriving = ceil(mean + SPREAD * sqrt(mean))
    growth = seen.long_growth_count if is_creation or grow_s > SHORT_S else seen.short_growth_count
    return max(FLOOR_COUNT, arriving, growth), arriving, growth, grow_s


def _vacant_count(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """Addresses that attached ENIs have room for."""
    unit = ADDRESSES_PER_PREFIX if is_prefix_mode(snapshot, settings) else 1
    return unit * sum(vacant_slots(eni, snapshot) for eni in snapshot.enis)
