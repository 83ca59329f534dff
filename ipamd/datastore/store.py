"""The datastore: one unit of work at a time on disk, everything else from memory.

Lock order: sandbox lock > `Disk.lock` > the lock of `MemoryState`. What that answers (`reserve`, all reads but `history` and `audit`)
takes the last one only, so that only those who change something wait for the disk. `ports.Datastore` says what each method promises.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ipamd.datastore.audit import contradictions, differences
from ipamd.datastore.disk import Disk, refusals
from ipamd.datastore.ledger import LEDGER_LIMIT, Ledger
from ipamd.datastore.memory_state import MemoryState
from ipamd.datastore.rows import read_snapshot
from ipamd.datastore.unit_of_work import SqlUnitOfWork
from ipamd.datastore.view import View
from ipamd.model.errors import DatastoreError
from ipamd.model.history import HistoryRecord
from ipamd.model.snapshot import Snapshot
from ipamd.ports import Clock, Datastore, Failpoint, History, NoHistory, no_failpoint

FAILPOINTS = ("datastore.begun", "datastore.before-commit", "datastore.after-commit")
"""Where crash tests may stop the process: after BEGIN, before COMMIT, and between COMMIT and memory."""


class SqlDatastore(MemoryState, Datastore):
    """The port: what is committed, in memory, and SQLite behind it. Made by `open.open_datastore`, which has checked the file."""

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
        """Wait for other units of work, not for reservations or reads.

        Raises: DatastoreError if the disk refuses; then memory is as before, an address being confirmed is still reserved.
        """
        with self._transaction_lock():
            self._disk.begin()
            view = View(self)
            unit = SqlUnitOfWork(disk=self._disk, view=view, clock=self._clock)
            try:
                self._failpoint("datastore.begun")
                yield unit
                unit.flush(self._ledger)
                self._failpoint("datastore.before-commit")
                self._disk.commit()
            except BaseException:
                self._disk.rollback()
                view.release()
                raise
            finally:
                unit.end()
            # A committed change must reach memory even if the next step fails, or memory and disk differ until a restart.
            try:
                self._failpoint("datastore.after-commit")
            finally:
                self.apply(view.staged)
                view.release()
                self._events.update(unit.events())
                self._history.note(unit.recorded)

    def keep_history(self, history: History) -> None:
        """Tell what is committed from now on to the history, which touches no disk (I10)."""
        self._history = history

    def history(self, subject: str, *, limit: int) -> tuple[HistoryRecord, ...]:
        """Read the disk, after any unit of work that is open."""
        with self._reading():
            return self._ledger.read(subject, limit=limit)

    def latest_history(self, *, limit: int) -> tuple[HistoryRecord, ...]:
        """Read the disk, after any unit of work that is open."""
        with self._reading():
            return self._ledger.latest(limit=limit)

    def event_counts(self) -> Mapping[str, int]:
        """Counted under the transaction's lock; the copy is made without it, so that no reader waits for the disk."""
        return dict(self._events)

    def file_problem(self) -> str:
        """Look at file names and our own state only: an open unit of work is not waited for."""
        return "; ".join(self._disk.complaints())

    def audit(self) -> list[str]:
        """Read the disk, after any unit of work that is open."""
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
