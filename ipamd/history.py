"""The history on the host's disk: append-only files of JSON lines, written behind ADD and DEL by one thread (docs/adr/0035).

What a crash loses is bounded: `PAUSE_S` of records if the process dies, `SYNC_S` more if the machine does. A disk that is full,
read-only or gone is a condition and nothing else: records wait in memory, the oldest are dropped first, and the file says how many.
A write that fails leaves no half line: the file is cut back. A line torn by a crash is ended before the next is written.

The same thread logs each assignment and each release, one line each with the same keys, for those who collect the logs of a fleet
(docs/troubleshooting.md, "Who had this address"): also where no history is kept or the disk refuses.

Read by the daemon, and by `ipamctl` when the daemon is away: light to import, no grpc, no SQLAlchemy.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

from ipamd.model.errors import DatastoreError, IpamError, log_text
from ipamd.model.history import BEGINS, ENDS, MARKS, HistoryEvent, HistoryRecord, LedgerEvent, Recorded, Subject
from ipamd.model.record import dataclass, replace
from ipamd.model.words import printable, rfc3339
from ipamd.ports import Clock, NoHistory
from ipamd.settings.settings_file import opened

PAUSE_S = 0.2
"""Between two writes while events come: one write for all of them. Ours: a burst of 100 ADDs costs a handful of writes."""

SYNC_S = 10.0
"""Between two waits for the disk. Ours: the host's disk is shared, and a machine that loses power has lost its pods too."""

TIDY_S = 3600.0
"""Between two looks at ages while nothing happens."""

REFUSED_MAX_S = 30.0
"""Longest pause after the disk refused. Ours: a disk that is full stays so for longer."""

TAIL_BYTES = 64 << 10
"""Of the newest segment: what a start reads of it, 230 records. Ours: only after a burst it reads all of it."""

PENDING_MAX = 20_000
"""Records that wait for the disk. Ours: about 10 MB, hours of churn."""

REFUSED_SHARE = 4
"""One byte in so many may tell of refused ADDs."""

SEGMENTS = 16
"""Segments into which the bound is divided: so much goes at once. Ours."""

DAY_S = 86400.0

log = logging.getLogger(__name__)

# The files of one history: numbered segments, so that what is old or too much goes as whole files.
#
# Two kinds lie in one directory, `history-NNNNNNNN.jsonl` and `refused-NNNNNNNN.jsonl`, each with a bound of its own: a pod that
# is refused for days must not push out who had which address.


KINDS = ("history", "refused")
_NAME = re.compile(r"(history|refused)-(\d{8,12})\.jsonl")


@dataclass(frozen=True, slots=True)
class Segment:
    """One file. `modified_s`: when it was last written, seconds since the epoch."""

    path: Path
    number: int
    size: int
    modified_s: float
    is_file: bool = True


def listed(directory: Path, kind: str) -> list[Segment]:
    """List the segments of one kind, oldest first; none if there is no directory. Raises: OSError.

    What is no file has no size and is not `is_file`: a FIFO would block whoever opens it, and a device has no end.
    """
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
        is_file = stat.S_ISREG(status.st_mode)
        found.append(Segment(directory / name, int(match[2]), status.st_size * is_file, status.st_mtime, is_file))
    return sorted(found, key=lambda segment: segment.number)


SEGMENT_S = 86400.0
"""Seconds after which a segment is closed: what is old goes by days."""


