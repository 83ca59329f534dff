"""The files of one history: numbered segments, so that old and surplus records are removed as whole files.

Two kinds are in one directory, `history-NNNNNNNN.jsonl` and `refused-NNNNNNNN.jsonl`. Each has a bound of its own, so that the
refusals of a pod over days do not displace the records of assignments.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from ipamd.history.age import FileAges
from ipamd.model.record import dataclass

SEGMENTS = 16
"""Number of segments into which the bound in bytes is divided. Ours: one segment is removed at a time, so a full history loses only a
sixteenth at once."""

DAY_S = 86400.0

KINDS = ("history", "refused")

_NAME = re.compile(r"(history|refused)-(\d{8,12})\.jsonl")


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of the history. `modified_s`: when it was last written, seconds since the epoch."""

    path: Path
    number: int
    size: int
    modified_s: float
    is_file: bool = True


def listed(directory: Path, kind: str) -> list[Segment]:
    """List the segments of one kind, oldest first; none if there is no directory. Raises: OSError.

    A FIFO, a device or a link gets size 0 and `is_file` False, so that no caller opens it: opening a FIFO blocks, and a device has no
    end.
    """
    segments = []
    try:
        names = os.listdir(directory)  # noqa: PTH208  # only names are needed
    except FileNotFoundError:
        return []
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None or match[1] != kind:
            continue
        try:
            status = (directory / name).lstat()
        except FileNotFoundError:
            continue  # a running daemon removed it while `ipamctl` lists
        is_file = stat.S_ISREG(status.st_mode)
        segments.append(Segment(directory / name, int(match[2]), status.st_size * is_file, status.st_mtime, is_file))
    return sorted(segments, key=lambda segment: segment.number)


SEGMENT_S = 86400.0
"""Seconds after which a segment is closed, so that old records are removed day by day."""


class Appender:
    """Appends lines to the newest segment of one kind, begins new segments, and removes the oldest segments.

    One thread at a time may use it. Every method raises OSError if the disk fails; the caller may call it again.
    """

    def __init__(
        self,
        directory: Path,
        kind: str,
        *,
        days: int,
        bytes_max: int,
        head: Callable[[], bytes],
        ages: FileAges,
        monotonic: Callable[[], float],
    ) -> None:
        """Make an appender that has not accessed the disk yet.

        Args:
            kind: one of KINDS.
            days, bytes_max: the bounds of all segments of this kind together.
            head: returns the first lines of each new segment.
            monotonic: returns the seconds of the monotonic clock, for `ages`.
        """
        self._directory = directory
        self._ages = ages
        self._monotonic = monotonic
        self._name = ""
        self._kind = kind
        self._days = days
        self._bytes_max = bytes_max
        self.segment_bytes = bytes_max // SEGMENTS
        self._head = head
        self._fd: int | None = None
        self._began_s = 0.0

    def append(self, lines: bytes, *, now_s: float) -> None:
        """Write all of the lines or none, and then prune. `now_s`: seconds since the epoch."""
        if self.is_old(now_s=now_s):
            self.close()
        if self._fd is None:
            self._open(now_s)
        self._write(lines)
        self.prune(now_s=now_s)

    def is_old(self, *, now_s: float) -> bool:
        """Whether a new segment must be begun, because the open one is large, old, or was removed."""
        if self._fd is None:
            return False
        status = os.fstat(self._fd)
        return status.st_nlink == 0 or status.st_size >= self.segment_bytes or abs(now_s - self._began_s) >= SEGMENT_S

    def prune(self, *, now_s: float) -> None:
        """Remove the oldest segments until the remaining ones are within the bounds of bytes and days.

        A segment is too old only if it is so by the wall clock and by the running time, so that setting a clock makes no segment old.
        Segments of at least three times `segment_bytes` are removed first: they were written under another bound, or not by us.
        """
        segments = [segment for segment in listed(self._directory, self._kind) if segment.is_file]
        total = sum(segment.size for segment in segments)
        most_s = self._days * DAY_S
        ages_s = {segment.path.name: self._ages.age_s(segment.path.name, monotonic_s=self._monotonic()) for segment in segments}
        for segment in sorted(segments, key=lambda segment: (segment.size < 3 * self.segment_bytes, segment.number)):
            is_old = now_s - segment.modified_s > most_s and ages_s[segment.path.name] > most_s
            if total <= self._bytes_max and not is_old:
                continue
            segment.path.unlink(missing_ok=True)
            total -= segment.size

    def sync(self) -> None:
        """Wait until all written lines are on the disk."""
        if self._fd is not None:
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the open segment. The next `append` opens the newest segment again, or begins a new one."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def begin(self, *, now_s: float) -> None:
        """Begin a new segment, even if the newest one has room."""
        self.close()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = max((segment.number for segment in listed(self._directory, self._kind)), default=0) + 1
        head = self._head()
        path = self._directory / f"{self._kind}-{number:08d}.jsonl"
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        self._began_s = now_s
        self._name = path.name
        try:
            self._write(head)
        except OSError:
            path.unlink(missing_ok=True)  # on a full disk an empty file can still be created, and each try would leave one
            raise

    def _open(self, now_s: float) -> None:
        newest = max(listed(self._directory, self._kind), key=lambda segment: segment.number, default=None)
        if newest is None or not newest.is_file or newest.size >= self.segment_bytes or now_s - newest.modified_s >= SEGMENT_S:
            self.begin(now_s=now_s)
            return
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(newest.path, flags)
        self._began_s = now_s
        self._name = newest.path.name
        if newest.size and os.pread(self._fd, 1, newest.size - 1) != b"\n":
            self._write(b"\n")

    def _write(self, data: bytes) -> None:
        assert self._fd is not None
        size = os.fstat(self._fd).st_size
        try:
            unwritten = memoryview(data)
            while unwritten:
                unwritten = unwritten[os.write(self._fd, unwritten) :]
            self._ages.record_write(self._name, monotonic_s=self._monotonic())
        except OSError:
            try:
                os.ftruncate(self._fd, size)
            finally:
                self.close()  # the next opening ends a line that could not be cut off
            raise
