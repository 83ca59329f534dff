"""Follow files on the host: one thread checks all of them after each change in their directories, and at regular intervals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from ipamd.core.backoffs import Backoffs
from ipamd.core.health import ConditionHandle, Health
from ipamd.core.loop import Loop
from ipamd.host.inotify import DirectoryWatch
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.errors import log_text
from ipamd.ports.process import Clock

CHECK_INTERVAL_S = 30.0
"""Longest time in seconds between two checks of a file, with or without notifications. Ours: the same interval as for the host's
routing (`RECONCILE_INTERVAL_S` in `network.py`)."""

SETTLE_S = 0.1
"""Pause in seconds after a change of a directory, so that a file which is being written is complete when it is read. Ours: a small
file is complete within milliseconds."""

FAILED_S = 5.0
"""Pause in seconds after a failed check. Ours: an attempt to write on a full disk fails and changes the directory, so without a pause
each such check would cause the next one."""


class FollowedFile(ABC):
    """A file on the host that is checked after each change in `directories`, and at regular intervals."""

    def __init__(self, *directories: Path, subject: str) -> None:
        """Watch nothing yet.

        Args:
            directories: a change in them leads to a check.
            subject: subject of the condition while a check fails.
        """
        self.directories = directories
        self.subject = subject

    @abstractmethod
    def check(self) -> None:
        """Read the file and act on its content. An exception becomes a condition until a later check succeeds."""

    def wait_s(self) -> float:
        """Return the longest time until the next check, in seconds."""
        return CHECK_INTERVAL_S


class FileFollowers:
    """Checks every followed file, in one thread. Any thread may call `follow`."""

    def __init__(self, *, health: Health, clock: Clock, backoffs: Backoffs) -> None:
        self._health = health
        self._backoffs = backoffs
        self._followed: tuple[FollowedFile, ...] = ()
        self._conditions: dict[str, ConditionHandle] = {}
        self._watch = DirectoryWatch()
        self.loop = Loop("files", self.turn, health=health, clock=clock, changed=self._watch, settle_s=SETTLE_S)

    def follow(self, file: FollowedFile) -> None:
        """Check a file from now on."""
        self._conditions[file.subject] = self._health.claim(file.subject, part="file")
        self._followed += (file,)
        self.loop.wake()

    def turn(self) -> float | None:
        """Check every file. Returns: the longest time until the next check, in seconds; None if no file is followed."""
        followed = self._followed
        self._watch.arm(directory for file in followed for directory in file.directories)
        return min((self._check(file) for file in followed), default=None)

    def _check(self, file: FollowedFile) -> float:
        """Check one file, unless the pause after a failed check of it still lasts. A failure does not stop the checks of other files.

        Returns: the longest time until the file's next check, in seconds.
        """
        key = "file", file.subject
        left_s = self._backoffs.left_s(key)
        if left_s:
            return left_s
        try:
            file.check()
        except Exception as error:  # noqa: BLE001  # top of the work on one file
            failed = problem(ConditionCode.FILE_FAILED, cause=log_text(error))
            self._conditions[file.subject].report(failed, error=error)
            self._backoffs.put(key, in_s=FAILED_S)
            return FAILED_S
        self._conditions[file.subject].report(None)
        return file.wait_s()
