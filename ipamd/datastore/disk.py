"""The only SQLite connection to the file, which turns SQLite's errors into those of `ipamd/model/errors.py`.

One long-lived connection in exclusive locking mode: no second daemon can open the file, and no -shm mapping exists (a full
tmpfs under a mapping is a SIGBUS). The connection has one transaction at a time, so a thread takes `Disk.lock` before BEGIN IMMEDIATE.
To wait for SQLite's own lock instead would take longer, because SQLite only sleeps and polls: with 30 threads the p99 of a transaction
was 336 ms without `Disk.lock` and 93 ms with it (ours, measured).
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, CursorResult, Dialect, Executable, create_engine, event
from sqlalchemy.dialects.sqlite import dialect
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from ipamd.datastore.statements import Params, Statement
from ipamd.model.errors import DatastoreError, InvariantError
from ipamd.model.failures import FailureCode, failure

WAL_AUTOCHECKPOINT_PAGES = 1000
"""Pages in the WAL after which SQLite writes them into the database. SQLite's default: values from 100 to 4,000 made no measurable
difference (docs/adr/0002)."""

ADVICE = {
    "SQLITE_FULL": "the file system of the run directory is full: free space there",
    "SQLITE_READONLY": "the file system of the run directory is read-only: remount it",
    "SQLITE_IOERR": "the file system of the run directory reports errors: look at the kernel log",
    "SQLITE_CANTOPEN": "the file cannot be opened or created: look at the run directory's permissions and room (`df`, `df -i`)",
    "SQLITE_BUSY": "another process has the file open: is another ipamd running?",
    "SQLITE_CORRUPT": "the file is damaged: restart ipamd, which sets it aside and rebuilds from the kernel and CRI",
    "SQLITE_NOTADB": "the file is damaged: restart ipamd, which sets it aside and rebuilds from the kernel and CRI",
}
"""What an operator can do, by SQLite's primary result code. Source: sqlite.org/rescode.html."""

CLOSED = "it was closed"

BEGIN = "BEGIN IMMEDIATE"
"""Takes SQLite's write lock when the transaction begins, and not at its first change. Usually no other connection can have that lock.
If another one has it all the same, the transaction is refused before it has changed anything."""

_NAMED = dialect(paramstyle="named")
"""The dialect in which statements are compiled for the driver: parameters by name."""

_TEXTS: dict[Statement, str] = {}
_COMPILED: dict[Any, Any] = {}
"""Compiled statements, shared by all files of the process. `_TEXTS` has the SQL text of each statement that `Disk.write` has run;
`_COMPILED` is SQLAlchemy's cache, which `Disk.execute` uses."""

_DIALECTS: dict[str, Dialect] = {}
"""The dialect that all connections use, by the driver's name. Each engine makes a dialect of its own, and SQLAlchemy's cache finds a
compiled statement only with the dialect that compiled it."""


