"""Keep the runtime's event stream open; every event asks for a new list of sandboxes.

The stream is opened before the first list that counts, and again whenever it breaks. A runtime without events is asked for
them again every 5 min: it may be upgraded in place. Nothing else is concluded from an event (docs/architecture.md, Sources).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ipamd.model.errors import EventsUnsupportedError, IpamError, log_text
from ipamd.model.sandbox import EventKind
from ipamd.ports import Clock, Runtime
from ipamd.service.backoff import Backoff
from ipamd.service.health import Health
from ipamd.service.reconcile.missed_events import MissedEventDetector

RESUBSCRIBE_FIRST_S = 0.5
RESUBSCRIBE_MAX_S = 10.0
"""Doubling pause before a stream that broke is opened again; a list that succeeds after one that failed ends it early, a stream
that lasted RESUBSCRIBE_MAX_S starts over. Ours: containerd restarts in a tenth of a second, and a stream that dies at once, every
time, costs two calls in ten seconds."""

UNSUPPORTED_RETRY_S = 300.0
"""Pause before a runtime without events is asked for them again. Ours: an upgrade in place is noticed within five minutes."""

log = logging.getLogger(__name__)


class EventStream:
    """One subscription at a time. `wake` is called for every event, after it was noted."""

    def __init__(self, *, runtime: Runtime, health: Health, clock: Clock, wake: Callable[[], None]) -> None:
        self.missed_events = MissedEventDetector(clock)
        self._runtime = runtime
        self._health = health
        self._wake = wake
        self._stopped = threading.Event()
        self._retry = threading.Event()
        self._outcome = threading.Event()
        self._said = ""
        self._clock = clock
        self._opened_monotonic_s = 0.0

    def run(self) -> None:
        """Thread body: subscribe again and again, until `stop`."""
        backoff = Backoff(first_s=RESUBSCRIBE_FIRST_S, max_s=RESUBSCRIBE_MAX_S)
        while not self._stopped.is_set():
            self._retry.clear()
            is_supported = True
            try:
                self._follow()
            except EventsUnsupportedError as error:
                is_supported = False
                self._say(f"no events: {log_text(error)}")
            except IpamError as error:
                self._say(f"the event stream is not open: {log_text(error)}")
            except Exception as error:  # noqa: BLE001  # top of a loop: it must outlive any one failure
                self._health.record_error("events", error)
                self._say(f"the event stream is opened again after an error: {log_text(error)}")
            if self.missed_events.is_open:
                if self._clock.monotonic() - self._opened_monotonic_s >= RESUBSCRIBE_MAX_S:
                    backoff.reset()
                self.missed_events.on_close()
                self._wake()  # what broke the stream may have changed the list
            self._outcome.set()
            if not self._stopped.is_set():
                self._retry.wait(backoff.next_s() if is_supported else UNSUPPORTED_RETRY_S)

    def stop(self) -> None:
        """End `run`."""
        self._stopped.set()
        self._runtime.cancel_events()
        self._retry.set()
        self._outcome.set()

    def runtime_is_back(self) -> None:
        """A list succeeded after one that failed: subscribe again now."""
        self._retry.set()

    def wait_for_outcome(self, timeout_s: float) -> bool:
        """Wait until the first subscription is open or refused; returns whether it is before `timeout_s`."""
        return self._outcome.wait(timeout_s)

    def _follow(self) -> None:
        for event in self._runtime.events():
            if self._stopped.is_set():
                return
            if event.kind is EventKind.SUBSCRIBED:
                self._opened_monotonic_s = self._clock.monotonic()
                self.missed_events.on_open()
                self._say("the event stream is open")
            else:
                self.missed_events.on_event(event)
            self._wake()
            self._outcome.set()  # after the wake, so that one list serves both

    def _say(self, sentence: str) -> None:
        if sentence != self._said and not self._stopped.is_set():
            self._said = sentence
            log.info("container runtime: %s", sentence)
