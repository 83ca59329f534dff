"""Steps from one form of the file to the next, and back (docs/datastore.md, "The datastore's schema").

`user_version` is the oldest schema that a reader must know; the row `schema_level` in `meta` is how far the steps have gone. A step
is additive if the release before can use the file as it is afterwards: then it leaves `user_version` alone, and a node can go one
release back without anything being done to the file. All steps so far are.
"""

from __future__ import annotations

from sqlalchemy import select

from ipamd.datastore import rows as sql
from ipamd.datastore import schema
from ipamd.datastore.disk import Disk, refusals
from ipamd.model.errors import SchemaVersionError
from ipamd.model.record import dataclass

LEVEL_OF_FILES_WITHOUT_ONE = 1
"""Files of releases that knew no levels."""


@dataclass(frozen=True, slots=True)
class Step:
    """From `level` - 1 to `level`, and back. `is_additive`: the release before can use the file without going back."""

    level: int
    purpose: str
    forward: tuple[str, ...]
    backward: tuple[str, ...]
    is_additive: bool = True


STEPS = (
    Step(
        2,
        "addresses that EC2 does not show any more",
        forward=(schema.create_statement(schema.lost),),
        backward=(
            # The release before would give them to another sandbox once they have cooled (I7).
            "DELETE FROM address WHERE state IN ('free', 'cooling') AND address IN (SELECT address FROM lost)",
            "DELETE FROM prefix WHERE prefix NOT IN (SELECT prefix FROM address WHERE prefix IS NOT NULL)",
            "UPDATE ledger SET event = 'kept', detail = event || ': ' || detail WHERE event IN ('lost', 'healed')",
            "DROP TABLE lost",
        ),
    ),
    Step(
        3,
        "ages of addresses and tombstones on the monotonic clock",
        forward=(
            "ALTER TABLE address ADD COLUMN since_monotonic_s REAL",
            "ALTER TABLE tombstone ADD COLUMN at_monotonic_s REAL",
            # The release before changes the time and leaves these as they are: an old point would make a new state look old.
            """
            CREATE TRIGGER address_age_is_of_its_time AFTER UPDATE OF since ON address
            WHEN NEW.since <> OLD.since AND NEW.since_monotonic_s = OLD.since_monotonic_s
            BEGIN UPDATE address SET since_monotonic_s = NULL WHERE address = NEW.address; END
            """,
            """
            CREATE TRIGGER tombstone_age_is_of_its_time AFTER UPDATE OF at ON tombstone
            WHEN NEW.at <> OLD.at AND NEW.at_monotonic_s = OLD.at_monotonic_s
            BEGIN UPDATE tombstone SET at_monotonic_s = NULL WHERE container_id = NEW.container_id AND ifname = NEW.ifname; END
            """,
        ),
        backward=(
            "DROP TRIGGER address_age_is_of_its_time",
            "DROP TRIGGER tombstone_age_is_of_its_time",
            "ALTER TABLE address DROP COLUMN since_monotonic_s",
            "ALTER TABLE tombstone DROP COLUMN at_monotonic_s",
        ),
    ),
    Step(
        4,
        "what EC2 did not show lately",
        forward=(schema.create_statement(schema.doubt),),
        backward=("DROP TABLE doubt",),
    ),
    Step(
        5,
        "ENIs that get no new sandbox",
        # The release before leaves the column as it is, and gives their addresses: nothing breaks, pods are where they should not be.
        forward=("ALTER TABLE eni ADD COLUMN excluded TEXT",),
        backward=("ALTER TABLE eni DROP COLUMN excluded",),
    ),
    Step(
        6,
        "addresses for egress",
        # The release before leaves both columns as they are and gives no such address. Its DEL does not know the second link, which
        # goes with the sandbox's namespace; an address that it frees must not hold one back any more.
        forward=(
            "ALTER TABLE attachment ADD COLUMN other_address TEXT",
            "CREATE UNIQUE INDEX attachment_other_address ON attachment (other_address) WHERE other_address IS NOT NULL",
            "ALTER TABLE address ADD COLUMN other_address TEXT",
            "CREATE UNIQUE INDEX address_other_address ON address (other_address) WHERE other_address IS NOT NULL",
            """
            CREATE TRIGGER other_address_cools_with_its_own AFTER UPDATE OF state ON address
            WHEN NEW.state = 'free' AND NEW.other_address IS NOT NULL
            BEGIN UPDATE address SET other_address = NULL WHERE address = NEW.address; END
            """,
        ),
        backward=(
            "DROP TRIGGER other_address_cools_with_its_own",
            "DROP INDEX attachment_other_address",
            "ALTER TABLE attachment DROP COLUMN other_address",
            "DROP INDEX address_other_address",
            "ALTER TABLE address DROP COLUMN other_address",
        ),
    ),
    Step(
        7,
        "pods whose names the network policy agent may know",
        # The release before asks no agent, and leaves the rows as they are: the next one that does tells it to forget them.
        forward=(schema.create_statement(schema.owed),),
        backward=("DROP TABLE owed",),
    ),
    Step(
        8,
        "sandboxes with branch ENIs",
        # The release before leaves the rows as they are, and ends one with its tombstone. It may give such an address to its pool,
        # once EC2 has: then the row is false or stale, and goes when the file is opened again.
        forward=(schema.create_statement(schema.branch), *schema.BRANCH_TRIGGERS),
        backward=(
            "DROP TRIGGER attached_to_a_branch",
            "DROP TRIGGER branch_ends_with_its_sandbox",
            "DROP TABLE branch",
        ),
    ),
)
"""Oldest first, without a gap. Once released a step is never changed: files have gone through it."""

