"""Open the datastore at start: judge the file that is there, and use it, or set it aside and start an empty one.

A file of another boot is never used: it describes network namespaces that ended with that boot. A damaged one is kept for diagnosis,
never repaired and never deleted at once; the state is then rebuilt from kernel and CRI (docs/life.md, "Start"). A file of a later
release is left untouched and the start refused: guessing its meaning could give one address twice (I1). So is one of a pool of the
other family while a sandbox of it lives. A sound one takes the missing steps of `migrations`, and everything is read.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from sqlalchemy import insert, select

from ipamd import __version__
from ipamd.datastore import rows as sql
from ipamd.datastore import schema
from ipamd.datastore.disk import Disk, refusals
from ipamd.datastore.migrations import DOWNGRADE_COMMAND, take_all, upgrade
from ipamd.datastore.spool import sync_directory
from ipamd.datastore.store import LEDGER_LIMIT, Datastore, Ledger
from ipamd.model.errors import DatastoreError, InvariantError, SchemaVersionError
from ipamd.model.family import IPV4, Family
from ipamd.model.history import LedgerEvent
from ipamd.model.record import dataclass, replace
from ipamd.model.snapshot import Snapshot, contradictions
from ipamd.model.words import counted, first_of
from ipamd.ports import Clock, Failpoint, no_failpoint

_NAMESPACES = {
    one.name: select(one.c.container_id, one.c.netns, one.c.netns_device, one.c.netns_inode)
    for one in (schema.attachment, schema.branch)
}
"""By table: a file of an earlier level has but the first."""

BOOT_ID_PATH = Path("/proc/sys/kernel/random/boot_id")
"""Another value after every boot. Source: proc(5), random(4)."""

DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR")
"""Result codes about the file's content rather than the disk: SQLITE_ERROR is a table or column that is not there, or there already.

Source: sqlite.org/rescode.html."""


class OpenOutcome(StrEnum):
    """What was found at the path."""

    CREATED = "created"
    INTACT = "intact"
    CORRUPT = "corrupt"
    OTHER_BOOT = "other-boot"
    OTHER_FAMILY = "other-family"


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


@dataclass(frozen=True, slots=True)
class OpenedDatastore:
    """The datastore, and what was found when it was opened."""

    datastore: Datastore
    report: OpenReport


def current_boot_id(path: Path = BOOT_ID_PATH) -> str:
    """Read which boot this is. Raises: DatastoreError."""
    try:
        return path.read_text().strip()
    except OSError as error:
        raise DatastoreError(f"the boot ID cannot be read from {path}", details=str(error)) from error


def open_datastore(
    path: Path,
    *,
    boot_id: str,
    clock: Clock,
    family: Family = IPV4,
    failpoint: Failpoint = no_failpoint,
    lock_wait_s: float = 2.0,
    ledger_limit: int = LEDGER_LIMIT,
) -> OpenedDatastore:
    """Open `path`, or start an empty datastore there, setting aside a file that is damaged, of another boot or of the other family.

    Args:
        boot_id: `current_boot_id()`.
        family: of the pool.
        failpoint: called with each of `store.FAILPOINTS`; for crash tests.
        lock_wait_s: how long to wait for a predecessor that still holds the file.
    Raises: SchemaVersionError if a newer release wrote it, with the file untouched; DatastoreError if the disk refuses or another
        process has it open.
    """
    # For an empty one: in a /80 it begins anywhere, so that a lost file gives nothing again soon (I8).
    now, snapshot = clock.now(), Snapshot({}, {}, {}, {}, {}, cursor=int.from_bytes(os.urandom(6), "big"))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        report = examine(path, boot_id=boot_id, family=family, lock_wait_s=lock_wait_s)
        disk = None
        if report.outcome is OpenOutcome.INTACT:
            report, disk, loaded = _load(path, report, now=now, lock_wait_s=lock_wait_s)
            snapshot = snapshot if disk is None else loaded
        if disk is None:
            kept = set_aside(path, why=report.outcome.value, now=now)
            if kept is not None:
                report = replace(report, detail=f"{report.detail}; the former file is kept as {kept}", kept=kept)
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            with _exclusive(path, lock_wait_s) as disk:
                _create(disk, boot_id=boot_id, now=now, family=family, cursor=snapshot.cursor)
    except OSError as error:
        raise DatastoreError(f"{path} cannot be opened: {error}", details="look at the run directory") from error
    store = Datastore(disk, snapshot, clock=clock, failpoint=failpoint, ledger_limit=ledger_limit)
    return OpenedDatastore(store, report)


def examine(path: Path, *, boot_id: str, lock_wait_s: float, family: Family) -> OpenReport:
    """Judge the file without changing it, through a read-only connection.

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
        with closing(Disk(path, lock_wait_s=lock_wait_s, is_probe=True)) as probe, refusals(f"reading {path}"):
            return _examine_content(probe, boot_id=boot_id, family=family)
    except DatastoreError as error:
        return _judge(error)


