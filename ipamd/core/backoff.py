"""A pause of one object, for what is not on the agenda yet (`ipamd/core/agenda.py`)."""

from __future__ import annotations

from ipamd.core.agenda import soonest_s as soonest_s


class Retry:
    """When something that failed is due again. Used by one thread.

    `deadline`: monotonic; what has not failed yet is due at once.
    """

    def __init__(self, *, first_s: float, max_s: float, deadline: float = 0.0) -> None:
        self.deadline = deadline
        self._first_s = first_s
        self._max_s = max_s
        self._next_s = first_s

    def put_off(self, *, now_s: float) -> float:
        """It failed: it is due after the next pause. Returns: that pause in seconds."""
        pause_s = self._next_s
        self.deadline, self._next_s = now_s + pause_s, min(2 * pause_s, self._max_s)
        return pause_s

    def is_due(self, *, now_s: float) -> bool:
        """Whether the pause is over."""
        return now_s >= self.deadline

    def left_s(self, *, now_s: float) -> float:
        """Seconds left of the pause; 0.0 if it is over."""
        return max(self.deadline - now_s, 0.0)

    def end(self) -> None:
        """It succeeded: no pause runs, and the next one is the first again."""
        self.deadline, self._next_s = 0.0, self._first_s
