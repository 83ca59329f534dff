"""Time: the clock, and the deadline and step timer that are passed along with one request.

The servicer makes the deadline once and passes it down, so that every wait on the way shares it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from ipamd.model.record import dataclass
from ipamd.model.refusals import RefusalCode, refusal
from ipamd.ports.process import Clock


class SystemClock(Clock):
    """Wall time and monotonic time of this machine."""

    def now(self) -> datetime:
        """See `Clock.now`."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()


@dataclass(frozen=True, slots=True)
class Deadline:
    """A monotonic point in time, and whether the caller still waits for the answer."""

    clock: Clock
    monotonic_s: float
    is_cancelled: Callable[[], bool] = lambda: False

    @classmethod
    def after(cls, clock: Clock, seconds: float, *, is_cancelled: Callable[[], bool] = lambda: False) -> Deadline:
        """Make a deadline `seconds` from now."""
        return cls(clock, clock.monotonic() + seconds, is_cancelled)

    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return max(self.monotonic_s - self.clock.monotonic(), 0.0)

    def check(self, doing: str) -> None:
        """Raise DeadlineError if time is up or the caller has left; `doing` names the step."""
        if self.is_cancelled():
            raise refusal(RefusalCode.CALLER_LEFT, doing=doing)
        if self.remaining_s() <= 0:
            raise refusal(RefusalCode.DEADLINE_PASSED, doing=doing)


class StepTimer:
    """Collects step durations in ms, for the log line and the histograms. One per request, used by one thread.

    `pod` (`namespace/name`), `address` and `eni` (the pod's own, if it has one) are for the log line alone.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.durations_ms: dict[str, float] = {}
        self.pod = ""
        self.address = ""
        self.eni = ""

    def step(self, name: str) -> _Step:
        """Return a context that measures its block; a name used twice adds up."""
        return _Step(self, name, self._clock)


class _Step:
    """Adds the duration of a block to its timer. A class, because a context made by a generator costs three times as much."""

    __slots__ = ("_clock", "_name", "_started_s", "_timer")

    def __init__(self, timer: StepTimer, name: str, clock: Clock) -> None:
        self._timer = timer
        self._name = name
        self._clock = clock

    def __enter__(self) -> None:
        self._started_s = self._clock.monotonic()

    def __exit__(self, *_: object) -> None:
        elapsed_ms = (self._clock.monotonic() - self._started_s) * 1000
        durations_ms = self._timer.durations_ms
        durations_ms[self._name] = durations_ms.get(self._name, 0.0) + elapsed_ms