def _judge(error: DatastoreError) -> OpenReport:
    """Tell damage, which a new file cures, from a disk that refuses or a file in use, which it does not."""
    if error.details.startswith(DAMAGE):
        return OpenReport(OpenOutcome.CORRUPT, error.message)
    raise error


def _examine_content(probe: Disk, *, boot_id: str, family: Family) -> OpenReport:
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
    if (other := meta.get(schema.FAMILY, IPV4.nft)) != family.nft:
        asked = [statement for name, statement in _NAMESPACES.items() if name in names]
        living = [row.container_id for each in asked for row in probe.connection.execute(each) if _may_live(row)]
        if living:
            raise DatastoreError(
                f"{path} is of a pool of {other}, and {counted(len(living), 'sandbox')} of it live: {first_of(living, 3)}",
                details="drain the node first, or run what wrote it; nothing of the file was changed",
            )
        return OpenReport(OpenOutcome.OTHER_FAMILY, f"it is of a pool of {other}, and no sandbox of it lives")
    # Columns that an INSERT of ours leaves out and the table demands; other unknown ones do no harm.
    unknown = [
        f"{table.name}.{row.name}"
        for table in schema.TABLES
        for row in probe.connection.exec_driver_sql(f"PRAGMA table_info({table.name})")
        if row.name not in table.columns and row.notnull and row.dflt_value is None
    ]
    if unknown:
        return OpenReport(OpenOutcome.CORRUPT, f"this release cannot fill {', '.join(unknown)}")
    orphans = pragma("foreign_key_check")
    if orphans:
        return OpenReport(OpenOutcome.CORRUPT, f"rows without the row they point to: {'; '.join(orphans[:3])}")
    was_restored = schema.RESTORED_AT in meta
    detail = "" if was_restored else "; its restore was never finished"
    return OpenReport(OpenOutcome.INTACT, detail, was_restored=was_restored)


def _may_live(row: Any) -> bool:
    """Whether a sandbox's namespace is where it was; that it cannot be looked at is no evidence of its end (I11)."""
    try:
        found = Path(row.netns).stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return not row.netns or (found.st_dev, found.st_ino) == (row.netns_device, row.netns_inode)


def _load(path: Path, report: OpenReport, *, now: datetime, lock_wait_s: float) -> tuple[OpenReport, Disk | None, Snapshot]:
    """Take the missing steps and read everything; no Disk if the content turns out to be none of ours."""
    snapshot = Snapshot({}, {}, {}, {}, {})
    try:
        with _exclusive(path, lock_wait_s) as disk:
            upgrade(disk)
            _forget_lost(disk, now=now)
            _forget_false_branches(disk, now=now)
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
    """Remove free addresses that are lost (I7): reserved when the process died, or freed by a release that does not know `lost`."""
    disk.begin()
    try:
        found = disk.execute(sql.LOST_FREE, subject="looking for lost addresses").scalars().all()
        if found:
            disk.execute(sql.DELETE_LOST_FREE, subject="forgetting lost addresses")
            disk.execute(sql.DELETE_EMPTY_PREFIXES, subject="forgetting lost addresses")
            detail = "lost, and free when the datastore was opened"
            row = sql.key_params(None) | {"at": now, "event": LedgerEvent.REMOVED.value, "eni_id": "", "detail": detail}
            Ledger(disk).write([row | {"address": text} for text in found])
            disk.commit()
    finally:
        disk.rollback()


