"""Clocks for the cloud tests: one that only moves when told or slept on, and the real one for measurements."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

START_AT = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """A `ports.Clock` whose `sleep` moves it and records how long was asked for."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self.slept: list[float] = []

    def now(self) -> datetime:
        """Wall time, in step with `monotonic`."""
        return START_AT + timedelta(seconds=self.elapsed_s)

    def monotonic(self) -> float:
        """Seconds since the start, plus an offset so that nothing relies on zero."""
        return 1000.0 + self.elapsed_s

    def sleep(self, seconds: float) -> None:
        """Move on at once."""
        self.slept.append(seconds)
        self.elapsed_s += seconds


class RealClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Aware UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()
