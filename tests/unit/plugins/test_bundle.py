"""What comes with the image is put where it is missing, whole, and never over somebody else's file."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from ipamd.host import plugin_bundle
from ipamd.host.plugin_bundle import RECORD_NAME, SUMS_NAME, Bundle, PlacedPlugins
from ipamd.model.repairs import RepairCode, RepairedObject, RepairKind
from tests.fakes.clock import FakeClock

PLUGINS = {"loopback": b"loopback 1", "portmap": b"portmap 1"}


class Node:
    """An image's directory, and a node's."""

    def __init__(self, folder: Path) -> None:
        self.image, self.bin = folder / "image", folder / "bin"
        self.image.mkdir()
        self.ship(PLUGINS)

    def ship(self, plugins: dict[str, bytes]) -> None:
        """The image has these."""
        for name, content in plugins.items():
            (self.image / name).write_bytes(content)
        sums = {name: hashlib.sha256((self.image / name).read_bytes()).hexdigest() for name in PLUGINS}
        (self.image / SUMS_NAME).write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))

    def start(self) -> PlacedPlugins:
        """What a daemon that starts does."""
        return Bundle(self.image, self.bin).put_in_place()

    def content(self, name: str) -> bytes:
        """Of a file in the node's directory."""
        return (self.bin / name).read_bytes()

    def names(self) -> set[str]:
        """All that lies in the node's directory."""
        return set(os.listdir(self.bin))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node whose directory does not exist yet."""
    return Node(tmp_path)


def test_an_empty_node_gets_all(node: Node) -> None:
    """Whole, executable whatever the umask is, and nothing else is left there; a second start changes nothing."""
    before = os.umask(0o077)
    try:
        placed = node.start()
    finally:
        os.umask(before)
    assert [(each.code, each.target) for each in placed.missing] == [(RepairCode.ADDED, str(node.bin / name)) for name in PLUGINS]
    assert (placed.replaced, placed.problems) == ([], [])
    assert {name: node.content(name) for name in PLUGINS} == PLUGINS
    assert {(node.bin / name).stat().st_mode & 0o7777 for name in PLUGINS} == {0o755}
    assert node.names() == {*PLUGINS, RECORD_NAME}
    inodes = {name: (node.bin / name).stat().st_ino for name in PLUGINS}
    assert node.start() == PlacedPlugins()
    assert {name: (node.bin / name).stat().st_ino for name in PLUGINS} == inodes


@pytest.mark.parametrize("what", ["file", "link", "dangling link", "directory", "empty file"])
def test_what_is_somebody_elses_stays(node: Node, tmp_path: Path, what: str) -> None:
    """Whatever lies there under the name, and what it points to."""
    node.bin.mkdir()
    target, elsewhere = node.bin / "portmap", tmp_path / "elsewhere"
    match what:
        case "file":
            target.write_bytes(b"theirs")
        case "link":
            elsewhere.write_bytes(b"theirs")
            target.symlink_to(elsewhere)
        case "dangling link":
            target.symlink_to(elsewhere)
        case "directory":
            target.mkdir()
        case "empty file":
            target.touch()
    before = target.lstat()
    placed = node.start()
    assert [one.object.subject for one in placed.missing] == [str(node.bin / "loopback")]
    assert target.lstat() == before
    assert not elsewhere.exists() or elsewhere.read_bytes() == b"theirs"


def test_who_comes_first_at_the_same_moment_wins(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that appears between our look and our last step is not replaced."""
    link = os.link

    def late(source: Path, target: Path) -> None:
        target.write_bytes(b"theirs")
        link(source, target)

    monkeypatch.setattr(plugin_bundle.os, "link", late)
    assert node.start() == PlacedPlugins()
    assert node.content("portmap") == b"theirs"
    assert node.names() == {*PLUGINS}


def test_one_that_disappears_is_put_back(node: Node) -> None:
    """By a daemon that runs, at its next look; unless it is fought over."""
    made = Bundle(node.image, node.bin)
    made.put_in_place()
    (node.bin / "loopback").unlink()
    thing = RepairedObject(RepairKind.PLUGIN, str(node.bin / "loopback"))
    assert made.put_in_place(backed_off={thing}) == PlacedPlugins()
    assert [one.object for one in made.put_in_place().missing] == [thing]
    assert node.content("loopback") == PLUGINS["loopback"]


