"""The loop that runs everything that the daemon does repeatedly: take a turn, then sleep until the next one is due or announced.

A turn returns the seconds until the next one is due. If a turn fails, the loop reports a condition with its name until a turn
succeeds, and retries after a pause that doubles. An announcement does not end that pause, so that a turn that announces its own failed
work does not spin. Rejected: a loop in each class, each with its events, its `except Exception` and its constants.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from ipamd.core.backoffs import NODE
from ipamd.core.health import Health
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.errors import BusyError, log_text
from ipamd.ports.process import Clock

log = logging.getLogger(__name__)

FAILED_MAX_S = 5.0
"""Longest pause after a turn that failed; the schedule is `NODE`. Ours: a defect must not make a loop spin, and a short failure must
not delay its work for long."""


class Announced(Protocol):
    """Ends a loop's sleep: a `threading.Event`, or an object that also waits for files."""

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until `set` was called or time is up; returns whether it was called."""
        ...

    def set(self) -> None:
        """End the sleep, or the next one at once; from any thread."""
        ...

    def clear(self) -> None:
        """Reset the announcement before a turn that handles it."""
        ...


LOOP, OBJECTS = "loop", "objects"
"""Parts of a condition: a loop of that name failed; work of that name failed for some objects."""


class Loop:
    """A thread that takes turns; the first one at once. `wake` and `stop` from any thread, the rest is the thread's."""

    def __init__(
        self,
        name: str,
        turn: Callable[[], float | None],
        *,
        health: Health,
        clock: Clock,
        changed: Announced | None = None,
        settle_s: float = 0.0,
        failed_max_s: float = FAILED_MAX_S,
        cancel: Callable[[], None] = lambda: None,
    ) -> None:
        """Make the loop; `start` runs it.

        Args:
            turn: does the work. Returns: seconds until the next turn is due; None if only `wake` makes it due.
            changed: ends the sleep; passed if others announce changes without a reference to the loop.
            settle_s: pause after an announcement, so that one turn handles all announcements within it.
            cancel: ends a turn that blocks; called by `stop`.
        """
        self.name = name
        self._turn = turn
        self._condition = health.claim(name, part=LOOP)
        self._clock = clock
        self._changed = changed or threading.Event()
        self._stopped = threading.Event()
        self._settle_s = settle_s
        self._failed_max_s = failed_max_s
        self._cancel = cancel
        self._failed_count = 0

    def start(self, *, gate: threading.Event | None = None) -> None:
        """Run in a daemon thread. The first turn waits until `gate` is set.

        Raises: RuntimeError if the thread cannot be made; the caller ends the process if the daemon needs the loop.
        """
        threading.Thread(target=self.run, args=[gate], name=self.name.replace(" ", "-"), daemon=True).start()

    def run(self, gate: threading.Event | None = None) -> None:
        """Thread body: take turns until `stop`."""
        if gate is not None:
            gate.wait()
        while not self.is_stopped:
            wait_s = self.take_turn()
            if self._changed.wait(wait_s):
                self.pause(self._settle_s)
            self._changed.clear()

    def take_turn(self) -> float | None:
        """Take one turn. Returns: seconds to sleep. Never raises: a loop outlives any one failure."""
        began_s = self._clock.monotonic()
        try:
            wait_s = self._turn()
        except Exception as error:  # noqa: BLE001  # top of a loop
            if self.is_stopped:
                return 0.0
            if self._clock.monotonic() - began_s > self._failed_max_s:
                self._failed_count = 0  # the turn ran for longer than the longest pause: earlier failures do not count
            self._failed_count += 1
            if isinstance(error, BusyError):  # another operation holds the sandbox lock: no failure, the next turn retries
                log.info("loop deferred loop=%s error=%s", self.name, log_text(error))
            else:
                self._condition.report(problem(ConditionCode.LOOP_FAILED, cause=log_text(error)), error=error)
            self.pause(min(NODE.pause_s(self._failed_count), self._failed_max_s))
            return 0.0
        self.recovered()
        return wait_s

    def recovered(self) -> bool:
        """End the failure, if there is one. A turn that blocks for hours calls it once it works. Returns: whether there was one."""
        had_failed = self._failed_count > 0
        self._failed_count = 0
        if had_failed:
            self._condition.report(None)
        return had_failed

    def pause(self, seconds: float) -> bool:
        """Sleep within a turn; only `stop` ends the sleep early. Returns: whether the loop is stopped."""
        if seconds:
            return self._stopped.wait(seconds)
        return self.is_stopped

    def wake(self) -> None:
        """End the sleep: something changed."""
        self._changed.set()

    def stop(self) -> None:
        """End `run` after the current turn; idempotent."""
        self._stopped.set()
        self._cancel()
        self._changed.set()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called. Then a running turn must begin nothing new."""
        return self._stopped.is_set()
