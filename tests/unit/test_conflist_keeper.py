"""The conflist stays in place while the daemon serves, whoever removes or alters it."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipamd.core.backoffs import Backoffs
from ipamd.core.deadline import SystemClock
from ipamd.core.health import Health
from ipamd.host import conflist
from ipamd.host import files as file_follower
from ipamd.host.conflist import sorts_before, unusable_before
from ipamd.host.conflist_keeper import CONDITION, ConflistKeeper
from ipamd.host.files import FileFollowers
from ipamd.host.plugin_bundle import Bundle
from ipamd.host.repair_backoff import CONFLICT_REPAIRS, RepairBackoff
from ipamd.model.cni_versions import SUPPORTED_VERSIONS
from ipamd.model.companions import Companions
from ipamd.model.conditions import Problem
from ipamd.model.repairs import RepairKind
from ipamd.model.sandbox import RuntimeInfo
from ipamd.process.lifecycle import Lifecycle
from ipamd.settings import DaemonConfig, RuntimeConfig, Settings
from tests import loops
from tests.fakes.clock import FakeClock
from tests.fakes.node import SETTINGS, FakeNode
from tests.patience import PATIENCE_S
from tests.rig import wait_until


class Kept:
    """A keeper of a file in a directory of its own."""

    def __init__(
        self,
        folder: Path,
        clock: FakeClock | SystemClock,
        *,
        has_portmap: bool = False,
        more_directories: Callable[[], Sequence[Path] | None] = tuple,
    ) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        put(self.bin / conflist.PLUGIN_TYPE, OLD)
        self.config = DaemonConfig(
            conflist_path=folder / "net.d" / "10-x.conflist",
            cni_bin_dir=self.bin,
            reference_plugins=folder / "image",
            portmap=has_portmap,
        )
        settings = Settings(runtime=RuntimeConfig(cri_socket="off"), daemon=self.config)
        self.path = conflist.write(settings)
        self.wanted = self.path.read_bytes()
        self.health = Health(clock, ())
        self.repair_backoff = RepairBackoff(clock=clock, health=self.health, backoffs=Backoffs(clock))
        self.noted: list[str] = []
        self.companions = Companions()
        self.keeper = ConflistKeeper(
            settings,
            runtime=lambda: None,
            clock=clock,
            repair_backoff=self.repair_backoff,
            health=self.health,
            note=self.noted.append,
            is_stopped=lambda: self.is_stopped,
            companions=self.companions,
            more_directories=more_directories,
        )
        self.keeper.begin()
        self.is_stopped = False

    def is_in_place(self) -> bool:
        """Whether the file is what it must be."""
        return self.path.exists() and self.path.read_bytes() == self.wanted


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    """A keeper in a thread; its clock stands still, so only notifications count."""
    monkeypatch.setattr(file_follower, "CHECK_INTERVAL_S", 1e6)
    kept = Kept(tmp_path, SystemClock())
    files = FileFollowers(health=kept.health, clock=SystemClock(), backoffs=Backoffs(SystemClock()))
    files.follow(kept.keeper)
    with loops.running(files.loop):
        yield kept


@pytest.mark.parametrize("offers_others", [False, True])
def test_a_look_that_is_under_way_when_an_export_comes_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offers_others: bool
) -> None:
    """It asks the plugins for their versions, which takes a while; meanwhile the export stops it and removes the file."""
    kept = Kept(tmp_path, FakeClock())

    def ask(_: str) -> bool:
        kept.is_stopped = True
        kept.path.unlink()
        return offers_others

    monkeypatch.setattr(kept.keeper, "_ask", ask)
    kept.keeper.check()
    assert not kept.path.exists()
    assert kept.noted == []


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
    assert running.repair_backoff.counts()[RepairKind.CONFLIST] >= 1


def test_a_file_in_order_is_left_alone(tmp_path: Path) -> None:
    """No write, no repair."""
    kept = Kept(tmp_path, FakeClock())
    before = kept.path.stat().st_ino
    kept.keeper.check()
    assert kept.path.stat().st_ino == before
    assert kept.noted == []


def test_what_is_no_file_is_replaced_and_never_waited_for(tmp_path: Path) -> None:
    """A pipe in the conflist's place, whose opening would block the thread for ever."""
    settings = Settings(daemon=DaemonConfig(conflist_path=tmp_path / "10-x.conflist"))
    os.mkfifo(settings.daemon.conflist_path)
    assert conflist.difference(settings) == "had been changed"
    conflist.write(settings)
    assert conflist.difference(settings) == ""


