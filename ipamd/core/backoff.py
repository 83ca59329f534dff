"""The one way in which a loop waits before it tries again: doubling, capped, started over by a success.

Built on tenacity's waits, which the cloud adapter uses too. Jitter is not added here: these loops belong to one node and most of
them ask that node's own services; the EC2 adapter adds jitter to every retried call (`ipamd/cloud/retries.py`).
"""

from __future__ import annotations

import tenacity

from ipamd.core.agenda import soonest_s as soonest_s


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


class Retry:
    """When something that failed is due again: a back-off with its present deadline. Used by one thread.

    `deadline`: monotonic; what has not failed yet is due at once.
    """

    def __init__(self, *, first_s: float, max_s: float, deadline: float = 0.0) -> None:
        self.deadline = deadline
        self._backoff = Backoff(first_s=first_s, max_s=max_s)

    def put_off(self, *, now_s: float) -> float:
        """It failed: it is due after the next pause. Returns: that pause in seconds."""
        pause_s = self._backoff.next_s()
        self.deadline = now_s + pause_s
        return pause_s

    def is_due(self, *, now_s: float) -> bool:
        """Whether the pause is over."""
        return now_s >= self.deadline

    def left_s(self, *, now_s: float) -> float:
        """Seconds left of the pause; 0.0 if it is over."""
        return max(self.deadline - now_s, 0.0)

    def shorten(self) -> None:
        """Something succeeded: the pause that runs stays, the next one is the first again."""
        self._backoff.reset()

    def end(self) -> None:
        """It succeeded: no pause runs, and the next one is the first again."""
        self.deadline = 0.0
        self._backoff.reset()
