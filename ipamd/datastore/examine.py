"""Judge a file that is there before anything in it is changed, through a read-only connection.

A file of another boot is never used: it describes network namespaces that ended with that boot. A damaged one is kept for diagnosis.
A file of a later release is left untouched and the start refused: guessing its meaning could give one address twice (I1).
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sqlalchemy import Connection, select

from ipamd.datastore import schema
from ipamd.datastore.disk import Disk, refusals
from ipamd.datastore.migrations import DOWNGRADE_COMMAND
from ipamd.model.errors import DatastoreError, SchemaVersionError

DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR")
"""Result codes about the file's content rather than the disk: SQLITE_ERROR is a table or column that is not there, or there already.

Source: sqlite.org/rescode.html."""


class OpenOutcome(StrEnum):
    """What was found at the path."""

    CREATED = "created"
    INTACT = "intact"
    CORRUPT = "corrupt"
    OTHER_BOOT = "other-boot"


@dataclass(frozen=True, slots=True)
class OpenReport:
    """What happened at open. `kept` is where the former file is now; `problems` are what the audit found in a readable file."""

    outcome: OpenOutcome
    detail: str
    kept: Path | None = None
    problems: tuple[str, ...] = ()
    was_restored: bool = False

    @property
    def is_sound(self) -> bool:
        """Same boot, and the audit found nothing: what the file says can be relied on."""
        return self.outcome is OpenOutcome.INTACT and not self.problems

    @property
    def is_intact(self) -> bool:
        """Sound, and restored to the end once: ADD may be served without asking CRI first (docs/performance.md, "Waits at start").

        A file that was made after a loss, by a process that died before it had read the kernel, lacks rows of live sandboxes.
        """
        return self.is_sound and self.was_restored

    def __str__(self) -> str:
        return f"datastore {self.outcome}: {self.detail}"


def examine(path: Path, *, boot_id: str, lock_wait_s: float) -> OpenReport:
    """Judge the file without changing it.

    Raises: SchemaVersionError if a later release wrote it; DatastoreError if the disk refuses or another process has it open.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return OpenReport(OpenOutcome.CREATED, f"{path} did not exist")
    if not stat.S_ISREG(found.st_mode):
        return OpenReport(OpenOutcome.CORRUPT, f"{path} is not a regular file")
    if found.st_size == 0:
        return OpenReport(OpenOutcome.CORRUPT, f"{path} is empty: truncated, or ipamd was killed while creating it")
    try:
        probe = Disk(path, lock_wait_s=lock_wait_s, is_probe=True)
    except DatastoreError as error:
        return judge(error)
    try:
        with refusals(f"reading {path}"):
            return _examine_content(probe, boot_id=boot_id)
    except SchemaVersionError:
        raise
    except DatastoreError as error:
        return judge(error)
    finally:
        probe.close()


def judge(error: DatastoreError) -> OpenReport:
    """Tell damage, which a new file cures, from a disk that refuses or a file in use, which it does not."""
    if error.details.startswith(DAMAGE):
        return OpenReport(OpenOutcome.CORRUPT, error.message)
    raise error


def _examine_content(probe: Disk, *, boot_id: str) -> OpenReport:
    def pragma(name: str) -> list[str]:
        return [", ".join(map(str, row)) for row in probe.connection.exec_driver_sql(f"PRAGMA {name}")]

    path = probe.path
    version = int(pragma("user_version")[0])
    if version > schema.SCHEMA_VERSION:
        raise SchemaVersionError(
            f"{path} was written by a newer release (schema {version}, this one knows {schema.SCHEMA_VERSION})",
            details=f"run that release or a later one; or, with that release, `{DOWNGRADE_COMMAND}`; or drain the node and reboot it, "
            "which starts an empty datastore",
        )
    check = pragma("quick_check")
    if check != ["ok"]:
        return OpenReport(OpenOutcome.CORRUPT, f"SQLite's quick_check says: {'; '.join(check[:3])}")
    names = {row[0] for row in probe.connection.exec_driver_sql("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    missing = sorted(table.name for table in schema.TABLES if table.name not in names)
    if version < 1 or missing:
        return OpenReport(OpenOutcome.CORRUPT, f"schema {version} without tables {', '.join(missing) or '-'}")
    meta = {row.name: row.value for row in probe.connection.execute(select(schema.meta))}
    if meta.get("boot_id") != boot_id:
        return OpenReport(OpenOutcome.OTHER_BOOT, f"it describes boot {meta.get('boot_id')}, this is boot {boot_id}")
    unknown = _unknown_required_columns(probe.connection)
    if unknown:
        return OpenReport(OpenOutcome.CORRUPT, f"this release cannot fill {', '.join(unknown)}")
    orphans = pragma("foreign_key_check")
    if orphans:
        return OpenReport(OpenOutcome.CORRUPT, f"rows without the row they point to: {'; '.join(orphans[:3])}")
    was_restored = schema.RESTORED_AT in meta
    detail = "" if was_restored else "; its restore was never finished"
    return OpenReport(OpenOutcome.INTACT, detail, was_restored=was_restored)


def _unknown_required_columns(connection: Connection) -> list[str]:
    """Columns that an INSERT of ours leaves out and the table demands; other unknown ones do no harm."""
    return [
        f"{table.name}.{row.name}"
        for table in schema.TABLES
        for row in connection.exec_driver_sql(f"PRAGMA table_info({table.name})")
        if row.name not in table.columns and row.notnull and row.dflt_value is None
    ]
