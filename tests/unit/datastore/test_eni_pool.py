"""The column of an ENI's pool: written, read again, chosen from by a reservation, and removed by the way back to level 8."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.datastore import command
from ipamd.datastore.migrations import OLDEST_LEVEL
from ipamd.datastore.open import OpenOutcome
from ipamd.model.eni import Eni
from ipamd.model.errors import PoolEmptyError
from ipamd.model.pool_counts import assignable_count
from ipamd.ports.datastore import Datastore
from tests.unit.datastore.support import a_key, an_eni, fill, open_at


def give_to(store: Datastore, pool: str) -> Eni:
    """Make the first ENI one of a pool of pods."""
    eni = replace(store.enis()[0], pool=pool)
    with store.transaction() as unit:
        unit.put_eni(eni)
    return eni


def test_the_pool_of_an_eni_is_kept(path: Path) -> None:
    """The next process reads it, and knows without EC2 who gets its addresses. The node's own pool is NULL, as before."""
    store = open_at(path).datastore
    fill(store)
    own = (an_eni(7),)
    with store.transaction() as unit:
        unit.put_eni(own[0])
    eni = give_to(store, "cards")
    store.close()
    connection = sqlite3.connect(path)
    assert {row[0] for row in connection.execute("SELECT pool FROM eni")} == {None, "cards"}
    connection.close()
    again = open_at(path).datastore
    assert again.enis() == (eni, *own)
    again.close()


def test_a_reservation_takes_an_address_of_its_pool_only(path: Path) -> None:
    """An empty pool refuses, whatever the others have."""
    store = open_at(path).datastore
    fill(store)
    eni = give_to(store, "cards")
    assert store.reserve(a_key(1), pool="cards").eni_id == eni.eni_id
    with pytest.raises(PoolEmptyError):
        store.reserve(a_key(2), pool="batch")
    own_count = assignable_count(store.stock())
    taken = {store.reserve(a_key(number)).eni_id for number in range(3, 3 + own_count)}
    assert eni.eni_id not in taken
    with pytest.raises(PoolEmptyError):
        store.reserve(a_key(3 + own_count))
    assert store.audit() == []
    store.close()


def test_the_way_back_drops_the_pool_and_no_row(path: Path) -> None:
    """A file of level 8 has no such column: its ENIs are all of the node's own pool."""
    store = open_at(path).datastore
    fill(store)
    eni = give_to(store, "cards")
    store.close()
    assert command.main(["datastore", "--file", str(path), "downgrade", "--to", str(OLDEST_LEVEL)]) == 0
    connection = sqlite3.connect(path)
    names = [row[1] for row in connection.execute("PRAGMA table_info(eni)")]
    connection.close()
    assert "pool" not in names
    again = open_at(path)
    assert again.report.outcome is OpenOutcome.INTACT
    assert again.datastore.eni(eni.eni_id) == replace(eni, pool="")
    again.datastore.close()