def _forget_false_branches(disk: Disk, *, now: datetime) -> None:
    """Remove branch rows that a release which does not know them has contradicted: it took EC2's word for its pool (I7)."""
    disk.begin()
    try:
        found = disk.execute(sql.FALSE_BRANCHES, subject="looking for false branch rows").all()
        if found:
            disk.execute(sql.DELETE_FALSE_BRANCHES, subject="forgetting false branch rows")
            detail = "its branch ENI, or its address, is the pool's since a release without branch ENIs ran here"
            row = {"at": now, "event": LedgerEvent.REMOVED.value, "detail": detail}
            Ledger(disk).write([row | dict(one._mapping) for one in found])
            disk.commit()
    finally:
        disk.rollback()


@contextmanager
def _exclusive(path: Path, lock_wait_s: float) -> Iterator[Disk]:
    """The file, which stays open unless the block raises."""
    disk = Disk(path, lock_wait_s=lock_wait_s)
    try:
        Path(f"{path}-shm").unlink(missing_ok=True)  # the probe made it; with the exclusive lock nobody maps it
        yield disk
    except BaseException:
        disk.close()
        raise


def _create(disk: Disk, *, boot_id: str, now: datetime, family: Family, cursor: int) -> None:
    """Make the schema, all in one transaction: a file either has a version and all tables, or is empty."""
    disk.begin()
    with refusals(f"creating {disk.path}"):
        for table in schema.TABLES:
            for made in (table, *sorted(table.indexes, key=lambda index: str(index.name))):
                disk.connection.exec_driver_sql(schema.create_statement(made, family=family))
        for trigger in schema.TRIGGERS:
            disk.connection.exec_driver_sql(trigger)
        facts = {"boot_id": boot_id, "created_at": sql.time_text(now), "created_by": __version__, schema.FAMILY: family.nft}
        if family.is_sparse:
            facts[schema.CURSOR] = str(cursor)
        disk.connection.execute(insert(schema.meta), [{"name": name, "value": value} for name, value in facts.items()])
        disk.connection.exec_driver_sql(f"PRAGMA user_version = {schema.SCHEMA_VERSION}")
        take_all(disk)
    disk.commit()


# Move a file that cannot be used out of the way, and keep it for diagnosis.


KEPT_COUNT = 3
"""Files kept at most, the newest ones. Ours: `/run` is memory, and the newest damage is what is diagnosed."""

FILES = ("", "-wal", "-shm", "-journal")
"""How the names of a database and of what SQLite writes beside it end. Source: sqlite.org/tempfiles.html."""


def set_aside(path: Path, *, why: str, now: datetime) -> Path | None:
    """Rename a file and its companions to `<name>.<why>-<time>`, where `sqlite3` still opens them as one.

    The main file moves first: a crash in between then leaves a WAL without a database, which the next call moves too; the
    other way round would leave a database that silently lacks its newest changes.
    Returns: the new path; None if nothing was there.
    Raises: OSError.
    """
    base, number = f"{path}.{why}-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}", 0
    kept = Path(base)
    while any(os.path.lexists(f"{kept}{suffix}") for suffix in FILES):
        number += 1
        kept = Path(f"{base}.{number}")
    moved = None
    for suffix in FILES:
        source = Path(f"{path}{suffix}")
        if os.path.lexists(source):
            source.rename(f"{kept}{suffix}")
            moved = kept
    if moved is not None:
        _prune(path)
        sync_directory(path.parent)
    return moved


def _prune(path: Path) -> None:
    """Remove all but the newest; the age is the time at which a file was moved here (ctime)."""
    groups: dict[str, float] = {}
    for found in path.parent.glob(f"{path.name}.*-*"):
        base = str(found)
        for suffix in FILES:
            base = base.removesuffix(suffix)
        groups[base] = max(groups.get(base, 0.0), found.lstat().st_ctime_ns)
    for base in sorted(groups, key=lambda base: (groups[base], base))[:-KEPT_COUNT]:
        for suffix in FILES:
            victim = Path(f"{base}{suffix}")
            if victim.is_dir() and not victim.is_symlink():
                shutil.rmtree(victim)
            else:
                victim.unlink(missing_ok=True)