def test_a_later_image_replaces_ours_and_only_ours(node: Node) -> None:
    """By what was recorded when we put it there: one that was changed since, or was never ours, stays."""
    node.start()
    (node.bin / "portmap").write_bytes(b"changed by hand")
    node.ship({"loopback": b"loopback 2", "portmap": b"portmap 2"})
    placed = node.start()
    assert [(one.code, one.target) for one in placed.replaced] == [(RepairCode.FILE_UPDATED, str(node.bin / "loopback"))]
    assert node.content("loopback") == b"loopback 2"
    assert node.content("portmap") == b"changed by hand"
    assert (node.bin / "loopback").stat().st_mode & 0o7777 == 0o755
    assert node.start() == PlacedPlugins()


def test_leftovers_of_a_daemon_that_was_killed_are_no_hindrance(node: Node, tmp_path: Path) -> None:
    """Half a copy, or a stranger's link under its name, is removed and not written through."""
    node.bin.mkdir()
    victim = tmp_path / "victim"
    victim.write_bytes(b"untouched")
    (node.bin / ".loopback.vpc-ipamd").symlink_to(victim)
    (node.bin / ".portmap.vpc-ipamd").write_bytes(b"half")
    assert len(node.start().missing) == 2
    assert victim.read_bytes() == b"untouched"
    assert node.names() == {*PLUGINS, RECORD_NAME}


def test_a_damaged_plugin_of_the_image_is_not_put_there(node: Node) -> None:
    """It is named; the others are put in place all the same, and nothing half is left."""
    (node.image / "loopback").write_bytes(b"damaged")
    placed = node.start()
    assert placed.problems == [f"{node.image / 'loopback'} is damaged: its SHA-256 is not that of {SUMS_NAME}"]
    assert node.names() == {"portmap", RECORD_NAME}


def test_what_cannot_be_put_in_place_is_not_tried_at_every_look(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try writes into a directory that is watched, and would wake itself: why is told at every look, and it ends by itself."""
    clock, tries, link = FakeClock(), [0], os.link
    made = Bundle(node.image, node.bin, monotonic=clock.monotonic)

    def refuse(*_: object) -> None:
        tries[0] += 1
        raise OSError(errno.ENOSPC, "No space left on device", "scratch")

    monkeypatch.setattr(plugin_bundle.os, "link", refuse)
    for _ in range(10):
        assert made.put_in_place().problems == ["scratch: No space left on device"] * len(PLUGINS)
    assert tries == [len(PLUGINS)]
    clock.advance(plugin_bundle.AGAIN_S)
    made.put_in_place()
    assert tries == [2 * len(PLUGINS)]
    monkeypatch.setattr(plugin_bundle.os, "link", link)
    clock.advance(plugin_bundle.AGAIN_S)
    assert len(made.put_in_place().missing) == len(PLUGINS)
    assert made.put_in_place() == PlacedPlugins()


def test_one_of_an_earlier_image_is_replaced_when_that_can_be_done(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full at the start does not keep the old one until the next start."""
    node.start()
    node.ship({"loopback": b"loopback 2"})
    clock, fsync = FakeClock(), os.fsync
    made = Bundle(node.image, node.bin, monotonic=clock.monotonic)

    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "scratch")

    monkeypatch.setattr(plugin_bundle.os, "fsync", refuse)
    assert made.put_in_place().problems == ["scratch: No space left on device"]
    monkeypatch.setattr(plugin_bundle.os, "fsync", fsync)
    clock.advance(plugin_bundle.AGAIN_S)
    assert [(one.code, one.target) for one in made.put_in_place().replaced] == [
        (RepairCode.FILE_UPDATED, str(node.bin / "loopback"))
    ]
    assert node.content("loopback") == b"loopback 2"


def test_a_directory_that_cannot_be_written_is_named(node: Node) -> None:
    """As on a node whose directory is not mounted: a file lies in its way."""
    node.bin.write_bytes(b"")
    placed = node.start()
    assert placed.problems == [f"{node.bin / RECORD_NAME}: Not a directory"]


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"nonsense\n../loopback\n", b"0" * 70_000, b"0" * 64 + b"  ../x\n"])
def test_a_damaged_record_means_that_nothing_is_ours(node: Node, content: bytes) -> None:
    """What lies there stays as it is, and the record is written anew with the next file."""
    node.start()
    (node.bin / RECORD_NAME).write_bytes(content)
    node.ship({"loopback": b"loopback 2"})
    assert node.start() == PlacedPlugins()
    assert node.content("loopback") == b"loopback 1"
    (node.bin / "portmap").unlink()
    node.start()
    assert (node.bin / RECORD_NAME).read_text().endswith("  portmap\n")


def test_without_an_image_nothing_is_done(tmp_path: Path) -> None:
    """As in a daemon that was not started from the image."""
    made = Bundle(tmp_path / "none", tmp_path / "bin")
    assert made.put_in_place() == PlacedPlugins()
    assert made.names == frozenset()
    assert not (tmp_path / "bin").exists()
