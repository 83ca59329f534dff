"""A wall clock that is wrong removes nothing of the history that is new by the clock that nobody sets."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ipamd.history.age import FILE_NAME
from ipamd.history.segments import DAY_S, listed
from tests.unit.history.test_writer import BYTES_MAX, Disk

HOUR_S = 3600.0


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """A history with one assignment and one refusal, of this moment."""
    made = Disk(tmp_path / "history")
    made.write(made.record(), made.record("refused", address="", pod="default/a"))
    follow(made)
    return made


def follow(disk: Disk) -> None:
    """Give what was written in the test the time of the fake clock."""
    now_s = disk.clock.now().timestamp()
    for path in disk.directory.iterdir():
        os.utime(path, (now_s, now_s))


def running(disk: Disk) -> None:
    """The daemon runs on."""


def restarted(disk: Disk) -> None:
    """The next daemon of this boot."""
    disk.writer.close()
    disk.start("one")


def rebooted(disk: Disk) -> None:
    """The first daemon of the next boot, whose monotonic clock begins anew."""
    disk.writer.close()
    disk.clock._monotonic = 20.0
    disk.start("two")


def killed_and_rebooted(disk: Disk) -> None:
    """As after a power cut."""
    disk.clock._monotonic = 20.0
    disk.start("two")


STARTS = [running, restarted, rebooted, killed_and_rebooted]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("days", [8, 800, -8, -20_000])
def test_a_clock_that_jumps_there_and_back_removes_nothing(disk: Disk, start: Callable[[Disk], None], days: int) -> None:
    """While the daemon runs, between two daemons and between two boots; ahead and behind; however often."""
    for _ in range(3):
        disk.clock.step_wall(days * DAY_S)
        start(disk)
        disk.writer.write()
        disk.write(disk.record("unassigned"))
        follow(disk)
        disk.clock.advance(3 * HOUR_S)
        disk.writer.write()
        disk.clock.step_wall(-days * DAY_S)
        start(disk)
        disk.writer.write()
        disk.clock.advance(3 * HOUR_S)
        disk.writer.write()
    assert sorted(disk.events()) == ["assigned", "unassigned", "unassigned", "unassigned"]
    assert disk.events("default/a") == ["refused"]


@pytest.mark.parametrize("start", STARTS)
def test_what_is_old_by_both_clocks_goes(disk: Disk, start: Callable[[Disk], None]) -> None:
    """Days are counted on over restarts and boots; with a clock that was behind too, once it is right."""
    for _ in range(9):
        disk.clock.advance(DAY_S - 60)
        disk.writer.write()  # as each hour
        start(disk)
        disk.clock.advance(60)
        disk.writer.write()
    assert disk.events() == []
    assert disk.events("default/a") == []


def test_a_clock_that_stays_behind_is_bounded_by_bytes(disk: Disk) -> None:
    """By it nothing gets old: the oldest goes once there is too much."""
    disk.clock.step_wall(-20_000 * DAY_S)
    for number in range(3 * BYTES_MAX // 20_000):
        disk.clock.advance(DAY_S)
        disk.write(*(disk.record(detail=f"{number} " + "x" * 900) for _ in range(20)))
        assert disk.size <= BYTES_MAX + BYTES_MAX // 8


@pytest.mark.parametrize(
    "odd", ["", "[]", '{"ran_s": -1}', "{" * 9000, '{"boot_id":1,"monotonic_s":"x","ran_s":1e999,"written_s":[]}']
)
def test_a_file_of_ages_that_cannot_be_read_makes_nothing_older(disk: Disk, odd: str) -> None:
    """The files are as old as this process has known them, and the file is written anew."""
    disk.writer.close()
    (disk.directory / FILE_NAME).write_text(odd)
    disk.start("two")
    disk.clock.step_wall(8 * DAY_S)
    disk.writer.write()
    assert disk.events() == ["assigned"]
    assert json.loads((disk.directory / FILE_NAME).read_text())["boot_id"] == "two"


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/nowhere/at/all", path)])
@pytest.mark.parametrize("name", [FILE_NAME, "ages.tmp"])
def test_what_stands_in_the_place_of_the_ages_stops_no_history(
    disk: Disk, name: str, make: Callable[[str | os.PathLike[str]], None]
) -> None:
    """It is written all the same, and its bound holds in this process."""
    disk.writer.close()
    (disk.directory / FILE_NAME).unlink()
    make(disk.directory / name)
    disk.start("two").write()
    disk.write(disk.record("unassigned"))
    assert sorted(disk.events()) == ["assigned", "unassigned"]
    disk.clock.advance(8 * DAY_S)
    follow_at = disk.clock.now().timestamp() - 8 * DAY_S - 60
    for segment in listed(disk.directory, "history"):
        os.utime(segment.path, (follow_at, follow_at))
    disk.writer.write()
    assert disk.events() == []
