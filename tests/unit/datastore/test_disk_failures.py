"""The disk refuses: full, read-only, removed under us, failing at COMMIT. Nothing may change, on disk or in memory."""

# ruff: noqa: PT012 - a block is one unit of work, which must be rolled back as a whole

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from ipamd.datastore.store import SqlDatastore
from ipamd.model.address import AddressState
from ipamd.model.errors import DatastoreError, InvariantError
from ipamd.model.failures import FailureCode
from ipamd.model.history import LedgerEvent
from tests.errors import failed, refused_by_kernel
from tests.unit.datastore.support import COOLDOWN, a_key, an_attachment, an_eni, attach, eni_id, fill, ip, open_at


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB, as /run is one."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], check=False, capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.mark.privileged
def test_disk_full(tiny: Path) -> None:
    """On a full disk a change is refused with advice, memory equals disk, reads go on; with space again all works."""
    opened = open_at(tiny / "state.db")
    store = opened.datastore
    fill(store)
    attach(store, a_key(1))
    reserved = store.reserve(a_key(2))
    ballast = tiny / "ballast"
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, check=refused_by_kernel(errno.ENOSPC)):
        while True:
            file.write(b"x" * 4096)
    with pytest.raises(DatastoreError) as refusal:
        for _ in range(50):
            with store.transaction() as unit:
                unit.record_event(LedgerEvent.KEPT, detail="x" * 8192)
    assert "full" in str(refusal.value)
    assert "free space" in refusal.value.details
    assert refusal.value.retryable
    with pytest.raises(DatastoreError), store.transaction() as unit:
        unit.confirm(an_attachment(reserved, a_key(2)))
        unit.record_event(LedgerEvent.KEPT, detail="x" * 100_000)
    assert store.address(reserved.address) == reserved, "a failed confirm leaves the address reserved"
    assert store.attachment(a_key(1)) is not None
    assert store.audit() == []
    ballast.unlink()
    with store.transaction() as unit:
        unit.abort(reserved.address, cooldown=COOLDOWN, reason="the disk was full")
    assert store.audit() == []
    store.close()
    opened = open_at(tiny / "state.db")
    assert opened.report.is_sound
    assert opened.datastore.counts().cooling == 1
    opened.datastore.close()


@pytest.mark.privileged
def test_no_room_to_create(tiny: Path) -> None:
    """A disk that is full at start gives a typed error that names the file."""
    with (tiny / "ballast").open("wb", buffering=0) as file, pytest.raises(OSError, check=refused_by_kernel(errno.ENOSPC)):
        while True:
            file.write(b"x" * 4096)
    with pytest.raises(DatastoreError, check=failed(FailureCode.CHANGE_REFUSED)):
        open_at(tiny / "state.db")


@pytest.mark.privileged
def test_read_only_file_system(tiny: Path) -> None:
    """On a read-only file system opening is refused with advice, and the file is neither changed nor set aside."""
    store = open_at(tiny / "state.db").datastore
    fill(store)
    store.close()
    subprocess.run(["mount", "-o", "remount,ro", str(tiny)], check=True)
    before = sorted(os.listdir(tiny))
    with pytest.raises(DatastoreError, check=failed(FailureCode.CHANGE_REFUSED)) as refusal:
        open_at(tiny / "state.db")
    assert "run directory" in refusal.value.details
    assert sorted(os.listdir(tiny)) == before


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_file_removed_under_us(path: Path, store: SqlDatastore, suffix: str) -> None:
    """A change that no restart could find again is refused; reads go on from memory and the audit says what happened."""
    attach(store, a_key(1))
    Path(f"{path}{suffix}").unlink()
    with pytest.raises(DatastoreError, check=failed(FailureCode.FILE_REPLACED)), store.transaction() as unit:
        unit.unassign(a_key(1), cooldown=timedelta(0), reason="DEL")
    assert store.attachment(a_key(1)) is not None
    assert len(store.audit()) == 1
    assert "removed or replaced" in store.audit()[0]


def test_file_replaced_under_us(path: Path, store: SqlDatastore) -> None:
    """A copy that was put in our file's place does not count as our file."""
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)
    with pytest.raises(DatastoreError, check=failed(FailureCode.FILE_REPLACED)), store.transaction() as unit:
        unit.put_tombstone(a_key(1))


