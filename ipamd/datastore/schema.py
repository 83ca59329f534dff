"""The tables, with the invariants as constraints: SQLite refuses what would break one, even if our code is wrong.

An attachment and its address reference each other through all of (address, ENI, container ID, interface name), deferred to
COMMIT: neither can exist without the other (I1). `reserved` cannot be written to disk (I5). Triggers enforce what a CHECK cannot:
I2, I4, I6 and I8 across rows. Rejected: one JSON column per row (constraints could not see into it); integers for addresses and
times (an operator with `sqlite3` could not read them).
"""

from __future__ import annotations

import sqlite3
from functools import cache
from typing import Any

from sqlalchemy import (
    REAL,
    CheckConstraint,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect
from sqlalchemy.schema import CreateIndex, CreateTable, SchemaItem

from ipamd.model.address import AddressState
from ipamd.model.eni import EniState
from ipamd.model.family import IPV4, Family

SCHEMA_VERSION = 1
"""The oldest `user_version` that we read, and the newest: it stays while every step in `migrations` is additive."""

STRICT = sqlite3.sqlite_version_info >= (3, 37, 0)
"""Whether SQLite can refuse a value of the wrong type. Source: sqlite.org/stricttables.html."""

DISK_STATES = tuple(state for state in AddressState if state is not AddressState.RESERVED)

_metadata = MetaData()


def _text(name: str, *, nullable: bool = False, primary_key: bool = False) -> Column[str]:
    return Column(name, Text, nullable=nullable, primary_key=primary_key)


def _texts(*names: str) -> list[Column[str]]:
    return [_text(name) for name in names]


def _later(name: str, kind: type[Any] = REAL) -> Column[Any]:
    """A column that a step in `migrations` adds. `system`: SQLAlchemy leaves it out of CREATE TABLE, and of nothing else."""
    return Column(name, kind, nullable=True, system=True)


def _integer(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False)


def _flag(name: str) -> Column[int]:
    return Column(name, Integer, CheckConstraint(f"{name} IN (0, 1)"), nullable=False)


def _one_of(name: str, values: tuple[str, ...]) -> CheckConstraint:
    return CheckConstraint(f"{name} IN ({', '.join(repr(str(value)) for value in values)})")


def _table(name: str, *parts: SchemaItem, with_rowid: bool = False) -> Table:
    return Table(name, _metadata, *parts, sqlite_strict=STRICT, sqlite_with_rowid=with_rowid)


PREFIX_LENGTH = "LENGTH_OF_THE_FAMILY"
"""Stands in a constraint for the length of a family's prefixes: a file is made for one."""


@cache
def create_statement(of: Table | Index, *, family: Family = IPV4) -> str:
    """The statement that creates a table or an index, for a pool of a family."""
    made = CreateTable(of) if isinstance(of, Table) else CreateIndex(of)
    return str(made.compile(dialect=sqlite_dialect())).replace(PREFIX_LENGTH, str(family.prefix_length))


RESTORED_AT = "restored_at"
"""Row in `meta`: when a restore from kernel and runtime last finished; a file without it may know less than the kernel."""

LOST_AT = "lost_at"
"""Row in `meta`: when rows of this boot were lost, so that the network policy agent may know names that no row tells."""

FAMILY = "family"
"""Row in `meta`: nftables' word for the family of the pool, one for the life of the file; without it, IPv4."""

CURSOR = "cursor"
"""Row in `meta` of IPv6: the place in its /80 of the address that was given last. At random when the file is made: a lost file must
not give again soon what cools (I8)."""

IDENTITY = "identity"
"""Row in `meta`: what instance metadata last said of the node, as JSON: for a start at which it is silent, in the same boot."""

MARKED_AT = "pods_marked_at"
"""Row in `meta`: when the admission policy's mark was first seen on a pod; a pod without it is then older than the policy."""

SCHEMA_LEVEL = "schema_level"
"""Row in `meta`: how many of the steps in `migrations` the file has gone through."""

meta = _table("meta", _text("name", primary_key=True), _text("value"))

eni = _table(
    "eni",
    _text("eni_id", primary_key=True),
    _text("mac"),
    _integer("device_index"),
    _integer("network_card"),
    *_texts("subnet_id", "subnet_cidr", "primary_address"),
    _flag("is_primary"),
    _text("state"),
    _flag("host_ready"),
    _flag("created_by_us"),
    _flag("managed"),
    _later("excluded", Text),
    UniqueConstraint("primary_address"),
    _one_of("state", tuple(EniState)),
)

prefix = _table(
    "prefix",
    _text("prefix", primary_key=True),
    _text("eni_id"),
    UniqueConstraint("prefix", "eni_id"),
    ForeignKeyConstraint(["eni_id"], ["eni.eni_id"]),
    CheckConstraint(f"prefix LIKE '%/{PREFIX_LENGTH}'"),
)

address = _table(
    "address",
    _text("address", primary_key=True),
    _text("eni_id"),
    _text("prefix", nullable=True),
    *_texts("state", "since"),
    _text("container_id", nullable=True),
    _text("ifname", nullable=True),
    _text("cooling_until", nullable=True),
    Column("cooled_at_s", REAL, nullable=True),
    _text("reason"),
    _later("since_monotonic_s"),
    _later("other_address", Text),
    UniqueConstraint("address", "eni_id", "container_id", "ifname"),
    UniqueConstraint("container_id", "ifname"),
    ForeignKeyConstraint(["eni_id"], ["eni.eni_id"]),
    ForeignKeyConstraint(["prefix", "eni_id"], ["prefix.prefix", "prefix.eni_id"]),
    ForeignKeyConstraint(
        ["address", "eni_id", "container_id", "ifname"],
        ["attachment.address", "attachment.eni_id", "attachment.container_id", "attachment.ifname"],
        deferrable=True,
        initially="DEFERRED",
    ),
    _one_of("state", DISK_STATES),
    CheckConstraint("(state = 'assigned') = (container_id IS NOT NULL)"),
    CheckConstraint("(container_id IS NULL) = (ifname IS NULL)"),
    CheckConstraint("(state = 'cooling') = (cooling_until IS NOT NULL)"),
)

attachment = _table(
    "attachment",
    _text("container_id", primary_key=True),
    _text("ifname", primary_key=True),
    *_texts("address", "eni_id"),
    _integer("route_table"),
    *_texts("host_veth", "netns"),
    _integer("netns_device"),
    _integer("netns_inode"),
    _text("fingerprint"),
    Column("result", LargeBinary, nullable=False),
    *_texts("created_at", "origin", "network_name", "pod_namespace", "pod_name", "pod_uid"),
    _later("other_address", Text),
    UniqueConstraint("address"),
    UniqueConstraint("address", "eni_id", "container_id", "ifname"),
    ForeignKeyConstraint(
        ["address", "eni_id", "container_id", "ifname"],
        ["address.address", "address.eni_id", "address.container_id", "address.ifname"],
        deferrable=True,
        initially="DEFERRED",
    ),
)

lost = _table(
    "lost",
    _text("address", primary_key=True),
    *_texts("since", "reason"),
    ForeignKeyConstraint(["address"], ["address.address"], ondelete="CASCADE"),
)
"""Addresses that EC2 does not show any more; since level 2."""

doubt = _table(
    "doubt",
    _text("answers", primary_key=True),
    _text("subject", primary_key=True),
    Column("began_monotonic_s", REAL, nullable=False),
    Column("counted_monotonic_s", REAL, nullable=False),
    _integer("look_count"),
)
"""ENIs and addresses that EC2 did not show lately, so that a restart neither gives them nor starts counting anew; since level 4."""

owed = _table("owed", _text("namespace", primary_key=True), _text("pod", primary_key=True), _text("since"))
"""Pods whose names the network policy agent may know; since level 7."""

branch = _table(
    "branch",
    _text("container_id", primary_key=True),
    _text("ifname", primary_key=True),
    *_texts("address", "eni_id", "host_veth", "netns"),
    _integer("netns_device"),
    _integer("netns_inode"),
    _text("fingerprint"),
    Column("result", LargeBinary, nullable=False),
    *_texts("created_at", "origin", "network_name", "pod_namespace", "pod_name", "pod_uid"),
    Column("since_monotonic_s", REAL, nullable=True),
    _text("contradiction", nullable=True),
    Column("vlan", Integer, CheckConstraint("vlan BETWEEN 1 AND 4094"), nullable=False),
    *_texts("mac", "gateway"),
    _flag("is_strict"),
    UniqueConstraint("address"),
    UniqueConstraint("eni_id"),
    UniqueConstraint("vlan"),
)
"""Attachments whose address is a branch ENI's, which is in no pool; since level 8."""

BRANCH_TRIGGERS = (
    """
    CREATE TRIGGER branch_is_not_of_the_pool BEFORE INSERT ON branch
    WHEN EXISTS (SELECT 1 FROM address WHERE address = NEW.address) OR EXISTS (SELECT 1 FROM attachment
        WHERE container_id = NEW.container_id AND ifname = NEW.ifname)
    BEGIN SELECT RAISE(ABORT, 'I1: a branch address is not of the pool, and a sandbox has one address'); END
    """,
    """
    CREATE TRIGGER branch_is_not_primary BEFORE INSERT ON branch
    WHEN EXISTS (SELECT 1 FROM eni WHERE primary_address = NEW.address OR eni_id = NEW.eni_id)
    BEGIN SELECT RAISE(ABORT, 'I6: the primary address of an ENI is never given to a sandbox'); END
    """,
    """
    CREATE TRIGGER attached_to_a_branch BEFORE INSERT ON attachment
    WHEN EXISTS (SELECT 1 FROM branch WHERE container_id = NEW.container_id AND ifname = NEW.ifname)
    BEGIN SELECT RAISE(ABORT, 'I1: a sandbox has one address'); END
    """,
    """
    CREATE TRIGGER deleted_branch_stays_deleted BEFORE INSERT ON branch
    WHEN EXISTS (SELECT 1 FROM tombstone WHERE container_id = NEW.container_id AND ifname = NEW.ifname)
    BEGIN SELECT RAISE(ABORT, 'I4: DEL was done for this key'); END
    """,
    # The release before does not know the table: its DEL leaves a tombstone alone, and the row must not outlive the sandbox.
    """
    CREATE TRIGGER branch_ends_with_its_sandbox AFTER INSERT ON tombstone
    BEGIN DELETE FROM branch WHERE container_id = NEW.container_id AND ifname = NEW.ifname; END
    """,
)

tombstone = _table(
    "tombstone", _text("container_id", primary_key=True), _text("ifname", primary_key=True), _text("at"), _later("at_monotonic_s")
)

intent = _table(
    "intent",
    _text("intent_id", primary_key=True),
    *_texts("kind", "opened_at", "payload", "client_token"),
)

ledger = _table(
    "ledger",
    Column("sequence", Integer, primary_key=True),
    *_texts("at", "event", "address", "container_id", "ifname", "eni_id", "detail"),
    with_rowid=True,
)
Index("ledger_address", ledger.c.address)
Index("ledger_container_id", ledger.c.container_id)

TABLES = (meta, eni, prefix, address, attachment, tombstone, intent, ledger)
"""Those of level 1, in the order of creation; `migrations` adds the others."""

TRIGGERS = (
    """
    CREATE TRIGGER address_is_not_primary BEFORE INSERT ON address
    WHEN EXISTS (SELECT 1 FROM eni WHERE primary_address = NEW.address)
    BEGIN SELECT RAISE(ABORT, 'I6: the primary address of an ENI is never given to a sandbox'); END
    """,
    """
    CREATE TRIGGER eni_primary_is_not_given BEFORE INSERT ON eni
    WHEN EXISTS (SELECT 1 FROM address WHERE address = NEW.primary_address)
    BEGIN SELECT RAISE(ABORT, 'I6: the primary address of an ENI is never given to a sandbox'); END
    """,
    """
    CREATE TRIGGER eni_primary_stays_ungiven BEFORE UPDATE OF primary_address ON eni
    WHEN EXISTS (SELECT 1 FROM address WHERE address = NEW.primary_address)
    BEGIN SELECT RAISE(ABORT, 'I6: the primary address of an ENI is never given to a sandbox'); END
    """,
    """
    CREATE TRIGGER assigned_is_not_removed BEFORE DELETE ON address WHEN OLD.state = 'assigned'
    BEGIN SELECT RAISE(ABORT, 'I2: the address of a live sandbox is untouchable'); END
    """,
    """
    CREATE TRIGGER assigned_cools_first BEFORE UPDATE OF state ON address
    WHEN OLD.state = 'assigned' AND NEW.state <> 'cooling'
    BEGIN SELECT RAISE(ABORT, 'I8: an assigned address cools before anything else'); END
    """,
    """
    CREATE TRIGGER deleted_sandbox_stays_deleted BEFORE INSERT ON attachment
    WHEN EXISTS (SELECT 1 FROM tombstone WHERE container_id = NEW.container_id AND ifname = NEW.ifname)
    BEGIN SELECT RAISE(ABORT, 'I4: DEL was done for this key'); END
    """,
)