LEVEL = STEPS[-1].level
"""What this release writes."""

DOWNGRADE_COMMAND = "ipamd datastore downgrade --to LEVEL"
"""What takes a file back (`datastore/command.py`)."""


def schema_version(level: int) -> int:
    """The `user_version` of files of a level: the steps that the release before could not live with, and one."""
    return 1 + sum(not step.is_additive for step in STEPS if step.level <= level)


def level_of(disk: Disk) -> int:
    """How far the steps have gone in this file. Raises: ValueError if that is none of our values; DatastoreError."""
    found = disk.connection.execute(select(schema.meta.c.value).where(schema.meta.c.name == schema.SCHEMA_LEVEL))
    value = found.scalar_one_or_none()
    return LEVEL_OF_FILES_WITHOUT_ONE if value is None else int(value)


def upgrade(disk: Disk) -> tuple[int, int]:
    """Take the missing steps, all in one transaction; a file of a higher level is left as it is.

    Returns: the level before and after. Raises: DatastoreError.
    """
    disk.begin()
    try:
        before = level_of(disk)
        take_all(disk, above=before)
        disk.commit()
    except BaseException:
        disk.rollback()
        raise
    return before, max(before, LEVEL)


def take_all(disk: Disk, *, above: int = LEVEL_OF_FILES_WITHOUT_ONE) -> None:
    """Take the steps above a level, in the open transaction. Raises: DatastoreError."""
    for step in STEPS:
        if step.level > above:
            _take(disk, step, step.forward, step.level)


def downgrade(disk: Disk, *, to: int) -> int:
    """Take steps back until the file is of level `to`, all in one transaction; a file that is of a lower one stays as it is.

    Returns: the level before. Raises: SchemaVersionError if this release does not know the way; DatastoreError.
    """
    disk.begin()
    try:
        before = level_of(disk)
        if not LEVEL_OF_FILES_WITHOUT_ONE <= to <= LEVEL or before > LEVEL:
            raise SchemaVersionError(
                f"{disk.path} is of level {before}: this release cannot take it to {to}",
                details=f"this release knows levels {LEVEL_OF_FILES_WITHOUT_ONE} to {LEVEL}; a later one may know more",
            )
        for step in reversed(STEPS):
            if to < step.level <= before:
                _take(disk, step, step.backward, step.level - 1)
        disk.commit()
    except BaseException:
        disk.rollback()
        raise
    return before


def _take(disk: Disk, step: Step, statements: tuple[str, ...], level: int) -> None:
    with refusals(f"schema step {step.level} ({step.purpose})"):
        for statement in statements:
            disk.connection.exec_driver_sql(statement)
        disk.connection.execute(sql.UPSERT_META, {"name": schema.SCHEMA_LEVEL, "value": str(level)})
        disk.connection.exec_driver_sql(f"PRAGMA user_version = {schema_version(level)}")
