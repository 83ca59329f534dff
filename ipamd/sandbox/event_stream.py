"""Keep the runtime's event stream open; every event requests a new list of sandboxes.

The stream is opened before the first list that counts as evidence, and again whenever it breaks. If the runtime does not support
events, the stream is tried again every 5 min, because the runtime may be upgraded in place. An event has no effect but to request a
list (docs/datastore.md, Sources).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ipamd.core.backoffs import NODE
from ipamd.core.context import ServiceContext
from ipamd.core.loop import Loop
from ipamd.model.errors import EventsUnsupportedError, IpamError, log_text
from ipamd.model.sandbox import EventKind, SandboxEvent
from ipamd.ports.runtime import Runtime
from ipamd.sandbox.missed_events import MissedEventDetector

log = logging.getLogger(__name__)

STREAM = ("events",)
"""Key in `Backoffs` of the pauses before a broken stream is opened again. The pauses grow as the schedule `NODE` says. When the
runtime answers a request for a list after it failed to answer one, the present pause ends early. If a stream stays open for at least
the longest pause, the pauses begin with the shortest again."""

UNSUPPORTED_RETRY_S = 300.0
"""Pause before events are tried again with a runtime that does not support them. Ours: an upgrade in place is noticed within five
minutes.
"""


class EventStream:
    """Holds one subscription to the runtime's events at a time.

    It calls `wake` after every event, when an open stream ends, and when the first subscription fails.
    `has_outcome`: whether the first subscription has succeeded, failed or ended.
    """

    def __init__(self, context: ServiceContext, *, runtime: Runtime, wake: Callable[[], None]) -> None:
        clock = context.clock
        self.missed_events = MissedEventDetector(clock)
        self._backoffs = context.backoffs
        self._runtime = runtime
        self._wake = wake
        self._last_logged = ""
        self._clock = clock
        self._opened_monotonic_s = 0.0
        self.has_outcome = False
        self.loop = Loop("events", self.turn, health=context.health, clock=clock, cancel=runtime.cancel_events)

    def turn(self) -> float:
        """Hold one subscription until it breaks. Returns: seconds until the next one."""
        is_supported = True
        try:
            for event in self._runtime.events():
                if self.loop.is_stopped:
                    break
                self._handle(event)
        except EventsUnsupportedError as error:
            is_supported = False
            self._log_change(f"no events: {log_text(error)}")
        except IpamError as error:
            self._log_change(f"the event stream is not open: {log_text(error)}")
        finally:
            self._close()
        return self._backoffs.back_off(STREAM, NODE) if is_supported else UNSUPPORTED_RETRY_S

    def _handle(self, event: SandboxEvent) -> None:
        if event.kind is EventKind.SUBSCRIBED:
            self._opened_monotonic_s = self._clock.monotonic()
            self.missed_events.on_open()
            self._log_change("the event stream is open")
            self.loop.recovered()
        else:
            self.missed_events.on_event(event)
        self.has_outcome = True
        self._wake()

    def _close(self) -> None:
        """Note that the stream has ended. Wake the reconciler if the stream was open, or if the first subscription has failed."""
        was_open = self.missed_events.is_open
        if was_open:
            if self._clock.monotonic() - self._opened_monotonic_s >= NODE.longest_s:
                self._backoffs.clear(STREAM)
            self.missed_events.on_close()
        is_first = not self.has_outcome
        self.has_outcome = True
        if was_open or is_first:
            self._wake()  # the cause of the break may have changed the list

    def _log_change(self, sentence: str) -> None:
        """Log the state of the stream when it changes."""
        if sentence != self._last_logged and not self.loop.is_stopped:
            self._last_logged = sentence
            log.info("container runtime state=%s", sentence)