class Disk:
    """One open file. `lock` must be held from `begin` until `commit` or `rollback` has returned."""

    def __init__(self, path: Path, *, lock_wait_s: float, is_probe: bool = False) -> None:
        """Open `path`, which exists.

        Args:
            lock_wait_s: how long to wait for a predecessor of this process that still has the file locked.
            is_probe: whether to open the file read-only and without the exclusive lock, so that neither the file nor its WAL is
                changed.
        Raises: DatastoreError.
        """
        self.path = path
        self._paths = (str(path), f"{path}-wal")
        self.lock = threading.Lock()
        self._broken = ""
        engine = create_engine("sqlite+pysqlite://", creator=lambda: _connect(path, lock_wait_s, is_probe), poolclass=StaticPool)
        if not is_probe:
            # SQLAlchemy raises this event before its first statement in a transaction. Usually `begin` has begun the transaction
            # already.
            event.listen(engine, "begin", lambda _: self._driver.in_transaction or self._driver.execute(BEGIN))
        self._engine = engine
        with refusals(f"opening {path}"):
            self.connection: Connection = engine.connect().execution_options(compiled_cache=_COMPILED)
        # A dialect that has connected has read the version of SQLite, so the first one serves for all.
        self.connection.dialect = _DIALECTS.setdefault(engine.driver, self.connection.dialect)
        driver = self.connection.connection.driver_connection
        if not isinstance(driver, sqlite3.Connection):
            raise failure(DatastoreError, FailureCode.NO_DRIVER, path=path)
        self._driver = driver
        self._identity = self._files()

    @property
    def is_broken(self) -> bool:
        """Whether a rollback failed: `begin` refuses from now on."""
        return self._broken not in ("", CLOSED)

    def begin(self) -> None:
        """Start a transaction. Raises: DatastoreError."""
        if self._broken:
            raise failure(DatastoreError, FailureCode.FILE_OUT_OF_USE, path=self.path, cause=self._broken)
        try:
            self._driver.execute(BEGIN)
        except sqlite3.Error as error:
            self.rollback()
            raise _refusal(error, "beginning a transaction") from error

    def commit(self) -> None:
        """Commit the transaction. Raises: DatastoreError; the caller must then call `rollback`."""
        if self._files() != self._identity:
            raise failure(DatastoreError, FailureCode.FILE_REPLACED, path=self.path)
        with refusals("committing"):
            if self.connection.in_transaction():  # a statement ran through SQLAlchemy, which must learn of the end
                self.connection.commit()
            else:
                self._driver.execute("COMMIT")

    def rollback(self) -> None:
        """Undo the transaction. If even that fails, `begin` refuses from then on and `complaints` reports it.

        There is no second attempt, and this process does not open the file again: after a failed COMMIT or ROLLBACK memory may differ
        from the disk. The next process checks the file, and reads or rebuilds it.

        SQLAlchemy treats a transaction as ended once COMMIT was tried and rolls back nothing, but SQLite keeps it open when COMMIT
        fails. So the driver is asked whether a transaction is still open.
        """
        try:
            self.connection.rollback()
            if self._driver.in_transaction:
                self._driver.rollback()
            if self._driver.in_transaction:
                raise sqlite3.OperationalError("the transaction is still open")
        except (SQLAlchemyError, sqlite3.Error) as error:
            self._broken = f"a rollback failed ({error}): restart ipamd"

    def execute(self, statement: Executable, params: Params | None = None, *, subject: str) -> CursorResult[Any]:
        """Run one statement in the transaction. Raises: InvariantError, DatastoreError; both name `subject`."""
        with refusals(subject):
            return self.connection.execute(statement, params)

    def write(self, statement: Statement, params: Params | Sequence[Params], *, subject: str) -> int:
        """Run one changing statement in the transaction, once for each set of parameters. Returns: how many rows it changed.

        SQLAlchemy compiles the statement at its first use; later uses pass its text to the driver. Ours, measured: an ADD's
        transaction took 0.27 ms with `execute` and 0.13 ms with this.

        Args:
            params: the values by column; all uses of one statement name the same columns.
        Raises: InvariantError, DatastoreError; both name `subject`.
        """
        rows = [params] if isinstance(params, dict) else params
        if not rows:
            return 0
        try:  # without `refusals`: an ADD writes three times, and entering a context manager costs a sixth of a statement
            if statement not in _TEXTS:
                _TEXTS[statement] = str(statement.compile(dialect=_NAMED, column_keys=list(rows[0])))
            run = self._driver.execute if isinstance(params, dict) else self._driver.executemany
            return run(_TEXTS[statement], params).rowcount
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise _refusal(error, subject) from error

    def complaints(self) -> list[str]:
        """Describe the faults of the file or of our connection because of which no change is accepted any more.

        Returns: one sentence per fault; an empty list if there is none.
        """
        complaints = []
        if self._files() != self._identity:
            complaints.append(f"{self.path} or its WAL was removed or replaced while in use: restart ipamd")
        if self.is_broken:
            complaints.append(f"{self.path} is out of use: {self._broken}")
        return complaints

    def close(self) -> None:
        """Close the file, after SQLite has written the content of the WAL into it. Idempotent."""
        self._broken = self._broken or CLOSED
        try:
            self.connection.close()
            self._engine.dispose()
        except SQLAlchemyError:
            pass  # what was committed is in the WAL: the next open replays it

    def _files(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(map(_identity, self._paths))


@contextmanager
def refusals(subject: str) -> Iterator[None]:
    """Turn SQLite's errors into ours: a violated constraint into an InvariantError, every other error into a DatastoreError."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise _refusal(error, subject) from error


def _refusal(error: SQLAlchemyError | sqlite3.Error, subject: str) -> DatastoreError:
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.IntegrityError):
        return failure(InvariantError, FailureCode.CONSTRAINT_REFUSED, subject=subject, cause=str(cause))
    name = getattr(cause, "sqlite_errorname", "")
    if not name:
        return failure(DatastoreError, FailureCode.CHANGE_FAILED, subject=subject, cause=cause)
    advice = next((text for code, text in ADVICE.items() if name.startswith(code)), "nothing was changed; try again")
    return failure(DatastoreError, FailureCode.CHANGE_REFUSED, subject=subject, cause=cause, result=name, advice=advice)


def _connect(path: Path, lock_wait_s: float, is_probe: bool) -> sqlite3.Connection:
    uri = f"file:{path.absolute().as_posix().replace('%', '%25').replace('?', '%3f').replace('#', '%23')}"
    raw = sqlite3.connect(
        f"{uri}?mode={'ro' if is_probe else 'rw'}",
        uri=True,
        timeout=lock_wait_s,
        isolation_level=None,  # transactions are ours: the driver must not begin any
        check_same_thread=False,  # `lock` admits one thread at a time
    )
    try:
        if not is_probe:
            # Set this before the first access to the WAL, so that SQLite makes no -shm file. Source: sqlite.org/wal.html, "Use of WAL
            # Without Shared-Memory".
            raw.execute("PRAGMA locking_mode = EXCLUSIVE")
            raw.execute("PRAGMA journal_mode = WAL")
            # No fsync is needed: the page cache survives a crash of the process, and after a reboot the file is not used.
            raw.execute("PRAGMA synchronous = OFF")
            raw.execute(f"PRAGMA wal_autocheckpoint = {WAL_AUTOCHECKPOINT_PAGES}")
        raw.execute("PRAGMA foreign_keys = ON")
        raw.execute("PRAGMA trusted_schema = OFF")
        raw.execute("PRAGMA cell_size_check = ON")
        raw.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # opens the WAL now, so that `_files` knows it
    except sqlite3.Error:
        raw.close()
        raise
    return raw


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)  # every transaction calls this, and Path.lstat takes five times as long
    except OSError:
        return None
    return status.st_dev, status.st_ino
