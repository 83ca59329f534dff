"""Open the datastore at start: examine the file, and use it, or set it aside and create an empty one.

A file of another boot is never used: it describes network namespaces that ended with that boot. A damaged file is kept for diagnosis
and never repaired; the state is then rebuilt from kernel and CRI (docs/life.md, "Start"). The start is refused, and the file left
untouched, in two cases. First, if a later release wrote the file, or its level is too old: guessing its meaning could assign one
address twice (I1). Second, if the file is of a pool of the other IP family, and a sandbox of that pool may still run (I2). A
sound file gets the missing steps of `migrations` and is then read whole.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from sqlalchemy import insert, select
from sqlalchemy.exc import SQLAlchemyError

from ipamd import __version__
from ipamd.datastore import rows as sql
from ipamd.datastore import schema
from ipamd.datastore.disk import Disk, refusals
from ipamd.datastore.living import SurveyKernel, living_sandboxes
from ipamd.datastore.migrations import DOWNGRADE_COMMAND, LEVEL, OLDEST_LEVEL, level_of, upgrade, write_level
from ipamd.datastore.set_aside import set_aside
from ipamd.datastore.spool import SpoolDirectory
from ipamd.datastore.store import LEDGER_LIMIT, Ledger, SqlDatastore
from ipamd.model.errors import DatastoreError, InvariantError, SchemaVersionError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import IPV4, Family
from ipamd.model.history import LedgerEvent
from ipamd.model.ids import AttachmentKey
from ipamd.model.record import dataclass, replace
from ipamd.model.snapshot import Snapshot
from ipamd.model.snapshot_checks import contradictions
from ipamd.model.words import counted, first_of
from ipamd.ports.process import Clock, Failpoint, no_failpoint

BOOT_ID_PATH = Path("/proc/sys/kernel/random/boot_id")
"""File with an ID that changes with every boot. Source: proc(5), random(4)."""

DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR")
"""Result codes that show a damaged file, and not a fault of the disk. SQLITE_ERROR: a table or column is missing, or exists already.

Source: sqlite.org/rescode.html."""


class OpenOutcome(StrEnum):
    """The state of the file at the path."""

    CREATED = "created"
    INTACT = "intact"
    CORRUPT = "corrupt"
    OTHER_BOOT = "other-boot"
    OTHER_FAMILY = "other-family"


@dataclass(frozen=True, slots=True)
class OpenReport:
    """The result of opening.

    `detail`: a sentence for people about the file.
    `former_file`: where the file was moved, if it was set aside.
    `problems`: contradictions between rows.
    `was_restored`: whether a restore from kernel and runtime has finished since the file was created (`schema.RESTORED_AT`).
    """

    outcome: OpenOutcome
    detail: str
    former_file: Path | None = None
    problems: tuple[str, ...] = ()
    was_restored: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether the rows can be trusted: they are of this boot, and do not contradict each other."""
        return self.outcome is OpenOutcome.INTACT and not self.problems

    @property
    def is_intact(self) -> bool:
        """Whether ADD may be served before CRI is read: the file is sound, and a restore from kernel and runtime has finished
        (docs/performance.md, "Waits at start").

        No restore has finished if the file was made after a loss and the process ended before it had read the kernel: then rows of
        running sandboxes are missing.
        """
        return self.is_sound and self.was_restored

    def __str__(self) -> str:
        return f"datastore {self.outcome}: {self.detail}"


@dataclass(frozen=True, slots=True)
class OpenedDatastore:
    """An open datastore, with the report about its file."""

    datastore: SqlDatastore
    report: OpenReport


def current_boot_id(path: Path = BOOT_ID_PATH) -> str:
    """Read the ID of this boot. Raises: DatastoreError."""
    try:
        return path.read_text().strip()
    except OSError as error:
        raise failure(DatastoreError, FailureCode.BOOT_ID_UNREADABLE, path=path, cause=str(error)) from error


