"""Measure demand for `WARM_TARGET=auto`: how fast ADDs come, how much is busy at most, by how much that grew, how long growing takes.

Bounded memory: two decaying counters, the last ten seconds' growth, and one maximum for each ten minutes of the last seven hours.
What was seen counts fully for two hours, so that an hourly burst is remembered from one to the next, and halves with each hour after
that. A restart begins with what it finds free, so that it changes nothing.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection
from math import exp

from ipamd.model.ids import EniId
from ipamd.model.plan import AutoTarget, auto_target
from ipamd.model.pool import (
    LONG_S,
    SHORT_S,
    Action,
    AllocateAddresses,
    AllocatePrefixes,
    CreateEni,
    PoolCounts,
    PoolSettings,
    PoolSnapshot,
    SeenDemand,
)
from ipamd.model.release import ENI_HOLD_S

BUCKET_S = 600.0
FULL_BUCKETS = 12
HALF_BUCKETS = 6
MEMORY_BUCKETS = FULL_BUCKETS + 5 * HALF_BUCKETS
"""Two hours in full, then a half, a quarter, ... for an hour each. Ours: most schedules of cron jobs are hourly or shorter."""

HOLD_S = 600.0
"""A lower reserve counts after so long. Ours: longer than the times for which pods come and go in a rollout."""

START_COUNT = 10
"""What a node expects that holds no address yet. Ours: a new node is made because pods wait for one."""

FILL_S = 300.0
"""A new node is filled for so long: what is busy then is the first peak, and no growth that is to be expected again. Ours."""

MERGE_S = 0.1
SCALES_S = (60.0, 600.0)
GROW_MAX_S = 120.0
LATELY = 0.2
"""Weight of the newest time to grow when it is shorter than those before; a longer one counts at once."""


class Maxima:
    """The highest value of each ten minutes, weighted by age."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int]] = deque(maxlen=MEMORY_BUCKETS + 1)
        self._highest = (0, 0)  # in a bucket: the pool's thread asks after every ADD

    def note(self, value: int, *, now_s: float) -> None:
        """Record a value."""
        bucket = int(now_s // BUCKET_S)
        if self._seen and self._seen[-1][0] == bucket:
            if value <= self._seen[-1][1]:
                return
            self._seen[-1] = (bucket, value)
        elif value > 0:
            self._seen.append((bucket, value))
        self._highest = (bucket, self._sum_up(bucket))

    def highest(self, *, now_s: float) -> int:
        """Return the highest value: in full for two hours, halved with each hour after that, 0 after seven."""
        bucket = int(now_s // BUCKET_S)
        if bucket != self._highest[0]:
            self._highest = (bucket, self._sum_up(bucket))
        return self._highest[1]

    def _sum_up(self, bucket: int) -> int:
        while self._seen and bucket - self._seen[0][0] >= MEMORY_BUCKETS:
            self._seen.popleft()
        return max((value >> _halvings(bucket - at) for at, value in self._seen), default=0)


class DecayingRate:
    """Events per second, weighted over one time scale."""

    def __init__(self, scale_s: float) -> None:
        self._scale_s = scale_s
        self._count = 0.0
        self._at_s = 0.0

    def note(self, count: int, *, now_s: float) -> None:
        """Record so many events."""
        self._count = self.rate(now_s=now_s) * self._scale_s + count
        self._at_s = now_s

    def rate(self, *, now_s: float) -> float:
        """Return the rate now."""
        return self._count * exp(-max(now_s - self._at_s, 0.0) / self._scale_s) / self._scale_s


class DemandMeter:
    """Used by the pool's thread; `latest`, the target that was computed last, may be read by any. Points are monotonic."""

    def __init__(self) -> None:
        self.latest: AutoTarget | None = None
        self._arrived_count: int | None = None
        self._rates = tuple(DecayingRate(scale_s) for scale_s in SCALES_S)
        self._busy_count = 0
        self._kept_peak = 0
        self._peaks, self._short, self._long, self._start = Maxima(), Maxima(), Maxima(), Maxima()
        self._fill_deadline = 0.0
        self._rises: deque[tuple[float, int]] = deque()
        self._reserves: deque[tuple[float, int]] = deque()
        self._allocation_s, self._creation_s = SeenDemand().allocation_s, SeenDemand().creation_s

    def note(self, counts: PoolCounts, *, waiting_count: int, served_count: int, now_s: float) -> None:
        """Record one look at the pool: its addresses, ADDs that wait, and ADDs that took an address since start."""
        busy, arrived = counts.in_use + counts.cooling + waiting_count, served_count + waiting_count
        if self._arrived_count is None:
            self._arrived_count = served_count
            self._busy_count = busy
            self._peaks.note(busy, now_s=now_s)
            self._start.note(counts.free if counts.total else START_COUNT, now_s=now_s)
            self._fill_deadline = now_s if counts.total else now_s + FILL_S
        # An ADD that gives up and comes again is one demand: only what goes beyond the highest count is new.
        self._arrive(max(arrived - self._arrived_count, 0), now_s=now_s)
        self._arrived_count = max(arrived, self._arrived_count)
        self._peaks.note(self._busy_count, now_s=now_s)  # it has lasted until now
        peak = self._peak(now_s=now_s)
        self._busy_count = busy
        self._peaks.note(busy, now_s=now_s)
        if busy > peak and now_s >= self._fill_deadline:
            self._rise(busy - peak, now_s=now_s)

    def took(self, took_s: float, action: Action) -> None:
        """Record how long an action took that made the pool grow."""
        match action:
            case CreateEni():
                self._creation_s = _lately(self._creation_s, took_s)
            case AllocateAddresses() | AllocatePrefixes():
                self._allocation_s = _lately(self._allocation_s, took_s)

    def follow(self, snapshot: PoolSnapshot, settings: PoolSettings, *, now_s: float) -> None:
        """With WARM_TARGET=auto: compute the target, and remember its reserve, which falls only after HOLD_S."""
        self.latest = auto = auto_target(snapshot, settings) if settings.warm_target_auto else None
        if auto is None:
            return
        while self._reserves and self._reserves[-1][1] <= auto.reserve_count:
            self._reserves.pop()
        self._reserves.append((now_s, auto.reserve_count))

    def seen(self, *, now_s: float) -> SeenDemand:
        """Return what is known of demand now."""
        while len(self._reserves) > 1 and now_s - self._reserves[0][0] > HOLD_S:
            self._reserves.popleft()
        minute, ten_minutes = self._rates
        return SeenDemand(
            minute_rate=minute.rate(now_s=now_s),
            ten_minute_rate=ten_minutes.rate(now_s=now_s),
            peak_count=max(self._peak(now_s=now_s), self._busy_count),
            short_growth_count=self._short.highest(now_s=now_s),
            long_growth_count=self._long.highest(now_s=now_s),
            start_count=self._start.highest(now_s=now_s),
            is_filling=now_s < self._fill_deadline,
            allocation_s=self._allocation_s,
            creation_s=self._creation_s,
            held_count=self._held_count(now_s=now_s),
        )

    def next_change_s(self, *, now_s: float) -> float | None:
        """Seconds until the target may fall by itself; None if nothing is remembered that could fade."""
        fades = any(one.highest(now_s=now_s) for one in (self._short, self._long, self._start))
        if not fades and self._peak(now_s=now_s) <= self._busy_count and len(self._reserves) <= 1:
            return None
        fill_s = self._fill_deadline - now_s
        return min(BUCKET_S - now_s % BUCKET_S, fill_s if fill_s > 0 else BUCKET_S)

    def _arrive(self, count: int, *, now_s: float) -> None:
        if count:
            for rate in self._rates:
                rate.note(count, now_s=now_s)

    def _rise(self, count: int, *, now_s: float) -> None:
        if self._rises and now_s - self._rises[-1][0] < MERGE_S:
            self._rises[-1] = (self._rises[-1][0], self._rises[-1][1] + count)
        else:
            self._rises.append((now_s, count))
        while now_s - self._rises[0][0] > LONG_S:
            self._rises.popleft()
        self._short.note(sum(rise for at, rise in self._rises if now_s - at <= SHORT_S), now_s=now_s)
        self._long.note(sum(rise for _, rise in self._rises), now_s=now_s)

    def _peak(self, *, now_s: float) -> int:
        """The highest busy count, remembered; small falls of it are not followed, or a constant load would cost calls."""
        peak = self._peaks.highest(now_s=now_s)
        if peak > self._kept_peak or peak < self._kept_peak - max(1, self._kept_peak // 8):
            self._kept_peak = peak
        return self._kept_peak

    def _held_count(self, *, now_s: float) -> int:
        return max((count for at, count in self._reserves if now_s - at <= HOLD_S), default=0)


def _lately(before_s: float, took_s: float) -> float:
    return min(max(took_s, (1 - LATELY) * before_s + LATELY * took_s), GROW_MAX_S)


def _halvings(age: int) -> int:
    return 0 if age < FULL_BUCKETS else (age - FULL_BUCKETS) // HALF_BUCKETS + 1


# Notice that ADDs come one after the other, so that one EC2 call serves several of them.
#
# The pool loop is woken after every ADD. Asking for one address each time costs one call for each pod, and EC2's limits are for
# the whole account. Whether demand lasts is judged by two windows, so that a burst, which is over when it is seen, leaves no
# addresses behind that nobody needs.


WINDOW_S = 5.0
"""Demand lasts if ADDs took addresses in this window and in the one before it. Ours: amazon-vpc-cni-k8s looks every 5 s
(pkg/ipamd/ipamd.go, StartNodeIPPoolManager) and so gathers the ADDs of 5 s in one call."""

SETTLE_S = WINDOW_S
"""After the last ADD the pool is topped up to WARM_IP_TARGET this much later, unless it is low before. Ours: as above."""


class Ramp:
    """Counts served ADDs over time. Used by the pool's thread."""

    def __init__(self, *, draw: Callable[[], float] = random.random) -> None:
        """`draw`: 0.0 to 1.0, this node's part of a spare ENI's delay."""
        self._served_count: int | None = None
        self._last_s = float("-inf")
        self._part = 1.0 + draw()
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, served_count: int, *, now_s: float) -> None:
        """Record how many ADDs were served since start, at a monotonic point."""
        new = served_count - (served_count if self._served_count is None else self._served_count)
        self._served_count = served_count
        if new > 0:
            self._seen.append((now_s, new))
            self._last_s = now_s
        while self._seen and now_s - self._seen[0][0] > 2 * WINDOW_S:
            self._seen.popleft()

    def lasting_count(self, *, now_s: float) -> int:
        """Addresses that the next window will take if the last two tell; 0 if one of them had no ADD."""
        newer = sum(count for at, count in self._seen if now_s - at <= WINDOW_S)
        older = sum(count for at, count in self._seen if WINDOW_S < now_s - at <= 2 * WINDOW_S)
        return min(newer, older)

    def settles_in_s(self, *, now_s: float) -> float:
        """Seconds until the last ADD is long enough ago; 0 if it is."""
        return max(self._seen[-1][0] + SETTLE_S - now_s, 0.0) if self._seen else 0.0

    def spare_eni_settles_in_s(self, *, delay_s: float, now_s: float) -> float:
        """Seconds until the last ADD is once to twice `delay_s` ago, so that a spare ENI may be asked for; 0 if it is."""
        return max(self._last_s + delay_s * self._part - now_s, 0.0)


# Measure which part of the pool nobody needed for a whole window: only that may be given back.
#
# The surplus is a step function of time, and the low-water mark over a sliding window is kept. A load that repeats within the
# window touches its own peak in it, so a constant or periodic load gives nothing back and asks for nothing anew. After a batch of
# addresses the next one waits for a window, so that a slow decline costs a call each window and not one for each pod. In memory:
# after a restart a window is waited for again. Not locked, no clock of its own: the pool's thread passes monotonic points, and so
# does a simulation.
#
# Where whole ENIs are the unit, one of them is held for the window, and what is more than one for ENI_HOLD_S only. One ENI is as
# wide a hysteresis as a constant load needs, and bounds what is held: after a burst that needed many ENIs an hour of all of them would
# cost more addresses than the calls are worth. Rejected, by the traces of docs/fleet.md: one window for all, which either flaps at a
# constant load (5 min) or holds too much after bursts (15 min).


class Surplus:
    """The surplus over one window of `hold_s` seconds, and for how long each ENI is known. Reading changes nothing."""

    def __init__(self) -> None:
        self._hold_s = self._eni_min_age_s = 0.0
        self._kept_count: int | None = None
        self._began_monotonic_s: float | None = None
        self._lows: tuple[tuple[float, int], ...] = ()  # (point, lowest from there until now), both rising
        self._batch_count = 0
        self._rest_deadline = 0.0
        self._seen: dict[EniId, float] = {}

    def note(
        self,
        count: int,
        *,
        enis: Collection[EniId],
        hold_s: float,
        eni_min_age_s: float,
        now_s: float,
        kept_count: int | None = None,
    ) -> None:
        """Record what is surplus from now on. Another `hold_s` begins a new window: other targets are in force.

        `kept_count`: what is more than that is held for ENI_HOLD_S at most; None: everything is held for `hold_s`.
        """
        self._eni_min_age_s, self._kept_count = eni_min_age_s, kept_count
        if hold_s != self._hold_s or self._began_monotonic_s is None:
            self._hold_s, self._began_monotonic_s = hold_s, now_s
            self._lows, self._rest_deadline = (), 0.0
        higher = [at_s for at_s, low in self._lows if low >= count]
        lows = [*(one for one in self._lows if one[1] < count), (min(higher, default=now_s), count)]
        # What was in force when the window begins goes once its successor is that old.
        while len(lows) > 1 and lows[1][0] <= now_s - hold_s:
            lows.pop(0)
        self._lows = tuple(lows)
        self._seen = {eni_id: self._seen.get(eni_id, now_s) for eni_id in enis}

    def is_over(self, *, now_s: float) -> bool:
        """Whether a whole window has been seen, the shortest that counts."""
        return self._has_seen(min(self._windows_s()), now_s)

    def settled_count(self, *, now_s: float) -> int:
        """Addresses that were surplus during the whole window and may go now; what is left of a batch during the rest after it."""
        settled = self._low(self._hold_s, now_s)
        if now_s < self._rest_deadline:
            settled = min(settled, self._batch_count)
        if self._kept_count is None:
            return settled
        return max(settled, self._low(min(self._windows_s()), now_s) - self._kept_count)

    def released(self, count: int, *, now_s: float) -> None:
        """Addresses were given back: they are surplus no more, at no time in the window."""
        settled = self.settled_count(now_s=now_s)
        if self._kept_count is None and now_s >= self._rest_deadline:
            self._rest_deadline = now_s + self._hold_s
        self._batch_count = max(settled - count, 0)
        self._lows = tuple((at_s, max(low - count, 0)) for at_s, low in self._lows)

    def ages(self, *, now_s: float) -> dict[EniId, float]:
        """Seconds for which each ENI is known to this process."""
        return {eni_id: now_s - at_s for eni_id, at_s in self._seen.items()}

    def changes_in_s(self, *, now_s: float) -> float | None:
        """Seconds until more may be given back by the passing of time alone; None: only if the surplus changes."""
        if self._began_monotonic_s is None or not self._lows or not self._lows[-1][1]:
            return None
        starts = [self._began_monotonic_s, *(at_s for at_s, _ in self._lows)]
        points = [self._rest_deadline, *(at_s + window_s for at_s in starts for window_s in self._windows_s())]
        points += [at_s + self._eni_min_age_s for at_s in self._seen.values()]
        return min((point - now_s for point in points if point > now_s), default=None)

    def _windows_s(self) -> tuple[float, ...]:
        return (self._hold_s,) if self._kept_count is None else (self._hold_s, min(ENI_HOLD_S, self._hold_s))

    def _has_seen(self, window_s: float, now_s: float) -> bool:
        return self._began_monotonic_s is not None and now_s - self._began_monotonic_s >= window_s

    def _low(self, window_s: float, now_s: float) -> int:
        """The lowest surplus over a window that ends now; 0 before it has been seen in full."""
        if not self._lows or not self._has_seen(window_s, now_s):
            return 0
        return max((low for at_s, low in self._lows if at_s <= now_s - window_s), default=self._lows[0][1])
