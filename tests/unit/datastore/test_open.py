"""What opening a datastore accepts, sets aside and refuses, and how it reports that."""

from __future__ import annotations

import os
import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest

from ipamd.datastore.open import OpenOutcome, OpenReport, current_boot_id
from ipamd.datastore.schema import SCHEMA_VERSION
from ipamd.datastore.set_aside import KEPT_COUNT
from ipamd.model.absences import Absence, Doubts
from ipamd.model.address import AddressState
from ipamd.model.errors import DatastoreError, SchemaVersionError
from ipamd.model.failures import FailureCode
from ipamd.model.intent import Intent, IntentKind
from tests.errors import failed
from tests.unit.datastore.support import (
    START,
    FakeClock,
    a_key,
    an_eni,
    attach,
    crashed_copy,
    fill,
    ip,
    open_at,
    raw,
)


def _filled(path: Path) -> None:
    store = open_at(path).datastore
    fill(store)
    attach(store, a_key(1))
    store.close()


def _report(path: Path, **options: object) -> OpenReport:
    opened = open_at(path, **options)  # type: ignore[arg-type]
    assert opened.datastore.audit() == []
    opened.datastore.close()
    return opened.report


def _kept(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path.parent) if name.startswith(f"{path.name}."))


def test_created(path: Path) -> None:
    """Where nothing was, an empty datastore is made that only its owner can read, and the report says that it knows nothing."""
    report = _report(path)
    assert (report.outcome, report.former_file, report.is_intact) == (OpenOutcome.CREATED, None, False)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_everything_comes_back(path: Path) -> None:
    """After a clean close every record reads back equal, except reservations, which promised nothing (I5, I8)."""
    store = open_at(path).datastore
    fill(store)
    attach(store, a_key(1))
    attach(store, a_key(2))
    reserved = store.reserve(a_key(3))
    with store.transaction() as unit:
        unit.unassign(a_key(2), cooldown=timedelta(0) + timedelta(days=1, microseconds=5), reason="DEL")
        unit.put_tombstone(a_key(2))
        unit.put_eni(an_eni(1))
        unit.open_intent(Intent("i", IntentKind.ASSIGN, START, {"count": "3", "note": 'ü"'}, "token"))
    before = (store.attachments(), store.enis(), store.open_intents())
    others = [address for address in store.addresses() if address.address != reserved.address]
    store.close()
    opened = open_at(path)
    again = opened.datastore
    assert opened.report.outcome is OpenOutcome.INTACT
    assert opened.report.is_sound
    assert "1 attachment, 4 addresses, 2 ENIs" in opened.report.detail
    assert (again.attachments(), again.enis(), again.open_intents()) == before
    assert [address for address in again.addresses() if address.address != reserved.address] == others
    found = again.address(reserved.address)
    assert found is not None
    assert found.state is AddressState.FREE
    assert again.is_tombstoned(a_key(2))
    again.close()


def test_another_boot(path: Path) -> None:
    """A file of another boot is never used: it is set aside and the datastore starts empty."""
    _filled(path)
    opened = open_at(path, boot_id="another")
    assert opened.report.outcome is OpenOutcome.OTHER_BOOT
    assert opened.datastore.addresses() == ()
    assert opened.report.former_file is not None
    with sqlite3.connect(opened.report.former_file) as connection:
        assert connection.execute("SELECT count(*) FROM attachment").fetchone() == (1,)
    connection.close()
    opened.datastore.close()


@pytest.mark.parametrize("may_live", [False, True])
def test_a_pool_of_the_other_family(path: Path, tmp_path: Path, *, may_live: bool) -> None:
    """A file of IPv6 addresses, as a later release writes one: set aside if no sandbox of it can live, else the start is refused and
    the file is as it was, so that its own release finds it."""
    netns = tmp_path / "netns"
    netns.touch()
    _filled(path)
    inode = netns.stat().st_ino + (not may_live)
    raw(path, "UPDATE meta SET value = 'ip6' WHERE name = 'family'")
    raw(path, f"UPDATE attachment SET netns = '{netns}', netns_device = {netns.stat().st_dev}, netns_inode = {inode}")
    if may_live:
        with pytest.raises(DatastoreError, check=failed(FailureCode.FILE_OF_OTHER_FAMILY, family="ip6", count="1 sandbox")):
            open_at(path)
        netns.unlink()  # the sandbox ends
    opened = open_at(path)
    assert (opened.report.outcome, opened.datastore.attachments()) == (OpenOutcome.OTHER_FAMILY, ())
    assert opened.report.former_file is not None
    assert "other-family" in opened.report.former_file.name
    opened.datastore.close()
    assert open_at(path).report.outcome is OpenOutcome.INTACT


