"""That the admission policy's mark was seen on a pod: remembered over a restart, for this boot."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipamd.datastore.store import SqlDatastore
from tests.unit.datastore.support import open_at


def test_it_is_remembered(path: Path, store: SqlDatastore) -> None:
    """Once recorded it stays, whatever else changes; a unit that is rolled back has recorded nothing."""
    assert not store.are_pods_marked()
    with pytest.raises(ZeroDivisionError):
        _record_and_fail(store)
    assert not store.are_pods_marked()
    with store.transaction() as unit:
        unit.record_marked()
    with store.transaction() as unit:
        unit.record_marked()
        unit.mark_restored(detail="")
    assert store.are_pods_marked()
    store.close()
    again = open_at(path).datastore
    assert again.are_pods_marked()
    assert again.snapshot().are_pods_marked
    again.close()


def _record_and_fail(store: SqlDatastore) -> None:
    with store.transaction() as unit:
        unit.record_marked()
        raise ZeroDivisionError


def test_another_boot_knows_nothing_of_it(path: Path, store: SqlDatastore) -> None:
    """Its pods are made anew, and the policy may have gone meanwhile."""
    with store.transaction() as unit:
        unit.record_marked()
    store.close()
    again = open_at(path, boot_id="another").datastore
    assert not again.are_pods_marked()
    again.close()
