"""Wait until something in directories changes, by inotify(7). Python's standard library has no binding for it, so this module calls
two functions of the C library.

A node may have no inotify instance left (fs.inotify.max_user_instances), or a directory may be missing. Then no change ends the wait,
only its time-out does, and the next `arm` tries again.
"""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

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
"""The largest number of bytes of events that one read returns."""

_libc = ctypes.CDLL(None, use_errno=True)


class DirectoryWatch:
    """Ends a loop's sleep as `threading.Event` does, and also after a change in the directories that it was armed for."""

    def __init__(self) -> None:
        self._fd = -1  # made by `arm`, because the number of inotify instances of a node is limited
        self._set_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def arm(self, directories: Iterable[Path]) -> None:
        """Watch directories. Idempotent. Call this before the files are checked, so that no change is missed."""
        if self._fd < 0:
            self._fd = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd >= 0:
            for directory in directories:
                _libc.inotify_add_watch(self._fd, os.fsencode(directory), CHANGES)

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until a change or `set`, at most `timeout` seconds. Returns: False if neither came."""
        poll = select.poll()
        for fd in self._fds():
            poll.register(fd, select.POLLIN)
        timeout_ms = None if timeout is None else timeout * 1000
        return bool(poll.poll(timeout_ms))

    def set(self) -> None:
        """End a running `wait`, or else make the next one end at once. From any thread."""
        os.eventfd_write(self._set_fd, 1)

    def clear(self) -> None:
        """Forget the noticed changes, before the files are checked."""
        for fd in self._fds():
            with suppress(BlockingIOError):
                os.read(fd, EVENTS_BYTES)

    def _fds(self) -> list[int]:
        return [fd for fd in (self._set_fd, self._fd) if fd >= 0]

    def __del__(self) -> None:
        for fd in self._fds():
            os.close(fd)
