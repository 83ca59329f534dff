"""Count changes of the runtime's list that no event announced: this tells operators how complete the event stream is.

Only changes between two lists within one open stream count: changes while no stream was open could not be announced. An event may
come shortly after the list that shows its change, so a change counts as missed at a list LATE_EVENT_S later. Only existence is
compared, not READY or NOTREADY: both are reasons to keep. No decision depends on the count.
"""

from __future__ import annotations

import threading

from ipamd.model.sandbox import EventKind, SandboxEvent
from ipamd.ports import Clock

LATE_EVENT_S = 5.0
"""How long after the list its event may come. Ours: containerd 1.7 sends within a millisecond; the rest is for a busy machine."""

ANNOUNCED_LIMIT_COUNT = 4096
"""Announcements remembered, the oldest forgotten first. Ours: a list follows within seconds, a node has some hundreds."""

Change = tuple[str, bool]
"""Sandbox ID, and whether it was removed (True) or created (False)."""


class MissedEventDetector:
    """Compares events with lists. `on_event` is called by the stream's thread, `on_list` by the reconciler's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._stream_count = 0
        self._is_open = False
        self._base: frozenset[str] | None = None
        self._announced: dict[Change, None] = {}
        self._unannounced: dict[Change, float] = {}
        self._missed_count = 0

    @property
    def is_open(self) -> bool:
        """Whether a stream is known to be open."""
        return self._is_open

    @property
    def missed_count(self) -> int:
        """Changes that a list found and no event announced."""
        return self._missed_count

    def on_open(self) -> None:
        """Note that a stream is open from now on."""
        with self._lock:
            self._forget()
            self._stream_count += 1
            self._is_open = True

    def on_close(self) -> None:
        """Note that the stream ended; changes not yet counted are dropped."""
        with self._lock:
            self._forget()
            self._is_open = False

    def on_event(self, event: SandboxEvent) -> None:
        """Note what an event announces.

        DELETED announces the removal of the sandbox or container that it names (lists show no container IDs). Every other kind
        announces that it exists. An event of a container also announces that its sandbox exists.
        """
        changes = {(event.container_id, event.kind is EventKind.DELETED)}
        if event.sandbox_id and event.sandbox_id != event.container_id:
            changes.add((event.sandbox_id, False))
        with self._lock:
            for change in changes:
                self._announced.pop(change, None)
                self._announced[change] = None
                self._unannounced.pop(change, None)
            while len(self._announced) > ANNOUNCED_LIMIT_COUNT:
                del self._announced[next(iter(self._announced))]

    def before_list(self) -> int:
        """Return the number of the open stream, to be passed to `on_list`; 0 if none is open."""
        with self._lock:
            return self._stream_count if self._is_open else 0

    def on_list(self, sandbox_ids: frozenset[str], *, stream: int) -> None:
        """Compare a complete list, begun when `before_list` returned `stream`, with the one before it."""
        with self._lock:
            if not self._is_open or stream != self._stream_count:
                return
            now = self._clock.monotonic()
            if self._base is not None:
                for sandbox_id in self._base ^ sandbox_ids:
                    change = (sandbox_id, sandbox_id in self._base)
                    if change not in self._announced:
                        self._unannounced[change] = now
            self._base = sandbox_ids
            late = [change for change, found_monotonic_s in self._unannounced.items() if now - found_monotonic_s >= LATE_EVENT_S]
            for change in late:
                del self._unannounced[change]
            self._missed_count += len(late)

    def _forget(self) -> None:
        self._base = None
        self._announced.clear()
        self._unannounced.clear()