def test_another_writer_is_not_fought_for_ever(tmp_path: Path) -> None:
    """After three repairs the file stays the other's for a while, and status names it."""
    kept = Kept(tmp_path, FakeClock())
    for _ in range(CONFLICT_REPAIRS + 1):
        kept.path.write_text("{}")
        kept.keeper.check()
    assert kept.path.read_text() == "{}"
    (told,) = kept.health.conditions()
    assert str(kept.path) in told
    assert len(kept.noted) == CONFLICT_REPAIRS


def test_a_directory_that_went_is_made_again(tmp_path: Path) -> None:
    """The next look writes the file into a new directory."""
    kept = Kept(tmp_path, FakeClock())
    kept.path.unlink()
    kept.path.parent.rmdir()
    kept.keeper.check()
    assert kept.is_in_place()


OLD = '{"supportedVersions":["0.3.1","0.4.0","1.0.0"]}'
NEW = '{"supportedVersions":["0.3.1","0.4.0","1.0.0","1.1.0"]}'


def put(path: Path, says: str) -> None:
    """A plugin that answers VERSION so, put there whole."""
    scratch = path.with_name("new")
    scratch.write_text(f"#!/bin/sh\necho '{says}'\n")
    scratch.chmod(0o755)
    scratch.replace(path)


def offered(kept: Kept) -> list[str]:
    """What the conflist offers."""
    return list(json.loads(kept.path.read_text())["cniVersions"])


def test_the_offer_follows_the_plugins(tmp_path: Path) -> None:
    """An older portmap takes a version from the conflist and a newer one gives it back; that is no repair and no fight."""
    kept = Kept(tmp_path, FakeClock(), has_portmap=True)
    put(kept.bin / "portmap", OLD)
    kept.keeper.check()
    assert offered(kept) == ["0.3.1", "0.4.0", "1.0.0"]
    put(kept.bin / "portmap", NEW)
    kept.keeper.check()
    assert offered(kept) == list(SUPPORTED_VERSIONS)
    assert kept.noted == []
    assert kept.health.conditions() == []