class Appender:
    """Appends lines to the newest segment of one kind, begins a new one in time, and removes the oldest ones.

    Used by one thread at a time. Every method raises OSError if the disk refuses; the next call begins anew.
    """

    def __init__(self, directory: Path, kind: str, *, days: int, bytes_max: int, head: Callable[[], bytes]) -> None:
        """`head` gives the first lines of each new segment."""
        self._directory = directory
        self._kind = kind
        self._days = days
        self._bytes_max = bytes_max
        self.segment_bytes = bytes_max // SEGMENTS
        self._head = head
        self._fd: int | None = None
        self._began_s = 0.0

    def append(self, lines: bytes, *, now_s: float) -> None:
        """Write lines, all or none of them, and keep the bound; `now_s` is the time since the epoch."""
        if self.is_old(now_s=now_s):
            self.close()
        if self._fd is None:
            self._open(now_s)
        self._write(lines)
        self.prune(now_s=now_s)

    def is_old(self, *, now_s: float) -> bool:
        """Whether the open segment should be followed by another: it is large or old, or somebody removed it, so that it would swallow
        what is written.
        """
        if self._fd is None:
            return False
        status = os.fstat(self._fd)
        return status.st_nlink == 0 or status.st_size >= self.segment_bytes or abs(now_s - self._began_s) >= SEGMENT_S

    def prune(self, *, now_s: float) -> None:
        """Remove segments from the oldest on, until the rest has so many bytes at most and was written in so many days.

        First those that are larger than any of this bound: they were not written under it, or not by us.
        """
        segments = [segment for segment in listed(self._directory, self._kind) if segment.is_file]
        total = sum(segment.size for segment in segments)
        for segment in sorted(segments, key=lambda one: (one.size < 3 * self.segment_bytes, one.number)):
            if total <= self._bytes_max and segment.modified_s >= now_s - self._days * DAY_S:
                return
            segment.path.unlink(missing_ok=True)
            total -= segment.size

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
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = max((segment.number for segment in listed(self._directory, self._kind)), default=0) + 1
        head, path = self._head(), self._directory / f"{self._kind}-{number:08d}.jsonl"
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd, self._began_s = os.open(path, flags, 0o600), now_s
        try:
            self._write(head)
        except OSError:
            path.unlink(missing_ok=True)  # a full disk still makes files, one at each try
            raise

    def _open(self, now_s: float) -> None:
        newest = max(listed(self._directory, self._kind), key=lambda segment: segment.number, default=None)
        if newest is None or not newest.is_file or newest.size >= self.segment_bytes or now_s - newest.modified_s >= SEGMENT_S:
            self.begin(now_s=now_s)
            return
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd, self._began_s = os.open(newest.path, flags), now_s
        if newest.size and os.pread(self._fd, 1, newest.size - 1) != b"\n":
            self._write(b"\n")

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

_TEXTS = ("address", "container_id", "ifname", "eni_id", "pod", "other_address")


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


# Reading. A line is parsed only if it has the subject's text somewhere, so a question about one pod costs one pass over the bytes.


NEEDLES_MAX = 64
"""Container IDs of one pod that are followed. Ours: a pod has one, and one more for each time its sandbox was made again."""

READ_BYTES_MAX = 512 << 20
"""Of one kind for one question. Ours: sixteen times what is kept by default, and a few seconds."""

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
        left_out = _left_out(segments)
        problems += [f"{one.path} is not read: {why}" for one, why in left_out.items()]
        for segment in segments:
            may_begin = kind == KINDS[0] and begins_at is None
            if segment in left_out or (segment.modified_s < written_after_s and not may_begin):
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


def _left_out(segments: Sequence[Segment]) -> dict[Segment, str]:
    """What one question does not read, and why: what is no file, and what is too much, the newest files first."""
    found, left = {}, READ_BYTES_MAX
    for segment in reversed(segments):
        if not segment.is_file:
            found[segment] = "it is no file"
        elif segment.size > left:
            found[segment] = f"it has {segment.size} bytes, and {READ_BYTES_MAX} are read of one kind"
        else:
            left -= segment.size
    return found


def _lines(path: Path, *, start: int = 0) -> Iterator[bytes]:
    """Yield the lines from a byte on; a file that is removed in between has none. Raises: OSError."""
    try:
        with opened(path, flags=os.O_NOFOLLOW) as file:
            file.seek(start)
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


# Writing.


@dataclass(frozen=True, slots=True)
class Boot:
    """Which boot this is, and when it was."""

    boot_id: str
    at: datetime


