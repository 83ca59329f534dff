"""The datastore: one unit of work at a time on disk, everything else from memory.

Lock order: sandbox lock > `Disk.lock` > the lock of `MemoryState`. What that answers (`reserve`, all reads but `history` and `audit`)
takes the last one only, so that only those who change something wait for the disk. `ports.Datastore` says what each method promises.
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
from ipamd.datastore.rows import Params, read_snapshot, read_time, time_text
from ipamd.datastore.unit_of_work import UnitOfWork
from ipamd.model.errors import DatastoreError
from ipamd.model.history import HistoryRecord, LedgerEvent, Recorded, Subject
from ipamd.model.snapshot import Snapshot, contradictions, differences
from ipamd.ports import Clock, Failpoint, History, NoHistory, no_failpoint

FAILPOINTS = ("datastore.begun", "datastore.before-commit", "datastore.after-commit")
"""Where crash tests may stop the process: after BEGIN, before COMMIT, and between COMMIT and memory."""

# The ledger: what happened to every address, written in the transaction in which it happened.
#
# Bounded, because `/run` is memory that counts as the daemon's: every `PRUNE_EVERY` rows the oldest ones beyond the limit are
# deleted, in the transaction that writes the newest.


LEDGER_LIMIT = 20_000
"""Rows. Ours: four rows a sandbox make 5,000 sandboxes, in about 6 MB of tmpfs."""

PRUNE_EVERY = 500
"""Rows written between two prunings. Ours: one DELETE of 500 rows costs less than 2 ms."""

SANDBOXES_MAX = 20
"""Sandboxes of one pod that are told. Ours: a pod has one, and another each time it was made again."""

LEDGER_FIELDS = ("at", "event", "address", "container_id", "ifname", "eni_id", "detail")

_INSERT = insert(schema.ledger)
_NEWEST = select(func.max(schema.ledger.c.sequence))
_PRUNE = delete(schema.ledger).where(schema.ledger.c.sequence <= bindparam("last"))
_HISTORY = (
    select(schema.ledger)
    .where(
        or_(
            schema.ledger.c.address == bindparam("subject"),
            # A range instead of LIKE: it uses the index, tells upper from lower case, and nothing needs escaping.
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
        self._unpruned_count = PRUNE_EVERY  # the first write prunes: the last process may have stopped just before

    def write(self, entries: list[Params]) -> None:
        """Append rows within the open transaction."""
        self._disk.write(_INSERT, entries, subject="writing the ledger")
        self._unpruned_count += len(entries)
        if entries and self._unpruned_count >= PRUNE_EVERY:
            newest = self._disk.execute(_NEWEST, subject="pruning the ledger").scalar_one()
            self._disk.execute(_PRUNE, {"last": newest - self._limit}, subject="pruning the ledger")
            self._unpruned_count = 0

    def read(self, subject: str, *, limit: int) -> tuple[HistoryRecord, ...]:
        """Find the last `limit` rows, oldest first, of an address, of a pod (`namespace/name` or name) that was given one, or of
        container IDs that begin with `subject`.
        """
        if not subject or limit <= 0:
            return ()
        reading, subjects = f"reading the history of {subject!r}", [subject]
        if not Subject(subject).is_address:
            pod: Params = {"subject": subject, "ending": f"/{subject}", "from_end": -len(subject) - 1}
            # Looks at every row of the ledger: some milliseconds.
            subjects = list(self._disk.execute(_SANDBOXES_OF_POD, pod, subject=reading).scalars()) or subjects
        found: dict[int, Row[Any]] = {}
        for one in subjects:
            params: Params = {"subject": one, "beyond": one + _HIGHEST, "row_limit": limit}
            found |= {row.sequence: row for row in self._disk.execute(_HISTORY, params, subject=reading)}
        return tuple(_record(found[sequence]) for sequence in sorted(found)[-limit:])


def _record(row: Row[Any]) -> HistoryRecord:
    return HistoryRecord(**{name: getattr(row, name) for name in LEDGER_FIELDS} | {"at": read_time(row.at)})


class Datastore(MemoryState):
    """Who owns which address. Reads are from memory and never block on disk; they equal the last committed unit of work.

    What is committed is in memory, and SQLite behind it. Made by `open.open_datastore`, which has checked the file.
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
    def transaction(self) -> Iterator[UnitOfWork]:
        """Open the one unit of work: serialised, BEGIN IMMEDIATE. An exception inside rolls back disk and memory.

        Waits for other units of work, not for reservations or reads.
        Raises: DatastoreError if the disk refuses; then memory is as before, an address being confirmed is still reserved.
        """
        with self._transaction_lock():
            self._disk.begin()
            unit = UnitOfWork(disk=self._disk, memory=self, clock=self._clock)
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
            # A committed change must reach memory even if the next step fails, or memory and disk differ until a restart.
            try:
                self._failpoint("datastore.after-commit")
            finally:
                self.apply(unit.view)
                self.release(unit.view.claimed)
                self._events.update(row["event"] for row in unit.ledger_rows)
                self._history.enqueue(unit.recorded)

    def keep_history(self, history: History) -> None:
        """Tell what is committed from now on to the history, which touches no disk (I10)."""
        self._history = history

    def history(self, subject: str, *, limit: int) -> tuple[HistoryRecord, ...]:
        """Ledger rows of an address or of container IDs that begin with `subject`, oldest first, the last `limit` of them.

        Reads the disk, after any unit of work that is open.
        """
        with self._reading():
            return self._ledger.read(subject, limit=limit)

    def latest_history(self, *, limit: int = LEDGER_LIMIT, since: str = "") -> tuple[HistoryRecord, ...]:
        """The last `limit` ledger rows of all, oldest first. Reads the disk, after any unit of work that is open."""
        params: Params = {"row_limit": max(limit, 0), "since": since}
        with self._reading():
            rows = self._disk.execute(_LATEST, params, subject="reading the latest history").all()
        return tuple(map(_record, reversed(rows)))

    def read_since(self, since: datetime) -> Recorded:
        """The ledger's rows from an instant on, as `History.read_since` has the node's. Reads the disk."""
        return Recorded(self.latest_history(since=time_text(since)))

    def event_counts(self) -> Mapping[str, int]:
        """How many ledger rows this process has committed, by event (a LedgerEvent); events that did not happen may be missing.

        Counted under the transaction's lock; the copy is made without it, so that no reader waits for the disk.
        """
        return dict(self._events)

    def file_problem(self) -> str:
        """Say in one sentence if no change is accepted any more; else "".

        The file was removed or replaced under us, or the disk failed so that nobody knows what it holds: only a restart helps.
        Looks at file names and our own state only: an open unit of work is not waited for.
        """
        return "; ".join(self._disk.complaints())

    def audit(self) -> list[str]:
        """Compare memory with disk and check what constraints cannot say; one sentence per difference, empty if clean.

        Reads the disk, after any unit of work that is open.
        """
        if self._disk.is_broken:
            return self._disk.complaints()
        with self._reading():
            try:
                with refusals("auditing"):
                    disk = read_snapshot(self._disk.connection)
            except ValueError as error:
                return [f"the disk holds a value that is none of ours: {error}"]
            memory = self.snapshot()
            return [*differences(memory, disk), *contradictions(memory), *self.recount(), *self._disk.complaints()]

    def close(self) -> None:
        """Release the file, after any unit of work that is open; a second call is fine."""
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
        # Without this a nested unit of work would wait for its own thread for ever.
        if self._holder == threading.get_ident():
            raise DatastoreError(
                "a unit of work is open in this thread already", details="a defect of ours: units of work do not nest"
            )
        with self._disk.lock:
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = None
