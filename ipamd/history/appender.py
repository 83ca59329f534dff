"""Append lines to the newest segment of one kind, and begin a new one in time.

A write that fails leaves no half line: the file is cut back. A line torn by a crash is ended before the next is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ipamd.history.segments import listed, path_of

SEGMENT_S = 86400.0
"""Seconds after which a segment is closed: what is old goes by days."""


class Appender:
    """Used by one thread at a time. Every method raises OSError if the disk refuses; the next call begins anew."""

    def __init__(self, directory: Path, kind: str, *, segment_bytes: int, head: Callable[[], bytes]) -> None:
        """`head` gives the first lines of each new segment."""
        self._directory = directory
        self._kind = kind
        self._segment_bytes = segment_bytes
        self._head = head
        self._fd: int | None = None
        self._began_s = 0.0

    def append(self, lines: bytes, *, now_s: float) -> None:
        """Write lines, all or none of them; `now_s` is the time since the epoch."""
        if self._fd is not None and not self._is_usable(now_s):
            self.close()
        if self._fd is None:
            self._open(now_s)
        self._write(lines)

    def is_old(self, *, now_s: float) -> bool:
        """Whether the open segment should be followed by another though nothing is to be written."""
        return self._fd is not None and not self._is_usable(now_s)

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        if self._fd is not None:
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the segment; the next append opens the newest, or a new one."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def begin(self, *, now_s: float) -> None:
        """Begin a new segment, whatever the newest holds."""
        self.close()
        segments = listed(self._directory, self._kind)
        self._create(segments[-1].number + 1 if segments else 1, now_s)

    def _is_usable(self, now_s: float) -> bool:
        """Whether the open file is still there, small and young. A file that somebody removed would swallow what is written."""
        assert self._fd is not None
        status = os.fstat(self._fd)
        return status.st_nlink > 0 and status.st_size < self._segment_bytes and abs(now_s - self._began_s) < SEGMENT_S

    def _open(self, now_s: float) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        segments = listed(self._directory, self._kind)
        if not segments or segments[-1].size >= self._segment_bytes or now_s - segments[-1].modified_s >= SEGMENT_S:
            self._create(segments[-1].number + 1 if segments else 1, now_s)
            return
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd, self._began_s = os.open(segments[-1].path, flags), now_s
        if segments[-1].size and os.pread(self._fd, 1, segments[-1].size - 1) != b"\n":
            self._write(b"\n")

    def _create(self, number: int, now_s: float) -> None:
        head, path = self._head(), path_of(self._directory, self._kind, number)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd, self._began_s = os.open(path, flags, 0o600), now_s
        try:
            self._write(head)
        except OSError:
            path.unlink(missing_ok=True)  # a full disk still makes files, one at each try
            raise

    def _write(self, data: bytes) -> None:
        assert self._fd is not None
        size = os.fstat(self._fd).st_size
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            try:
                os.ftruncate(self._fd, size)
            finally:
                self.close()  # whoever opens it again ends a line that could not be cut back
            raise
