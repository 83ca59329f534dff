"""Sandboxes with branch ENIs: rows of their own beside the pool's, which keep each other apart, on disk as in memory (I1, I6, I19)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from ipamd.datastore.store import SqlDatastore
from ipamd.datastore.unit_of_work import SqlUnitOfWork
from ipamd.model.errors import InvariantError, UnknownAttachmentError
from ipamd.model.history import LedgerEvent
from ipamd.model.record import replace
from tests.unit.datastore.support import (
    COOLDOWN,
    FakeClock,
    a_branch,
    a_key,
    an_attachment,
    an_eni,
    attach,
    crashed_copy,
    eni_id,
    ip,
    open_at,
    raw,
)

PRIMARY, FREE = "10.0.0.4", "10.0.0.102"
"""The primary address of the ENI, and a free one of the pool."""


def put(store: SqlDatastore, *branches: int) -> None:
    """Attach sandboxes to the branch ENIs of VLANs."""
    with store.transaction() as unit:
        for vlan in branches:
            unit.confirm(a_branch(vlan))


def test_a_life(path: Path, store: SqlDatastore, clock: FakeClock, tmp_path: Path) -> None:
    """Attached, renamed, compared with EC2 and detached; a kill at any moment changes nothing, and the pool has no part in it."""
    before = store.counts()
    put(store, 2, 3)
    attach(store, a_key(1))
    with store.transaction() as unit:
        unit.rename_veth(a_branch(2).key, host_veth="vlanother")
        unit.record_contradiction(a_branch(2).key, contradiction="its MAC is another")
        unit.record_contradiction(a_branch(3).key, contradiction="")
    again = open_at(crashed_copy(path, tmp_path / "killed"), clock=clock).datastore
    assert again.snapshot() == store.snapshot()
    found = {one.key: one for one in again.attachments()}
    renamed = found[a_branch(2).key]
    assert (renamed.host_veth, renamed.contradiction, renamed.uplink) == ("vlanother", "its MAC is another", a_branch(2).uplink)
    assert found[a_branch(3).key] == replace(a_branch(3), contradiction="")
    assert found[a_key(1)].uplink is None
    assert found[a_branch(3).key].since_monotonic_s == clock.monotonic()
    with again.transaction() as unit:
        assert unit.unassign(a_branch(2).key, cooldown=COOLDOWN, reason="DEL").uplink == a_branch(2).uplink
        unit.put_tombstone(a_branch(2).key)
        unit.unassign(a_key(1), cooldown=COOLDOWN, reason="DEL")
    assert again.counts() == replace(before, free=before.free - 1, cooling=1)
    assert [one.key for one in again.attachments()] == [a_branch(3).key]
    assert again.audit() == []
    events = [row.event for row in again.history("10.9.0.2", limit=9)]
    assert events == [LedgerEvent.ASSIGNED, LedgerEvent.REPAIRED, LedgerEvent.LOST, LedgerEvent.UNASSIGNED]
    again.close()


def test_what_ec2_says_is_told_once(store: SqlDatastore) -> None:
    """The ledger has a contradiction and its end, not each look that finds the same."""
    put(store, 2)
    key = a_branch(2).key
    for said in ("", "x", "x", "", ""):
        with store.transaction() as unit:
            unit.record_contradiction(key, contradiction=said)
    events = [row.event for row in store.history("10.9.0.2", limit=9)]
    assert events == [LedgerEvent.ASSIGNED, LedgerEvent.LOST, LedgerEvent.HEALED]
    with store.transaction() as unit, pytest.raises(UnknownAttachmentError):
        unit.record_contradiction(a_key(77), contradiction="")


OF_OTHERS: dict[str, Callable[[SqlUnitOfWork], object]] = {
    "a sandbox that has a pool address": lambda unit: unit.confirm(a_branch(5, a_key(1))),
    "one that has a branch": lambda unit: unit.confirm(a_branch(5, a_branch(2).key)),
    "one whose DEL was done": lambda unit: unit.confirm(a_branch(5, a_key(50))),
    "one that is just being given an address": lambda unit: unit.confirm(a_branch(5, a_key(60))),
    "an address of the pool": lambda unit: unit.confirm(a_branch(5, address=FREE)),
    "a primary address": lambda unit: unit.confirm(a_branch(5, address=PRIMARY)),
    "another's address": lambda unit: unit.confirm(a_branch(5, address="10.9.0.2")),
    "another's VLAN": lambda unit: unit.confirm(replace(a_branch(2, a_key(9), address="10.9.0.9"), eni_id=eni_id(9))),
    "another's ENI": lambda unit: unit.confirm(replace(a_branch(5), eni_id=a_branch(2).eni_id)),
    "an ENI of the node": lambda unit: unit.confirm(replace(a_branch(5), eni_id=eni_id(0))),
    "a table that is not its VLAN's": lambda unit: unit.confirm(replace(a_branch(5), route_table=99)),
    "no branch": lambda unit: unit.confirm(replace(a_branch(5), uplink=None)),
    "an address of a branch, for the pool": lambda unit: unit.add_addresses(eni_id(0), [ip("10.9.0.2")]),
    "an ENI with the address of a branch": lambda unit: unit.put_eni(replace(an_eni(1), primary_address=ip("10.9.0.2"))),
}


@pytest.mark.parametrize("what", OF_OTHERS)
def test_what_is_somebody_elses(store: SqlDatastore, what: str) -> None:
    """Refused as a whole, and nothing of it is left."""
    attach(store, a_key(1))
    store.reserve(a_key(60))
    put(store, 2)
    with store.transaction() as unit:
        unit.put_tombstone(a_key(50))
    before = store.snapshot()
    with pytest.raises(InvariantError), store.transaction() as unit:
        OF_OTHERS[what](unit)
    assert store.snapshot() == before
    assert store.audit() == []


def test_a_sandbox_with_a_branch_gets_no_pool_address(store: SqlDatastore) -> None:
    """Neither by a reservation nor by an adoption."""
    put(store, 2)
    key = a_branch(2).key
    with pytest.raises(InvariantError):
        store.reserve(key)
    row = store.address(ip(FREE))
    assert row is not None
    with pytest.raises(InvariantError), store.transaction() as unit:
        unit.adopt(an_attachment(row, key))


ROW = (
    "'c', 'eth0', '{address}', '{eni}', 'v', 'n', 1, 1, 'f', x'7b7d', '2026-03-04T05:06:07.000000+00:00', 'add', '', '', '', '', "
    "NULL, NULL, {vlan}, '06:00:00:00:00:09', '10.9.0.1', 1"
)

ON_DISK = {
    "vlan 0": {"vlan": 0},
    "vlan 4095": {"vlan": 4095},
    "another's VLAN": {"vlan": 2},
    "another's address": {"address": "10.9.0.2"},
    "another's ENI": {"eni": a_branch(2).eni_id},
    "an address of the pool": {"address": FREE},
    "a primary address": {"address": PRIMARY},
    "an ENI of the node": {"eni": eni_id(0)},
    "sound": {},
}


@pytest.mark.parametrize("what", ON_DISK)
def test_the_file_refuses_it_too(path: Path, store: SqlDatastore, what: str) -> None:
    """Constraints and triggers stand behind the code."""
    put(store, 2)
    store.close()
    row = ROW.format(**{"address": "10.9.0.9", "eni": "eni-9", "vlan": 9} | ON_DISK[what])
    if what == "sound":
        raw(path, f"INSERT INTO branch VALUES ({row})")
        return
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(f"INSERT INTO branch VALUES ({row})")
    connection.close()


def test_the_audit_compares_them(store: SqlDatastore) -> None:
    """What memory has and the disk has not, and two that have the same."""
    put(store, 2, 3)
    key = a_branch(3).key
    store.rows.attachments[key] = replace(store.rows.attachments[key], uplink=a_branch(2).uplink)
    said = " ".join(store.audit())
    assert "in memory but" in said
    assert f"VLAN 2 is that of sandbox {a_branch(2).key}" in said


@pytest.mark.parametrize("damage", ["gateway = 'x'", "created_at = 'x'", "address = 'x'", "origin = 'x'"])
def test_a_row_that_is_none_of_ours(path: Path, store: SqlDatastore, damage: str) -> None:
    """A value that we do not write sets the file aside, as any."""
    put(store, 2)
    store.close()
    raw(path, f"UPDATE branch SET {damage}")
    assert open_at(path).report.outcome == "corrupt"
