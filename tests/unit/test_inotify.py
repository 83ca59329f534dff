"""Waiting for changes of directories."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ipamd.host import inotify
from ipamd.host.inotify import DirectoryWatch
from tests.patience import PATIENCE_S


class Libc:
    """The C library on a node that has no inotify instance left, until it has."""

    def __init__(self) -> None:
        self.real = inotify._libc
        self.is_exhausted = True

    def inotify_init1(self, flags: int) -> int:
        """-1, or the real one's descriptor."""
        return -1 if self.is_exhausted else int(self.real.inotify_init1(flags))

    def inotify_add_watch(self, *arguments: object) -> int:
        """The real one."""
        return int(self.real.inotify_add_watch(*arguments))


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("change", ["make", "write", "chmod", "remove", "rename away"])
def test_a_change_ends_the_wait(tmp_path: Path, number: int, change: str) -> None:
    """In any of the directories, of any kind that alters what is there or whether it can be run."""
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        folder.mkdir()
        (folder / "there").touch()
    watch, path = DirectoryWatch(), folders[number] / "there"
    watch.arm(folders)
    match change:
        case "make":
            (folders[number] / "new").touch()
        case "write":
            path.write_text("x")
        case "chmod":
            path.chmod(0o700)
        case "remove":
            path.unlink()
        case "rename away":
            path.rename(tmp_path / "away")
    assert watch.wait(PATIENCE_S)
    watch.clear()
    assert not watch.wait(0.0)


def test_it_is_set_and_cleared_as_an_event_is(tmp_path: Path) -> None:
    """Armed or not; set twice is set."""
    watch = DirectoryWatch()
    for _ in range(2):
        watch.set()
        watch.set()
        assert watch.wait()
        watch.clear()
        assert not watch.wait(0.0)
        watch.arm([tmp_path])


def test_without_an_instance_the_clock_ends_the_wait_and_later_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node whose instances are used up: the next `arm` tries again."""
    libc = Libc()
    monkeypatch.setattr(inotify, "_libc", libc)
    watch = DirectoryWatch()
    watch.arm([tmp_path])
    assert not watch.wait(0.01)
    libc.is_exhausted = False
    watch.arm([tmp_path])
    (tmp_path / "new").touch()
    assert watch.wait(PATIENCE_S)
    watch.clear()
    assert not watch.wait(0.0)


def test_a_watch_that_was_never_armed_holds_no_instance(tmp_path: Path) -> None:
    """Instances are few: 128 for a user by default."""
    before = _instances()
    watch = DirectoryWatch()
    assert _instances() == before
    watch.arm([tmp_path])
    assert _instances() == before + 1
    del watch
    assert _instances() == before


def _instances() -> int:
    """Inotify instances of this process."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}") == "anon_inode:inotify"
        except FileNotFoundError:
            continue
    return count
