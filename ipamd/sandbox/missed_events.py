"""Count changes of the runtime's list that no event announced: this tells operators how complete the event stream is.

Only changes between two lists within one open stream count: changes while no stream was open could not be announced. An event
may come shortly after the list that shows its change, so a change counts as missed at a list LATE_EVENT_S later. Only existence
is compared, not READY or NOTREADY: both are reasons to keep. No decision depends on the count.
"""

from __future__ import annotations

from collections import deque

from ipamd.model.sandbox import EventKind, SandboxEvent
from ipamd.ports.process import Clock

LATE_EVENT_S = 5.0
"""How long after the list its event may come. Ours: containerd 1.7 sends within a millisecond; the rest is for a busy machine."""

ANNOUNCED_LIMIT_COUNT = 4096
"""Announcements remembered, the oldest forgotten first. Ours: a list follows within seconds, a node has some hundreds."""

Change = tuple[str, bool]
"""Sandbox ID, and whether it was removed (True) or created (False)."""


class MissedEventDetector:
    """Compares events with lists. The stream's thread calls `on_event`, `on_open` and `on_close`; the reconciler's thread calls the
    rest.

    `is_open`: whether a stream is known to be open.
    `missed_count`: changes that a list found and no event announced.

    No lock is needed: the threads share only single values and a `deque`, whose operations are atomic.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stream_count = 0
        self.is_open = False
        self._base: frozenset[str] = frozenset()
        self._base_stream = 0
        self._announced: deque[Change] = deque(maxlen=ANNOUNCED_LIMIT_COUNT)
        self._unannounced: dict[Change, float] = {}
        self.missed_count = 0

    def on_open(self) -> None:
        """Note that a stream is open from now on; changes not yet counted are dropped."""
        self._announced.clear()
        self._stream_count += 1
        self.is_open = True

    def on_close(self) -> None:
        """Note that the stream ended."""
        self.is_open = False

    def on_event(self, event: SandboxEvent) -> None:
        """Note what an event announces.

        DELETED announces the removal of the sandbox or container that it names (lists show no container IDs). Every other kind
        announces that it exists. An event of a container also announces that its sandbox exists.
        """
        self._announced.append((event.container_id, event.kind is EventKind.DELETED))
        if event.sandbox_id and event.sandbox_id != event.container_id:
            self._announced.append((event.sandbox_id, False))

    def before_list(self) -> int:
        """Return the number of the open stream, to be passed to `on_list`; 0 if none is open."""
        return self._stream_count if self.is_open else 0

    def on_list(self, sandbox_ids: frozenset[str], *, stream: int) -> None:
        """Compare a complete list, begun when `before_list` returned `stream`, with the one before it."""
        if not stream or stream != self.before_list():
            return
        now_s, announced = self._clock.monotonic(), set(self._announced.copy())
        if stream == self._base_stream:
            changes = {(sandbox_id, sandbox_id in self._base) for sandbox_id in self._base ^ sandbox_ids}
            since_s = dict.fromkeys(changes, now_s) | self._unannounced
        else:
            since_s = {}
        self._base, self._base_stream = sandbox_ids, stream
        open_s = {change: found_s for change, found_s in since_s.items() if change not in announced}
        self._unannounced = {change: found_s for change, found_s in open_s.items() if now_s - found_s < LATE_EVENT_S}
        self.missed_count += len(open_s) - len(self._unannounced)