def test_a_file_that_names_no_family_is_of_ipv4(path: Path) -> None:
    """Releases before wrote no family."""
    _filled(path)
    raw(path, "DELETE FROM meta WHERE name = 'family'")
    opened = open_at(path)
    assert opened.report.is_sound
    opened.datastore.close()


def _garbage(path: Path) -> None:
    path.write_bytes(os.urandom(8192))


def _truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _emptied(path: Path) -> None:
    os.truncate(path, 0)


def _overwritten_inside(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))


def _without_table(path: Path) -> None:
    raw(path, "DROP TABLE tombstone")


def _without_version(path: Path) -> None:
    raw(path, "PRAGMA user_version = 0")


def _with_a_strange_value(path: Path) -> None:
    raw(path, "UPDATE address SET since = 'yesterday'")


def _with_an_orphan(path: Path) -> None:
    raw(path, "DELETE FROM attachment")


def _a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize(
    "damage",
    [
        _garbage,
        _truncated,
        _emptied,
        _overwritten_inside,
        _without_table,
        _without_version,
        _with_a_strange_value,
        _with_an_orphan,
        _a_directory,
        _a_link,
    ],
)
def test_damage(path: Path, damage: object) -> None:
    """A damaged file is kept for diagnosis, the datastore starts empty, works, and says so with the place."""
    _filled(path)
    damage(path)  # type: ignore[operator]
    opened = open_at(path)
    assert opened.report.outcome is OpenOutcome.CORRUPT, opened.report
    assert not opened.report.is_sound
    assert opened.report.former_file is not None
    assert os.path.lexists(opened.report.former_file)
    assert str(opened.report.former_file) in str(opened.report)
    assert opened.datastore.addresses() == ()
    fill(opened.datastore)
    assert opened.datastore.audit() == []
    opened.datastore.close()
    assert _report(path).is_sound


def test_damaged_wal_loses_only_its_tail(path: Path, tmp_path: Path) -> None:
    """A WAL cut by a crash costs what was not yet durable, never the file: what stays is a consistent prefix (I5)."""
    store = open_at(path).datastore
    fill(store)
    attach(store, a_key(1))
    copy = crashed_copy(path, tmp_path / "copy")
    store.close()
    wal = Path(f"{copy}-wal")
    os.truncate(wal, wal.stat().st_size - 100)
    opened = open_at(copy)
    assert opened.report.is_sound
    assert (len(opened.datastore.addresses()), opened.datastore.attachments()) == (4, ())
    opened.datastore.close()


def test_newer_release(path: Path, tmp_path: Path) -> None:
    """A file of a newer schema is refused and left untouched, WAL included, even when the version is only in the WAL."""
    store = open_at(path).datastore
    fill(store)
    with store.transaction():
        store._disk.connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    copy = crashed_copy(path, tmp_path / "copy")
    store.close()
    before = [Path(f"{copy}{suffix}").read_bytes() for suffix in ("", "-wal")]
    with pytest.raises(SchemaVersionError, check=failed(FailureCode.SCHEMA_TOO_NEW)):
        open_at(copy)
    assert [Path(f"{copy}{suffix}").read_bytes() for suffix in ("", "-wal")] == before
    assert _kept(copy) == []


