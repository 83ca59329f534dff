"""The table of sandboxes that have a branch ENI, with the invariants as constraints (docs/adr/0048)."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Integer, LargeBinary, UniqueConstraint

from ipamd.datastore.columns import flag, integer, real, table, text, texts

uplinked_attachment = table(
    "branch",
    text("container_id", primary_key=True),
    text("ifname", primary_key=True),
    *texts("address", "eni_id", "host_veth", "netns"),
    integer("netns_device"),
    integer("netns_inode"),
    text("fingerprint"),
    Column("result", LargeBinary, nullable=False),
    *texts("created_at", "origin", "network_name", "pod_namespace", "pod_name", "pod_uid"),
    real("since_monotonic_s"),
    text("contradiction", nullable=True),
    Column("vlan", Integer, CheckConstraint("vlan BETWEEN 1 AND 4094"), nullable=False),
    *texts("mac", "gateway"),
    flag("is_strict"),
    UniqueConstraint("address"),
    UniqueConstraint("eni_id"),
    UniqueConstraint("vlan"),
)
"""Attachments that have the address of a branch ENI. Such an address is in no pool."""

TRIGGERS = (
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
)
"""Triggers that refuse a branch address that is in the pool or is a primary address, a second address for one sandbox, and a sandbox
whose DEL was done."""
