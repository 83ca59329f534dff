"""Append lines to the newest segment of one kind, and begin a new one in time.

A write that fails leaves no half line: the file is cut back. A line torn by a crash is ended before the next is written.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ipamd.model.history import HistoryRecord
from ipamd.model.words import printable, rfc3339

# The files of one history: numbered segments, so that what is old or too much goes as whole files.
#
# Two kinds lie in one directory, `history-NNNNNNNN.jsonl` and `refused-NNNNNNNN.jsonl`, each with a bound of its own: a pod that
# is refused for days must not push out who had which address.


KINDS = ("history", "refused")
_NAME = re.compile(r"(history|refused)-(\d{8})\.jsonl")


@dataclass(frozen=True, slots=True)
class Segment:
    """One file. `modified_s`: when it was last written, seconds since the epoch."""

    path: Path
    number: int
    size: int
    modified_s: float


def listed(directory: Path, kind: str) -> list[Segment]:
    """List the segments of one kind, oldest first; none if there is no directory. Raises: OSError."""
    found = []
    try:
        names = os.listdir(directory)  # noqa: PTH208  # names are all that is wanted
    except FileNotFoundError:
        return []
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None or match[1] != kind:
            continue
        try:
            status = (directory / name).lstat()
        except FileNotFoundError:
            continue  # removed by a daemon that runs, while `ipamctl` lists
        found.append(Segment(directory / name, int(match[2]), status.st_size, status.st_mtime))
    return sorted(found, key=lambda segment: segment.number)


def prune(directory: Path, kind: str, *, bytes_max: int, oldest_s: float) -> None:
    """Remove segments from the oldest on, until the rest has at most `bytes_max` and was written after `oldest_s`.

    Raises: OSError.
    """
    segments = listed(directory, kind)
    total = sum(segment.size for segment in segments)
    for segment in segments:
        if total <= bytes_max and segment.modified_s >= oldest_s:
            return
        segment.path.unlink(missing_ok=True)
        total -= segment.size


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
        head, path = self._head(), self._directory / f"{self._kind}-{number:08d}.jsonl"
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


# One record as one line of JSON, which `grep` and `jq` can read when nothing of ours runs.
#
# Fields are those of `HistoryRecord`; empty ones are left out. Every text is made safe and bounded here, so that no record is
# long.


DETAIL_MAX = 1500
"""Characters of `detail`. Ours: the longest refusal, with EC2's words, cause, counts and advice, has 1,000."""

NAME_MAX = 520
"""Characters of every other text: a namespace and a pod's name have 253 each."""

NUMBER_MAX = 2**31 - 1
"""Of counts and codes: what proto's int32 holds."""

_TEXTS = ("address", "container_id", "ifname", "eni_id", "pod")


def encode(record: HistoryRecord) -> bytes:
    """Write one line, with its line break."""
    line: dict[str, Any] = {"at": rfc3339(record.at), "event": printable(record.event, most=NAME_MAX)}
    line |= {name: printable(value, most=NAME_MAX) for name in _TEXTS if (value := getattr(record, name))}
    if record.since is not None:
        line["since"] = rfc3339(record.since)
    if record.count != 1:
        line["count"] = record.count
    if record.code:
        line["code"] = record.code
    if record.detail:
        line["detail"] = printable(record.detail, most=DETAIL_MAX)
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> HistoryRecord | None:
    """Read one line; None if it is none of ours: torn by a crash, damaged, or of a release that writes otherwise."""
    try:
        found = json.loads(line)
        return HistoryRecord(
            at=_moment(found["at"]),
            event=printable(str(found["event"])),
            detail=printable(str(found.get("detail", ""))),
            **{name: printable(str(found.get(name, ""))) for name in _TEXTS},
            since=_moment(found["since"]) if "since" in found else None,
            count=_number(found.get("count", 1)),
            code=_number(found.get("code", 0)),
        )
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def _number(value: Any) -> int:
    """Read a count or a code. Raises: ValueError, TypeError; OverflowError for one that no answer can carry."""
    number = int(value)
    if not 0 <= number <= NUMBER_MAX:
        raise OverflowError(f"{number} is no count")
    return number


def _moment(text: str) -> datetime:
    """Read an aware time. Raises: ValueError, TypeError; OverflowError for one that UTC cannot say."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return moment.astimezone(UTC)
