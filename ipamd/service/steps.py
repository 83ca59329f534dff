"""Per-step times of one request, for its log line and the histograms: where did the milliseconds go?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ipamd.ports import Clock


class Steps:
    """Collects step durations in ms; one object per request, used by one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.durations_ms: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure a block; a name used twice adds up."""
        started = self._clock.monotonic()
        try:
            yield
        finally:
            elapsed = (self._clock.monotonic() - started) * 1000
            self.durations_ms[name] = self.durations_ms.get(name, 0.0) + elapsed
