"""The datastore: changes go to disk, one unit of work at a time; almost all reads are answered from memory.

Lock order: sandbox lock > `Disk.lock` > the lock of `MemoryState`. Only changes, reads of the ledger (`history`, `latest_history`,
`read_since`), `audit` and `close` take `Disk.lock`. `reserve` and all other reads take at most the lock of `MemoryState`, so they
never wait for the disk. `ports.Datastore` documents the methods.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, delete, func, insert, or_, select

from ipamd.datastore import schema
from ipamd.datastore.disk import Disk, refusals
from ipamd.datastore.memory_state import MemoryState
from ipamd.datastore.rows import read_snapshot, read_time, time_text
from ipamd.datastore.statements import Params
from ipamd.datastore.unit_of_work import SqlUnitOfWork
from ipamd.model.errors import DatastoreError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.history import HistoryRecord, LedgerEvent, RecordedHistory
from ipamd.model.history_subject import HistorySubject
from ipamd.model.snapshot import Snapshot
from ipamd.model.snapshot_checks import contradictions, differences
from ipamd.ports.history import History, NoHistory
from ipamd.ports.process import Clock, Failpoint, no_failpoint

FAILPOINTS = ("datastore.begun", "datastore.before-commit", "datastore.after-commit")
"""Where crash tests may stop the process: after BEGIN, before COMMIT, and between COMMIT and memory."""

# The ledger records what happened to every address, in the same transaction as the change itself. It is bounded, because `/run` is
# memory that is charged to the daemon: after every `PRUNE_EVERY` rows the transaction also deletes the oldest rows beyond the limit.

LEDGER_LIMIT = 20_000
"""The largest number of rows of the ledger. Ours: with four rows for each sandbox these are 5,000 sandboxes, in about 6 MB of
tmpfs."""

PRUNE_EVERY = 500
"""Rows written between two prunings. Ours: the transaction that prunes is hardly slower, because one DELETE of 500 rows costs less
than 2 ms."""

SANDBOXES_MAX = 20
"""How many sandboxes of one pod are searched for in the ledger. Ours: a pod has one sandbox, and one more each time that its sandbox
was recreated, so few pods have had more."""

LEDGER_FIELDS = ("at", "event", "address", "container_id", "ifname", "eni_id", "detail")

_INSERT = insert(schema.ledger)
_NEWEST = select(func.max(schema.ledger.c.sequence))
_PRUNE = delete(schema.ledger).where(schema.ledger.c.sequence <= bindparam("last"))
_HISTORY = (
    select(schema.ledger)
    .where(
        or_(
            schema.ledger.c.address == bindparam("subject"),
            # A range instead of LIKE: it uses the index, distinguishes upper and lower case, and needs no escaping.
            schema.ledger.c.container_id.between(bindparam("subject"), bindparam("beyond")),
        )
    )
    .order_by(schema.ledger.c.sequence.desc())
    .limit(bindparam("row_limit"))
)
_LATEST = (
    select(schema.ledger)
    .where(schema.ledger.c.at >= bindparam("since"))
    .order_by(schema.ledger.c.sequence.desc())
    .limit(bindparam("row_limit"))
)
_SANDBOXES_OF_POD = (
    select(schema.ledger.c.container_id)
    .distinct()
    .where(
        schema.ledger.c.event == LedgerEvent.ASSIGNED.value,
        or_(
            schema.ledger.c.detail == bindparam("subject"),
            func.substr(schema.ledger.c.detail, bindparam("from_end")) == bindparam("ending"),
        ),
    )
    .order_by(schema.ledger.c.sequence.desc())
    .limit(SANDBOXES_MAX)
)
_HIGHEST = "\U0010ffff"


class Ledger:
    """Writer and reader of the ledger. Used under the disk's lock only."""

    def __init__(self, disk: Disk, *, limit: int = LEDGER_LIMIT) -> None:
        self._disk = disk
        self._limit = limit
        # The first write prunes, because the last process may have stopped just before a pruning.
        self._unpruned_count = PRUNE_EVERY

    def write(self, entries: list[Params]) -> None:
        """Append rows within the open transaction. After PRUNE_EVERY rows also delete the oldest rows beyond the ledger's limit."""
        self._disk.write(_INSERT, entries, subject="writing the ledger")
        self._unpruned_count += len(entries)
        if entries and self._unpruned_count >= PRUNE_EVERY:
            newest = self._disk.execute(_NEWEST, subject="pruning the ledger").scalar_one()
            self._disk.execute(_PRUNE, {"last": newest - self._limit}, subject="pruning the ledger")
            self._unpruned_count = 0

    def read(self, subject: str, *, limit: int) -> tuple[HistoryRecord, ...]:
        """Find the last `limit` rows about a subject, oldest first.

        `subject`: an address, a pod that had an address (`namespace/name` or name), or the beginning of a container ID.
        """
        if not subject or limit <= 0:
            return ()
        reading, subjects = f"reading the history of {subject!r}", [subject]
        if not HistorySubject(subject).is_address:
            pod: Params = {"subject": subject, "ending": f"/{subject}", "from_end": -len(subject) - 1}
            # This scans the whole ledger, which takes some milliseconds.
            subjects = list(self._disk.execute(_SANDBOXES_OF_POD, pod, subject=reading).scalars()) or subjects
        rows: dict[int, Row[Any]] = {}
        for prefix in subjects:
            params: Params = {"subject": prefix, "beyond": prefix + _HIGHEST, "row_limit": limit}
            rows |= {row.sequence: row for row in self._disk.execute(_HISTORY, params, subject=reading)}
        return tuple(_record(rows[sequence]) for sequence in sorted(rows)[-limit:])


