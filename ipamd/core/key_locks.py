"""One operation per sandbox at a time: a lock for each attachment key, first come first served, whose holder can be shown.

threading.Lock guarantees no order, and a DEL that overtakes an earlier ADD leaks an address (Azure CNS issue 4829). So these locks are
taken in the order of arrival. A thread takes a sandbox lock before any datastore lock, never after (docs/life.md, Threads and locks).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from ipamd.core.deadline import Deadline
from ipamd.model.ids import AttachmentKey
from ipamd.model.record import dataclass
from ipamd.model.refusals import RefusalCode, refusal
from ipamd.ports.process import Clock


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The operation that holds the lock of a key.

    `age_s`: for how many seconds it has held the lock.
    `waiting_count`: the number of operations that wait for the lock.
    `caller_left`: whether the caller of the operation has left.
    """

    key: AttachmentKey
    operation: str
    age_s: float
    waiting_count: int
    caller_left: bool


@dataclass(slots=True)
class _Ticket:
    """One operation in the queue of a key. The first in the queue holds the lock.

    `taken_monotonic_s`: when it joined the queue, and later when it got the lock, on the monotonic clock.
    `turn`: set when the operation becomes the first; None if it did not have to wait.
    """

    operation: str
    deadline: Deadline
    taken_monotonic_s: float
    turn: threading.Event | None = None


class KeyLocks:
    """Locks by attachment key. A key without an operation takes no memory.

    `asked_count`: the number of calls of `hold` since the start. If it is the same at two reads, no operation began between them.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._queues: dict[AttachmentKey, deque[_Ticket]] = {}
        self.asked_count = 0

    @contextmanager
    def hold(self, key: AttachmentKey, operation: str, deadline: Deadline) -> Iterator[None]:
        """Wait for the lock of the key, and hold it during the block.

        Operations of one key get the lock in the order of their calls. Operations of other keys are never blocked.
        Raises: BusyError if the deadline passes first. The error names the operation that holds the lock, and how long it has held it.
        """
        ticket = _Ticket(operation, deadline, self._clock.monotonic())
        with self._guard:
            self.asked_count += 1
            queue = self._queues.get(key)
            if queue is None:
                self._queues[key] = deque((ticket,))
            else:
                ticket.turn = threading.Event()
                queue.append(ticket)
        if ticket.turn is not None:
            self._wait_for_turn(key, ticket, ticket.turn)
        try:
            yield
        finally:
            self._leave(key, ticket)

    def holders(self) -> list[LockHolder]:
        """Return, for each locked key, the operation that holds its lock; the operation that has held it for longest comes first."""
        now = self._clock.monotonic()
        with self._guard:
            heads = [(key, queue[0], len(queue) - 1) for key, queue in self._queues.items() if queue]
        # `is_cancelled` takes a lock of gRPC, so our own lock is released first.
        rows = [
            LockHolder(key, head.operation, now - head.taken_monotonic_s, waiting_count, head.deadline.is_cancelled())
            for key, head, waiting_count in heads
        ]
        return sorted(rows, key=lambda row: -row.age_s)

    def _wait_for_turn(self, key: AttachmentKey, ticket: _Ticket, turn: threading.Event) -> None:
        """Wait until the ticket is the first of its queue. Raises: BusyError. The ticket has left its queue then."""
        if not turn.wait(ticket.deadline.remaining_s()):
            holder = self._leave(key, ticket)
            for_s = self._clock.monotonic() - holder.taken_monotonic_s
            raise refusal(
                RefusalCode.SANDBOX_BUSY, sandbox=key, holder=holder.operation, for_s=f"{for_s:.1f}", operation=ticket.operation
            )
        ticket.taken_monotonic_s = self._clock.monotonic()

    def _leave(self, key: AttachmentKey, ticket: _Ticket) -> _Ticket:
        """Remove a ticket from its queue and wake the next one. Returns: the ticket that was at the head."""
        with self._guard:
            queue = self._queues[key]
            head = queue[0]
            queue.remove(ticket)
            if not queue:
                del self._queues[key]
            elif head is ticket:
                _give_turn(queue[0])
        return head


def _give_turn(ticket: _Ticket) -> None:
    if ticket.turn is not None:  # always true, because every ticket that waits has an event
        ticket.turn.set()
