"""The one way in which a loop waits before it tries again: doubling, capped, started over by a success.

Built on tenacity's waits, which the cloud adapter uses too. Jitter is not added here: these loops belong to one node and most of
them ask that node's own services; the EC2 adapter adds jitter to every retried call (`ipamd/cloud/retries.py`).
"""

from __future__ import annotations

import tenacity


class Backoff:
    """Pauses of `first_s`, twice that, and so on up to `max_s`. Used by one thread."""

    def __init__(self, *, first_s: float, max_s: float) -> None:
        self._wait = tenacity.wait_exponential(multiplier=first_s, max=max_s)
        self._state = tenacity.RetryCallState(tenacity.Retrying(), fn=None, args=(), kwargs={})

    def next_s(self) -> float:
        """Seconds to pause now; the next pause is longer."""
        pause_s = self._wait(self._state)
        self._state.attempt_number += 1
        return pause_s

    def reset(self) -> None:
        """Start over: something succeeded."""
        self._state.attempt_number = 1