def open_datastore(
    path: Path,
    *,
    boot_id: str,
    clock: Clock,
    family: Family = IPV4,
    failpoint: Failpoint = no_failpoint,
    lock_wait_s: float = 2.0,
    ledger_limit: int = LEDGER_LIMIT,
    survey_kernel: SurveyKernel | None = None,
) -> OpenedDatastore:
    """Open `path`. A file that is damaged, of another boot, or of the other IP family is set aside, and an empty datastore is started.

    Args:
        boot_id: `current_boot_id()`.
        family: the IP family of the pool.
        failpoint: called with each of `store.FAILPOINTS`; for crash tests.
        lock_wait_s: how long to wait for a predecessor of this process that still has the file locked.
        survey_kernel: see `living_sandboxes`; called only for a file of the other IP family.
    Raises: SchemaVersionError if a newer release wrote the file, or its level is below `OLDEST_LEVEL`, with the file untouched;
        DatastoreError if the disk refuses, if another process has the file open, or if a sandbox of a pool of the other family may
        still be running.
    """
    now = clock.now()
    # An empty datastore starts at a random place in a /80, so that addresses that a lost file recorded are not soon assigned again
    # (I8).
    snapshot = Snapshot({}, {}, {}, {}, {}, cursor=int.from_bytes(os.urandom(6), "big"))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        report = examine(
            path,
            boot_id=boot_id,
            family=family,
            lock_wait_s=lock_wait_s,
            spooled=SpoolDirectory(path.parent, clock=clock).pending_keys,
            survey_kernel=survey_kernel,
        )
        disk = None
        if report.outcome is OpenOutcome.INTACT:
            report, disk, loaded = _load(path, report, now=now, lock_wait_s=lock_wait_s)
            snapshot = snapshot if disk is None else loaded
        if disk is None:
            report = _set_aside(path, report, now=now)
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            with _exclusive(path, lock_wait_s) as disk:
                _create(disk, boot_id=boot_id, now=now, family=family, cursor=snapshot.cursor)
    except OSError as error:
        raise failure(DatastoreError, FailureCode.FILE_NOT_OPENED, path=path, cause=error) from error
    store = SqlDatastore(disk, snapshot, clock=clock, failpoint=failpoint, ledger_limit=ledger_limit)
    return OpenedDatastore(store, report)


def _set_aside(path: Path, report: OpenReport, *, now: datetime) -> OpenReport:
    """Move the file out of the way, if there is one, and add its new path to the report."""
    former_file = set_aside(path, reason=report.outcome.value, now=now)
    if former_file is None:
        return report
    return replace(report, detail=f"{report.detail}; the former file is kept as {former_file}", former_file=former_file)


def examine(
    path: Path,
    *,
    boot_id: str,
    lock_wait_s: float,
    family: Family,
    spooled: Callable[[], Collection[AttachmentKey]] = tuple,
    survey_kernel: SurveyKernel | None = None,
) -> OpenReport:
    """Examine the file through a read-only connection, without changing it.

    `spooled`, `survey_kernel`: see `living_sandboxes`; called only for a file of the other family.
    Raises: SchemaVersionError if this release does not know the file's schema; DatastoreError if the disk refuses, if another process
        has the file open, or if a sandbox of a pool of the other family may still be running.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return OpenReport(OpenOutcome.CREATED, f"{path} did not exist")
    if not stat.S_ISREG(status.st_mode):
        return OpenReport(OpenOutcome.CORRUPT, f"{path} is not a regular file")
    for suffix in ("-wal", "-journal"):
        beside = Path(f"{path}{suffix}")
        if os.path.lexists(beside) and not stat.S_ISREG(beside.lstat().st_mode):
            return OpenReport(OpenOutcome.CORRUPT, f"{beside} is not a regular file: what was committed last may be missing")
    if status.st_size == 0:
        return OpenReport(OpenOutcome.CORRUPT, f"{path} is empty: truncated, or ipamd was killed while creating it")
    try:
        with closing(Disk(path, lock_wait_s=lock_wait_s, is_probe=True)) as probe, refusals(f"reading {path}"):
            return _examine_content(probe, boot_id=boot_id, family=family, spooled=spooled, survey_kernel=survey_kernel)
    except ValueError as error:
        return OpenReport(OpenOutcome.CORRUPT, f"its level is none of ours: {error}")
    except DatastoreError as error:
        return _judge(error)


def _judge(error: DatastoreError) -> OpenReport:
    """Return a report if the error shows a damaged file, which can be replaced by a new one. Raises: `error` itself if the disk
    refuses or another process has the file open: a new file would not help.
    """
    if error.fields.get("result", "").startswith(DAMAGE):
        return OpenReport(OpenOutcome.CORRUPT, error.message)
    raise error


def _examine_content(
    probe: Disk,
    *,
    boot_id: str,
    family: Family,
    spooled: Callable[[], Collection[AttachmentKey]],
    survey_kernel: SurveyKernel | None,
) -> OpenReport:
    """Examine the content. The order matters: each check relies on those before it."""
    version = int(_pragma(probe, "user_version")[0])
    if version > schema.SCHEMA_VERSION:
        return _judge_newer(probe, boot_id=boot_id)
    check = _pragma(probe, "quick_check")
    if check != ["ok"]:
        return OpenReport(OpenOutcome.CORRUPT, f"SQLite's quick_check says: {'; '.join(check[:3])}")
    if level_of(probe) < OLDEST_LEVEL:
        return _judge_too_old(probe, boot_id=boot_id)
    missing = _missing_tables(probe)
    if version < 1 or missing:
        return OpenReport(OpenOutcome.CORRUPT, f"schema {version} without tables {', '.join(missing) or '-'}")
    meta = {row.name: row.value for row in probe.connection.execute(select(schema.meta))}
    if meta.get("boot_id") != boot_id:
        return OpenReport(OpenOutcome.OTHER_BOOT, f"it describes boot {meta.get('boot_id')}, this is boot {boot_id}")
    file_family = meta.get(schema.FAMILY, IPV4.nft)
    if file_family != family.nft:
        living = living_sandboxes(probe.connection, spooled=spooled(), survey_kernel=survey_kernel)
        return _judge_other_family(probe.path, file_family, living)
    return _examine_rows(probe, was_restored=schema.RESTORED_AT in meta)


def _pragma(probe: Disk, name: str) -> list[str]:
    """Return the rows of a PRAGMA's answer, each as text."""
    return [", ".join(map(str, row)) for row in probe.connection.exec_driver_sql(f"PRAGMA {name}")]


