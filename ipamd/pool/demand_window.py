"""Measure demand over one window, VPC_IPAMD_RELEASE_HOLD_SECONDS, for the automatic warm target and for releases.

The measured values are maxima over the window (`RollingMax`): the number of busy addresses (in use, cooling, or waited for by an ADD),
its growth within SHORT_S and LONG_S, and the surplus with the opposite sign, whose maximum shows the least surplus. A load that
repeats within the window reaches its peak in every window, so a constant or periodic load releases nothing and allocates nothing
again. After a batch of addresses was released, the next batch waits for a window, so that a slow decline costs one call per window
instead of one call per pod. The measurements are bounded and not stored. After a restart the pool keeps the addresses that are free
then, and nothing is released before a whole window has passed. There is no lock and no clock: the pool's thread, or a simulation,
passes monotonic times.

Where whole ENIs are released, all surplus ENIs are kept for the window, unless a burst has just ended: then all but one of them go
after ENI_HOLD_S. Keeping for the whole window what a burst needed would cost more in addresses than the saved calls are worth, while a
load that only varies needs its addresses again. A burst has ended when the busy count fell within BURST_S by more than chance explains
(`BURST_SPREAD`). Rejected because of the traces in docs/performance.md: one window for all, which either flaps at a constant load
(5 min) or keeps too much after bursts (15 min); and ENI_HOLD_S for all ENIs beyond the first, which flaps on large nodes.

ADDs that follow each other share a call. Every ADD wakes the pool loop, and allocating one address each time would cost one call for
each pod, while EC2's limits are for the whole account. Two successive windows of some seconds (`WINDOW_S`) show whether demand lasts.
A short burst does not count as lasting, because it is over before the pool could allocate addresses for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from math import ceil, sqrt

from ipamd.model.pool_actions import CreateEni, Growth
from ipamd.model.pool_counts import PoolCounts
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.release import ENI_HOLD_S
from ipamd.model.repeats import NO_REPEATS, Repeats
from ipamd.model.seen_demand import LONG_S, SHORT_S, SeenDemand

START_COUNT = 10
"""Addresses that a node without any is expected to need. Ours: a new node is usually created because pods wait for it."""

FILL_S = 300.0
"""For this long after its start a new node is being filled: its busy addresses count as its first peak, and not as growth that may
come again. Ours: the pods for which the node was created usually start within minutes."""

RATE_S, LONG_RATE_S = 60.0, 600.0
"""Times over which the rates of ADDs are measured."""

MERGE_S = 0.1
"""Rises of the peak of the busy count within this time after a first rise are recorded together with it. Ours: this bounds the
number of records, and is short compared with the times over which rises are added up (SHORT_S, LONG_S)."""

GROW_MAX_S = 120.0
"""An action of growth that takes longer than this is recorded as if it took this long. Ours: so a disturbance of EC2 does not make the
pool keep addresses for growth that takes many minutes."""

NEWEST_WEIGHT = 0.2
"""Weight of the newest growth duration in the average if it is shorter than the average. A longer duration replaces
the average at once."""

WINDOW_S = 5.0
"""Demand lasts if ADDs took addresses in this window and in the one before it. Ours: amazon-vpc-cni-k8s checks every 5 s
(pkg/ipamd/ipamd.go, StartNodeIPPoolManager) and so combines the ADDs of 5 s in one call."""

SETTLE_S = WINDOW_S
"""The pool is topped up to WARM_IP_TARGET this long after the last ADD, or at once if no more than half of the target is free. Ours:
as long as `WINDOW_S`."""

BURST_S = 600.0
"""A burst has ended if the busy count has fallen enough within this time. Ours: this is long enough, because the pods of a burst end
within minutes of each other."""

BURST_SPREAD = 2.5
"""By how much the square root of the busy count falls at least when a burst ends. Ours: the square root of a Poisson count has a
standard deviation of a half at any mean, so this is five of them; a smaller fall may be chance."""

CHANCE_SPREAD = 2.0
"""Standard deviations of a Poisson count by which the busy count may soon exceed its maximum within the window. Ours: a Poisson
count exceeds its mean by more than this in 2 of 100 cases only."""


class RollingMax:
    """The maximum of a value over any window that ends now. A value lasts until the next one is recorded."""

    def __init__(self) -> None:
        self._steps: list[tuple[float, int]] = []
        """(time, maximum from there until now): times ascend, values descend."""

    def record(self, value: int, *, now_s: float, kept_s: float) -> None:
        """Record a new value. `kept_s`: the longest window for which `over` will be called from now on."""
        since_s = now_s
        while self._steps and self._steps[-1][1] <= value:
            since_s = self._steps.pop()[0]
        self._steps.append((since_s, value))
        # `over` reads the newest step that is at least as old as the window. Steps before that one are not needed any more.
        while len(self._steps) > 1 and self._steps[1][0] <= now_s - kept_s:
            del self._steps[0]

    def over(self, window_s: float, *, now_s: float) -> int | None:
        """Return the highest value in the window; None if values have not been recorded for a whole window yet."""
        for at_s, value in reversed(self._steps):
            if at_s <= now_s - window_s:
                return value
        return None

    def so_far(self, window_s: float, *, now_s: float) -> int:
        """Return `over`, or the highest value so far if values have not been recorded for a whole window yet; 0 without any value."""
        highest = self.over(window_s, now_s=now_s)
        if highest is not None:
            return highest
        if self._steps:
            return self._steps[0][1]
        return 0

    def raise_by(self, count: int) -> None:
        """Raise every recorded value by `count`, but not above 0. For values that are negative counts, such as a surplus."""
        self._steps = [(at_s, min(value + count, 0)) for at_s, value in self._steps]

    def ends(self, window_s: float) -> Iterator[float]:
        """Yield the times at which `over` may change if no value is recorded until then.

        At such a time a step leaves the window, so the maximum falls, or a whole window has been seen for the first time.
        """
        return (at_s + window_s for at_s, _ in self._steps)


class DemandWindow:
    """The demand that the pool observed. `settings.release_hold_s` is the window. Used by the pool's thread."""

    def __init__(self) -> None:
        self._served: list[tuple[float, int]] = []
        """(time, number of ADDs since the start that took an address), one entry for each rise of the number."""
        self._busy = RollingMax()
        self._short_growth = RollingMax()
        self._long_growth = RollingMax()
        self._start = RollingMax()
        self._negative_surplus = RollingMax()
        """The surplus with the opposite sign, so that its maximum shows the least surplus."""
        self._rises: list[tuple[float, int]] = []
        """(time, by how much the peak rose)."""
        self._fill_deadline = 0.0
        self._repeats = NO_REPEATS
        self._grow_s = {False: SeenDemand().allocation_s, True: SeenDemand().creation_s}
        """Average time of an allocation (False) and of a creation (True)."""
        self._batch = (float("-inf"), 0)
        """When the last batch began, and how many of its addresses are not released yet. The next batch waits for a window."""

    def observe(
        self,
        counts: PoolCounts,
        settings: PoolSettings,
        *,
        waiting_count: int,
        served_count: int,
        now_s: float,
        repeats: Repeats = NO_REPEATS,
    ) -> None:
        """Record the state of the pool: its addresses, waiting ADDs, and ADDs that took an address since start."""
        self._repeats = repeats
        window_s = settings.release_hold_s
        is_first = not self._served
        self._record_served(served_count, now_s=now_s)
        start_count = self._begin(counts, now_s=now_s) if is_first else 0
        self._start.record(start_count, now_s=now_s, kept_s=window_s)
        busy_count = max(counts.in_use + counts.cooling - repeats.count, 0) + waiting_count
        peak_count = self._busy.so_far(window_s, now_s=now_s)
        self._busy.record(busy_count, now_s=now_s, kept_s=window_s)
        if busy_count > peak_count and now_s >= self._fill_deadline and not is_first:
            self._record_rise(busy_count - peak_count, now_s=now_s)
        self._rises = [(at_s, rise) for at_s, rise in self._rises if now_s - at_s <= LONG_S]
        self._long_growth.record(self._risen_within(LONG_S, now_s), now_s=now_s, kept_s=window_s)
        self._short_growth.record(self._risen_within(SHORT_S, now_s), now_s=now_s, kept_s=window_s)

    def _begin(self, counts: PoolCounts, *, now_s: float) -> int:
        """Record until when the node is being filled: for FILL_S if it is new, which means without any addresses; else not at all.

        Returns: how many free addresses the automatic warm target includes for the start (`SeenDemand.start_count`): START_COUNT on a
            new node. Otherwise it is the present free count, because a restart of the daemon is not a reason to release addresses.
        """
        if counts.total:
            self._fill_deadline = now_s
            return counts.free
        self._fill_deadline = now_s + FILL_S
        return START_COUNT

    def record_growth_time(self, action: Growth, *, took_s: float) -> None:
        """Record how long a growth action took."""
        is_creation = isinstance(action, CreateEni)
        smoothed_s = (1 - NEWEST_WEIGHT) * self._grow_s[is_creation] + NEWEST_WEIGHT * took_s
        self._grow_s[is_creation] = min(max(took_s, smoothed_s), GROW_MAX_S)

    def measured_demand(self, settings: PoolSettings, *, now_s: float) -> SeenDemand:
        """Return the demand as it was measured until now."""
        window_s = settings.release_hold_s
        lately_count = self._served_within(WINDOW_S, now_s)
        before_count = self._served_within(2 * WINDOW_S, now_s) - lately_count
        return SeenDemand(
            minute_rate=self._served_within(RATE_S, now_s) / RATE_S,
            ten_minute_rate=self._served_within(LONG_RATE_S, now_s) / LONG_RATE_S,
            peak_count=self._busy.so_far(window_s, now_s=now_s),
            short_growth_count=self._short_growth.so_far(window_s, now_s=now_s),
            long_growth_count=self._long_growth.so_far(window_s, now_s=now_s),
            start_count=self._start.so_far(window_s, now_s=now_s),
            is_filling=now_s < self._fill_deadline,
            allocation_s=self._grow_s[False],
            creation_s=self._grow_s[True],
            lasting_count=min(lately_count, before_count),
            lately_count=lately_count,
            is_settling=self.quiet_in_s(SETTLE_S, now_s=now_s) > 0,
            repeats=self._repeats,
        )

    def quiet_in_s(self, delay_s: float, *, now_s: float) -> float:
        """Seconds until the last ADD that took an address is `delay_s` ago; 0 if it is that long ago already."""
        if not self._served:
            return 0.0
        return max(self._served[-1][0] + delay_s - now_s, 0.0)

    def record_surplus(self, count: int, settings: PoolSettings, *, now_s: float) -> None:
        """Record the present number of surplus addresses."""
        self._negative_surplus.record(-count, now_s=now_s, kept_s=settings.release_hold_s)

    def stable_surplus(self, settings: PoolSettings, *, kept_count: int | None, now_s: float) -> int | None:
        """Compute how many addresses were surplus during the whole window and may be released now.

        Until a window has passed since the last batch, the count is at most the addresses of that batch that are not released yet.
        `kept_count`: surplus beyond this count is released after ENI_HOLD_S once a burst has ended; None: none is released early.
        Returns: None before a whole window has been seen, unless a burst has ended.
        """
        hold_s, eni_hold_s, lately_s = self._windows_s(settings)
        least_negative = self._negative_surplus.over(hold_s, now_s=now_s)
        surplus = -(least_negative or 0)
        if now_s < self._batch[0] + hold_s:
            surplus = min(surplus, self._batch[1])
        if kept_count is not None:
            # A new ENI costs four calls, so none is released while the demand for it may come back by chance. If no ADD has come
            # lately, no demand is expected back.
            chance = ceil(CHANCE_SPREAD * sqrt(self._busy.so_far(lately_s, now_s=now_s)))
            surplus = max(surplus - min(chance, self._served_within(lately_s, now_s)), 0)
            negative_lately = self._negative_surplus.over(eni_hold_s, now_s=now_s)
            if negative_lately is not None and self._has_burst_ended(kept_count, now_s=now_s):
                return max(surplus, -negative_lately - kept_count)
        if least_negative is None:
            return None
        return surplus

    def _has_burst_ended(self, kept_count: int, *, now_s: float) -> bool:
        """Whether the busy count fell within BURST_S by at least `kept_count` addresses and by more than chance explains."""
        peak_count = self._busy.so_far(BURST_S, now_s=now_s)
        busy_count = self._busy.so_far(ENI_HOLD_S, now_s=now_s)
        return peak_count - busy_count >= kept_count and sqrt(peak_count) - sqrt(busy_count) >= BURST_SPREAD

    def record_release(self, count: int, settings: PoolSettings, *, kept_count: int | None, now_s: float) -> None:
        """Record a release: subtract the released addresses from every surplus that was recorded in the window."""
        surplus = self.stable_surplus(settings, kept_count=kept_count, now_s=now_s) or 0
        began_s = self._batch[0]
        if kept_count is None and now_s >= began_s + settings.release_hold_s:
            began_s = now_s
        self._batch = (began_s, max(surplus - count, 0))
        self._negative_surplus.raise_by(count)

    def next_change_s(self, settings: PoolSettings, *, now_s: float) -> float | None:
        """Seconds until more may be released or the target falls, if nothing else happens; None if neither will."""
        points: list[float] = []
        if self._negative_surplus.so_far(0.0, now_s=now_s):
            points += self._surplus_change_points(settings)
        if settings.warm_target_auto:
            for maximum in (self._busy, self._short_growth, self._long_growth, self._start):
                points += maximum.ends(settings.release_hold_s)
            points.append(self._fill_deadline)
        if points and self._served:
            lately_s = self._windows_s(settings)[2]
            last_served_s = self._served[-1][0]
            points += [last_served_s + lately_s, last_served_s + LONG_RATE_S]
        return min((point - now_s for point in points if point > now_s), default=None)

    def _surplus_change_points(self, settings: PoolSettings) -> list[float]:
        """Times at which more of the surplus may be released."""
        hold_s, eni_hold_s, lately_s = self._windows_s(settings)
        next_batch_s = self._batch[0] + hold_s
        surplus_ends = [*self._negative_surplus.ends(hold_s), *self._negative_surplus.ends(eni_hold_s)]
        return [*surplus_ends, *self._busy.ends(lately_s), next_batch_s]

    def _record_served(self, served_count: int, *, now_s: float) -> None:
        """Record the count of ADDs that took an address, if it rose, and drop entries older than LONG_RATE_S."""
        if not self._served:
            self._served.append((float("-inf"), served_count))
        elif served_count > self._served[-1][1]:
            self._served.append((now_s, served_count))
        while len(self._served) > 1 and self._served[1][0] < now_s - LONG_RATE_S:
            del self._served[0]

    def _record_rise(self, count: int, *, now_s: float) -> None:
        """Record by how much the peak rose; rises within MERGE_S are merged."""
        began_s, rise = now_s, 0
        if self._rises and now_s - self._rises[-1][0] < MERGE_S:
            began_s, rise = self._rises.pop()
        self._rises.append((began_s, rise + count))

    def _risen_within(self, seconds: float, now_s: float) -> int:
        """Return by how much the peak rose in the last `seconds`."""
        return sum(rise for at_s, rise in self._rises if now_s - at_s <= seconds)

    @staticmethod
    def _windows_s(settings: PoolSettings) -> tuple[float, float, float]:
        """Return three windows in seconds: for surplus in general, for ENIs that a burst needed, and for recent ADDs."""
        hold_s = settings.release_hold_s
        return hold_s, min(ENI_HOLD_S, hold_s), min(LONG_RATE_S, hold_s)

    def _served_within(self, seconds: float, now_s: float) -> int:
        """Compute how many ADDs took an address in the last `seconds`; ADDs before the first observation do not count."""
        if not self._served:
            return 0
        before = bisect_left(self._served, (now_s - seconds,)) - 1
        return self._served[-1][1] - self._served[max(before, 0)][1]
