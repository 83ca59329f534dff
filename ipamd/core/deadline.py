"""Time: the clock, and the deadline and the step timer of one request.

For each request the gRPC servicer makes one deadline and one step timer and passes them to the services, so that all waits of the
request share one deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from ipamd.model.attachment import Attachment
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
    """The end of the time for one request.

    `monotonic_s`: the end, in seconds of the monotonic clock.
    `is_cancelled`: returns whether the caller has left, so that nobody waits for the answer.
    """

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
        """Raise DeadlineError if time is up or the caller has left. `doing` names the present step in the error."""
        if self.is_cancelled():
            raise refusal(RefusalCode.CALLER_LEFT, doing=doing)
        if self.remaining_s() <= 0:
            raise refusal(RefusalCode.DEADLINE_PASSED, doing=doing)


class StepTimer:
    """Collects the durations of the steps of one request, for the log line and the histograms. Only one thread may use it.

    `durations_ms`: milliseconds by the name of the step.
    `attachment`: what the request attached or detached, for the log line alone; None if it did neither.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.durations_ms: dict[str, float] = {}
        self.attachment: Attachment | None = None

    def step(self, name: str) -> _Step:
        """Return a context manager that measures its block. The durations of blocks with the same name are added up."""
        return _Step(self, name, self._clock)


class _Step:
    """Adds the duration of a block to its timer.

    It is a class, because a context manager that is made by a generator takes three times as long.
    """

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