def _table_names(probe: Disk) -> set[str]:
    return {row[0] for row in probe.connection.exec_driver_sql("SELECT name FROM sqlite_schema WHERE type = 'table'")}


def _judge_newer(probe: Disk, *, boot_id: str) -> OpenReport:
    """Refuse a file of a later release, or report that the file is of another boot, because such a file is set aside.

    Raises: SchemaVersionError if the file is of this boot. The error advises a downgrade of the file, or a reboot.
    """
    other_boot = _other_boot(probe, boot_id)
    if other_boot is not None:
        return other_boot
    raise failure(
        SchemaVersionError,
        FailureCode.SCHEMA_TOO_NEW,
        path=probe.path,
        level=LEVEL,
        command=f"{DOWNGRADE_COMMAND} {LEVEL}",
    )


def _missing_tables(probe: Disk) -> list[str]:
    return sorted({table.name for table in schema.TABLES} - _table_names(probe))


def _judge_too_old(probe: Disk, *, boot_id: str) -> OpenReport:
    """Refuse a file of a level below `OLDEST_LEVEL`, or report that it is of another boot. Raises: SchemaVersionError if it is of this
    boot.
    """
    other_boot = _other_boot(probe, boot_id)
    if other_boot is not None:
        return other_boot
    raise failure(SchemaVersionError, FailureCode.SCHEMA_TOO_OLD, path=probe.path, level=level_of(probe), oldest=OLDEST_LEVEL)


def _examine_rows(probe: Disk, *, was_restored: bool) -> OpenReport:
    """Examine a file of this boot and family: whether this release can write it, and whether every reference leads to a row."""
    unknown = _columns_without_value(probe)
    if unknown:
        return OpenReport(OpenOutcome.CORRUPT, f"this release cannot fill {', '.join(unknown)}")
    orphans = _pragma(probe, "foreign_key_check")
    if orphans:
        return OpenReport(OpenOutcome.CORRUPT, f"rows without the row they point to: {'; '.join(orphans[:3])}")
    detail = "" if was_restored else "; its restore was never finished"
    return OpenReport(OpenOutcome.INTACT, detail, was_restored=was_restored)


def _columns_without_value(probe: Disk) -> list[str]:
    """List the columns that this release does not know and that neither allow NULL nor have a default. Our INSERTs give them no value,
    so SQLite would refuse every INSERT. Other unknown columns do no harm.
    """
    columns = []
    for table in schema.TABLES:
        for column in probe.connection.exec_driver_sql(f"PRAGMA table_info({table.name})"):
            if column.name not in table.columns and column.notnull and column.dflt_value is None:
                columns.append(f"{table.name}.{column.name}")
    return columns


def _judge_other_family(path: Path, file_family: str, living: Sequence[str]) -> OpenReport:
    """Report a file of the other IP family, to be set aside. Raises: DatastoreError if a sandbox of its pool may still be running."""
    if living:
        raise failure(
            DatastoreError,
            FailureCode.FILE_OF_OTHER_FAMILY,
            path=path,
            family=file_family,
            count=counted(len(living), "sandbox"),
            sandboxes=first_of(living, 3),
        )
    return OpenReport(OpenOutcome.OTHER_FAMILY, f"it is of a pool of {file_family}, and no sandbox of it lives")


