"""A clock that only moves when a test moves it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class FakeClock:
    """Starts at a fixed point; `advance` moves both clocks, `step_wall` only the wall clock."""

    def __init__(self, *, since_boot_s: float = 1000.0) -> None:
        self._now = datetime(2026, 1, 1, tzinfo=UTC)
        self._monotonic = since_boot_s

    def now(self) -> datetime:
        """Aware UTC."""
        return self._now

    def monotonic(self) -> float:
        """Seconds."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an operator or NTP would."""
        self._now += timedelta(seconds=seconds)
