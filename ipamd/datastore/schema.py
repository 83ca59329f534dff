"""The tables, with the invariants as constraints: SQLite refuses a change that would break an invariant, even if our code is
wrong.

An attachment and its address reference each other by a foreign key of (address, ENI, container ID, interface name), checked at COMMIT:
neither can exist without the other (I1). The state `reserved` cannot be written to disk (I5). Triggers enforce parts of I1, I2, I4, I6
and I8 that a CHECK cannot, because a CHECK sees only one row. Rejected: one JSON column per row (constraints could not see into it);
integers for addresses and times (an operator with `sqlite3` could not read them).
"""

from __future__ import annotations

from functools import cache

from sqlalchemy import REAL, CheckConstraint, Column, ForeignKeyConstraint, Index, Integer, LargeBinary, Table, UniqueConstraint
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect
from sqlalchemy.schema import CreateIndex, CreateTable

from ipamd.datastore.columns import flag, integer, one_of, optional_address, optional_choice, real, table, text, texts
from ipamd.datastore.legs import uplinked_table
from ipamd.datastore.legs.uplinked_table import uplinked_attachment
from ipamd.model.address import AddressState
from ipamd.model.eni import EniState
from ipamd.model.family import IPV4, Family
from ipamd.model.pod_snat import PodSnat

SCHEMA_VERSION = 2
"""`user_version` of the files that we write. It stays while every further step in `migrations` is additive."""

DISK_STATES = tuple(state for state in AddressState if state is not AddressState.RESERVED)

PREFIX_LENGTH = "LENGTH_OF_THE_FAMILY"
"""Placeholder in a constraint for the prefix length of the pool's family."""


@cache
def create_statement(of: Table | Index, *, family: Family = IPV4) -> str:
    """Return the statement that creates a table or an index, for a pool of a family."""
    statement = CreateTable(of) if isinstance(of, Table) else CreateIndex(of)
    return str(statement.compile(dialect=sqlite_dialect())).replace(PREFIX_LENGTH, str(family.prefix_length))


KEPT = "(kept_until_s IS NULL) = (kept_for IS NULL) AND (kept_for IS NULL OR state <> 'assigned')"
"""An address is kept for a pod until a certain time, and only while no sandbox has it."""

RESTORED_AT = "restored_at"
"""Row in `meta`: when a restore from kernel and runtime last finished. A file without it may lack running sandboxes."""

LOST_AT = "lost_at"
"""Row in `meta`: when rows of this boot were lost. The network policy agent may then know pods that no row names."""

UNPLACED = "unplaced"
"""Row in `meta`: sandboxes (container ID/interface, as a JSON list) that were wired and had no row when the restore of a lost file
finished. Until the next boot, such a sandbox may run although no row of it exists, because its ADD may have succeeded."""

FAMILY = "family"
"""Row in `meta`: the family of the pool as nftables names it, fixed for the life of the file. A file without this row is of an IPv4
pool."""

CURSOR = "cursor"
"""Row in `meta`, IPv6 only: the place in the /80 of the address that was assigned last. It starts at random, because addresses
that were cooling in a lost file must not be assigned soon (I8)."""

IDENTITY = "identity"
"""Row in `meta`: the node's identity as instance metadata last gave it, as JSON. A start in the same boot uses it if metadata does not
answer."""

MARKED_AT = "pods_marked_at"
"""Row in `meta`: when a pod was first seen that our admission policy had marked (`ipamd/model/pod_annotations.py`). Once this row
exists, a pod without a mark is older than the policy."""

SCHEMA_LEVEL = "schema_level"
"""Row in `meta`: the schema level of the file (`migrations`)."""

meta = table("meta", text("name", primary_key=True), text("value"))

eni = table(
    "eni",
    text("eni_id", primary_key=True),
    text("mac"),
    integer("device_index"),
    integer("network_card"),
    *texts("subnet_id", "subnet_cidr", "primary_address"),
    flag("is_primary"),
    text("state"),
    flag("host_ready"),
    flag("created_by_us"),
    flag("managed"),
    text("excluded", nullable=True),
    text("pool", nullable=True),
    UniqueConstraint("primary_address"),
    one_of("state", tuple(EniState)),
)

