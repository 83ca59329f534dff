"""An address that is kept for its pod between DEL and ADD, and ranges from which only named addresses are given (docs/adr/0083)."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from ipamd.datastore import command
from ipamd.datastore.migrations import OLDEST_LEVEL
from ipamd.datastore.open import OpenOutcome
from ipamd.datastore.store import SqlDatastore
from ipamd.model.address import AddressState
from ipamd.model.errors import PoolEmptyError
from ipamd.model.family import IpAddress
from ipamd.model.history import LedgerEvent
from tests.unit.datastore.support import COOLDOWN, a_key, an_attachment, fill, open_at

POD = "web/db-0"
KEPT_S = 600


def attach_kept(store: SqlDatastore, number: int = 1, *, kept_s: int | None = KEPT_S) -> IpAddress:
    """ADD of the pod whose address is kept afterwards."""
    key = a_key(number)
    attachment = replace(an_attachment(store.reserve(key), key), pod_namespace="web", pod_name="db-0", kept_s=kept_s)
    with store.transaction() as unit:
        unit.confirm(attachment)
    return attachment.address


def detach(store: SqlDatastore, address: IpAddress, number: int = 1) -> None:
    """DEL, and the end of the cooldown."""
    with store.transaction() as unit:
        unit.unassign(a_key(number), cooldown=COOLDOWN, reason="DEL")
    with store.transaction() as unit:
        unit.free(address, reason="cooled")


def take_all(store: SqlDatastore, first: int = 10) -> set[IpAddress]:
    """Reserve until nothing is left that anybody may have."""
    taken: set[IpAddress] = set()
    for number in range(first, first + 300):
        try:
            taken.add(store.reserve(a_key(number)).address)
        except PoolEmptyError:
            return taken
    raise AssertionError("the pool does not end")


def test_a_kept_address_is_its_pods_alone(path: Path) -> None:
    """Everybody else gets all others; the pod gets this one by name; the next process knows that too."""
    store = open_at(path).datastore
    fill(store)
    address = attach_kept(store)
    detach(store, address)
    store.close()
    store = open_at(path).datastore
    row = store.address(address)
    assert row is not None
    assert (row.state, row.kept_for) == (AddressState.FREE, POD)
    assert address in store.withheld()
    assert address not in take_all(store)
    with pytest.raises(PoolEmptyError):
        store.reserve(a_key(2), address=address, pod="web/db-1")
    assert store.reserve(a_key(2), address=address, pod=POD).address == address
    assert store.recount() == []
    store.close()


def test_the_mark_ends_with_the_next_add(path: Path) -> None:
    """A pod that comes again without the annotation leaves an ordinary address."""
    store = open_at(path).datastore
    fill(store)
    address = attach_kept(store)
    detach(store, address)
    again = an_attachment(store.reserve(a_key(2), address=address, pod=POD), a_key(2))
    with store.transaction() as unit:
        unit.confirm(again)
    row = store.address(address)
    assert row is not None
    assert (row.state, row.kept_for, row.kept_until_s) == (AddressState.ASSIGNED, None, None)
    detach(store, address, 2)
    assert address not in store.withheld()
    assert address in take_all(store)
    store.close()


def test_a_failed_add_leaves_the_address_with_its_pod(path: Path) -> None:
    """An abort cools it, and it is kept as before."""
    store = open_at(path).datastore
    fill(store)
    address = attach_kept(store)
    detach(store, address)
    store.reserve(a_key(2), address=address, pod=POD)
    with store.transaction() as unit:
        unit.abort(address, cooldown=COOLDOWN, reason="failed")
    row = store.address(address)
    assert row is not None
    assert (row.state, row.kept_for) == (AddressState.COOLING, POD)
    store.close()


def test_keeping_ends_once(path: Path) -> None:
    """Then anybody may have the address, and the ledger has one event, also if it is ended twice."""
    store = open_at(path).datastore
    fill(store)
    address = attach_kept(store)
    detach(store, address)
    for _ in range(2):
        with store.transaction() as unit:
            unit.end_keeping(address, reason="its time is over")
    assert address in take_all(store)
    assert store.event_counts()[LedgerEvent.KEEPING_ENDED] == 1
    store.close()


def test_a_cooling_address_is_nobodys(path: Path) -> None:
    """I8: not even its own pod's, before the cooldown has freed it."""
    store = open_at(path).datastore
    fill(store)
    address = attach_kept(store)
    with store.transaction() as unit:
        unit.unassign(a_key(), cooldown=COOLDOWN, reason="DEL")
    with pytest.raises(PoolEmptyError):
        store.reserve(a_key(2), address=address, pod=POD)
    store.close()


def test_a_range_gives_named_addresses_only(path: Path) -> None:
    """Also those that were there before; counters and order agree with the rows."""
    store = open_at(path).datastore
    fill(store)
    free = [row.address for row in store.addresses() if row.prefix is None]
    pinned = IPv4Network(f"{free[0]}/32")
    store.pin((pinned,))
    assert store.recount() == []
    assert store.counts().withheld == 1
    assert free[0] not in take_all(store)
    assert store.reserve(a_key(2), address=free[0], pod=POD).address == free[0]
    assert store.recount() == []
    store.close()


def test_the_way_back_drops_the_marks_and_no_row(path: Path) -> None:
    """A file of level 8 has no such columns: an address that was kept is as any other."""
    store = open_at(path).datastore
    fill(store)
    address = attach_kept(store)
    detach(store, address)
    other = attach_kept(store, 3)
    store.close()
    assert command.main(["datastore", "--file", str(path), "downgrade", "--to", str(OLDEST_LEVEL)]) == 0
    connection = sqlite3.connect(path)
    names = {row[1] for table in ("attachment", "address") for row in connection.execute(f"PRAGMA table_info({table})")}
    connection.close()
    assert not names & {"kept_s", "kept_for", "kept_until_s"}
    again = open_at(path)
    assert again.report.outcome is OpenOutcome.INTACT
    rows = {row.address: row for row in again.datastore.addresses()}
    assert rows[address].kept_for is None
    assert again.datastore.attachment(a_key(3)) is not None
    assert rows[other].state is AddressState.ASSIGNED
    again.datastore.close()
