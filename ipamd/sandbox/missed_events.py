"""Count changes of the runtime's list that no event announced, so that operators see how complete the event stream is.

Only changes between two lists within one open stream count, because nothing could announce a change while no stream was open. An event
may come shortly after the list that shows its change. So a change counts as missed only if it is still unannounced at a list that
comes LATE_EVENT_S or more later. Only the existence of sandboxes is compared, and not READY or NOTREADY, because both are reasons to
keep a sandbox. No decision depends on the count.
"""

from __future__ import annotations

from collections import deque

from ipamd.model.sandbox import EventKind, SandboxEvent
from ipamd.ports.process import Clock

LATE_EVENT_S = 5.0
"""An event may come up to this many seconds after the list that shows its change. Ours: containerd 1.7 sends it within a millisecond,
and a busy machine takes longer."""

ANNOUNCED_LIMIT_COUNT = 4096
"""The largest number of announcements that are remembered. If more come, the oldest are forgotten. Ours: a node has some hundreds of
sandboxes, and a list follows the events within seconds."""

Change = tuple[str, bool]
"""Sandbox ID, and whether it was removed (True) or created (False)."""


class MissedEventDetector:
    """Compares events with lists.

    `is_open`: whether a stream is known to be open.
    `missed_count`: the number of changes that a list showed and no event announced.

    The stream's thread calls `on_event`, `on_open` and `on_close`. The reconciler's thread calls `before_list` and `on_list`. No lock
    is needed, because the threads share only single values and a `deque`, whose operations are atomic.
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
        """Note that a stream is open. Earlier announcements are forgotten, and earlier changes are not counted any more."""
        self._announced.clear()
        self._stream_count += 1
        self.is_open = True

    def on_close(self) -> None:
        """Note that the stream ended."""
        self.is_open = False

    def on_event(self, event: SandboxEvent) -> None:
        """Note the changes that an event announces.

        An event of kind DELETED announces that the sandbox or container that it names was removed. An event of any other kind
        announces that the sandbox or container exists. An event about a container also announces that its sandbox exists.
        Announcements about containers do no harm, because lists have only sandbox IDs.
        """
        self._announced.append((event.container_id, event.kind is EventKind.DELETED))
        if event.sandbox_id and event.sandbox_id != event.container_id:
            self._announced.append((event.sandbox_id, False))

    def before_list(self) -> int:
        """Return the number of the open stream, to be passed to `on_list`; 0 if none is open."""
        return self._stream_count if self.is_open else 0

    def on_list(self, sandbox_ids: frozenset[str], *, stream: int) -> None:
        """Compare a complete list with the list before it.

        Args:
            sandbox_ids: the IDs of all sandboxes in the list.
            stream: the result of `before_list` at the time when the list was requested.
        """
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
