"""What is passed along with one request: its deadline, and the duration of its steps.

The deadline is made once at the edge and passed down, so that every wait on the way shares it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ipamd.model.errors import DeadlineError
from ipamd.ports import Clock


@dataclass(frozen=True, slots=True)
class Deadline:
    """A monotonic point in time, and whether the caller is still there to hear the answer."""

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
        why = "the caller left" if self.is_cancelled() else "" if self.remaining_s() > 0 else "the deadline passed"
        if why:
            raise DeadlineError(f"{why} while {doing}", details="the operation was rolled back; a retry is safe")


class Steps:
    """Collects step durations in ms, for the log line and the histograms, and `pod` (`namespace/name`) and `address` for the log line.

    One per request, used by one thread.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.durations_ms: dict[str, float] = {}
        self.pod = ""
        self.address = ""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure a block; a name used twice adds up."""
        started = self._clock.monotonic()
        try:
            yield
        finally:
            elapsed = (self._clock.monotonic() - started) * 1000
            self.durations_ms[name] = self.durations_ms.get(name, 0.0) + elapsed