prefix = table(
    "prefix",
    text("prefix", primary_key=True),
    text("eni_id"),
    UniqueConstraint("prefix", "eni_id"),
    ForeignKeyConstraint(["eni_id"], ["eni.eni_id"]),
    CheckConstraint(f"prefix LIKE '%/{PREFIX_LENGTH}'"),
)

address = table(
    "address",
    text("address", primary_key=True),
    text("eni_id"),
    text("prefix", nullable=True),
    *texts("state", "since"),
    text("container_id", nullable=True),
    text("ifname", nullable=True),
    text("cooling_until", nullable=True),
    real("cooled_at_s"),
    text("reason"),
    real("since_monotonic_s"),
    optional_address("other_address"),
    text("kept_for", nullable=True),
    Column("kept_until_s", REAL, CheckConstraint(KEPT), nullable=True),
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
    one_of("state", DISK_STATES),
    CheckConstraint("(state = 'assigned') = (container_id IS NOT NULL)"),
    CheckConstraint("(container_id IS NULL) = (ifname IS NULL)"),
    CheckConstraint("(state = 'cooling') = (cooling_until IS NOT NULL)"),
)

attachment = table(
    "attachment",
    text("container_id", primary_key=True),
    text("ifname", primary_key=True),
    *texts("address", "eni_id"),
    integer("route_table"),
    *texts("host_veth", "netns"),
    integer("netns_device"),
    integer("netns_inode"),
    text("fingerprint"),
    Column("result", LargeBinary, nullable=False),
    *texts("created_at", "origin", "network_name", "pod_namespace", "pod_name", "pod_uid"),
    optional_address("other_address"),
    optional_choice("snat", PodSnat),
    Column("kept_s", Integer, nullable=True),
    UniqueConstraint("address"),
    UniqueConstraint("address", "eni_id", "container_id", "ifname"),
    ForeignKeyConstraint(
        ["address", "eni_id", "container_id", "ifname"],
        ["address.address", "address.eni_id", "address.container_id", "address.ifname"],
        deferrable=True,
        initially="DEFERRED",
    ),
)

lost = table(
    "lost",
    text("address", primary_key=True),
    *texts("since", "reason"),
    ForeignKeyConstraint(["address"], ["address.address"], ondelete="CASCADE"),
)
"""Addresses that EC2 does not show any more."""

doubt = table(
    "doubt",
    text("answers", primary_key=True),
    text("subject", primary_key=True),
    Column("began_monotonic_s", REAL, nullable=False),
    Column("counted_monotonic_s", REAL, nullable=False),
    integer("look_count"),
)
"""ENIs and addresses that the last answer of EC2 did not show. After a restart their addresses stay withheld, and the count of answers
without them goes on."""

owed = table("owed", text("namespace", primary_key=True), text("pod", primary_key=True), text("since"))
"""Pods for whose names the network policy agent may have state, each with the time of the record. Once no sandbox has the name of such
a pod, the daemon makes the agent forget that name, and removes the row."""

ATTACHMENT_TABLES = (attachment, uplinked_attachment)
"""Tables of attachments: those with an address of the pool, and those with a branch ENI."""

tombstone = table(
    "tombstone", text("container_id", primary_key=True), text("ifname", primary_key=True), text("at"), real("at_monotonic_s")
)

intent = table(
    "intent",
    text("intent_id", primary_key=True),
    *texts("kind", "opened_at", "payload", "client_token"),
)

ledger = table(
    "ledger",
    Column("sequence", Integer, primary_key=True),
    *texts("at", "event", "address", "container_id", "ifname", "eni_id", "detail"),
    with_rowid=True,
)
Index("ledger_address", ledger.c.address)
Index("ledger_container_id", ledger.c.container_id)

for _table_with_legs in (attachment, address):
    _column = _table_with_legs.c.other_address
    Index(f"{_table_with_legs.name}_other_address", _column, unique=True, sqlite_where=_column.is_not(None))

TABLES = (meta, eni, prefix, address, attachment, tombstone, intent, ledger, lost, doubt, owed, uplinked_attachment)
"""All tables, in the order in which they are created."""

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
    *uplinked_table.TRIGGERS,
)
