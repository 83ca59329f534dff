"""The conflist stays in place while the daemon serves, whoever removes or alters it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipamd import conflist, conflist_keeper
from ipamd.clock import SystemClock
from ipamd.conflist_keeper import ConflistKeeper
from ipamd.model.repair import RepairKind
from ipamd.service.health import Health
from ipamd.service.reconcile.fights import FIGHT_REPAIRS, Fights
from ipamd.settings import DaemonConfig
from tests.fakes.clock import FakeClock
from tests.patience import PATIENCE_S


class Kept:
    """A keeper of a file in a directory of its own."""

    def __init__(self, folder: Path, clock: FakeClock | SystemClock) -> None:
        self.config = DaemonConfig(conflist_path=folder / "net.d" / "10-x.conflist")
        self.path = conflist.write(self.config)
        self.wanted = self.path.read_bytes()
        self.health = Health(clock, ())
        self.fights = Fights(clock=clock, health=self.health)
        self.noted: list[str] = []
        self.keeper = ConflistKeeper(self.config, fights=self.fights, health=self.health, note=self.noted.append)

    def is_in_place(self) -> bool:
        """Whether the file is what it must be."""
        return self.path.exists() and self.path.read_bytes() == self.wanted


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    """A keeper in a thread; its clock stands still, so only notifications count."""
    monkeypatch.setattr(conflist_keeper, "LOOK_S", 1e6)
    kept = Kept(tmp_path, SystemClock())
    thread = threading.Thread(target=kept.keeper.run, daemon=True)
    thread.start()
    yield kept
    kept.keeper.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("how", ["removed", "altered", "renamed", "replaced"])
def test_is_put_back_at_once(running: Kept, how: str) -> None:
    """Row 8: each is noticed without the clock, counted and recorded."""
    other = running.path.with_name("other")
    other.write_text("{}")
    match how:
        case "removed":
            running.path.unlink()
        case "altered":
            running.path.write_text("{}")
        case "renamed":
            running.path.rename(other)
        case "replaced":
            other.replace(running.path)
    give_up = time.monotonic() + PATIENCE_S
    while not (running.noted and running.is_in_place()):
        assert time.monotonic() < give_up
        time.sleep(0.02)
    assert running.fights.counts()[RepairKind.CONFLIST] >= 1


def test_a_file_in_order_is_left_alone(tmp_path: Path) -> None:
    """No write, no repair."""
    kept = Kept(tmp_path, FakeClock())
    before = kept.path.stat().st_ino
    kept.keeper.look()
    assert kept.path.stat().st_ino == before
    assert kept.noted == []


def test_another_writer_is_not_fought_for_ever(tmp_path: Path) -> None:
    """After three repairs the file stays the other's for a while, and status names it."""
    kept = Kept(tmp_path, FakeClock())
    for _ in range(FIGHT_REPAIRS + 1):
        kept.path.write_text("{}")
        kept.keeper.look()
    assert kept.path.read_text() == "{}"
    (told,) = kept.health.conditions()
    assert str(kept.path) in told
    assert len(kept.noted) == FIGHT_REPAIRS


def test_a_directory_that_went_is_made_again(tmp_path: Path) -> None:
    """The next look writes the file into a new directory."""
    kept = Kept(tmp_path, FakeClock())
    kept.path.unlink()
    kept.path.parent.rmdir()
    kept.keeper.look()
    assert kept.is_in_place()