class HistoryWriter:
    """Implements `ports.History`: `turn` is a loop's, which `noted` wakes; `close` writes what is left."""

    def __init__(
        self,
        directory: Path | None,
        *,
        days: int,
        bytes_max: int,
        boot: Boot,
        clock: Clock,
        held: Callable[[], Iterable[HistoryRecord]],
        node: Callable[[], str],
        ledger: Callable[[datetime], Recorded],
    ) -> None:
        """Touch nothing yet.

        Args:
            directory: None: nothing is kept, and assignments and releases are logged all the same.
            days, bytes_max: how much is kept.
            held: who has which address now; written at the head of each segment, so that none depends on an older one.
            node: the ID of this instance; "" while it is not known, and what is to be logged waits for it.
            ledger: this boot's rows since an instant: what the process before was killed over is logged after all.
        """
        self._directory = directory
        self._boot = boot
        self._clock = clock
        self._held = held
        self._node = node
        self._ledger = ledger
        self._began_at = clock.now()
        self._pending: deque[HistoryRecord] = deque(maxlen=PENDING_MAX)
        self._unlogged: deque[HistoryRecord] = deque(maxlen=PENDING_MAX)
        self._lock = threading.Lock()  # of `_pending` and `_dropped_count`: `note` waits for no disk
        self._writing = threading.Lock()  # `close` does not wait for the loop's end
        self.noted = threading.Event()
        self._problem = ""
        self._dropped_count = 0
        self._boot_is_marked = False
        self._unsynced_since_s: float | None = None
        shares = {"refused": bytes_max // REFUSED_SHARE, "history": bytes_max - bytes_max // REFUSED_SHARE}
        heads = {"refused": bytes, "history": self._head}
        self._appenders = {
            kind: Appender(directory, kind, days=days, bytes_max=shares[kind], head=heads[kind]) for kind in KINDS if directory
        }

    def enqueue(self, records: Sequence[HistoryRecord]) -> None:
        """Take records; a fraction of a microsecond each."""
        if not records:
            return
        with self._lock:
            self._unlogged.extend(one for one in records if one.event in BEGINS or one.event in ENDS)
            if self._directory:
                self._dropped_count += max(len(self._pending) + len(records) - PENDING_MAX, 0)
                self._pending.extend(records)
        self.noted.set()

    def read(self, subject: str) -> Recorded:
        """Read memory first: what moves to the disk meanwhile is found there too, and told once."""
        if self._directory is None:
            return NoHistory().read(subject)
        wanted = Subject(subject)
        with self._lock:
            waiting, dropped, problem = tuple(self._pending), self._dropped_count, self._problem
        found = read(self._directory, subject)
        problems = [text for text in (problem, found.problem, f"{dropped} records were dropped" if dropped else "") if text]
        records = (*found.records, *(record.as_kept() for record in waiting if wanted.fits(record)))
        return Recorded(records, found.begins_at, "; ".join(problems))

    def read_since(self, since: datetime) -> Recorded:
        """See the port."""
        return read_since(self._directory, since) if self._directory else NoHistory().read_since(since)

    def turn(self) -> float:
        """Log and write what waits. Returns: seconds until something is due, an hour if idle. Raises: IpamError; records wait."""
        try:
            wait_s = self.write()
        except OSError as error:
            self._problem = f"nothing can be written in {self._directory} ({error.strerror or error}); ADD and DEL go on"
            raise IpamError(self._problem) from error
        self._problem = ""
        return min(wait_s, SYNC_S) if self._unlogged else wait_s

    def close(self) -> None:
        """Write what is left, and release the files. A disk that refuses loses it.

        No sync: the successor waits for our lock, and what the kernel has outlives the process.
        """
        try:
            self.write()
        except OSError as error:
            log.warning("history: what was left could not be written directory=%s error=%s", self._directory, log_text(error))
        with self._writing:
            self._log_tenures(self._node())
            for appender in self._appenders.values():
                appender.close()

    def write(self) -> float:
        """Write what waits, and do what is due.

        Returns: seconds until something is due though nothing comes. Raises: OSError if the disk refuses; the records wait.
        """
        with self._writing:
            try:
                return TIDY_S if self._directory is None else self._write(self._directory)
            finally:
                if node := self._node():
                    self._log_tenures(node)

    def _write(self, directory: Path) -> float:
        now_s, history = self._clock.now().timestamp(), self._appenders["history"]
        if not self._boot_is_marked:
            self._catch_up(directory, now_s)
        self._boot_is_marked = True
        self._write_pending(now_s)
        if history.is_old(now_s=now_s):
            history.begin(now_s=now_s)
            self._is_written()
        for appender in self._appenders.values():
            appender.prune(now_s=now_s)
        if self._unsynced_since_s is None:
            return TIDY_S
        wait_s = self._unsynced_since_s + SYNC_S - self._clock.monotonic()
        if wait_s > 0:
            return wait_s
        for appender in self._appenders.values():
            appender.sync()
        self._unsynced_since_s = None
        return TIDY_S

    def _catch_up(self, directory: Path, now_s: float) -> None:
        """Begin a segment if none is of this boot: its mark ends every tenure that the boot before left open; these ends are logged.

        In the same boot what the process before committed, and was killed over before it was written, is taken from the ledger.
        """
        history = self._appenders["history"]
        segments = [one for one in listed(directory, KINDS[0])[-2:] if one.is_file and one.size < 3 * history.segment_bytes]
        mark = next((decode(next(_lines(one.path), b"")) for one in segments[-1:]), None)
        if mark is None or mark.detail != self._boot.boot_id:
            left = _WhoHas(segments[-1:]).running
            history.begin(now_s=now_s)
            self._is_written()
            self._unlogged.extendleft(_ended(one, HistoryRecord(self._boot.at, HistoryEvent.BOOTED)) for one in left.values())
        elif self._missed(_WhoHas(segments[-1:], bytes_max=TAIL_BYTES)):
            self.enqueue(self._missed(_WhoHas(segments)))

    def _missed(self, written: _WhoHas) -> list[HistoryRecord]:
        """What the ledger has of the process before, and what was written lately has not."""
        found: list[HistoryRecord] = []
        with suppress(DatastoreError):  # whoever asks the ledger is told
            for row in self._ledger(written.last_at - timedelta(seconds=SYNC_S)).records:
                if row.at < self._began_at and _identity(row.as_kept()) not in written.seen:
                    found += written.follow(replace(row, pod=row.detail if row.event == LedgerEvent.ASSIGNED else ""))
        return found

    def _log_tenures(self, node: str) -> None:
        """One line for each assignment and each release, in their order."""
        while self._unlogged:
            one = self._unlogged.popleft()
            line = {"event": one.event, "node": node, "address": one.address, "other_address": one.other_address}
            line |= {"eni": one.eni_id, "pod": one.pod, "container": one.container_id, "ifname": one.ifname}
            line["from"] = rfc3339(one.since or one.at)
            if one.event in ENDS or one.event == HistoryEvent.BOOTED:
                line |= {"until": rfc3339(one.at), "reason": one.detail}
            safe = {key: printable(value, most=DETAIL_MAX) for key, value in line.items()}
            if "until" in line:
                log.info("address released", safe)
            else:
                log.info("address assigned", safe)

    def _is_written(self) -> None:
        if self._unsynced_since_s is None:
            self._unsynced_since_s = self._clock.monotonic()

    def _write_pending(self, now_s: float) -> None:
        with self._lock:
            taken, dropped = tuple(self._pending), self._dropped_count
        if dropped:
            missed = HistoryRecord(self._clock.now(), HistoryEvent.MISSED, detail="the disk refused them", count=dropped)
            self._appenders["history"].append(encode(missed), now_s=now_s)
            self._is_written()
            with self._lock:
                self._dropped_count -= dropped
        for kind, appender in self._appenders.items():
            records = (one for one in taken if (one.event == HistoryEvent.REFUSED) == (kind == "refused"))
            for batch, lines in _batches(records, appender.segment_bytes):
                appender.append(lines, now_s=now_s)
                self._is_written()
                # Taken out only now: what is written twice after a failure is told once, what is never written is lost.
                written = set(map(id, batch))
                with self._lock:
                    kept = [record for record in self._pending if id(record) not in written]
                    self._pending.clear()
                    self._pending.extend(kept)

    def _head(self) -> bytes:
        """The first lines of a segment: the boot, and who has what."""
        mark = HistoryRecord(self._clock.now(), HistoryEvent.BOOTED, detail=self._boot.boot_id, since=self._boot.at)
        return b"".join(map(encode, (mark, *self._held())))


def _identity(record: HistoryRecord) -> tuple[object, ...]:
    return record.at, record.event, record.address, record.container_id


def _ended(begun: HistoryRecord, end: HistoryRecord) -> HistoryRecord:
    return replace(begun, at=end.at, event=end.event, detail=end.detail, since=begun.since or begun.at)


class _WhoHas:
    """Who has which address at the end of segments, of which the last bytes are read; `seen`: the latest records."""

    def __init__(self, segments: Sequence[Segment], *, bytes_max: int = READ_BYTES_MAX) -> None:
        self.running: dict[str, HistoryRecord] = {}
        self.seen: deque[tuple[object, ...]] = deque(maxlen=LATEST_MAX)
        self.last_at = datetime.min.replace(tzinfo=UTC) + timedelta(days=1)
        for segment in segments:
            for record in filter(None, map(decode, _lines(segment.path, start=max(segment.size - bytes_max, 0)))):
                self.follow(record)
                self.seen.append(_identity(record))
                self.last_at = max(self.last_at, record.at)

    def follow(self, record: HistoryRecord) -> list[HistoryRecord]:
        """Take the next record. Returns: an assignment, or a release with what is known of its beginning."""
        if record.event == HistoryEvent.BOOTED:
            self.running = {}  # who has what is told anew behind it
        elif record.event in BEGINS:
            self.running[record.address] = record
            return [record]
        elif record.event in ENDS:
            return [_ended(self.running.pop(record.address, record), record)]
        return []


def _batches(records: Iterable[HistoryRecord], bytes_max: int) -> Iterator[tuple[list[HistoryRecord], bytes]]:
    """Divide records into what fills a segment, each with its lines: in one piece a backlog could be more than may be kept."""
    batch: list[HistoryRecord] = []
    lines = bytearray()
    for record in records:
        batch.append(record)
        lines += encode(record)
        if len(lines) >= bytes_max:
            yield batch, bytes(lines)
            batch, lines = [], bytearray()
    if batch:
        yield batch, bytes(lines)


def boot_of(boot_id: str, clock: Clock) -> Boot:
    """This boot; its time is told by the clock that counts since it."""
    return Boot(boot_id, clock.now() - timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME)))
