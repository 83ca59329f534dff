"""Write the history behind ADD and DEL: they leave records in memory, and one thread writes them (docs/adr/0035).

What a crash loses is bounded: `PAUSE_S` of records if the process dies, `SYNC_S` more if the machine does. A disk that is full,
read-only or gone is a condition and nothing else: records wait in memory, the oldest are dropped first, and the file says how many.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from ipamd.history import reader
from ipamd.history import KINDS, Appender, encode, prune
from ipamd.model.errors import IpamError, log_text
from ipamd.model.history import HistoryEvent, HistoryRecord, Recorded, Subject
from ipamd.ports import Clock

PAUSE_S = 0.2
"""Between two writes while events come: one write for all of them. Ours: a burst of 100 ADDs costs a handful of writes."""

SYNC_S = 10.0
"""Between two waits for the disk. Ours: the host's disk is shared, and a machine that loses power has lost its pods too."""

TIDY_S = 3600.0
"""Between two looks at ages while nothing happens."""

REFUSED_MAX_S = 60.0
"""Longest pause after the disk refused. Ours: a disk that is full stays so for longer."""

PENDING_MAX = 20_000
"""Records that wait for the disk. Ours: about 10 MB, hours of churn."""

REFUSED_SHARE = 4
"""One byte in so many may tell of refused ADDs."""

SEGMENTS = 16
"""Segments into which the bound is divided: so much goes at once. Ours."""

DAY_S = 86400.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HistoryBounds:
    """How much is kept."""

    days: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Boot:
    """Which boot this is, and when it was."""

    boot_id: str
    at: datetime


