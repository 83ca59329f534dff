"""Deliver events to listeners in one thread, in commit order, without holding the store's lock.

The thread also lets the store make delayed changes (such as an attach that takes time) when they are due, so that their events come
without a call. The first subscriber starts the thread, and `close` ends it.
Lock order: the store's lock, then the dispatcher's; never the reverse.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable

from lab.errors import LabError
from lab.vpc.model import VpcEvent

Listener = Callable[[VpcEvent], None]

_JOIN_S = 5.0  # ours: listeners return within milliseconds, so one that takes longer is stuck, and `close` reports it
_log = logging.getLogger(__name__)


class Dispatcher:
    """A queue of events and the thread that empties it."""

    def __init__(self, *, seconds_to_due: Callable[[], float | None], settle: Callable[[], None]) -> None:
        self._seconds_to_due = seconds_to_due
        self._settle = settle
        self._changed = threading.Condition()
        self._queue: deque[tuple[VpcEvent, Listener]] = deque()
        self._listeners: list[Listener] = []
        self._posted = 0
        self._delivered = 0
        self._woken = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self.listener_errors: list[Exception] = []

    def subscribe(self, listener: Listener, *, replay: Iterable[VpcEvent]) -> None:
        """Add a listener. It first gets the events of `replay`, which only it gets, and then every event that is posted later."""
        with self._changed:
            if self._closed:
                raise LabError("the VPC is closed; subscribe before close()")
            self._listeners.append(listener)
            self._enqueue([(event, listener) for event in replay])
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="vpc-events", daemon=True)
                self._thread.start()

    def unsubscribe(self, listener: Listener) -> None:
        """Remove a listener; events still queued do not reach it."""
        with self._changed:
            self._listeners.remove(listener)

    def post(self, events: Iterable[VpcEvent]) -> None:
        """Queue events for the present listeners. The caller holds the store's lock, so the order is the commit order."""
        with self._changed:
            listeners = list(self._listeners)
            self._enqueue([(event, listener) for event in events for listener in listeners])

    def wake(self) -> None:
        """Make the thread check again which delayed changes are due."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def drain(self, timeout_s: float) -> None:
        """Wait until all events posted so far are delivered. Raises: TimeoutError."""
        if threading.current_thread() is self._thread:
            raise LabError("drain() from a listener would wait for itself")
        with self._changed:
            target = self._posted
            if not self._changed.wait_for(lambda: self._delivered >= target or self._closed, timeout_s):
                raise TimeoutError(f"{target - self._delivered} events not delivered within {timeout_s} s")

    def close(self) -> None:
        """Stop the thread; queued events are not delivered. Idempotent. Raises: LabError if a listener does not return."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_S)
            if thread.is_alive():
                raise LabError(f"a listener did not return within {_JOIN_S} s")

    def _enqueue(self, items: list[tuple[VpcEvent, Listener]]) -> None:
        self._queue.extend(items)
        self._posted += len(items)
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            self._settle()
            timeout_s = self._seconds_to_due()
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._woken or self._closed, timeout_s)
                self._woken = False
                if self._closed:
                    return
                item = self._queue.popleft() if self._queue else None
            if item is not None:
                self._deliver(*item)

    def _deliver(self, event: VpcEvent, listener: Listener) -> None:
        with self._changed:
            is_listening = listener in self._listeners
        try:
            if is_listening:
                listener(event)
        except Exception as exc:  # noqa: BLE001  an error of one listener must not end the thread that serves all listeners
            _log.exception("a listener failed on %s", event)
            self.listener_errors.append(exc)
        with self._changed:
            self._delivered += 1
            self._changed.notify_all()
