"""Look at one file after each change in its directory, and on a clock: the thread of whatever follows or keeps a file on the host."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from pathlib import Path

from ipamd.inotify import DirectoryWatch
from ipamd.model.errors import log_text
from ipamd.service.health import Health

LOOK_S = 30.0
"""Longest time between two looks at the file, whatever inotify says. Ours: as for the host's routing."""

SETTLE_S = 0.1
"""Wait after a change, so that a file which is being written is read whole. Ours."""

FAILED_S = 5.0
"""Wait after a look that failed: one that tries to write, on a full disk, changes the directory and would wake itself. Ours."""

log = logging.getLogger(__name__)


class FileFollower(ABC):
    """`run` is a thread body; `stop` from any thread. A look that fails is a condition `subject`, and is made again."""

    def __init__(self, path: Path | None, *directories: Path, subject: str, health: Health) -> None:
        """Follow the file at `path`, or none (looks are made when asked for, and by the clock); a change in one of the further
        `directories` asks for a look too."""
        self._health = health
        self._subject = subject
        self._watch = DirectoryWatch(*([path.parent] if path is not None else []), *directories)
        self._stopped = threading.Event()

    @abstractmethod
    def look(self) -> None:
        """Read the file and act. May raise: the next look comes."""

    def run(self) -> None:
        """Thread body: look after each change and on the clock, until `stop`."""
        try:
            while not self._stopped.is_set():
                self._watch.arm()
                settle_s = SETTLE_S
                try:
                    self.look()
                except Exception as error:  # noqa: BLE001  # top of a loop: it must outlive any one failure
                    self._health.record_error(self._subject, error)
                    self._health.set_condition(self._subject, f"{self._subject}: {log_text(error)}; tried again")
                    settle_s = FAILED_S
                else:
                    self._health.clear_condition(self._subject)
                self._watch.wait(self._wait_s())
                self._stopped.wait(settle_s)
        finally:
            self._watch.close()

    def wake(self) -> None:
        """Ask for a look soon; from any thread."""
        self._watch.wake()

    def stop(self) -> None:
        """End `run`."""
        self._stopped.set()
        self._watch.stop()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called: a look that is under way must change nothing any more."""
        return self._stopped.is_set()

    def _wait_s(self) -> float:
        return LOOK_S
