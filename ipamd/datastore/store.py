"""The datastore: one unit of work at a time on disk, everything else from memory.

Lock order: sandbox lock > `Disk.lock` > the lock inside `MemoryState`. `reserve` and all reads but `history` and `audit` take the
last one only, so that only those who change something wait for the disk. `ports.Datastore` says what each method promises.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import IPv4Address

from ipamd.datastore.audit import contradictions, differences
from ipamd.datastore.disk import Disk, refusals
from ipamd.datastore.ledger import LEDGER_LIMIT, Ledger
from ipamd.datastore.memory_state import MemoryState
from ipamd.datastore.rows import read_snapshot
from ipamd.datastore.unit_of_work import SqlUnitOfWork
from ipamd.datastore.view import View
from ipamd.model.absence import Doubts
from ipamd.model.address import Address, AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.eni import Eni
from ipamd.model.errors import DatastoreError
from ipamd.model.ids import AttachmentKey, EniId
from ipamd.model.intent import Intent
from ipamd.model.ledger import LedgerEntry
from ipamd.model.release import Draining
from ipamd.model.snapshot import Snapshot, eni_place
from ipamd.model.stock import PoolCounts, Stock
from ipamd.ports import Clock, Datastore, Failpoint, History, NoHistory, no_failpoint

FAILPOINTS = ("datastore.begun", "datastore.before-commit", "datastore.after-commit")
"""Where crash tests may stop the process: after BEGIN, before COMMIT, and between COMMIT and memory."""


class SqlDatastore(Datastore):
    """SQLite behind the port. Made by `open.open_datastore`, which has checked the file."""

    def __init__(
        self,
        disk: Disk,
        snapshot: Snapshot,
        *,
        clock: Clock,
        failpoint: Failpoint = no_failpoint,
        ledger_limit: int = LEDGER_LIMIT,
    ) -> None:
        self._history: History = NoHistory()
        self._disk = disk
        self._memory = MemoryState(snapshot)
        self._ledger = Ledger(disk, limit=ledger_limit)
        self._clock = clock
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
            view = View(self._memory)
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
                self._memory.apply(view.staged)
                view.release()
                self._events.update(unit.events())
                self._history.note(unit.recorded)

    def keep_history(self, history: History) -> None:
        """Tell what is committed from now on to the history, which touches no disk (I10)."""
        self._history = history

    def reserve(self, key: AttachmentKey) -> Address:
        return self._memory.reserve(key, now=self._clock.now(), now_s=self._clock.monotonic())

    def snapshot(self) -> Snapshot:
        return self._memory.snapshot()

    def attachment(self, key: AttachmentKey) -> Attachment | None:
        return self._memory.attachment(key)

    def attachments(self) -> tuple[Attachment, ...]:
        return tuple(sorted(self._memory.attachments(), key=lambda attachment: (attachment.created_at, attachment.key)))

    def address(self, address: IPv4Address) -> Address | None:
        return self._memory.address(address)

    def addresses(self, *, state: AddressState | None = None) -> tuple[Address, ...]:
        # By number: comparing the objects takes five times as long, and a node may have 11,760.
        return tuple(sorted(self._memory.addresses(state), key=lambda address: int(address.address)))

    def eni(self, eni_id: EniId) -> Eni | None:
        return self._memory.eni(eni_id)

    def enis(self) -> tuple[Eni, ...]:
        return tuple(sorted(self._memory.enis(), key=eni_place))

    def counts(self) -> PoolCounts:
        return self._memory.counts()

    def stock(self) -> Stock:
        return self._memory.stock()

    def hold(self, addresses: frozenset[IPv4Address]) -> None:
        self._memory.hold(addresses)

    def held(self) -> frozenset[IPv4Address]:
        return self._memory.held()

    def set_draining(self, draining: Draining) -> None:
        self._memory.set_draining(draining)

    def is_tombstoned(self, key: AttachmentKey) -> bool:
        return self._memory.tombstone(key) is not None

    def open_intents(self) -> tuple[Intent, ...]:
        return tuple(sorted(self._memory.intents(), key=lambda intent: (intent.opened_at, intent.intent_id)))

    def doubts(self) -> Doubts:
        return self._memory.doubts()

    def history(self, subject: str, *, limit: int) -> tuple[LedgerEntry, ...]:
        """Read the disk, after any unit of work that is open."""
        with self._reading():
            return self._ledger.read(subject, limit=limit)

    def latest_history(self, *, limit: int) -> tuple[LedgerEntry, ...]:
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
            memory = self._memory.snapshot()
            return [*differences(memory, disk), *contradictions(memory), *self._memory.recount(), *self._disk.complaints()]

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
