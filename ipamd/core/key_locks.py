"""One operation per sandbox at a time: a lock per attachment key, first come first served, with its holder visible.

threading.Lock promises no order, and a DEL that overtakes the ADD before it leaks an address (Azure CNS issue 4829). So these locks
are taken in the order of arrival. A sandbox lock is taken before any datastore lock, never after (docs/life.md, Threads and locks).
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
    """The operation that holds a key, its age, how many wait behind it, and whether its caller has left."""

    key: AttachmentKey
    operation: str
    age_s: float
    waiting_count: int
    caller_left: bool


@dataclass(slots=True)
class _Ticket:
    """One operation in the queue of a key. `turn` is set when it is the first; None if it was the first from the beginning."""

    operation: str
    deadline: Deadline
    taken_monotonic_s: float
    turn: threading.Event | None = None


class KeyLocks:
    """Locks by attachment key. A key that nobody uses costs nothing.

    `asked_count`: calls of `hold` since the start. If it has not changed between two reads, no operation began in between.
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
        """The operation that holds each locked key, oldest first."""
        now = self._clock.monotonic()
        with self._guard:
            heads = [(key, queue[0], len(queue) - 1) for key, queue in self._queues.items() if queue]
        # `is_cancelled` takes a lock of gRPC, so ours is released first.
        rows = [
            LockHolder(key, head.operation, now - head.taken_monotonic_s, waiting_count, head.deadline.is_cancelled())
            for key, head, waiting_count in heads
        ]
        return sorted(rows, key=lambda row: -row.age_s)

    def _wait_for_turn(self, key: AttachmentKey, ticket: _Ticket, turn: threading.Event) -> None:
        """Wait until the ticket is the first of its queue. Raises: BusyError; the ticket has left its queue then."""
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
    if ticket.turn is not None:  # a ticket that waits has one
        ticket.turn.set()
