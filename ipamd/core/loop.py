"""The loop that runs all repeated work of the daemon: take a turn, then sleep until the next turn is due or announced.

A *turn* is one call of the function that does the work. It returns the seconds until the next turn is due. If a turn fails, the loop
reports a condition with its name until a turn succeeds, and retries after a pause that doubles. An announcement does not end that
pause. Otherwise a turn that announces its own failed work would be repeated without a pause. An alternative was rejected: a loop in
each class, with its own events, its own `except Exception` and its own constants.
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
"""Longest pause, in seconds, after a turn that failed. The pauses are those of the schedule `NODE`. Ours: a defect must not make a
loop repeat its turn without a pause, and a short failure must not delay its work much."""


class Announced(Protocol):
    """An object that ends a loop's sleep: a `threading.Event`, or an object that also waits for changes of files."""

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until `set` was called or `timeout` seconds have passed. Returns: whether `set` was called."""
        ...

    def set(self) -> None:
        """End the present sleep. If the loop is not sleeping, its next sleep ends at once. Safe from any thread."""
        ...

    def clear(self) -> None:
        """Reset the announcement before a turn that handles it."""
        ...


LOOP, OBJECTS = "loop", "objects"
"""Parts of a condition whose subject is the name of a loop or of a kind of work. LOOP: a turn of the loop failed. OBJECTS: the work
failed for some objects."""


class Loop:
    """A thread that takes turns, the first turn at once.

    `start`, `wake` and `stop` may be called from any thread, the other methods only from the loop's thread.
    """

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
        """Make the loop. `start` runs it.

        Args:
            name: the name of the thread, and the subject of the loop's condition.
            turn: does the work. It returns the seconds until the next turn is due, or None if only `wake` makes it due.
            changed: ends the sleep. It is given if other objects announce changes without a reference to the loop.
            settle_s: seconds to pause after an announcement, so that one turn handles all announcements in that time.
            failed_max_s: the longest pause after a turn that failed, in seconds.
            cancel: ends a turn that blocks. `stop` calls it.
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
        """Run the loop in a daemon thread. The first turn waits until `gate` is set.

        Raises: RuntimeError if the thread cannot be made. If the daemon needs the loop, the caller must end the process then.
        """
        threading.Thread(target=self.run, args=[gate], name=self.name.replace(" ", "-"), daemon=True).start()

    def run(self, gate: threading.Event | None = None) -> None:
        """Take turns until `stop` is called. This is the body of the thread."""
        if gate is not None:
            gate.wait()
        while not self.is_stopped:
            wait_s = self.take_turn()
            if self._changed.wait(wait_s):
                self.pause(self._settle_s)
            self._changed.clear()

    def take_turn(self) -> float | None:
        """Take one turn, and after a failed turn pause. Raises nothing, because a failed turn must not end the loop.

        Returns: seconds to sleep before the next turn; None to sleep until `wake`; 0.0 after a failed turn and its pause.
        """
        began_s = self._clock.monotonic()
        try:
            wait_s = self._turn()
        except Exception as error:  # noqa: BLE001  # top of a loop
            if self.is_stopped:
                return 0.0
            if self._clock.monotonic() - began_s > self._failed_max_s:
                self._failed_count = 0  # earlier failures do not count, because this turn ran for longer than the longest pause
            self._failed_count += 1
            if isinstance(error, BusyError):  # no failure: another operation holds the sandbox lock, and the next turn retries
                log.info("loop deferred loop=%s error=%s", self.name, log_text(error))
            else:
                self._condition.report(problem(ConditionCode.LOOP_FAILED, cause=log_text(error)), error=error)
            self.pause(min(NODE.pause_s(self._failed_count), self._failed_max_s))
            return 0.0
        self.recovered()
        return wait_s

    def recovered(self) -> bool:
        """End the condition after a failed turn. A turn that blocks for hours calls it as soon as its work succeeds.

        Returns: whether the turn before had failed.
        """
        had_failed = self._failed_count > 0
        self._failed_count = 0
        if had_failed:
            self._condition.report(None)
        return had_failed

    def pause(self, seconds: float) -> bool:
        """Sleep within a turn. Only `stop` ends the sleep early. Returns: whether the loop is stopped."""
        if seconds:
            return self._stopped.wait(seconds)
        return self.is_stopped

    def wake(self) -> None:
        """End the sleep, so that the next turn is taken now."""
        self._changed.set()

    def stop(self) -> None:
        """End `run` after the current turn. It may be called several times."""
        self._stopped.set()
        self._cancel()
        self._changed.set()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called. A turn that is still running must begin no new work then."""
        return self._stopped.is_set()
