"""Migrate the file from one schema level to the next, and back (docs/datastore.md, "The datastore's schema").

`user_version` is the oldest schema that a reader must know; the row `schema_level` in `meta` is the file's level. A step is additive
if the previous release can use the migrated file: then `user_version` stays, and a node can go back one release without a downgrade of
the file. A new file is created at the last level.
"""

from __future__ import annotations

from sqlalchemy import select

from ipamd.datastore import rows as sql
from ipamd.datastore import schema
from ipamd.datastore.disk import Disk, refusals
from ipamd.model.errors import SchemaVersionError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.record import dataclass

OLDEST_LEVEL = 8
"""The lowest level that this release can read. Lower ones were only used during development."""


@dataclass(frozen=True, slots=True)
class Step:
    """How a file gets from `level` - 1 to `level`, and back. `is_additive`: the previous release can use the migrated file."""

    level: int
    purpose: str
    forward: tuple[str, ...]
    backward: tuple[str, ...]
    is_additive: bool = True


STEPS = (
    Step(
        9,
        "one spelling of why an ENI is deleted; no triggers for programs that do not know a column; SNAT by pod; pinned addresses; "
        "pools by pod",
        forward=(
            """
            UPDATE intent SET payload = json_set(json_remove(payload, '$.release'), '$.why', 'release')
            WHERE json_extract(payload, '$.release') IS NOT NULL
            """,
            """
            UPDATE intent SET payload = json_set(json_remove(payload, '$.leaked'), '$.why', 'leaked')
            WHERE json_extract(payload, '$.leaked') IS NOT NULL
            """,
            """
            UPDATE intent SET payload = json_set(payload, '$.why', 'unattached') WHERE json_extract(payload, '$.why') IS NULL
                AND (kind = 'delete-eni' OR json_extract(payload, '$.deleting') IS NOT NULL)
            """,
            # Only programs that do not know the column left it empty. The newest time is used, because a tombstone must not be dropped
            # too early (I4).
            """
            UPDATE tombstone SET at_monotonic_s = coalesce((SELECT max(at_monotonic_s) FROM tombstone), 0)
            WHERE at_monotonic_s IS NULL
            """,
            "DROP TRIGGER address_age_is_of_its_time",
            "DROP TRIGGER tombstone_age_is_of_its_time",
            "DROP TRIGGER other_address_cools_with_its_own",
            "DROP TRIGGER branch_ends_with_its_sandbox",
            "ALTER TABLE attachment ADD COLUMN snat TEXT CHECK (snat IN ('none', 'force'))",
            "ALTER TABLE attachment ADD COLUMN kept_s INTEGER",
            "ALTER TABLE address ADD COLUMN kept_for TEXT",
            """
            ALTER TABLE address ADD COLUMN kept_until_s REAL
            CHECK ((kept_until_s IS NULL) = (kept_for IS NULL) AND (kept_for IS NULL OR state <> 'assigned'))
            """,
            "ALTER TABLE eni ADD COLUMN pool TEXT",
        ),
        backward=(
            """
            UPDATE intent SET payload = json_set(json_remove(payload, '$.why'), '$.release', 'asked')
            WHERE json_extract(payload, '$.why') = 'release'
            """,
            """
            UPDATE intent SET payload = json_set(json_remove(payload, '$.why'), '$.leaked', 'asked')
            WHERE json_extract(payload, '$.why') = 'leaked'
            """,
            "UPDATE intent SET payload = json_remove(payload, '$.why') WHERE json_extract(payload, '$.why') = 'unattached'",
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
            """
            CREATE TRIGGER other_address_cools_with_its_own AFTER UPDATE OF state ON address
            WHEN NEW.state = 'free' AND NEW.other_address IS NOT NULL
            BEGIN UPDATE address SET other_address = NULL WHERE address = NEW.address; END
            """,
            """
            CREATE TRIGGER branch_ends_with_its_sandbox AFTER INSERT ON tombstone
            BEGIN DELETE FROM branch WHERE container_id = NEW.container_id AND ifname = NEW.ifname; END
            """,
            "ALTER TABLE attachment DROP COLUMN snat",
            "ALTER TABLE attachment DROP COLUMN kept_s",
            "ALTER TABLE address DROP COLUMN kept_until_s",
            "ALTER TABLE address DROP COLUMN kept_for",
            "UPDATE ledger SET event = 'repaired' WHERE event IN ('keeping-ended', 'moved')",
            "ALTER TABLE eni DROP COLUMN pool",
        ),
        # A release of level 8 does not read `why`: it would use an ENI for pods although its release was requested.
        is_additive=False,
    ),
)
"""Oldest first, without a gap. A released step is never changed, because files have gone through it."""

LEVEL = STEPS[-1].level
"""The level of the files that this release writes."""

DOWNGRADE_COMMAND = "ipamd datastore downgrade --to"
"""Followed by a level: migrates a file back (`datastore/command.py`)."""


def schema_version(level: int) -> int:
    """Return the `user_version` of files of a level: one, plus the number of steps that are not additive."""
    return 1 + sum(not step.is_additive for step in STEPS if step.level <= level)


def level_of(disk: Disk) -> int:
    """Return the level of this file, 0 if it has none. Raises: ValueError if the stored value is not a number; DatastoreError."""
    result = disk.connection.execute(select(schema.meta.c.value).where(schema.meta.c.name == schema.SCHEMA_LEVEL))
    return int(result.scalar_one_or_none() or 0)


def upgrade(disk: Disk) -> tuple[int, int]:
    """Apply the missing steps, all in one transaction. A file of a higher level is not changed.

    Returns: the level before and after. Raises: DatastoreError.
    """
    disk.begin()
    try:
        before = level_of(disk)
        for step in STEPS:
            if step.level > before:
                _take(disk, step, step.forward, step.level)
        disk.commit()
    except BaseException:
        disk.rollback()
        raise
    return before, max(before, LEVEL)


def downgrade(disk: Disk, *, to: int) -> int:
    """Undo steps until the file is of level `to`, all in one transaction. A file of a lower level is not changed.

    Returns: the level before. Raises: SchemaVersionError if this release does not know one of the levels; DatastoreError.
    """
    disk.begin()
    try:
        before = level_of(disk)
        if not OLDEST_LEVEL <= to <= LEVEL or before > LEVEL:
            raise failure(
                SchemaVersionError,
                FailureCode.LEVEL_OUT_OF_REACH,
                path=disk.path,
                level=before,
                wanted=to,
                oldest=OLDEST_LEVEL,
                newest=LEVEL,
            )
        for step in reversed(STEPS):
            if to < step.level <= before:
                _take(disk, step, step.backward, step.level - 1)
        disk.commit()
    except BaseException:
        disk.rollback()
        raise
    return before


def write_level(disk: Disk, level: int) -> None:
    """Record the level of the file, in the open transaction."""
    disk.connection.execute(sql.UPSERT_META, {"name": schema.SCHEMA_LEVEL, "value": str(level)})
    disk.connection.exec_driver_sql(f"PRAGMA user_version = {schema_version(level)}")


def _take(disk: Disk, step: Step, statements: tuple[str, ...], level: int) -> None:
    with refusals(f"schema step {step.level} ({step.purpose})"):
        for statement in statements:
            disk.connection.exec_driver_sql(statement)
        write_level(disk, level)