def _record(row: Row[Any]) -> HistoryRecord:
    return HistoryRecord(**{name: getattr(row, name) for name in LEDGER_FIELDS} | {"at": read_time(row.at)})


class SqlDatastore(MemoryState):
    """The implementation of `ports.Datastore`. Made by `open.open_datastore`, which has checked the file.

    Memory has the committed state, and SQLite stores it. Reads of memory never wait for the disk, and show the last committed unit of
    work; only the ledger and the audit are read from disk.
    """

    def __init__(
        self,
        disk: Disk,
        snapshot: Snapshot,
        *,
        clock: Clock,
        failpoint: Failpoint = no_failpoint,
        ledger_limit: int = LEDGER_LIMIT,
    ) -> None:
        super().__init__(snapshot, clock=clock)
        self._history: History = NoHistory()
        self._disk = disk
        self._ledger = Ledger(disk, limit=ledger_limit)
        self._failpoint = failpoint
        self._holder: int | None = None
        self._events: Counter[str] = Counter()

    @contextmanager
    def transaction(self) -> Iterator[SqlUnitOfWork]:
        with self._transaction_lock():
            self._disk.begin()
            unit = SqlUnitOfWork(disk=self._disk, memory=self, clock=self._clock)
            try:
                self._failpoint("datastore.begun")
                yield unit
                unit.raise_if_failed()
                self._ledger.write(unit.ledger_rows)
                self._failpoint("datastore.before-commit")
                self._disk.commit()
            except BaseException:
                self._disk.rollback()
                self.release(unit.view.claimed)
                raise
            finally:
                unit.end()
            # A committed change must reach memory even if the failpoint raises. Otherwise memory and disk differ until a restart.
            try:
                self._failpoint("datastore.after-commit")
            finally:
                self.apply(unit.view)
                self.release(unit.view.claimed)
                self._events.update(row["event"] for row in unit.ledger_rows)
                self._history.enqueue(unit.recorded)

    def keep_history(self, history: History) -> None:
        self._history = history

    def history(self, subject: str, *, limit: int) -> tuple[HistoryRecord, ...]:
        with self._reading():
            return self._ledger.read(subject, limit=limit)

    def latest_history(self, *, limit: int = LEDGER_LIMIT, since: str = "") -> tuple[HistoryRecord, ...]:
        params: Params = {"row_limit": max(limit, 0), "since": since}
        with self._reading():
            rows = self._disk.execute(_LATEST, params, subject="reading the latest history").all()
        return tuple(map(_record, reversed(rows)))

    def read_since(self, since: datetime) -> RecordedHistory:
        return RecordedHistory(self.latest_history(since=time_text(since)))

    def event_counts(self) -> Mapping[str, int]:
        return dict(self._events)

    def file_problem(self) -> str:
        return "; ".join(self._disk.complaints())

    def audit(self) -> list[str]:
        if self._disk.is_broken:
            return self._disk.complaints()
        with self._reading():
            try:
                with refusals("auditing"):
                    disk = read_snapshot(self._disk.connection)
            except ValueError as error:
                return [f"a value on disk cannot be read: {error}"]
            memory = self.snapshot()
            return [*differences(memory, disk), *contradictions(memory), *self.recount(), *self._disk.complaints()]

    def close(self) -> None:
        with self._transaction_lock():
            self._disk.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._transaction_lock():
            self._disk.begin()
            try:
                yield
            finally:
                self._disk.rollback()

    @contextmanager
    def _transaction_lock(self) -> Iterator[None]:
        # Without this check, a unit of work inside another one of the same thread would wait for itself for ever.
        if self._holder == threading.get_ident():
            raise failure(DatastoreError, FailureCode.UNITS_NESTED)
        with self._disk.lock:
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = None
