"""Read the history back.

A question about a subject costs one pass over the bytes: a line is parsed only if it contains the subject's text, or the ID of a
container that was found for it.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path

from ipamd.history.encoding import decode
from ipamd.history.segments import KINDS, Segment, listed
from ipamd.model.history import MARKS, HistoryRecord, RecordedHistory
from ipamd.model.history_subject import HistorySubject
from ipamd.settings.settings_file import opened

NEEDLES_MAX = 64
"""Largest number of texts that are searched for in the lines, for one question: the text of the question, and the container IDs found
for it. Ours: a pod has one container ID, and another for each time its sandbox was created again."""

READ_BYTES_MAX = 512 << 20
"""The largest number of bytes of the segments of one kind that are read for one question. Ours: sixteen times the default bound of the
history; reading them takes a few seconds."""

LINE_BYTES_MAX = 65536
"""Longest piece that is read as a line, in bytes. Ours: our longest line has 5,000 characters, but a file that somebody else put there
may have lines of any length."""

RECORDS_MAX = 10_000
"""The largest number of records of each kind in one answer; the latest are kept. Ours: they take some MB of the daemon's budget of
100 MiB, and an address gets a few records a day, so all of them usually fit."""

LATEST_MAX = 20_000
"""The largest number of records of each kind that `read_since` returns; the latest ones are kept. Ours: in a support archive 20,000
records are 6 MB of text, in the memory of the daemon's container."""

_MARKS = tuple(f'"event":"{mark}"'.encode() for mark in MARKS)


def read(directory: Path, subject: str) -> RecordedHistory:
    """Read the records about a subject, in no order. `problem` of the result names each file that cannot be read."""
    wanted = HistorySubject(subject)
    needles = _LineFilter(wanted)
    return _collect(directory, needles.take)


def read_since(directory: Path, since: datetime) -> RecordedHistory:
    """Read the latest LATEST_MAX records of each kind since an instant.

    Segments that were last written before `since` are skipped. But the first line of the oldest segment of the kind `history` is
    always read, because its time shows when the history begins.
    """

    def take(line: bytes) -> HistoryRecord | None:
        record = decode(line)
        if record is None or record.at < since:
            return None
        return record

    return _collect(directory, take, written_after_s=since.timestamp(), most=LATEST_MAX)


def _collect(
    directory: Path,
    take: Callable[[bytes], HistoryRecord | None],
    *,
    written_after_s: float = 0.0,
    most: int = RECORDS_MAX,
) -> RecordedHistory:
    """Read the records that `take` returns.

    Args:
        take: returns the record of a line, or None to leave the line out.
        written_after_s: Unix time. Segments that were last written before it are skipped, except for the first line of the oldest
            segment of the kind `history`.
        most: the largest number of records of each kind; the latest ones are kept.
    """
    collected: list[HistoryRecord] = []
    begins_at: datetime | None = None
    problems: list[str] = []
    for kind in KINDS:
        try:
            segments = listed(directory, kind)
        except OSError as error:
            problems.append(f"the history in {directory} cannot be read: {error.strerror}")
            break
        records: deque[HistoryRecord] = deque(maxlen=most)  # one for each kind, so that refusals displace no other records
        skipped = _skipped(segments)
        for segment, reason in skipped.items():
            problems.append(f"{segment.path} is not read: {reason}")
        readable = [segment for segment in segments if segment not in skipped]
        kind_begins_at = _read_segments(readable, take, records, problems, written_after_s=written_after_s, kind=kind)
        if kind == KINDS[0]:
            begins_at = kind_begins_at
        if len(records) == most:
            problems.append(f"only the latest {most} records were looked at")
        collected += records
    return RecordedHistory(tuple(collected), begins_at, "; ".join(dict.fromkeys(problems)))


def _read_segments(
    segments: Iterable[Segment],
    take: Callable[[bytes], HistoryRecord | None],
    records: deque[HistoryRecord],
    problems: list[str],
    *,
    written_after_s: float,
    kind: str,
) -> datetime | None:
    """Read the segments of one kind into `records`, and append failures to `problems`.

    Returns: the time of the oldest record of the kind `history`, at which the history begins; None for the kind `refused`.
    """
    begins_at: datetime | None = None
    for segment in segments:
        is_wanted = segment.modified_s >= written_after_s
        needs_begin = kind == KINDS[0] and begins_at is None
        if not is_wanted and not needs_begin:
            continue
        try:
            lines = _lines(segment.path)
            first = next(lines, b"")
            if needs_begin:
                begins_at = _time_of(first)
            if is_wanted:
                _take_lines(chain((first,), lines), take, records)
        except OSError as error:
            problems.append(f"{segment.path} cannot be read: {error.strerror}")
    return begins_at


def _time_of(line: bytes) -> datetime | None:
    record = decode(line)
    if record is None:
        return None
    return record.at


def _take_lines(lines: Iterable[bytes], take: Callable[[bytes], HistoryRecord | None], records: deque[HistoryRecord]) -> None:
    """Append the records that `take` returns for the lines. Raises: OSError, after appending the records before it."""
    for line in lines:
        record = take(line)
        if record is not None:
            records.append(record)


def _skipped(segments: Sequence[Segment]) -> dict[Segment, str]:
    """Return the segments that are not read, each with the reason: it is not a regular file, or newer ones leave too little
    of READ_BYTES_MAX for it.
    """
    skipped, unread_bytes = {}, READ_BYTES_MAX
    for segment in reversed(segments):
        if not segment.is_file:
            skipped[segment] = "it is no file"
        elif segment.size > unread_bytes:
            skipped[segment] = f"it has {segment.size} bytes, and {READ_BYTES_MAX} are read of one kind"
        else:
            unread_bytes -= segment.size
    return skipped


def _lines(path: Path, *, start: int = 0) -> Iterator[bytes]:
    """Yield the lines from a byte offset on; none if the file has been removed. Raises: OSError."""
    try:
        with opened(path, flags=os.O_NOFOLLOW) as file:
            file.seek(start)
            while line := file.readline(LINE_BYTES_MAX):
                yield line
    except FileNotFoundError:
        return


class _LineFilter:
    """Decides which lines are about the subject, and decodes only these.

    It searches each line for the text of the subject, and for each container ID that an earlier line showed for the subject's pod. A
    line with none of these texts is decoded only if it marks a boot or a gap of the history.
    """

    def __init__(self, subject: HistorySubject) -> None:
        self._subject = subject
        texts = {subject.text}
        container_id = subject.text.partition("/")[0]
        if len(container_id) >= 12:
            texts.add(container_id)
        self._needles = [json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "replace") for text in sorted(texts)]
        self._sandboxes: set[str] = set()

    def take(self, line: bytes) -> HistoryRecord | None:
        """Return the record of a line if it may be about the subject; None if it is not, or if the line is unreadable."""
        if any(mark in line for mark in _MARKS):
            return decode(line)
        if not any(needle in line for needle in self._needles):
            return None
        record = decode(line)
        if record is None:
            return None
        if self._subject.names_pod(record.pod):
            self._follow(record.container_id)
        if self._subject.fits(record) or record.container_id in self._sandboxes:
            return record
        return None

    def _follow(self, container_id: str) -> None:
        """Search for this container ID too, from the next line on."""
        if container_id and container_id not in self._sandboxes and len(self._needles) < NEEDLES_MAX:
            self._sandboxes.add(container_id)
            self._needles.append(container_id.encode())