def _other_boot(probe: Disk, boot_id: str) -> OpenReport | None:
    """Report a file with an unknown schema if its row `boot_id` names another boot; None if it names this boot or is missing."""
    try:
        file_boot_id = probe.connection.exec_driver_sql("SELECT value FROM meta WHERE name = 'boot_id'").scalar()
    except SQLAlchemyError:
        return None
    if not file_boot_id or file_boot_id == boot_id:
        return None
    return OpenReport(OpenOutcome.OTHER_BOOT, f"it describes boot {file_boot_id}, this is boot {boot_id}")


def _load(path: Path, report: OpenReport, *, now: datetime, lock_wait_s: float) -> tuple[OpenReport, Disk | None, Snapshot]:
    """Apply the missing migrations and read everything.

    Returns: the report, the open file, and its content. If the file is damaged, has a value that this release does not write, or
        violates a constraint during a migration, the report is CORRUPT, and the second item is None.
    Raises: DatastoreError if the disk refuses or another process has the file open.
    """
    snapshot = Snapshot({}, {}, {}, {}, {})
    try:
        with _exclusive(path, lock_wait_s) as disk:
            upgrade(disk)
            _forget_lost(disk, now=now)
            with refusals(f"reading {path}"):
                snapshot = sql.read_snapshot(disk.connection)
                disk.connection.rollback()
    except ValueError as error:
        return OpenReport(OpenOutcome.CORRUPT, f"a value is none of ours: {error}"), None, snapshot
    except InvariantError as error:
        return OpenReport(OpenOutcome.CORRUPT, str(error)), None, snapshot
    except DatastoreError as error:
        return _judge(error), None, snapshot
    problems = tuple(contradictions(snapshot))
    counts = {"attachment": len(snapshot.attachments), "address": len(snapshot.addresses), "ENI": len(snapshot.enis)}
    detail = ", ".join(counted(count, noun) for noun, count in counts.items())
    if problems:
        detail += f"; the audit found {len(problems)}: {problems[0]}"
    return replace(report, detail=detail + report.detail, problems=problems), disk, snapshot


def _forget_lost(disk: Disk, *, now: datetime) -> None:
    """Remove free addresses that are lost (I7). The last process kept them, because it had reserved them in memory when it ended."""
    disk.begin()
    try:
        addresses = disk.execute(sql.LOST_FREE, subject="looking for lost addresses").scalars().all()
        if addresses:
            disk.execute(sql.DELETE_LOST_FREE, subject="forgetting lost addresses")
            disk.execute(sql.DELETE_EMPTY_PREFIXES, subject="forgetting lost addresses")
            detail = "lost, and free when the datastore was opened"
            row = sql.key_params(None) | {"at": now, "event": LedgerEvent.REMOVED.value, "eni_id": "", "detail": detail}
            Ledger(disk).write([row | {"address": address} for address in addresses])
            disk.commit()
    finally:
        disk.rollback()


@contextmanager
def _exclusive(path: Path, lock_wait_s: float) -> Iterator[Disk]:
    """Open the file; it stays open unless the block raises."""
    disk = Disk(path, lock_wait_s=lock_wait_s)
    try:
        # The read-only probe made this file; SQLite does not use it in exclusive mode.
        Path(f"{path}-shm").unlink(missing_ok=True)
        yield disk
    except BaseException:
        disk.close()
        raise


def _create(disk: Disk, *, boot_id: str, now: datetime, family: Family, cursor: int) -> None:
    """Create the schema in one transaction, so that a file has a version and all tables, or is empty."""
    disk.begin()
    with refusals(f"creating {disk.path}"):
        for table in schema.TABLES:
            for schema_object in (table, *sorted(table.indexes, key=lambda index: str(index.name))):
                disk.connection.exec_driver_sql(schema.create_statement(schema_object, family=family))
        for trigger in schema.TRIGGERS:
            disk.connection.exec_driver_sql(trigger)
        facts = {"boot_id": boot_id, "created_at": sql.time_text(now), "created_by": __version__, schema.FAMILY: family.nft}
        if family.is_sparse:
            facts[schema.CURSOR] = str(cursor)
        disk.connection.execute(insert(schema.meta), [{"name": name, "value": value} for name, value in facts.items()])
        write_level(disk, LEVEL)
    disk.commit()
