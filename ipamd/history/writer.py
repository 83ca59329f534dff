"""Write the history to the host's disk: append-only files of JSON lines. One thread writes them, so that no ADD or DEL waits for the
disk (docs/adr/0035).

A crash loses few records: those of the last `PAUSE_S` if the process dies, and those of `SYNC_S` more if the machine does. If the disk
is full, read-only or gone, a condition reports it and the records wait in memory. If too many wait, the oldest are dropped, and the
file gets a record with their number. After a failed write the file is cut back to the last whole line. If a crash leaves a half line,
it gets a line break before the next line is written.

The same thread logs each assignment and each release, one line each with the same keys, for those who collect the logs of a fleet
(docs/troubleshooting.md, "Who had this address"). It does so even if no history is kept or the disk fails.

The daemon reads the files, and so does `ipamctl` while the daemon is away. So this module is light to import: no grpc, no SQLAlchemy.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ipamd.history.age import FileAges
from ipamd.history.encoding import DETAIL_MAX, decode, encode
from ipamd.history.reading import LATEST_MAX, READ_BYTES_MAX, _lines, read, read_since
from ipamd.history.segments import KINDS, Appender, Segment, listed
from ipamd.model.errors import DatastoreError, IpamError, log_text
from ipamd.model.history import HistoryEvent, HistoryRecord, LedgerEvent, RecordedHistory
from ipamd.model.history_subject import HistorySubject
from ipamd.model.record import dataclass, replace
from ipamd.model.tenures import BEGINS, ENDS
from ipamd.model.time_text import rfc3339
from ipamd.model.words import printable
from ipamd.ports.history import NoHistory
from ipamd.ports.process import Clock

log = logging.getLogger(__name__)

PAUSE_S = 0.2
"""Time between two writes while events come; each write has all events since the last write. Ours: a burst of 100 ADDs costs a handful
of writes."""

SYNC_S = 10.0
"""Time between two syncs. Ours: a sync slows down the other users of the host's disk, and only a crash of the whole machine loses
unsynced records. Such a crash ends all pods too, so these records matter little."""

TIDY_S = 3600.0
"""Seconds between two prunings while nothing is written. Ours: this is often enough, because the age limit is a number of days."""

REFUSED_MAX_S = 30.0
"""Longest pause, in seconds, before a failed write is repeated. Ours: a full disk usually stays full for longer, so shorter pauses
would only repeat the failure."""

TAIL_BYTES = 64 << 10
"""Bytes that a start reads from the end of the newest segment: 230 records. Ours: these are enough to see that no record of the ledger
is missing, except after a burst. If one is missing there, the start reads the newest two segments whole."""

PENDING_MAX = 20_000
"""The largest number of records that wait for the disk. Ours: about 10 MB in memory, and the records of some hours on a busy node."""

REFUSED_SHARE = 4
"""The records of refused ADDs get this fraction, one part in four, of the history's bytes. Ours: assignments are the purpose of the
history, so they get most of it."""


@dataclass(frozen=True, slots=True)
class Boot:
    """A boot of the machine. `at`: when it began."""

    boot_id: str
    at: datetime


class HistoryWriter:
    """Implements `ports.History`. A loop calls `turn`; the event `noted` wakes it. `close` writes the remaining records."""

    def __init__(
        self,
        directory: Path | None,
        *,
        days: int,
        bytes_max: int,
        boot: Boot,
        clock: Clock,
        current_tenures: Callable[[], Iterable[HistoryRecord]],
        node: Callable[[], str],
        ledger: Callable[[datetime], RecordedHistory],
    ) -> None:
        """Make a writer that has not accessed the disk yet.

        Args:
            directory: the directory of the files. With None no history is kept, but assignments and releases are logged.
            days, bytes_max: the bounds of the history.
            current_tenures: returns a record for each address in use, with the time of its assignment. These records begin each
                segment, so that no segment depends on an older one. A tenure is the time from an assignment to the release.
            node: returns the ID of this instance; "" while it is not known. Log lines wait until it is known, or until `close`.
            ledger: returns the rows of the datastore's ledger since an instant of this boot. An earlier process that was killed may
                have committed rows that it did not write to the history.
        """
        self._directory = directory
        self._boot = boot
        self._clock = clock
        self._current_tenures = current_tenures
        self._node = node
        self._ledger = ledger
        self._began_at = clock.now()
        self._pending: deque[HistoryRecord] = deque(maxlen=PENDING_MAX)
        self._unlogged: deque[HistoryRecord] = deque(maxlen=PENDING_MAX)
        self._lock = threading.Lock()  # for `_pending`, `_unlogged`, `_dropped_count`; its holder never waits for a disk
        self._writing = threading.Lock()  # held by `write` and `close`: the loop may still write when `close` is called
        self.noted = threading.Event()
        self._problem = ""
        self._dropped_count = 0
        self._boot_is_marked = False
        self._unsynced_since_s: float | None = None
        self._ages_stored_monotonic_s = -TIDY_S
        self._ages = FileAges(directory, boot_id=boot.boot_id) if directory else None
        self._appenders = self._make_appenders(days=days, bytes_max=bytes_max)

    def _make_appenders(self, *, days: int, bytes_max: int) -> dict[str, Appender]:
        if self._directory is None or self._ages is None:
            return {}
        shares = {"refused": bytes_max // REFUSED_SHARE, "history": bytes_max - bytes_max // REFUSED_SHARE}
        heads = {"refused": bytes, "history": self._head}
        return {
            kind: Appender(
                self._directory,
                kind,
                days=days,
                bytes_max=shares[kind],
                head=heads[kind],
                ages=self._ages,
                monotonic=self._clock.monotonic,
            )
            for kind in KINDS
        }

    def enqueue(self, records: Sequence[HistoryRecord]) -> None:
        """Queue records; costs a fraction of a microsecond for each."""
        if not records:
            return
        with self._lock:
            self._unlogged.extend(record for record in records if record.event in BEGINS or record.event in ENDS)
            if self._directory:
                self._dropped_count += max(len(self._pending) + len(records) - PENDING_MAX, 0)
                self._pending.extend(records)
        self.noted.set()

    def read(self, subject: str) -> RecordedHistory:
        """Read the records about a subject, from memory and from disk.

        Memory is read first, so no record is missed. A record that is written to disk meanwhile is read twice, and `history_subject`
        drops the second copy.
        """
        if self._directory is None:
            return NoHistory().read(subject)
        wanted = HistorySubject(subject)
        with self._lock:
            waiting = tuple(self._pending)
            dropped = self._dropped_count
            problem = self._problem
        on_disk = read(self._directory, subject)
        problems = [text for text in (problem, on_disk.problem) if text]
        if dropped:
            problems.append(f"{dropped} records were dropped")
        records = (*on_disk.records, *(record.as_kept() for record in waiting if wanted.fits(record)))
        return RecordedHistory(records, on_disk.begins_at, "; ".join(problems))

    def read_since(self, since: datetime) -> RecordedHistory:
        """See `History.read_since`."""
        if self._directory is None:
            return NoHistory().read_since(since)
        return read_since(self._directory, since)

    def turn(self) -> float:
        """Log and write the waiting records. Returns: seconds until the next turn, an hour if idle.

        Raises: IpamError if the disk fails. The records then wait for the next turn.
        """
        try:
            wait_s = self.write()
        except OSError as error:
            self._problem = f"nothing can be written in {self._directory} ({error.strerror or error}); ADD and DEL go on"
            raise IpamError(self._problem) from error
        self._problem = ""
        return min(wait_s, SYNC_S) if self._unlogged else wait_s

    def close(self) -> None:
        """Write the remaining records, and release the files. If the disk fails, these records are lost.

        There is no sync: the next daemon waits for our lock, and written data in the kernel outlives the process.
        """
        try:
            self.write()
        except OSError as error:
            log.warning("history: remaining records not written directory=%s error=%s", self._directory, log_text(error))
        with self._writing:
            self._log_tenures(self._node())
            for appender in self._appenders.values():
                appender.close()
            self._store_ages()

    def write(self) -> float:
        """Write the waiting records; sync and prune if it is time.

        Returns: seconds until the next sync or pruning. Raises: OSError if the disk fails. The records then wait for the next call.
        """
        with self._writing:
            try:
                if self._directory is None:
                    return TIDY_S
                return self._write(self._directory)
            finally:
                node = self._node()
                if node:
                    self._log_tenures(node)

    def _write(self, directory: Path) -> float:
        now_s = self._clock.now().timestamp()
        history = self._appenders["history"]
        if not self._boot_is_marked:
            self._catch_up(directory, now_s)
        self._boot_is_marked = True
        self._write_pending(now_s)
        if history.is_old(now_s=now_s):
            history.begin(now_s=now_s)
            self._mark_unsynced()
        for appender in self._appenders.values():
            appender.prune(now_s=now_s)
        if self._clock.monotonic() - self._ages_stored_monotonic_s >= TIDY_S:
            self._store_ages()
        if self._unsynced_since_s is None:
            return TIDY_S
        wait_s = self._unsynced_since_s + SYNC_S - self._clock.monotonic()
        if wait_s > 0:
            return wait_s
        for appender in self._appenders.values():
            appender.sync()
        self._unsynced_since_s = None
        return TIDY_S

    def _store_ages(self) -> None:
        """Store the ages of the existing segments for the next daemon."""
        if self._ages is None or self._directory is None:
            return
        with suppress(OSError):
            self._ages.retain({segment.path.name for kind in KINDS for segment in listed(self._directory, kind)})
        self._ages_stored_monotonic_s = self._clock.monotonic()

    def _catch_up(self, directory: Path, now_s: float) -> None:
        """Catch up with an earlier daemon at the first write.

        If there is no segment, or if the newest is of an earlier boot, a new segment is begun. Its first line, the mark of the boot,
        ends every assignment that was open in the earlier boot; a log line reports each end. If the newest segment is of this boot,
        the records that a killed daemon committed and did not write are taken from the ledger.
        """
        history = self._appenders["history"]
        segments = []
        for segment in listed(directory, KINDS[0])[-2:]:
            if segment.is_file and segment.size < 3 * history.segment_bytes:
                segments.append(segment)
        mark = None
        if segments:
            first_line = next(_lines(segments[-1].path), b"")
            mark = decode(first_line)
        if mark is None or mark.detail != self._boot.boot_id:
            open_tenures = _TenureReader(segments[-1:]).running
            history.begin(now_s=now_s)
            self._mark_unsynced()
            end = HistoryRecord(self._boot.at, HistoryEvent.BOOTED)
            self._unlogged.extendleft(_ended(record, end) for record in open_tenures.values())
        elif self._missed(_TenureReader(segments[-1:], bytes_max=TAIL_BYTES)):
            self.enqueue(self._missed(_TenureReader(segments)))

    def _missed(self, written: _TenureReader) -> list[HistoryRecord]:
        """Return the records of an earlier daemon that are in the ledger and not in the segments that `written` has read."""
        missed: list[HistoryRecord] = []
        with suppress(DatastoreError):  # other readers of the ledger report the error
            for row in self._ledger(written.last_at - timedelta(seconds=SYNC_S)).records:
                if row.at < self._began_at and _identity(row.as_kept()) not in written.seen:
                    pod = ""
                    if row.event == LedgerEvent.ASSIGNED:
                        pod = row.detail
                    missed += written.follow(replace(row, pod=pod))
        return missed

    def _log_tenures(self, node: str) -> None:
        """Log one line for each assignment and each release, in their order."""
        while self._unlogged:
            record = self._unlogged.popleft()
            line = {"event": record.event, "node": node, "address": record.address, "other_address": record.other_address}
            line |= {"eni": record.eni_id, "pod": record.pod, "container": record.container_id, "ifname": record.ifname}
            line["from"] = rfc3339(record.since or record.at)
            if record.event in ENDS or record.event == HistoryEvent.BOOTED:
                line |= {"until": rfc3339(record.at), "reason": record.detail}
            safe = {key: printable(value, most=DETAIL_MAX) for key, value in line.items()}
            if "until" in line:
                log.info("address released", safe)
            else:
                log.info("address assigned", safe)

    def _mark_unsynced(self) -> None:
        if self._unsynced_since_s is None:
            self._unsynced_since_s = self._clock.monotonic()

    def _write_pending(self, now_s: float) -> None:
        with self._lock:
            pending = tuple(self._pending)
            dropped = self._dropped_count
        if dropped:
            missed = HistoryRecord(self._clock.now(), HistoryEvent.MISSED, detail="the disk refused them", count=dropped)
            self._appenders["history"].append(encode(missed), now_s=now_s)
            self._mark_unsynced()
            with self._lock:
                self._dropped_count -= dropped
        for kind, appender in self._appenders.items():
            records = (record for record in pending if (record.event == HistoryEvent.REFUSED) == (kind == "refused"))
            for batch, lines in _batches(records, appender.segment_bytes):
                appender.append(lines, now_s=now_s)
                self._mark_unsynced()
                # Removed only after the write: readers drop a record that is written twice, but a record not written would be lost.
                written = set(map(id, batch))
                with self._lock:
                    waiting_records = [record for record in self._pending if id(record) not in written]
                    self._pending.clear()
                    self._pending.extend(waiting_records)

    def _head(self) -> bytes:
        """Return the first lines of a segment: the mark of this boot, and a record for each address in use."""
        mark = HistoryRecord(self._clock.now(), HistoryEvent.BOOTED, detail=self._boot.boot_id, since=self._boot.at)
        return b"".join(map(encode, (mark, *self._current_tenures())))


def _identity(record: HistoryRecord) -> tuple[object, ...]:
    return record.at, record.event, record.address, record.container_id


def _ended(begun: HistoryRecord, end: HistoryRecord) -> HistoryRecord:
    return replace(begun, at=end.at, event=end.event, detail=end.detail, since=begun.since or begun.at)


class _TenureReader:
    """Reads the last records of segments, to find out which addresses were in use at the end.

    `running`: by address, the record that shows it in use, unless a later record shows its release.
    `seen`: the identities (`_identity`) of the latest records.
    `last_at`: the time of the latest record.
    """

    def __init__(self, segments: Sequence[Segment], *, bytes_max: int = READ_BYTES_MAX) -> None:
        self.running: dict[str, HistoryRecord] = {}
        self.seen: deque[tuple[object, ...]] = deque(maxlen=LATEST_MAX)
        self.last_at = datetime.min.replace(tzinfo=UTC) + timedelta(days=1)
        for segment in segments:
            for line in _lines(segment.path, start=max(segment.size - bytes_max, 0)):
                record = decode(line)
                if record is None:
                    continue
                self.follow(record)
                self.seen.append(_identity(record))
                self.last_at = max(self.last_at, record.at)

    def follow(self, record: HistoryRecord) -> list[HistoryRecord]:
        """Apply the next record to `running`.

        Returns: the record if it is an assignment or a release; otherwise nothing. A release gets the time of its assignment as
        `since`, if that is known.
        """
        if record.event == HistoryEvent.BOOTED:
            self.running = {}  # a record for each address in use follows this mark
        elif record.event in BEGINS:
            self.running[record.address] = record
            return [record]
        elif record.event in ENDS:
            return [_ended(self.running.pop(record.address, record), record)]
        return []


def _batches(records: Iterable[HistoryRecord], bytes_max: int) -> Iterator[tuple[list[HistoryRecord], bytes]]:
    """Divide records into batches that fill a segment each, because a backlog in one piece could exceed the bound of the history.

    Yields: the records of a batch, and their lines.
    """
    batch: list[HistoryRecord] = []
    lines = bytearray()
    for record in records:
        batch.append(record)
        lines += encode(record)
        if len(lines) >= bytes_max:
            yield batch, bytes(lines)
            batch = []
            lines = bytearray()
    if batch:
        yield batch, bytes(lines)


def boot_of(boot_id: str, clock: Clock) -> Boot:
    """Return this boot, with the time when it began, which follows from the clock that counts since the boot."""
    return Boot(boot_id, clock.now() - timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME)))
