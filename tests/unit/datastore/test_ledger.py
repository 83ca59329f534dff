"""The ledger is bounded."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ipamd.datastore.store import PRUNE_EVERY
from ipamd.model.history import LedgerEvent
from tests.unit.datastore.support import a_key, open_at


def test_oldest_rows_go(path: Path) -> None:
    """Beyond its limit the ledger forgets the oldest rows, and never more than one batch is above the limit."""
    store = open_at(path, ledger_limit=100).datastore
    for batch in range(3):
        with store.transaction() as unit:
            for number in range(PRUNE_EVERY):
                unit.record_event(LedgerEvent.KEPT, key=a_key(), detail=f"{batch}-{number}")
    kept = store.history(a_key().container_id, limit=10_000)
    assert len(kept) == 100
    assert kept[-1].detail == f"2-{PRUNE_EVERY - 1}"
    store.close()


def test_the_latest_rows_of_all_subjects(path: Path) -> None:
    """Oldest first, as many as were asked for, and after a restart too; what was counted is this process's."""
    store = open_at(path).datastore
    with store.transaction() as unit:
        for number in range(5):
            unit.record_event(LedgerEvent.KEPT, key=a_key(number), detail=str(number))
    with suppress(ZeroDivisionError), store.transaction() as unit:
        unit.record_event(LedgerEvent.KEPT, key=a_key(), detail="never")
        raise ZeroDivisionError
    assert [row.detail for row in store.latest_history(limit=3)] == ["2", "3", "4"]
    assert store.latest_history(limit=0) == ()
    assert store.event_counts() == {"kept": 5}
    store.close()
    again = open_at(path).datastore
    assert [row.detail for row in again.latest_history(limit=100) if row.event == "kept"] == ["0", "1", "2", "3", "4"]
    assert again.event_counts().get("kept", 0) == 0
    again.close()
