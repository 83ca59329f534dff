"""Look at one file after each change in its directory, and on a clock: the thread of whatever follows or keeps a file on the host."""

from __future__ import annotations

import ctypes
import logging
import os
import select
import threading
from abc import ABC, abstractmethod
from pathlib import Path

from ipamd.core.health import Health
from ipamd.model.errors import log_text

log = logging.getLogger(__name__)


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
    """Waits for changes of directories. `wait` and `close` from one thread, `wake` and `stop` from any."""

    def __init__(self, *directories: Path) -> None:
        self._directories = directories
        self._fd = -1  # a node has few instances: one is taken when it is needed
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def arm(self) -> None:
        """Watch what is at the paths now; look at it afterwards, so that no change is missed. Idempotent; takes the instance."""
        if self._fd < 0:
            self._fd = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd >= 0:
            for directory in self._directories:
                _libc.inotify_add_watch(self._fd, os.fsencode(directory), CHANGES)

    def wait(self, timeout_s: float) -> None:
        """Return after a change, after `wake` or `stop`, or after `timeout_s`."""
        poll = select.poll()
        poll.register(self._stop_fd, select.POLLIN)
        poll.register(self._wake_fd, select.POLLIN)
        if self._fd >= 0:
            poll.register(self._fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(timeout_s * 1000)}
        if self._wake_fd in ready:
            os.eventfd_read(self._wake_fd)
        if self._fd in ready:
            os.read(self._fd, EVENTS_BYTES)

    def wake(self) -> None:
        """End `wait`, or the next one at once; from any thread."""
        os.eventfd_write(self._wake_fd, 1)

    def stop(self) -> None:
        """End `wait`, and every later one at once; idempotent."""
        os.eventfd_write(self._stop_fd, 1)

    def close(self) -> None:
        """Release inotify's descriptor; those of `stop` and `wake` stay, another thread may be about to use them."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


LOOK_S = 30.0
"""Longest time between two looks at the file, whatever inotify says. Ours: as for the host's routing."""

SETTLE_S = 0.1
"""Wait after a change, so that a file which is being written is read whole. Ours."""

FAILED_S = 5.0
"""Wait after a look that failed: one that tries to write, on a full disk, changes the directory and would wake itself. Ours."""


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
