"""Remember demand over one window, VPC_IPAMD_RELEASE_HOLD: the target of `WARM_TARGET=auto` and what may be released follow from it.

What was busy at most, by how much that grew, and what was surplus at least are each the highest value over the window of a step
function of time (`Highest`). A load that repeats within the window touches its own peak in it, so a constant or periodic load gives
nothing back and asks for nothing anew. After a batch of addresses the next one waits for a window, so that a slow decline costs a
call each window and not one for each pod. In memory, and bounded: a restart begins with what it finds free, so that it changes
nothing, and waits for a window again. Not locked, no clock of its own: the pool's thread passes monotonic points, and so does a
simulation.

Where whole ENIs are the unit, one of them is held for the window, and what is more than one too, unless a burst has just ended: then
it goes after ENI_HOLD_S. An hour of all that a burst needed would cost more addresses than the calls are worth; what a load needs
that only varies is needed again. A burst has ended when what is busy fell within BURST_S by more than chance explains
(`BURST_SPREAD`).
Rejected, by the traces of docs/fleet.md: one window for all, which either flaps at a constant load (5 min) or holds too much after
bursts (15 min), and ENI_HOLD_S for all that is more than one ENI, which flaps on large nodes.

ADDs that come one after the other share a call: the pool loop is woken after every ADD, and asking for one address each time costs
one call for each pod, while EC2's limits are for the whole account. Whether demand lasts is judged by two windows of seconds, so that
a burst, which is over when it is seen, leaves no addresses behind that nobody needs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from math import ceil, sqrt

from ipamd.model.pool import LONG_S, SHORT_S, CreateEni, Growth, PoolCounts, PoolSettings, SeenDemand
from ipamd.model.release import ENI_HOLD_S

START_COUNT = 10
"""What a node expects that holds no address yet. Ours: a new node is made because pods wait for one."""

FILL_S = 300.0
"""A new node is filled for so long: what is busy then is the first peak, and no growth that is to be expected again. Ours."""

RATE_S, LONG_RATE_S = 60.0, 600.0
"""Times over which ADDs are counted, as a rate."""

MERGE_S = 0.1
GROW_MAX_S = 120.0
LATELY = 0.2
"""Weight of the newest time to grow when it is shorter than those before; a longer one counts at once."""

WINDOW_S = 5.0
"""Demand lasts if ADDs took addresses in this window and in the one before it. Ours: amazon-vpc-cni-k8s looks every 5 s
(pkg/ipamd/ipamd.go, StartNodeIPPoolManager) and so gathers the ADDs of 5 s in one call."""

SETTLE_S = WINDOW_S
"""After the last ADD the pool is topped up to WARM_IP_TARGET this much later, unless it is low before. Ours: as above."""

BURST_S = 600.0
"""A burst that has ended shows within so long. Ours: its pods leave within some minutes of each other, and ENIs go one by one."""

BURST_SPREAD = 2.5
"""By how much the square root of what is busy falls when a burst ends. Ours: that of a Poisson count varies by a half around any mean,
so these are five standard deviations; what falls by less may be chance."""


CHANCE_SPREAD = 2.0
"""Standard deviations of a Poisson count by which what is busy may exceed, soon, what it was at most within the window. Ours."""


class Highest:
    """The highest that a value was over any window that ends now; it lasts until the next one is recorded."""

    def __init__(self) -> None:
        self._steps: list[tuple[float, int]] = []  # (point, highest from there until now): points rise, values fall

    def record(self, value: int, *, now_s: float, kept_s: float) -> None:
        """Record a new value; windows are `kept_s` at most from now on."""
        since_s = now_s
        while self._steps and self._steps[-1][1] <= value:
            since_s = self._steps.pop()[0]
        self._steps.append((since_s, value))
        # What was in force when the window begins goes once its successor is that old.
        while len(self._steps) > 1 and self._steps[1][0] <= now_s - kept_s:
            del self._steps[0]

    def over(self, window_s: float, *, now_s: float) -> int | None:
        """The highest value; None before a whole window has been seen."""
        return next((value for at_s, value in reversed(self._steps) if at_s <= now_s - window_s), None)

    def so_far(self, window_s: float, *, now_s: float) -> int:
        """The highest value, of a window that may have begun before the first one; 0 without any."""
        found = self.over(window_s, now_s=now_s)
        return found if found is not None else self._steps[0][1] if self._steps else 0

    def raise_by(self, count: int) -> None:
        """Every value was more by so much, 0 at most."""
        self._steps = [(at_s, min(value + count, 0)) for at_s, value in self._steps]

    def ends(self, window_s: float) -> Iterator[float]:
        """Points at which it falls by itself, or has been seen for a whole window."""
        return (at_s + window_s for at_s, _ in self._steps)


class DemandWindow:
    """Used by the pool's thread. `settings.release_hold_s` is the window."""

    def __init__(self) -> None:
        self._served: list[
            tuple[float, int]
        ] = []  # (point, ADDs that took an address since start), each time that there were more
        self._busy = Highest()
        self._short_growth = Highest()
        self._long_growth = Highest()
        self._start = Highest()
        self._lack = Highest()  # of surplus, as a negative count: the least surplus is the highest lack
        self._rises: list[tuple[float, int]] = []
        self._fill_deadline = 0.0
        self._grow_s = {False: SeenDemand().allocation_s, True: SeenDemand().creation_s}  # whether it is a creation
        self._batch = (float("-inf"), 0)  # when the last batch began, and what is left of it; the next one waits for a window

    def observe(self, counts: PoolCounts, settings: PoolSettings, *, waiting_count: int, served_count: int, now_s: float) -> None:
        """Record one look at the pool: its addresses, ADDs that wait, and ADDs that took an address since start."""
        window_s, busy = settings.release_hold_s, counts.in_use + counts.cooling + waiting_count
        is_first = not self._served
        if is_first:
            self._served.append((float("-inf"), served_count))
            self._fill_deadline = now_s if counts.total else now_s + FILL_S
        elif served_count > self._served[-1][1]:
            self._served.append((now_s, served_count))
        while len(self._served) > 1 and self._served[1][0] < now_s - LONG_RATE_S:
            del self._served[0]
        self._start.record((counts.free if counts.total else START_COUNT) if is_first else 0, now_s=now_s, kept_s=window_s)
        peak = self._busy.so_far(window_s, now_s=now_s)
        self._busy.record(busy, now_s=now_s, kept_s=window_s)
        if busy > peak and now_s >= self._fill_deadline and not is_first:
            before = self._rises.pop() if self._rises and now_s - self._rises[-1][0] < MERGE_S else (now_s, 0)
            self._rises.append((before[0], before[1] + busy - peak))
        self._rises = [one for one in self._rises if now_s - one[0] <= LONG_S]
        self._long_growth.record(sum(rise for _, rise in self._rises), now_s=now_s, kept_s=window_s)
        lately = sum(rise for at_s, rise in self._rises if now_s - at_s <= SHORT_S)
        self._short_growth.record(lately, now_s=now_s, kept_s=window_s)

    def grew(self, action: Growth, *, took_s: float) -> None:
        """Record how long an action took that made the pool grow."""
        is_creation = isinstance(action, CreateEni)
        smoothed_s = (1 - LATELY) * self._grow_s[is_creation] + LATELY * took_s
        self._grow_s[is_creation] = min(max(took_s, smoothed_s), GROW_MAX_S)

    def seen(self, settings: PoolSettings, *, now_s: float) -> SeenDemand:
        """Return what is known of demand now."""
        window_s, lately = settings.release_hold_s, self._served_within(WINDOW_S, now_s)
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
            lasting_count=min(lately, self._served_within(2 * WINDOW_S, now_s) - lately),
            lately_count=lately,
            is_settling=self.quiet_in_s(SETTLE_S, now_s=now_s) > 0,
        )

    def quiet_in_s(self, delay_s: float, *, now_s: float) -> float:
        """Seconds until the last ADD is `delay_s` ago; 0 if it is."""
        return max(self._served[-1][0] + delay_s - now_s, 0.0) if self._served else 0.0

    def record_surplus(self, count: int, settings: PoolSettings, *, now_s: float) -> None:
        """Record what is surplus from now on."""
        self._lack.record(-count, now_s=now_s, kept_s=settings.release_hold_s)

    def settled_count(self, settings: PoolSettings, *, kept_count: int | None, now_s: float) -> int | None:
        """Addresses that were surplus during the whole window and may go now; what is left of a batch until the next one.

        `kept_count`: what is more than that goes after ENI_HOLD_S once a burst has ended; None: everything is held for the window.
        Returns: None before a whole window has been seen, the shortest that counts.
        """
        hold_s, eni_hold_s, lately_s = self._windows_s(settings)
        held, soon = self._lack.over(hold_s, now_s=now_s), self._lack.over(eni_hold_s, now_s=now_s)
        settled = -(held or 0)
        if now_s < self._batch[0] + hold_s:
            settled = min(settled, self._batch[1])
        if kept_count is not None:
            # An ENI costs five calls: none goes for what may come back by chance. Where no ADD came lately, nothing does.
            chance = ceil(CHANCE_SPREAD * sqrt(self._busy.so_far(lately_s, now_s=now_s)))
            settled = max(settled - min(chance, self._served_within(lately_s, now_s)), 0)
            before, now = self._busy.so_far(BURST_S, now_s=now_s), self._busy.so_far(ENI_HOLD_S, now_s=now_s)
            if soon is not None and before - now >= kept_count and sqrt(before) - sqrt(now) >= BURST_SPREAD:
                return max(settled, -soon - kept_count)
        return None if held is None else settled

    def released(self, count: int, settings: PoolSettings, *, kept_count: int | None, now_s: float) -> None:
        """Addresses were released: they are surplus no more, at no time in the window."""
        settled = self.settled_count(settings, kept_count=kept_count, now_s=now_s) or 0
        is_new = kept_count is None and now_s >= self._batch[0] + settings.release_hold_s
        self._batch = (now_s if is_new else self._batch[0], max(settled - count, 0))
        self._lack.raise_by(count)

    def next_change_s(self, settings: PoolSettings, *, now_s: float) -> float | None:
        """Seconds until more may be released, or the target falls, by the passing of time alone; None if neither."""
        hold_s, eni_hold_s, lately_s = self._windows_s(settings)
        fading, points = [], []
        if self._lack.so_far(0.0, now_s=now_s):
            fading += [(self._lack, hold_s), (self._lack, eni_hold_s), (self._busy, lately_s)]
            points.append(self._batch[0] + hold_s)
        if settings.warm_target_auto:
            fading += [(one, hold_s) for one in (self._busy, self._short_growth, self._long_growth, self._start)]
            points.append(self._fill_deadline)
        points += [end_s for one, window_s in fading for end_s in one.ends(window_s)]
        if points:
            points += [at_s + window_s for at_s, _ in self._served[-1:] for window_s in (lately_s, LONG_RATE_S)]
        return min((point - now_s for point in points if point > now_s), default=None)

    @staticmethod
    def _windows_s(settings: PoolSettings) -> tuple[float, float, float]:
        """For what is held for the window, for an ENI that a burst needed, and for ADDs that came lately."""
        hold_s = settings.release_hold_s
        return hold_s, min(ENI_HOLD_S, hold_s), min(LONG_RATE_S, hold_s)

    def _served_within(self, seconds: float, now_s: float) -> int:
        """ADDs that took an address lately; what came before the first look is none."""
        if not self._served:
            return 0
        before = bisect_left(self._served, (now_s - seconds,)) - 1
        return self._served[-1][1] - self._served[max(before, 0)][1]
