"""The datastore: one unit of work at a time on disk, everything else from memory.

Lock order: sandbox lock > `Disk.lock` > the lock inside `Index`. `reserve` and all reads but `history` and `audit` take the last
one only, so that nobody waits for a disk who does not change it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from ipaddress import IPv4Address

from ipamd.datastore.audit import contradictions, differences
from ipamd.datastore.disk import Disk, refusals
from ipamd.datastore.ledger import LEDGER_LIMIT, Ledger
from ipamd.datastore.memory_state import MemoryState
from ipamd.datastore.rows import Contents, read_contents
from ipamd.datastore.unit_of_work import SqlUnitOfWork
from ipamd.datastore.view import View
from ipamd.model.address import Address
from ipamd.model.attachment import Attachment
from ipamd.model.eni import Eni
from ipamd.model.errors import DatastoreError
from ipamd.model.ids import AttachmentKey, EniId
from ipamd.model.intent import Intent
from ipamd.model.ledger import LedgerEntry
from ipamd.model.plan import PoolCounts
from ipamd.ports import Clock, Datastore, Failpoint, no_failpoint

FAILPOINTS = ("datastore.begun", "datastore.before-commit", "datastore.after-commit")
"""Where crash tests may stop the process: after BEGIN, before COMMIT, and between COMMIT and memory."""


class SqlDatastore(Datastore):
    """SQLite behind the port. Made by `open.open_datastore`, which has checked the file."""

    def __init__(
        self,
        disk: Disk,
        contents: Contents,
        *,
        clock: Clock,
        failpoint: Failpoint = no_failpoint,
        ledger_limit: int = LEDGER_LIMIT,
    ) -> None:
        self._disk = disk
        self._index = MemoryState(contents)
        self._ledger = Ledger(disk, limit=ledger_limit)
        self._clock = clock
        self._failpoint = failpoint
        self._holder: int | None = None

    @contextmanager
    def transaction(self) -> Iterator[SqlUnitOfWork]:
        """See Datastore. Waits for other units of work, not for reservations or reads.

        Raises: DatastoreError if the disk refuses; then memory is as before, an address being confirmed is still reserved.
        """
        with self._transaction_lock():
            self._disk.begin()
            view = View(self._index)
            unit = SqlUnitOfWork(disk=self._disk, view=view, ledger=self._ledger, clock=self._clock)
            try:
                self._failpoint("datastore.begun")
                yield unit
                unit.flush()
                self._failpoint("datastore.before-commit")
                self._disk.commit()
            except BaseException:
                self._disk.rollback()
                view.release()
                raise
            finally:
                unit.end()
            try:
                self._failpoint("datastore.after-commit")
            finally:
                self._index.apply(view.staged)
                view.release()

    def reserve(self, key: AttachmentKey, *, now: datetime) -> Address:
        """See Datastore."""
        return self._index.reserve(key, now=now)

    def attachment(self, key: AttachmentKey) -> Attachment | None:
        """See Datastore."""
        return self._index.attachment(key)

    def attachments(self) -> tuple[Attachment, ...]:
        """See Datastore."""
        found = self._index.contents().attachments.values()
        return tuple(sorted(found, key=lambda attachment: (attachment.created_at, attachment.key)))

    def address(self, address: IPv4Address) -> Address | None:
        """See Datastore."""
        return self._index.address(address)

    def addresses(self) -> tuple[Address, ...]:
        """See Datastore."""
        return tuple(sorted(self._index.contents().addresses.values(), key=lambda address: address.address))

    def eni(self, eni_id: EniId) -> Eni | None:
        """See Datastore."""
        return self._index.eni(eni_id)

    def enis(self) -> tuple[Eni, ...]:
        """See Datastore."""
        found = self._index.contents().enis.values()
        return tuple(sorted(found, key=lambda eni: (eni.network_card, eni.device_index, eni.eni_id)))

    def counts(self) -> PoolCounts:
        """See Datastore."""
        return self._index.counts()

    def is_tombstoned(self, key: AttachmentKey) -> bool:
        """See Datastore."""
        return self._index.tombstone(key) is not None

    def open_intents(self) -> tuple[Intent, ...]:
        """See Datastore."""
        found = self._index.contents().intents.values()
        return tuple(sorted(found, key=lambda intent: (intent.opened_at, intent.intent_id)))

    def history(self, subject: str, *, limit: int) -> tuple[LedgerEntry, ...]:
        """See Datastore. Reads the disk, and so waits for a running unit of work."""
        with self._reading():
            return self._ledger.read(subject, limit=limit)

    def file_problem(self) -> str:
        """See Datastore. Does not wait for a running transaction: it looks at names only."""
        return "; ".join(self._disk.complaints())

    def audit(self) -> list[str]:
        """See Datastore. Reads the disk, and so waits for a running unit of work."""
        with self._reading():
            try:
                with refusals("auditing"):
                    disk = read_contents(self._disk.connection)
            except ValueError as error:
                return [f"the disk holds a value that is none of ours: {error}"]
            memory = self._index.contents()
            return [*differences(memory, disk), *contradictions(memory), *self._index.recount(), *self._disk.complaints()]

    def close(self) -> None:
        """See Datastore. Idempotent."""
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