def test_audit_of_a_readable_file(path: Path) -> None:
    """A file that reads well but contradicts an invariant is served, and reported as not intact."""
    _filled(path)
    raw(
        path,
        "INSERT INTO prefix SELECT '10.0.9.0/28', eni_id FROM eni",
        "UPDATE address SET prefix = '10.0.9.0/28' WHERE address = '10.0.0.103'",
    )
    opened = open_at(path)
    assert opened.report.outcome is OpenOutcome.INTACT
    assert not opened.report.is_sound
    assert opened.report.problems == ("address 10.0.0.103 is not in its prefix 10.0.9.0/28",)
    assert opened.datastore.audit() == list(opened.report.problems)
    opened.datastore.close()


def test_kept_files_are_capped(path: Path) -> None:
    """However often the file is damaged, only the newest few are kept: /run is memory."""
    clock = FakeClock()
    for _ in range(KEPT_COUNT + 3):
        _report(path, clock=clock)
        _garbage(path)
        Path(f"{path}-wal").write_bytes(b"of the damaged one")
    newest = _report(path, clock=clock).former_file
    assert newest is not None
    kept = _kept(path)
    assert len([name for name in kept if not name.endswith(("-wal", "-shm"))]) == KEPT_COUNT
    assert newest.name in kept
    assert f"{newest.name}-wal" in kept


def test_orphan_wal_is_not_replayed(path: Path) -> None:
    """A WAL whose database is gone is moved away, not folded into the new file."""
    path.parent.mkdir(parents=True)
    Path(f"{path}-wal").write_bytes(b"x" * 5000)
    report = _report(path)
    assert report.outcome is OpenOutcome.CREATED
    assert report.former_file is not None
    assert Path(f"{report.former_file}-wal").read_bytes() == b"x" * 5000


def test_second_daemon_is_refused(path: Path) -> None:
    """A file that another holder has open is neither opened nor set aside: memory could not equal it (I1)."""
    first = open_at(path).datastore
    fill(first)
    with pytest.raises(DatastoreError, check=failed(FailureCode.CHANGE_REFUSED)) as refusal:
        open_at(path)
    assert "another ipamd" in refusal.value.details
    assert _kept(path) == []
    assert first.audit() == []
    attach(first, a_key(1))
    first.close()


def test_boot_id(tmp_path: Path) -> None:
    """The boot ID is the kernel's; without it the datastore is not opened by guess."""
    assert len(current_boot_id()) == 36
    with pytest.raises(DatastoreError, check=failed(FailureCode.BOOT_ID_UNREADABLE)):
        current_boot_id(tmp_path / "none")


def test_closed_datastore(path: Path) -> None:
    """A closed datastore refuses changes, still answers from memory, and closes again without complaint."""
    store = open_at(path).datastore
    fill(store)
    store.close()
    store.close()
    with pytest.raises(DatastoreError, check=failed(FailureCode.FILE_OUT_OF_USE)), store.transaction():
        pass
    assert store.counts().free == 4
    assert ip("10.0.0.100") in {address.address for address in store.addresses()}


def test_only_a_restored_file_is_intact(path: Path) -> None:
    """A file that was never restored knows too little, however clean it is; the mark survives a restart (I2)."""
    for expected in (False, True):
        opened = open_at(path)
        assert opened.report.is_intact is False
        if expected:
            with opened.datastore.transaction() as unit:
                unit.mark_restored(detail="0 sandboxes kept")
        opened.datastore.close()
    reopened = open_at(path)
    assert reopened.report.is_intact
    reopened.datastore.close()


def test_what_ec2_did_not_show_is_known_after_a_restart(path: Path, clock: FakeClock) -> None:
    """Both kinds of doubt, and a tombstone with its age: a restart goes on counting."""
    doubts = Doubts({"eni-1": Absence(1.0, 2.0, 3)}, {"10.0.0.100": Absence(4.0, 5.0, 6), "eni-2": Absence(7.0, 8.0, 9)})
    first = open_at(path, clock=clock).datastore
    with first.transaction() as unit:
        unit.put_doubts(doubts)
        unit.put_tombstone(a_key(7))
    written = first.snapshot()
    first.close()
    second = open_at(path, clock=clock).datastore
    assert second.doubts() == doubts
    assert second.snapshot() == written
    assert [one.at_monotonic_s for one in second.snapshot().tombstones.values()] == [clock.monotonic()]
    second.close()