def test_commit_that_fails(path: Path) -> None:
    """When COMMIT fails the address being confirmed is still reserved for its key, and can be aborted (I5)."""
    failing: list[str] = []

    def failpoint(name: str) -> None:
        if name in failing:
            raise OSError(name)

    store = open_at(path, failpoint=failpoint).datastore
    fill(store)
    reserved = store.reserve(a_key(1))
    failing.append("datastore.before-commit")
    with pytest.raises(OSError, match="before-commit"), store.transaction() as unit:
        unit.confirm(an_attachment(reserved, a_key(1)))
    failing.clear()
    assert store.address(reserved.address) == reserved
    assert store.audit() == []
    with store.transaction() as unit:
        unit.abort(reserved.address, cooldown=COOLDOWN, reason="no commit")
    assert store.audit() == []
    failing.append("datastore.after-commit")
    with pytest.raises(OSError, match="after-commit"), store.transaction() as unit:
        unit.put_tombstone(a_key(1))
    failing.clear()
    assert store.is_tombstoned(a_key(1)), "what is committed is in memory, whatever happens next"
    assert store.audit() == []
    store.close()


def test_deferred_constraint_at_commit(store: SqlDatastore) -> None:
    """A constraint that only COMMIT can judge rolls both back and is an InvariantError (I1)."""
    attach(store, a_key(1))
    with pytest.raises(InvariantError, check=failed(FailureCode.CONSTRAINT_REFUSED)), store.transaction() as unit:
        unit.put_eni(an_eni(1))
        store._disk.connection.exec_driver_sql("DELETE FROM attachment")
    assert len(store.enis()) == 1
    assert store.audit() == []
    with store.transaction() as unit:
        unit.put_eni(an_eni(1))
    assert store.audit() == []


def test_begin_that_fails(store: SqlDatastore) -> None:
    """A transaction that cannot begin is refused, and the next one is not harmed by it."""
    store._disk._driver.execute("BEGIN")
    with pytest.raises(DatastoreError, check=failed(FailureCode.CHANGE_REFUSED)), store.transaction():
        pass
    fill(store, enis=2)
    assert store.audit() == []


def test_memory_that_differs_stops(store: SqlDatastore) -> None:
    """If memory and disk differ about an address, a change of it stops and the audit names it: no silent repair."""
    with store.transaction():
        store._disk.connection.exec_driver_sql("UPDATE address SET state = 'quarantined' WHERE address = '10.0.0.100'")
    assert [sentence for sentence in store.audit() if "10.0.0.100" in sentence]
    with pytest.raises(InvariantError, check=failed(FailureCode.MEMORY_AHEAD_OF_DISK)), store.transaction() as unit:
        unit.remove_addresses([ip("10.0.0.100")], reason="test")
    found = store.address(ip("10.0.0.100"))
    assert found is not None
    assert (found.state, found.eni_id) == (AddressState.FREE, eni_id(0))


class Refusing:
    """A connection of SQLAlchemy or of the driver whose ROLLBACK fails, as on a disk that returns I/O errors."""

    def __init__(self, real: object, error: Exception) -> None:
        self._real, self._error = real, error

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    def rollback(self) -> None:
        raise self._error


@pytest.mark.parametrize("broken", ["connection", "_driver"])
def test_rollback_that_fails(path: Path, store: SqlDatastore, broken: str) -> None:
    """After a failed ROLLBACK nobody knows what the connection holds: every change is refused, and the process is told to end."""
    attach(store, a_key(1))
    disk = store._disk
    real = getattr(disk, broken)
    error = (
        sqlite3.OperationalError("disk I/O error") if broken == "_driver" else OperationalError("ROLLBACK", {}, OSError("disk"))
    )
    if broken == "_driver":  # SQLAlchemy regards a transaction as over once COMMIT was tried: then the driver is asked
        disk.connection.rollback = lambda: None  # type: ignore[method-assign]
    setattr(disk, broken, Refusing(real, error))
    with pytest.raises(RuntimeError), store.transaction() as unit:
        unit.unassign(a_key(1), cooldown=timedelta(0), reason="DEL")
        raise RuntimeError
    setattr(disk, broken, real)
    assert "a rollback failed" in store.file_problem()
    assert store.attachment(a_key(1)) is not None
    with pytest.raises(DatastoreError, check=failed(FailureCode.FILE_OUT_OF_USE)), store.transaction() as unit:
        unit.put_tombstone(a_key(2))
    assert "a rollback failed" in store.audit()[0]
    store.close()
    again = open_at(path).datastore
    assert again.attachment(a_key(1)) is not None, "the next process reads the file again"
    assert again.audit() == []
    again.close()


def test_connection_that_is_lost(store: SqlDatastore) -> None:
    """SQLAlchemy does not open the file a second time in silence: it may not be the same file, and its lock was given up."""
    store._disk._driver.close()
    for _ in range(2):
        with pytest.raises(DatastoreError), store.transaction() as unit:
            unit.put_tombstone(a_key(2))
    assert "restart ipamd" in store.file_problem()
    assert not store.is_tombstoned(a_key(2))
