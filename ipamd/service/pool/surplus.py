"""Measure which part of the pool nobody needed for a whole window: only that may be given back.

The surplus is a step function of time, and the low-water mark over a sliding window is kept. A load that repeats within the window
touches its own peak in it, so a constant or periodic load gives nothing back and asks for nothing anew. After a batch the next one
waits for a window, so that a slow decline costs a call each window and not one for each pod. In memory: after a restart a window is
waited for again. Not locked, no clock of its own: the pool's thread passes monotonic points, and so does a simulation.
"""

from __future__ import annotations

from collections.abc import Collection

from ipamd.model.ids import EniId


class Surplus:
    """The surplus over one window of `hold_s` seconds, and for how long each ENI is known. Reading changes nothing."""

    def __init__(self) -> None:
        self._hold_s = self._eni_min_age_s = 0.0
        self._began_monotonic_s: float | None = None
        self._lows: tuple[tuple[float, int], ...] = ()  # (point, lowest from there until now), both rising
        self._batch_count = 0
        self._rest_deadline = 0.0
        self._seen: dict[EniId, float] = {}

    def note(self, count: int, *, enis: Collection[EniId], hold_s: float, eni_min_age_s: float, now_s: float) -> None:
        """Record what is surplus from now on. Another `hold_s` begins a new window: other targets are in force."""
        self._eni_min_age_s = eni_min_age_s
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
        """Whether a whole window has been seen."""
        return self._began_monotonic_s is not None and now_s - self._began_monotonic_s >= self._hold_s

    def settled_count(self, *, now_s: float) -> int:
        """Addresses that were surplus during the whole window and may go now; what is left of a batch during the rest after it."""
        if not self.is_over(now_s=now_s) or not self._lows:
            return 0
        in_force = [low for at_s, low in self._lows if at_s <= now_s - self._hold_s]
        low = max(in_force, default=self._lows[0][1])
        return min(low, self._batch_count) if now_s < self._rest_deadline else low

    def released(self, count: int, *, now_s: float) -> None:
        """Addresses were given back: they are surplus no more, at no time in the window."""
        settled = self.settled_count(now_s=now_s)
        if now_s >= self._rest_deadline:
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
        points = [self._began_monotonic_s + self._hold_s, self._rest_deadline]
        points += [at_s + self._hold_s for at_s, _ in self._lows]
        points += [at_s + self._eni_min_age_s for at_s in self._seen.values()]
        return min((point - now_s for point in points if point > now_s), default=None)
