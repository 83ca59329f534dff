"""Read the history's files: by the daemon, and by `ipamctl` when the daemon is away. Light to import: no grpc, no SQLAlchemy.

A line is parsed only if it has the subject's text somewhere, so a question about one pod costs one pass over the bytes.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import chain
from pathlib import Path

from ipamd.history import KINDS, decode, listed
from ipamd.model.history import MARKS, HistoryRecord, Recorded, Subject

NEEDLES_MAX = 64
"""Container IDs of one pod that are followed. Ours: a pod has one, and one more for each time its sandbox was made again."""

LINE_BYTES_MAX = 65536
"""Ours: our longest line has 5,000 characters. A file of other content may have a line of any length, which is read in pieces."""

RECORDS_MAX = 10_000
"""Records of one answer, the latest ones. Ours: some MB in the daemon, whose budget is 100 MiB; an address has a few a day."""

LATEST_MAX = 20_000
"""Records of a support archive, the latest ones of each kind. Ours: 6 MB as text, in memory of the container that the daemon is in."""

_MARKS = tuple(f'"event":"{mark}"'.encode() for mark in MARKS)


def read(directory: Path, subject: str) -> Recorded:
    """Read what is kept about a subject, in no order. A file that cannot be read is a `problem`."""
    wanted = Subject(subject)
    needles = _Needles(wanted)
    return _collect(directory, lambda line: needles.take(line))


def read_since(directory: Path, since: datetime) -> Recorded:
    """Read what happened since an instant, the latest LATEST_MAX of each kind; segments written before it are not opened."""

    def take(line: bytes) -> HistoryRecord | None:
        record = decode(line)
        return record if record is not None and record.at >= since else None

    return _collect(directory, take, written_after_s=since.timestamp(), most=LATEST_MAX)


def last_boot(directory: Path) -> str:
    """Tell of which boot the newest segment is; "" if there is none, or none that can be read. Raises: OSError."""
    segments = listed(directory, KINDS[0])
    record = decode(next(_lines(segments[-1].path), b"")) if segments else None
    return record.detail if record is not None else ""


def _collect(
    directory: Path,
    take: Callable[[bytes], HistoryRecord | None],
    *,
    written_after_s: float = 0.0,
    most: int = RECORDS_MAX,
) -> Recorded:
    every: list[HistoryRecord] = []
    begins_at: datetime | None = None
    problems: list[str] = []
    for kind in KINDS:
        try:
            segments = listed(directory, kind)
        except OSError as error:
            problems.append(f"the history in {directory} cannot be read: {error.strerror}")
            break
        records: deque[HistoryRecord] = deque(maxlen=most)  # of each kind: refusals push out nothing else here either
        for segment in segments:
            may_begin = kind == KINDS[0] and begins_at is None
            if segment.modified_s < written_after_s and not may_begin:
                continue
            try:
                lines = _lines(segment.path)
                first = next(lines, b"")
                if may_begin and (record := decode(first)) is not None:
                    begins_at = record.at
                if segment.modified_s >= written_after_s:
                    records.extend(found for line in chain((first,), lines) if (found := take(line)) is not None)
            except OSError as error:
                problems.append(f"{segment.path} cannot be read: {error.strerror}")
        if len(records) == most:
            problems.append(f"only the latest {most} records were looked at")
        every += records
    return Recorded(tuple(every), begins_at, "; ".join(dict.fromkeys(problems)))


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines; a file that is removed in between has none. Raises: OSError."""
    try:
        with path.open("rb") as file:
            while line := file.readline(LINE_BYTES_MAX):
                yield line
    except FileNotFoundError:
        return


class _Needles:
    """What a line must contain to be looked at: the subject's text, and the container IDs of its pod as they are met."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        texts = {subject.text, subject.text.partition("/")[0] if len(subject.text.partition("/")[0]) >= 12 else subject.text}
        self._needles = [json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "replace") for text in sorted(texts)]
        self._sandboxes: set[str] = set()

    def take(self, line: bytes) -> HistoryRecord | None:
        """Return the record of a line if it may be about the subject."""
        if any(mark in line for mark in _MARKS):
            return decode(line)
        if not any(needle in line for needle in self._needles):
            return None
        record = decode(line)
        if record is None:
            return None
        is_new = record.container_id not in self._sandboxes
        if self._subject.names_pod(record.pod) and record.container_id and is_new and len(self._needles) < NEEDLES_MAX:
            self._sandboxes.add(record.container_id)
            self._needles.append(record.container_id.encode())
        return record if self._subject.fits(record) or record.container_id in self._sandboxes else None
