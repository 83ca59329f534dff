"""Follow files on the host: one thread looks at all of them after each change in their directories, and on a clock."""

from __future__ import annotations

import ctypes
import os
import select
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ipamd.core.agenda import Agenda
from ipamd.core.health import Health
from ipamd.core.loop import Loop
from ipamd.model.errors import log_text
from ipamd.ports import Clock

# Wait until something in directories changes, by inotify(7). Python has no binding of its own; three calls of the C library do.
#
# A node may have no inotify instance left (fs.inotify.max_user_instances), or the directory may be gone: then only the time-out
# ends the wait, and the caller looks on its clock; the next `arm` tries again.


IN_ATTRIB = 0x4
IN_CLOSE_WRITE = 0x8
IN_MOVED_FROM = 0x40
IN_MOVED_TO = 0x80
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_DELETE_SELF = 0x400
IN_MOVE_SELF = 0x800
CHANGES = IN_ATTRIB | IN_CLOSE_WRITE | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF

EVENTS_BYTES = 65536

_libc = ctypes.CDLL(None, use_errno=True)


class DirectoryWatch:
    """What ends a loop's sleep, as `threading.Event` does, and a change in the directories that it was armed for ends it too."""

    def __init__(self) -> None:
        self._fd = -1  # a node has few instances: one is taken when it is needed
        self._set_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def arm(self, directories: Iterable[Path]) -> None:
        """Watch what is at the paths now; look at it afterwards, so that no change is missed. Idempotent; takes the instance."""
        if self._fd < 0:
            self._fd = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd >= 0:
            for directory in directories:
                _libc.inotify_add_watch(self._fd, os.fsencode(directory), CHANGES)

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until a change, `set`, or until time is up; returns False then."""
        poll = select.poll()
        for fd in self._fds():
            poll.register(fd, select.POLLIN)
        return bool(poll.poll(None if timeout is None else timeout * 1000))

    def set(self) -> None:
        """End `wait`, or the next one at once; from any thread."""
        os.eventfd_write(self._set_fd, 1)

    def clear(self) -> None:
        """Forget what was noticed: it is about to be looked at."""
        for fd in self._fds():
            with suppress(BlockingIOError):
                os.read(fd, EVENTS_BYTES)

    def _fds(self) -> list[int]:
        return [fd for fd in (self._set_fd, self._fd) if fd >= 0]

    def __del__(self) -> None:
        for fd in self._fds():
            os.close(fd)


LOOK_S = 30.0
"""Longest time between two looks at a file, whatever inotify says. Ours: as for the host's routing."""

SETTLE_S = 0.1
"""Wait after a change, so that a file which is being written is read whole. Ours."""

FAILED_S = 5.0
"""Wait after a look that failed: one that tries to write, on a full disk, changes the directory and would wake itself. Ours."""


class FollowedFile(ABC):
    """Something on the host that is looked at after each change in `directories`, and on a clock."""

    def __init__(self, *directories: Path, subject: str) -> None:
        """A look that fails is a condition `subject`."""
        self.directories = directories
        self.subject = subject

    @abstractmethod
    def look(self) -> None:
        """Read the file and act. May raise: the next look comes."""

    def wait_s(self) -> float:
        """Seconds until the next look, whatever inotify says."""
        return LOOK_S


class FileFollowers:
    """Looks at every followed file, in one thread. `follow` from any."""

    def __init__(self, *, health: Health, clock: Clock, agenda: Agenda) -> None:
        self._health = health
        self._agenda = agenda
        self._followed: tuple[FollowedFile, ...] = ()
        self._watch = DirectoryWatch()
        self.loop = Loop("files", self.turn, health=health, clock=clock, changed=self._watch, settle_s=SETTLE_S)

    def follow(self, file: FollowedFile) -> None:
        """Look at it from now on."""
        self._followed += (file,)
        self.loop.wake()

    def turn(self) -> float | None:
        """Look at every file. Returns: seconds until the next look, whatever inotify says."""
        followed = self._followed
        self._watch.arm(directory for file in followed for directory in file.directories)
        return min((self._look(file) for file in followed), default=None)

    def _look(self, file: FollowedFile) -> float:
        """Look at one file unless its last look has just failed; one that fails does not keep the others from their turn."""
        key = "file", file.subject
        if left_s := self._agenda.left_s(key):
            return left_s
        try:
            file.look()
        except Exception as error:  # noqa: BLE001  # top of the work on one file
            self._health.report(file.subject, f"{file.subject}: {log_text(error)}; tried again", error=error)
            self._agenda.put(key, in_s=FAILED_S)
            return FAILED_S
        self._health.report(file.subject, "")
        return file.wait_s()
