"""One loop for everything that the daemon does again and again: a turn, then sleep until something is due or was announced.

A turn says in how many seconds the next one is due by the clock. A turn that fails is a condition with the loop's name until one
succeeds, and is tried again after a pause that doubles and that no announcement ends: a turn that announces what it failed to do
must not spin. Rejected: a loop of its own in each class, each with its events, its `except Exception` and its constants.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from ipamd.core.agenda import NODE
from ipamd.core.health import Health
from ipamd.model.errors import BusyError, log_text
from ipamd.model.words import counted, first_of
from ipamd.ports import Clock

log = logging.getLogger(__name__)


FAILED_MAX_S = 5.0
"""Longest pause after a turn that failed; they are those of a service of this node (`NODE`). Ours: a defect must not make a loop spin,
and one that passes must not be felt."""


class Announced(Protocol):
    """What ends a loop's sleep: a `threading.Event`, or what waits for files too."""

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until it is set, or time is up; returns whether it is set."""
        ...

    def set(self) -> None:
        """End the sleep, or the next one at once; from any thread."""
        ...

    def clear(self) -> None:
        """What was announced is about to be worked on."""
        ...


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
        """Start nothing yet.

        Args:
            turn: does what is due. Returns: seconds until something is due by the clock; None if only `wake` makes it due.
            changed: what ends the sleep, if others announce something without knowing the loop.
            settle_s: pause after an announcement, so that one turn serves all that come within it.
            cancel: ends a turn that blocks; called by `stop`.
        """
        self.name = name
        self._turn = turn
        self._health = health
        self._clock = clock
        self._changed = changed or threading.Event()
        self._stopped = threading.Event()
        self._settle_s = settle_s
        self._failed_max_s = failed_max_s
        self._cancel = cancel
        self._failed_count = 0

    def start(self) -> None:
        """Run in a thread of its own, which does not keep the process alive."""
        threading.Thread(target=self.run, name=self.name.replace(" ", "-"), daemon=True).start()

    def run(self) -> None:
        """Thread body: take turns until `stop`."""
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
                self._failed_count = 0  # it worked for longer than the longest pause: it has not failed before
            self._failed_count += 1
            if isinstance(error, BusyError):  # what another operation holds is no failure: it is only left for the next turn
                log.info("waits loop=%s error=%s", self.name, log_text(error))
            else:
                self._health.report(self.name, f"{self.name}: {log_text(error)}; tried again", error=error)
            self.pause(min(NODE.pause_s(self._failed_count), self._failed_max_s))
            return 0.0
        self.recovered()
        return wait_s

    def recovered(self) -> bool:
        """End a failure: a turn succeeded, or one that blocks for hours says that it works. Returns: whether there was one."""
        had_failed, self._failed_count = self._failed_count > 0, 0
        if had_failed:
            self._health.report(self.name, "")
        return had_failed

    def pause(self, seconds: float) -> bool:
        """Sleep within a turn, whatever is announced; returns whether the loop is stopped."""
        return self._stopped.wait(seconds) if seconds else self.is_stopped

    def wake(self) -> None:
        """Something changed: take a turn now."""
        self._changed.set()

    def stop(self) -> None:
        """End `run` after the turn that runs; idempotent."""
        self._stopped.set()
        self._cancel()
        self._changed.set()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called: a turn that is under way must begin nothing any more."""
        return self._stopped.is_set()


# Go on after one object that refuses: it is skipped, named in a condition, logged once, and tried again at the next pass.
#
# One veth that the kernel will not delete, or one row that the disk refuses, must not stop the reaping, sweeping and repairing of
# all others for ever.


NAMED_MAX = 5
"""Objects that a condition names; the others are counted. Ours: a sentence that can be read."""


class OddObjects:
    """The objects that refused one kind of work. Safe from any thread; of our locks only Health's is taken inside its own."""

    def __init__(self, health: Health, *, work: str) -> None:
        """`work` is a noun for what is done to each object ("reaping"): the condition's subject and first word."""
        self._health = health
        self._work = work
        self._lock = threading.Lock()
        self._refusals: dict[str, str] = {}

    @property
    def names(self) -> frozenset[str]:
        """Those that refused last."""
        return frozenset(self._refusals)

    @contextmanager
    def skip(self, name: str) -> Iterator[None]:
        """Work on one object: an error ends the block, is remembered under `name`, and is not raised. Success forgets it.

        A key that another operation holds is not odd: it is only left for the next pass.
        """
        try:
            yield
        except BusyError as error:
            log.info("waits work=%s of=%s error=%s", self._work, name, log_text(error))
        except Exception as error:  # noqa: BLE001  # top of the work on one object: the others must not wait for it
            self.report(name, error)
        else:
            self._change({}, gone=(name,))

    def report(self, name: str, error: BaseException) -> None:
        """Remember that an object refused; the error is recorded unless it refused with the same words before."""
        self._change({name: log_text(error)}, error=error)

    def keep_only(self, names: Iterable[str]) -> None:
        """Forget every object but these: the others are gone, or no longer need this work."""
        self._change({}, gone=self._refusals.keys() - set(names))

    def _change(self, refused: dict[str, str], *, gone: Collection[str] = (), error: BaseException | None = None) -> None:
        with self._lock:
            before = self._refusals
            self._refusals = {name: text for name, text in (before | refused).items() if name not in gone}
            if self._refusals != before:
                self._health.report(self._work, self._sentence() if self._refusals else "", error=error)

    def _sentence(self) -> str:
        named = [f"{name}: {text}" for name, text in sorted(self._refusals.items())]
        return f"{self._work}: {counted(len(named), 'object')} skipped: {first_of(named, NAMED_MAX)}; tried again"
