"""A place in the run directory that something else has: it is renamed, kept and named, or the refusal says what to remove."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ipamd.core.demand import Demand
from ipamd.core.freeze import Freeze
from ipamd.core.health import Health
from ipamd.datastore.open import OpenOutcome, open_datastore
from ipamd.datastore.spool import SpoolDirectory
from ipamd.host.freeze_files import OperatorFreeze
from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode
from ipamd.settings import places
from ipamd.settings.places import DIRECTORY, FILE, PLACES, PREFIX, free_places
from tests.errors import failed
from tests.fakes.clock import FakeClock


def make_file(path: Path) -> None:
    """Somebody's file."""
    path.write_text("mine")


def make_directory(path: Path) -> None:
    """Somebody's directory, with something in it."""
    path.mkdir()
    (path / "inside").write_text("mine")


def make_link(path: Path) -> None:
    """A link to a directory with something in it."""
    target = path.parent.parent / "elsewhere"
    target.mkdir(exist_ok=True)
    (target / "inside").write_text("mine")
    path.symlink_to(target)


def make_dangling_link(path: Path) -> None:
    """A link to nothing."""
    path.symlink_to("/nowhere/at/all")


def make_socket(path: Path) -> None:
    """A socket nobody serves. Its path can be longer than an address may be, so it is bound by way of an open directory."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)


KINDS: dict[str, Callable[[Path], None]] = {
    FILE: make_file,
    DIRECTORY: make_directory,
    "a link": make_link,
    "a dangling link": make_dangling_link,
    "a FIFO": os.mkfifo,
    "a socket": make_socket,
}
OTHERS = [(name, kind) for name in PLACES for kind in KINDS if kind != PLACES[name]]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """An empty run directory."""
    made = tmp_path / "run"
    made.mkdir()
    return made


@pytest.mark.parametrize(("name", "kind"), OTHERS)
def test_what_is_in_the_way_is_kept_beside_its_place(
    run_dir: Path, caplog: pytest.LogCaptureFixture, name: str, kind: str
) -> None:
    """Whatever it is; nothing is deleted, nothing behind a link is touched, and the log names both paths."""
    KINDS[kind](run_dir / name)
    with caplog.at_level(logging.WARNING):
        (kept,) = free_places(run_dir)
    assert os.listdir(run_dir) == [kept.name]
    assert kept.name.startswith(PREFIX)
    assert str(run_dir / name) in caplog.text
    assert str(kept) in caplog.text
    if kind in (DIRECTORY, "a link"):
        assert (kept / "inside").read_text() == "mine"
    if kind == FILE:
        assert kept.read_text() == "mine"
    assert free_places(run_dir) == []


def test_what_belongs_there_stays(run_dir: Path) -> None:
    """Whatever is in it."""
    for name, belongs in PLACES.items():
        KINDS[belongs](run_dir / name)
    before = sorted(run_dir.rglob("*"))
    assert free_places(run_dir) == []
    assert sorted(run_dir.rglob("*")) == before


def test_many_in_one_place_have_names_of_their_own_and_a_bound(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes them again and again is refused, with what to remove."""
    monkeypatch.setattr(places, "_now", lambda: datetime(2026, 11, 28, tzinfo=UTC))
    kept = []
    for _ in range(places.MOVED_MAX):
        make_file(run_dir / "spool")
        kept += free_places(run_dir)
    assert len(set(kept)) == places.MOVED_MAX
    make_file(run_dir / "spool")
    with pytest.raises(SettingsError, check=failed(FailureCode.FILE_NOT_RENAMED)) as refused:
        free_places(run_dir)
    assert str(run_dir / "spool") in str(refused.value)


def test_what_cannot_be_renamed_is_named(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount point, or a file system that is read-only."""

    def refuse(path: Path, _target: object) -> None:
        raise OSError(16, "Device or resource busy", str(path))

    make_directory(run_dir / "ipamd.lock")
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(SettingsError) as refused:
        free_places(run_dir)
    assert f"{run_dir}/ipamd.lock is a directory" in str(refused.value)
    assert "Device or resource busy" in str(refused.value)


@pytest.mark.parametrize("name", places.SPOOL_PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_spool_is_read_whatever_was_in_its_place(run_dir: Path, name: str, kind: str) -> None:
    """While the daemon runs too: the next turn of maintenance frees the place for plugins (I3)."""
    KINDS[kind](run_dir / name)
    spool = SpoolDirectory(run_dir, clock=FakeClock())
    spool.free_places()
    with spool.replay() as entries:
        assert list(entries) == []
    assert spool.pending_count() == 0


@pytest.mark.parametrize("suffix", ["", "-wal", "-journal"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != FILE])
def test_a_datastore_whose_files_are_something_else_is_made_anew(run_dir: Path, suffix: str, kind: str) -> None:
    """What was committed last may have been in them, so the rows are rebuilt; all is kept (I11)."""
    path = run_dir / "state.db"
    open_datastore(path, boot_id="b", clock=FakeClock()).datastore.close()
    beside = Path(f"{path}{suffix}")
    beside.unlink(missing_ok=True)
    KINDS[kind](beside)
    opened = open_datastore(path, boot_id="b", clock=FakeClock())
    opened.datastore.close()
    assert opened.report.outcome is OpenOutcome.CORRUPT
    assert str(beside) in opened.report.detail
    assert os.path.lexists(f"{opened.report.former_file}{suffix}")


def test_a_directory_that_was_kept_is_never_emptied(run_dir: Path) -> None:
    """However many files are set aside after it."""
    path = run_dir / "state.db"
    make_directory(path)
    for _ in range(6):
        open_datastore(path, boot_id="b", clock=FakeClock()).datastore.close()
        path.write_bytes(b"damaged")
    assert [inside.read_text() for inside in run_dir.glob("state.db.*/inside")] == ["mine"]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != FILE])
def test_a_freeze_that_cannot_be_read_counts_until_it_is_thawed(run_dir: Path, kind: str) -> None:
    """`ipamctl thaw` makes room whatever it is, and the next freeze is written."""
    clock = FakeClock()
    KINDS[kind](run_dir / "freeze.json")
    freeze = Freeze(clock=clock, health=Health(clock, ()), demand=Demand())
    operator = OperatorFreeze(freeze, run_dir=run_dir, boot_id="b", clock=clock)
    operator.restore()
    is_dangling = kind == "a dangling link"
    assert bool(freeze.in_force()) is not is_dangling
    assert operator.thaw() == ""
    assert freeze.in_force() == ()
    assert operator.freeze("why") == ""
    assert json.loads((run_dir / "freeze.json").read_text())["reason"] == "why"
    assert [path.read_text() for path in run_dir.glob(f"{PREFIX}*/inside")] == ["mine"] * (kind == DIRECTORY)
