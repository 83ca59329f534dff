"""Open the datastore at start: use the file that is there, or set it aside and start an empty one.

`examine` decides whether the file can be used; then the missing steps of `migrations` are taken, and everything is read. A damaged
file is kept for diagnosis, never repaired and never deleted at once; the state is then rebuilt from kernel and CRI
(docs/life.md, "Start").
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import insert
from sqlalchemy.schema import CreateIndex, CreateTable

from ipamd import __version__
from ipamd.datastore import schema
from ipamd.datastore import statements as sql
from ipamd.datastore.audit import contradictions
from ipamd.datastore.disk import Disk, refusals
from ipamd.datastore.examine import OpenOutcome as OpenOutcome
from ipamd.datastore.examine import OpenReport as OpenReport
from ipamd.datastore.examine import examine, judge
from ipamd.datastore.ledger import LEDGER_LIMIT, Ledger
from ipamd.datastore.migrations import take_all, upgrade
from ipamd.datastore.rows import ledger_params, read_snapshot, time_text
from ipamd.datastore.set_aside import set_aside
from ipamd.datastore.store import SqlDatastore
from ipamd.model.errors import DatastoreError, InvariantError
from ipamd.model.history import HistoryRecord
from ipamd.model.ledger import LedgerEvent
from ipamd.model.snapshot import Snapshot
from ipamd.model.words import counted
from ipamd.ports import Clock, Failpoint, no_failpoint

BOOT_ID_PATH = Path("/proc/sys/kernel/random/boot_id")
"""Another value after every boot. Source: proc(5), random(4)."""


@dataclass(frozen=True, slots=True)
class OpenedDatastore:
    """The datastore, and what was found when it was opened."""

    datastore: SqlDatastore
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
    failpoint: Failpoint = no_failpoint,
    lock_wait_s: float = 2.0,
    ledger_limit: int = LEDGER_LIMIT,
) -> OpenedDatastore:
    """Open `path`, or start an empty datastore there, setting aside a file that is damaged or of another boot.

    Args:
        boot_id: `current_boot_id()`.
        failpoint: called with each of `store.FAILPOINTS`; for crash tests.
        lock_wait_s: how long to wait for a predecessor that still holds the file.
    Raises: SchemaVersionError if a newer release wrote it, with the file untouched; DatastoreError if the disk refuses or another
        process has it open.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        report = examine(path, boot_id=boot_id, lock_wait_s=lock_wait_s)
        loaded = _load(path, report, now=clock.now(), lock_wait_s=lock_wait_s) if report.outcome is OpenOutcome.INTACT else report
        if isinstance(loaded, OpenReport):
            report = _set_aside(path, loaded, now=clock.now())
            loaded = _start_empty(path, report, boot_id=boot_id, now=clock.now(), lock_wait_s=lock_wait_s)
    except OSError as error:
        raise DatastoreError(f"{path} cannot be opened: {error}", details="look at the run directory") from error
    store = SqlDatastore(loaded.disk, loaded.snapshot, clock=clock, failpoint=failpoint, ledger_limit=ledger_limit)
    return OpenedDatastore(store, loaded.report)


@dataclass(frozen=True, slots=True)
class _Loaded:
    disk: Disk
    snapshot: Snapshot
    report: OpenReport


def _set_aside(path: Path, report: OpenReport, *, now: datetime) -> OpenReport:
    kept = set_aside(path, why=report.outcome.value, now=now)
    detail = report.detail if kept is None else f"{report.detail}; the former file is kept as {kept}"
    return OpenReport(report.outcome, detail, kept)


def _start_empty(path: Path, report: OpenReport, *, boot_id: str, now: datetime, lock_wait_s: float) -> _Loaded:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    with _exclusive(path, lock_wait_s) as disk:
        _create(disk, boot_id=boot_id, now=now)
        return _Loaded(disk, Snapshot({}, {}, {}, {}, {}), report)


def _load(path: Path, report: OpenReport, *, now: datetime, lock_wait_s: float) -> _Loaded | OpenReport:
    """Take the missing steps and read everything; an OpenReport if the content turns out to be none of ours."""
    try:
        with _exclusive(path, lock_wait_s) as disk:
            upgrade(disk)
            _forget_lost(disk, now=now)
            with refusals(f"reading {path}"):
                snapshot = read_snapshot(disk.connection)
                disk.connection.rollback()
    except ValueError as error:
        return OpenReport(OpenOutcome.CORRUPT, f"a value is none of ours: {error}")
    except InvariantError as error:
        return OpenReport(OpenOutcome.CORRUPT, str(error))
    except DatastoreError as error:
        return judge(error)
    problems = tuple(contradictions(snapshot))
    counts = {"attachment": len(snapshot.attachments), "address": len(snapshot.addresses), "ENI": len(snapshot.enis)}
    detail = ", ".join(counted(count, noun) for noun, count in counts.items())
    if problems:
        detail += f"; the audit found {len(problems)}: {problems[0]}"
    return _Loaded(disk, snapshot, replace(report, detail=detail + report.detail, problems=problems))


def _forget_lost(disk: Disk, *, now: datetime) -> None:
    """Remove free addresses that are lost (I7): reserved when the process died, or freed by a release that does not know `lost`."""
    disk.begin()
    try:
        found = disk.execute(sql.LOST_FREE, subject="looking for lost addresses").scalars().all()
        if found:
            disk.execute(sql.DELETE_LOST_FREE, subject="forgetting lost addresses")
            disk.execute(sql.DELETE_EMPTY_PREFIXES, subject="forgetting lost addresses")
            detail = "lost, and free when the datastore was opened"
            rows = [ledger_params(HistoryRecord(now, LedgerEvent.REMOVED.value, address=text, detail=detail)) for text in found]
            Ledger(disk).write(rows)
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


def _create(disk: Disk, *, boot_id: str, now: datetime) -> None:
    """Make the schema, all in one transaction: a file either has a version and all tables, or is empty."""
    disk.begin()
    with refusals(f"creating {disk.path}"):
        for table in schema.TABLES:
            disk.connection.execute(CreateTable(table))
            for index in sorted(table.indexes, key=lambda index: str(index.name)):
                disk.connection.execute(CreateIndex(index))
        for trigger in schema.TRIGGERS:
            disk.connection.exec_driver_sql(trigger)
        facts = {"boot_id": boot_id, "created_at": time_text(now.astimezone(UTC)), "created_by": __version__}
        disk.connection.execute(insert(schema.meta), [{"name": name, "value": value} for name, value in facts.items()])
        disk.connection.exec_driver_sql(f"PRAGMA user_version = {schema.SCHEMA_VERSION}")
        take_all(disk)
    disk.commit()
