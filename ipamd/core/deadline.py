"""Time: the clock, and what is passed along with one request: its deadline, and the duration of its steps.

The deadline is made once at the edge and passed down, so that every wait on the way shares it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from ipamd.model.errors import BusyError, DeadlineError
from ipamd.model.ids import AttachmentKey
from ipamd.model.record import dataclass, field
from ipamd.ports import Clock


class SystemClock(Clock):
    """Wall time and monotonic time of this machine."""

    def now(self) -> datetime:
        """See the port."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """See the port."""
        return time.monotonic()


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
    """Collects step durations in ms, for the log line and the histograms; for the log line also `pod` (`namespace/name`), `address`,
    and `branch`, the ENI of a sandbox whose address is a branch ENI's.

    One per request, used by one thread.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.durations_ms: dict[str, float] = {}
        self.pod = ""
        self.address = ""
        self.branch = ""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure a block; a name used twice adds up."""
        started = self._clock.monotonic()
        try:
            yield
        finally:
            elapsed = (self._clock.monotonic() - started) * 1000
            self.durations_ms[name] = self.durations_ms.get(name, 0.0) + elapsed


# One operation per sandbox at a time: a lock per attachment key, first come first served, with its holder visible.
#
# threading.Lock promises no order, and a DEL that overtakes the ADD it follows leaks an address (Azure CNS issue 4829), so
# arrival order is kept here. A sandbox lock is taken before any datastore lock, never after (docs/life.md, Threads and locks).


@dataclass(frozen=True, slots=True)
class Held:
    """Who works on a key, since when, how many wait behind, and whether its caller has gone meanwhile."""

    key: AttachmentKey
    operation: str
    age_s: float
    waiting_count: int
    caller_left: bool


@dataclass(slots=True)
class _Ticket:
    operation: str
    deadline: Deadline
    taken_monotonic_s: float
    turn: threading.Event = field(default_factory=threading.Event)


class KeyLocks:
    """Locks by attachment key. A key that nobody uses costs nothing.

    `asked_count`: operations that asked for a key since start: equal at two moments if none began in between.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._queues: dict[AttachmentKey, deque[_Ticket]] = {}
        self.asked_count = 0

    @contextmanager
    def hold(self, key: AttachmentKey, operation: str, deadline: Deadline) -> Iterator[None]:
        """Wait for the key's turn and hold it.

        Raises: BusyError if the deadline passes first; it names the holder and its age.
        Concurrency: first come first served per key; other keys are never blocked.
        """
        ticket = _Ticket(operation, deadline, self._clock.monotonic())
        with self._guard:
            self.asked_count += 1
            queue = self._queues.setdefault(key, deque())
            queue.append(ticket)
            if queue[0] is ticket:
                ticket.turn.set()
        if not ticket.turn.wait(deadline.remaining_s()):
            holder = self._leave(key, ticket)
            for_s = self._clock.monotonic() - holder.taken_monotonic_s
            raise BusyError(
                f"another operation holds sandbox {key}",
                details=f"{holder.operation} has run for {for_s:.1f} s; this {operation} waited until its deadline; a retry is safe",
            )
        ticket.taken_monotonic_s = self._clock.monotonic()
        try:
            yield
        finally:
            self._leave(key, ticket)

    def held(self) -> list[Held]:
        """Every key in work, oldest first."""
        now = self._clock.monotonic()
        with self._guard:
            heads = [(key, queue[0], len(queue) - 1) for key, queue in self._queues.items() if queue]
        # gRPC is asked without our lock: it has one of its own.
        rows = [
            Held(key, head.operation, now - head.taken_monotonic_s, waiting_count, head.deadline.is_cancelled())
            for key, head, waiting_count in heads
        ]
        return sorted(rows, key=lambda row: -row.age_s)

    def _leave(self, key: AttachmentKey, ticket: _Ticket) -> _Ticket:
        """Take a ticket out of its queue and wake the next; returns the one at the head."""
        with self._guard:
            queue = self._queues[key]
            head = queue[0]
            queue.remove(ticket)
            if not queue:
                del self._queues[key]
            elif head is ticket:
                queue[0].turn.set()
        return head
