"""The ledger is bounded."""

from __future__ import annotations

from pathlib import Path

from ipamd.datastore.ledger import PRUNE_EVERY
from ipamd.model.ledger import LedgerEvent
from tests.unit.datastore.support import a_key, open_at


def test_oldest_rows_go(path: Path) -> None:
    """Beyond its limit the ledger forgets the oldest rows, and never more than one batch is above the limit."""
    store = open_at(path, ledger_limit=100).datastore
    for batch in range(3):
        with store.transaction() as unit:
            for number in range(PRUNE_EVERY):
                unit.note(LedgerEvent.KEPT, key=a_key(), detail=f"{batch}-{number}")
    kept = store.history(a_key().container_id, limit=10_000)
    assert len(kept) == 100
    assert kept[-1].detail == f"2-{PRUNE_EVERY - 1}"
    store.close()