class HistoryWriter:
    """Implements `ports.History`. `turn` is a loop's, which `noted` wakes; `close` writes what is left."""

    def __init__(
        self,
        directory: Path,
        *,
        bounds: HistoryBounds,
        boot: Boot,
        clock: Clock,
        held: Callable[[], Iterable[HistoryRecord]],
    ) -> None:
        """Touch nothing yet.

        Args:
            held: who has which address now; written at the head of each segment, so that none depends on an older one.
        """
        self._directory = directory
        self._bounds = bounds
        self._boot = boot
        self._clock = clock
        self._held = held
        self._pending: deque[HistoryRecord] = deque(maxlen=PENDING_MAX)
        self._lock = threading.Lock()  # of `_pending` and `_dropped_count`
        self._writing = threading.Lock()
        self.noted = threading.Event()
        self._problem = ""
        self._dropped_count = 0
        self._boot_is_marked = False
        self._unsynced_since_s: float | None = None
        parts = {"refused": bounds.bytes_max // REFUSED_SHARE, "history": bounds.bytes_max - bounds.bytes_max // REFUSED_SHARE}
        self._bytes_max = parts
        self._appenders = {
            kind: Appender(
                directory, kind, segment_bytes=self._segment_bytes(kind), head=self._head if kind == "history" else bytes
            )
            for kind in KINDS
        }

    def note(self, records: Sequence[HistoryRecord]) -> None:
        """Take records; a fraction of a microsecond each."""
        if not records:
            return
        with self._lock:
            self._dropped_count += max(len(self._pending) + len(records) - PENDING_MAX, 0)
            self._pending.extend(records)
        self.noted.set()

    def read(self, subject: str) -> Recorded:
        """Read memory first: what moves to the disk meanwhile is found there too, and told once."""
        wanted = Subject(subject)
        with self._lock:
            waiting, dropped, problem = tuple(self._pending), self._dropped_count, self._problem
        found = reader.read(self._directory, subject)
        problems = [text for text in (problem, found.problem, f"{dropped} records were dropped" if dropped else "") if text]
        records = (*found.records, *(record.as_kept() for record in waiting if wanted.fits(record)))
        return Recorded(records, found.begins_at, "; ".join(problems))

    def read_since(self, since: datetime) -> Recorded:
        """See the port."""
        return reader.read_since(self._directory, since)

    def turn(self) -> float:
        """Write what waits. Returns: seconds until something is due; at idle an hour. Raises: IpamError; the records wait."""
        try:
            wait_s = self.write()
        except OSError as error:
            self._problem = f"nothing can be written in {self._directory} ({error.strerror or error}); ADD and DEL go on"
            raise IpamError(self._problem) from error
        self._problem = ""
        return wait_s

    def close(self) -> None:
        """Write what is left, and release the files. A disk that refuses loses it.

        No sync: the successor waits for our lock, and what the kernel has outlives the process.
        """
        try:
            self.write()
        except OSError as error:
            log.warning("history: what was left could not be written in %s: %s", self._directory, log_text(error))
        with self._writing:
            for appender in self._appenders.values():
                appender.close()

    def write(self) -> float:
        """Write what waits, and do what is due.

        Returns: seconds until something is due though nothing comes. Raises: OSError if the disk refuses; the records wait.
        """
        with self._writing:
            self._mark_boot()
            self._write_pending()
            self._tidy()
            if self._unsynced_since_s is not None and self._clock.monotonic() - self._unsynced_since_s >= SYNC_S:
                self._sync()
            if self._unsynced_since_s is None:
                return TIDY_S
            return max(self._unsynced_since_s + SYNC_S - self._clock.monotonic(), 0.0)

    def _mark_boot(self) -> None:
        """Begin a segment for a boot that has none: its mark ends every tenure that a reboot left open."""
        if self._boot_is_marked:
            return
        if reader.last_boot(self._directory) != self._boot.boot_id:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._appenders["history"].begin(now_s=self._now_s())
            self._unsynced_since_s = self._clock.monotonic()
        self._boot_is_marked = True

    def _write_pending(self) -> None:
        with self._lock:
            taken, dropped = tuple(self._pending), self._dropped_count
        if not taken and not dropped:
            return
        if dropped:
            self._append("history", encode(self._missed(dropped)))
            with self._lock:
                self._dropped_count -= dropped
        for kind in KINDS:
            records = (one for one in taken if (one.event == HistoryEvent.REFUSED) == (kind == "refused"))
            for batch, lines in _batches(records, self._segment_bytes(kind)):
                self._append(kind, lines)
                # Taken out only now: what is written twice after a failure is told once, what is never written is lost.
                self._take_out(batch)

    def _missed(self, count: int) -> HistoryRecord:
        return HistoryRecord(self._clock.now(), HistoryEvent.MISSED, detail="the disk refused them", count=count)

    def _append(self, kind: str, lines: bytes) -> None:
        """Write lines, and keep the bound: hours of records may have waited."""
        self._appenders[kind].append(lines, now_s=self._now_s())
        if self._unsynced_since_s is None:
            self._unsynced_since_s = self._clock.monotonic()
        self._prune(kind)

    def _take_out(self, batch: list[HistoryRecord]) -> None:
        written = set(map(id, batch))
        with self._lock:
            kept = [record for record in self._pending if id(record) not in written]
            self._pending.clear()
            self._pending.extend(kept)

    def _tidy(self) -> None:
        """Begin a new segment each day, and remove what is too old or too much."""
        now_s = self._now_s()
        history = self._appenders["history"]
        if history.is_old(now_s=now_s):
            history.begin(now_s=now_s)
            self._unsynced_since_s = self._clock.monotonic()
        for kind in KINDS:
            self._prune(kind)

    def _prune(self, kind: str) -> None:
        oldest_s = self._now_s() - self._bounds.days * DAY_S
        prune(self._directory, kind, bytes_max=self._bytes_max[kind], oldest_s=oldest_s)

    def _segment_bytes(self, kind: str) -> int:
        return self._bytes_max[kind] // SEGMENTS

    def _sync(self) -> None:
        for appender in self._appenders.values():
            appender.sync()
        self._unsynced_since_s = None

    def _head(self) -> bytes:
        """The first lines of a segment: the boot, and who has what."""
        mark = HistoryRecord(self._clock.now(), HistoryEvent.BOOTED, detail=self._boot.boot_id, since=self._boot.at)
        return b"".join(map(encode, (mark, *self._held())))

    def _now_s(self) -> float:
        return self._clock.now().timestamp()


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
