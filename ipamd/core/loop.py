"""One loop for everything that the daemon does again and again: a turn, then sleep until something is due or was announced.

A turn says in how many seconds the next one is due by the clock. A turn that fails is a condition with the loop's name until one
succeeds, and is tried again after a pause that doubles. Rejected: a loop of its own in each class, each with its event, its
`except Exception` and its constants.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ipamd.core.backoff import Retry
from ipamd.core.health import Health
from ipamd.model.errors import log_text
from ipamd.ports import Clock

FAILED_FIRST_S = 1.0
FAILED_MAX_S = 60.0
"""Pause after a turn that failed. Ours: a defect must not make a loop spin, and one that passes must not be felt."""

log = logging.getLogger(__name__)


class Loop:
    """A thread that takes turns. `wake` and `stop` from any thread."""

    def __init__(self, name: str, turn: Callable[[], float | None], *, health: Health, clock: Clock) -> None:
        """`turn` does what is due. Returns: seconds until something is due by the clock; None if only `wake` makes it due."""
        self.name = name
        self._turn = turn
        self._health = health
        self._clock = clock
        self._changed = threading.Event()
        self._is_stopped = False
        self._failed = Retry(first_s=FAILED_FIRST_S, max_s=FAILED_MAX_S)

    def start(self) -> None:
        """Run in a thread of its own, which does not keep the process alive."""
        threading.Thread(target=self.run, name=self.name, daemon=True).start()

    def run(self) -> None:
        """Thread body: take turns until `stop`."""
        while not self._is_stopped:
            wait_s = self.take_turn()
            self._changed.wait(wait_s)
            self._changed.clear()

    def take_turn(self) -> float | None:
        """Take one turn. Returns: seconds to sleep. Never raises: a loop outlives any one failure."""
        try:
            wait_s = self._turn()
        except Exception as error:  # noqa: BLE001  # top of a loop
            if self._is_stopped:
                return None
            pause_s = self._failed.put_off(now_s=self._clock.monotonic())
            self._health.report(self.name, f"{self.name}: {log_text(error)}; tried again", error=error)
            return pause_s
        self._failed.end()
        self._health.report(self.name, "")
        return wait_s

    def wake(self) -> None:
        """Something changed: take a turn now."""
        self._changed.set()

    def stop(self) -> None:
        """End `run` after the turn that runs."""
        self._is_stopped = True
        self._changed.set()
