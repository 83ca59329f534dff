"""One unit of work: each change goes to the open transaction at once, and to memory only after COMMIT.

The changes are in four modules by subject: `pool_changes`, `address_changes`, `loss_changes` and `record_changes`; `changes` has what
they share. `ports.UnitOfWork` says what each promises; docstrings here add only what is specific to this implementation.
"""

from __future__ import annotations

from ipamd.datastore.address_changes import AddressChanges
from ipamd.datastore.ledger import Ledger
from ipamd.datastore.loss_changes import LossChanges
from ipamd.datastore.pool_changes import PoolChanges
from ipamd.datastore.record_changes import RecordChanges
from ipamd.model.errors import DatastoreError
from ipamd.ports import UnitOfWork


class SqlUnitOfWork(PoolChanges, AddressChanges, LossChanges, RecordChanges, UnitOfWork):
    """The changes of one transaction. Made by `SqlDatastore.transaction`, which commits or rolls back."""

    def flush(self, ledger: Ledger) -> None:
        """Write the ledger rows, all in one statement: the last step before COMMIT."""
        self.raise_if_failed()
        ledger.write(self._ledger_rows)

    def events(self) -> list[str]:
        """The events of the ledger rows that were written, one for each row."""
        return [str(row["event"]) for row in self._ledger_rows]

    def end(self) -> None:
        """Refuse further use."""
        self.failure = self.failure or DatastoreError(
            "the unit of work has ended", details="a change was asked of it after its transaction; nothing was changed"
        )
