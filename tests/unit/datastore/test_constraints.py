"""The file itself refuses what the invariants forbid, even if our code is wrong."""

# ruff: noqa: PT012 - some constraints are judged at the statement, some at COMMIT

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipamd.datastore.store import SqlDatastore
from tests.unit.datastore.support import a_key, an_eni, attach

ATTACHED = (a_key(1), a_key(2))


@pytest.fixture
def sql(path: Path, store: SqlDatastore) -> Iterator[sqlite3.Connection]:
    """The file of a store with two attachments and two free addresses, opened without our code."""
    for key in ATTACHED:
        attach(store, key)
    with store.transaction() as unit:
        unit.put_tombstone(a_key(9))
    store.close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA foreign_keys = ON")
    yield connection
    connection.close()


def _attachment_row(container_id: str, address: str) -> str:
    return (
        "INSERT INTO attachment SELECT "
        f"'{container_id}', ifname, '{address}', eni_id, route_table, host_veth, netns, netns_device, netns_inode, fingerprint,"
        " result, created_at, origin, network_name, pod_namespace, pod_name, pod_uid, NULL, NULL, NULL FROM attachment LIMIT 1"
    )


FORBIDDEN = {
    "I1: one attachment per key": _attachment_row(ATTACHED[0].container_id, "10.0.0.102"),
    "I1: one attachment per address": _attachment_row("c" * 64, "10.0.0.100"),
    "I1: an attachment without its address": _attachment_row("c" * 64, "10.0.0.102"),
    "I1: one row per address": "INSERT INTO address SELECT * FROM address LIMIT 1",
    "I1: an address assigned without attachment": (
        "UPDATE address SET state = 'assigned', container_id = 'c', ifname = 'eth0' WHERE address = '10.0.0.102'"
    ),
    "I1: an attachment that goes alone": "DELETE FROM attachment",
    "I1: one attachment per address for egress": "UPDATE attachment SET other_address = 'fd00::ac:2'",
    "I8: an address for egress that still cools with another": "UPDATE address SET other_address = 'fd00::ac:2'",
    "I2: an assigned address that is removed": "DELETE FROM address WHERE address = '10.0.0.100'",
    "I4: an attachment whose DEL was done": _attachment_row(a_key(9).container_id, "10.0.0.102"),
    "I5: reserved on disk": "UPDATE address SET state = 'reserved' WHERE address = '10.0.0.102'",
    "I6: a primary address in the pool": (
        "INSERT INTO address SELECT '10.0.0.4', eni_id, prefix, state, since, NULL, NULL, NULL, NULL, '', NULL, NULL, NULL,"
        " NULL FROM address"
        " WHERE state = 'free' LIMIT 1"
    ),
    "I6: a pool address made primary": "UPDATE eni SET primary_address = '10.0.0.102'",
    "I7: an address without ENI": "UPDATE address SET eni_id = 'eni-none' WHERE address = '10.0.0.102'",
    "I7: an ENI that goes before its addresses": "DELETE FROM eni",
    "I8: assigned to free at once": (
        "UPDATE address SET state = 'free', container_id = NULL, ifname = NULL WHERE address = '10.0.0.100'"
    ),
    "I8: cooling without an end": "UPDATE address SET state = 'cooling' WHERE address = '10.0.0.102'",
    "kept for a pod without an end": "UPDATE address SET kept_for = 'web/db-0' WHERE address = '10.0.0.102'",
    "kept for nobody": "UPDATE address SET kept_until_s = 5.0 WHERE address = '10.0.0.102'",
    "kept while a sandbox has it": "UPDATE address SET kept_for = 'web/db-0', kept_until_s = 5.0 WHERE address = '10.0.0.100'",
    "state <=> owner": "UPDATE address SET container_id = 'c', ifname = 'eth0' WHERE address = '10.0.0.102'",
    "free with an end of cooling": "UPDATE address SET cooling_until = since WHERE address = '10.0.0.102'",
    "a state that is none": "UPDATE address SET state = 'busy' WHERE address = '10.0.0.102'",
    "a prefix that is no /28": "INSERT INTO prefix SELECT '10.0.9.0/27', eni_id FROM eni LIMIT 1",
    "a prefix of another ENI": "UPDATE address SET prefix = '10.0.9.0/28' WHERE address = '10.0.0.102'",
    "a choice of SNAT that is none": "UPDATE attachment SET snat = 'some'",
    "a flag that is neither": "UPDATE eni SET managed = 2",
    "a value of the wrong type": "UPDATE eni SET device_index = 'first'",
}


@pytest.mark.parametrize("statement", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_forbidden(sql: sqlite3.Connection, statement: str) -> None:
    """SQLite refuses the change, at the statement or at COMMIT."""
    assert an_eni(0).primary_address.exploded == "10.0.0.4"
    sql.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.IntegrityError):
        sql.execute(statement)
        sql.execute("COMMIT")
    if sql.in_transaction:
        sql.execute("ROLLBACK")