def test_versions_are_known_when_the_start_may_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start waits for the end of the condition, and then writes the file: never with versions that a plugin lacks."""
    kept = Kept(tmp_path, FakeClock(), has_portmap=True)
    kept.keeper.check()
    assert CONDITION in kept.health.conditions_by_subject()
    put(kept.bin / "portmap", OLD)
    report = kept.health.report
    offered_then: list[tuple[str, ...]] = []

    def observed(subject: str, problem: Problem | None, **details: Any) -> None:
        if subject == CONDITION and problem is None:
            offered_then.append(kept.keeper.versions)
        report(subject, problem, **details)

    monkeypatch.setattr(kept.health, "report", observed)
    kept.keeper.check()
    assert offered_then == [("0.3.1", "0.4.0", "1.0.0")]


def test_a_plugin_that_is_held_open_by_its_installer_is_asked_when_it_is_closed(tmp_path: Path) -> None:
    """Not a minute later, because its size and times are the same then: an installer that waits for the disk."""
    kept = Kept(tmp_path, FakeClock(), has_portmap=True)
    descriptor = os.open(kept.bin / "portmap", os.O_WRONLY | os.O_CREAT, 0o755)
    os.write(descriptor, f"#!/bin/sh\necho '{OLD}'\n".encode())
    kept.keeper.check()
    (told,) = kept.health.conditions()
    assert "Text file busy" in told
    os.close(descriptor)
    kept.keeper.check()
    assert kept.health.conditions() == []
    assert offered(kept) == ["0.3.1", "0.4.0", "1.0.0"]


@pytest.mark.parametrize(
    ("name", "what_to_do"),
    [
        ("portmap", ": put it there, or do not chain it"),
        ("vpc-cni", ", and no pod can be made without it: restart the daemon's pod, whose init container puts it there"),
    ],
)
def test_a_plugin_that_goes_is_a_condition_and_the_conflist_stays(tmp_path: Path, name: str, what_to_do: str) -> None:
    """DEL needs the file. The condition names the plugin, ours among them, and ends when it is back."""
    kept = Kept(tmp_path, FakeClock(), has_portmap=True)
    put(kept.bin / "portmap", OLD)
    kept.keeper.check()
    before = kept.path.read_bytes()
    (kept.bin / name).unlink()
    kept.keeper.check()
    assert kept.path.read_bytes() == before
    (told,) = kept.health.conditions()
    assert told == f"plugins: {kept.bin / name} is missing{what_to_do}"
    put(kept.bin / name, OLD)
    kept.keeper.check()
    assert kept.health.conditions() == []


def test_a_plugin_of_ours_that_something_deletes_again_and_again(tmp_path: Path) -> None:
    """It is put back, counted and recorded, and then left away for a while, which status says."""
    kept = Kept(tmp_path, FakeClock())
    image = kept.config.reference_plugins
    image.mkdir()
    (image / "loopback").write_bytes(b"x")
    (image / "SHA256SUMS").write_text(f"{hashlib.sha256(b'x').hexdigest()}  loopback\n")
    Bundle(image, kept.bin).put_in_place()  # at the start
    for _ in range(CONFLICT_REPAIRS + 1):
        (kept.bin / "loopback").unlink()
        kept.keeper.check()
    assert not (kept.bin / "loopback").exists()
    assert kept.repair_backoff.counts() == {RepairKind.PLUGIN: CONFLICT_REPAIRS}
    assert len(kept.noted) == CONFLICT_REPAIRS
    (told,) = kept.health.conditions()
    assert str(kept.bin / "loopback") in told


def test_a_plugin_that_goes_is_noticed_at_once(running: Kept) -> None:
    """By inotify: the clock of this keeper stands still."""
    image = running.config.reference_plugins
    image.mkdir()
    (image / "loopback").write_bytes(b"x")
    (image / "SHA256SUMS").write_text(f"{hashlib.sha256(b'x').hexdigest()}  loopback\n")
    for _ in range(2):
        (running.bin / "loopback").unlink(missing_ok=True)
        (running.bin / "other").touch()
        give_up = time.monotonic() + PATIENCE_S
        while not (running.bin / "loopback").exists():
            assert time.monotonic() < give_up
            time.sleep(0.02)


def test_a_damaged_image_does_not_keep_the_disk_busy(running: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each copy of a plugin changes the directory that is watched: it is not the cause of the next."""
    copied: list[str] = []
    copy = Bundle._copy

    def counted(self: Bundle, name: str) -> Path:
        copied.append(name)
        return copy(self, name)

    monkeypatch.setattr(Bundle, "_copy", counted)
    image = running.config.reference_plugins
    image.mkdir()
    (image / "loopback").write_bytes(b"damaged")
    (image / "SHA256SUMS").write_text(f"{hashlib.sha256(b'x').hexdigest()}  loopback\n")
    (running.bin / "other").touch()
    wait_until(lambda: bool(copied), what="the first try")
    time.sleep(1.0)  # ten looks, if each woke the next
    assert copied == ["loopback"]


@pytest.mark.parametrize(
    ("name", "content", "is_unusable"),
    [
        ("00-other.conflist", b'{"cniVersion": "1.0.0", "na', True),
        ("00-other.conflist", b'{"name": "x", "plugins": []}', True),
        ("00-other.conf", b'{"name": "x"}', True),
        ("00-other.json", b"[]", True),
        ("00-other.conf", b"\xff\xfe", True),
        ("00-other.conf", b"", False),
        ("00-other.conf", b'{"type": "bridge"}', False),
        ("00-other.conf.bak", b"no json", False),
        ("99-other.conf", b"no json", False),
    ],
)
def test_a_file_that_no_runtime_can_use_is_found(tmp_path: Path, name: str, content: bytes, is_unusable: bool) -> None:
    """containerd has no network while such a file is the first."""
    ours = tmp_path / "10-vpc-ipamd.conflist"
    os.mkfifo(tmp_path / "00-a.conf")
    (tmp_path / "00-b.conf").symlink_to("nowhere")
    (tmp_path / "00-c.conf").mkdir()
    (tmp_path / name).write_bytes(content)
    assert unusable_before(ours) == (str(tmp_path / name) if is_unusable else "")
    (tmp_path / "00-d.conf").write_bytes(b'{"type": "bridge"}')  # this one is taken first
    assert unusable_before(ours) == ""


@pytest.mark.parametrize(
    ("name", "content", "is_first"),
    [
        ("00-other.conf", b'{"type": "bridge"}', True),
        ("00-other.conflist", b'{"plugins": [{"type": "bridge"}]}', True),
        ("00-other.json", b'{"type": "bridge"}', True),
        ("99-other.conf", b'{"type": "bridge"}', False),
        ("00-other.conf.bak", b'{"type": "bridge"}', False),
        ("00-other.conf", b"no json", False),
        ("00-other.conflist", b'{"plugins": []}', False),
    ],
)
def test_a_file_that_the_runtime_takes_first_is_found(tmp_path: Path, name: str, content: bytes, is_first: bool) -> None:
    """By name, as runtimes choose; a FIFO beside it hangs nobody."""
    ours = tmp_path / "10-vpc-ipamd.conflist"
    os.mkfifo(tmp_path / "00-a.conf")
    (tmp_path / name).write_bytes(content)
    assert sorts_before(ours) == (str(tmp_path / name) if is_first else "")


def test_one_that_the_start_cannot_write_stays_a_condition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole start: the keeper looks meanwhile, for the plugins' sake, and does not report the start's condition over."""
    (tmp_path / "net.d").write_text("a file in the directory's place")
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    (bin_dir / "vpc-cni").write_text(
        f"#!/bin/sh\necho '{json.dumps({'cniVersion': '1.1.0', 'supportedVersions': SUPPORTED_VERSIONS})}'\n"
    )
    (bin_dir / "vpc-cni").chmod(0o755)
    daemon = replace(
        SETTINGS.daemon,
        run_dir=tmp_path,
        conflist_path=tmp_path / "net.d" / "10-vpc-ipamd.conflist",
        cni_bin_dir=bin_dir,
        reference_plugins=tmp_path / "none",
    )
    node = FakeNode(tmp_path, shipped=replace(SETTINGS, daemon=daemon), clock=SystemClock())  # type: ignore[arg-type]
    node.runtime.info = lambda: RuntimeInfo("cri-o", "1", "")  # type: ignore[method-assign]
    life = Lifecycle(node.app, end=print)
    tried, ended = list[str](), list[str]()
    write, report = life._write_conflist, node.health.report

    def noted(subject: str, problem: str, *, error: BaseException | None = None) -> None:
        if tried and subject == "conflist" and not problem:
            ended.append("by the keeper" if threading.current_thread() is not thread else "by the start")
        report(subject, problem, error=error)

    monkeypatch.setattr(life, "_write_conflist", lambda: (tried.append("once"), write())[1])
    monkeypatch.setattr(node.health, "report", noted)
    thread = threading.Thread(target=life.run)
    thread.start()
    try:
        wait_until(lambda: "conflist" in node.health.conditions_by_subject(), what="the condition")
        (bin_dir / "other").touch()  # somebody installs plugins: the keeper looks
        wait_until(lambda: len(tried) > 3, what="some tries of the start")
        assert ended == []
        (tmp_path / "net.d").unlink()
        wait_until(lambda: node.health.is_ready, what="ready")
        wait_until(lambda: "conflist" not in node.health.conditions_by_subject(), what="its end")
    finally:
        life.stop()
        life.close()
        thread.join(PATIENCE_S)
