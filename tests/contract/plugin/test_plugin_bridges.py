"""STATUS bridges a short absence of the daemon, within a minute of ten (I17)."""

from __future__ import annotations

import contextlib
import os
import time

import pytest

from ipamd.pb import cni_pb2
from tests.contract.plugin.marks import BOOT_ID, BRIDGED_S, WINDOW_S, boottime_ms, bridged, served
from tests.contract.plugin.rolls import start
from tests.patience import PATIENCE_S

OTHER_BOOT = "11111111-2222-3333-4444-555555555555"


def test_status_bridges_a_short_absence(any_plugin, run_dir):
    """A daemon that served a second ago is on its way: success, nothing printed, and the absence is counted."""
    served(run_dir)
    outcome = any_plugin.run("STATUS")
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, b"", b"")
    boot_id, line = (run_dir / "bridged").read_text().splitlines()
    begin_ms, end_ms = map(int, line.split())
    assert boot_id == BOOT_ID
    assert 1000 <= end_ms - begin_ms < BRIDGED_S * 1000
    assert (run_dir / "bridged").stat().st_mode & 0o777 == 0o600
    assert any_plugin.run("STATUS").status == 0
    assert len((run_dir / "bridged").read_text().splitlines()) == 2, "the same absence is counted once"


def test_status_waits_a_moment_before_it_bridges(any_plugin, run_dir, daemon):
    """Most restarts are over within it: the answer is the daemon's, and nothing is used up."""
    served(run_dir)
    (run_dir / "ipamd.sock").rename(run_dir / "away")
    process = start(any_plugin, "STATUS")
    time.sleep(0.3)
    (run_dir / "away").rename(run_dir / "ipamd.sock")
    stdout, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, stdout) == (0, b"")
    assert [request.verb for request in daemon.requests] == ["STATUS"]
    assert not (run_dir / "bridged").exists()


REFUSED = {
    "no mark": lambda run_dir: None,
    "another boot": lambda run_dir: served(run_dir, boot_id=OTHER_BOOT),
    "over a minute": lambda run_dir: served(run_dir, ago_s=BRIDGED_S + 1),
    "from the future": lambda run_dir: served(run_dir, ago_s=-3600),
    "empty": lambda run_dir: (run_dir / "served").write_text(""),
    "cut": lambda run_dir: (run_dir / "served").write_text(BOOT_ID),
    "no number": lambda run_dir: (run_dir / "served").write_text(f"{BOOT_ID}\n-1\n"),
    "two numbers": lambda run_dir: (run_dir / "served").write_text(f"{BOOT_ID}\n{boottime_ms()} 1\n"),
    "binary": lambda run_dir: (run_dir / "served").write_bytes(os.urandom(64)),
    "huge": lambda run_dir: (run_dir / "served").write_text(f"{BOOT_ID}\n{boottime_ms()}\n" + "x" * 8192),
    "a directory": lambda run_dir: (run_dir / "served").mkdir(),
    "a fifo": lambda run_dir: os.mkfifo(run_dir / "served"),
}


@pytest.mark.parametrize("leave", REFUSED.values(), ids=REFUSED.keys())
def test_status_bridges_nothing_without_a_good_mark(any_plugin, run_dir, leave):
    """Silence is never evidence (I11): no mark of this boot, an old one and a damaged one are worth nothing."""
    leave(run_dir)
    outcome = any_plugin.run("STATUS")
    assert "serve" in outcome.error(50)["details"]
    assert outcome.elapsed_s < 3, "nothing is waited for"
    assert not (run_dir / "bridged").exists()


def test_a_link_is_no_mark(any_plugin, run_dir, tmp_path):
    """Neither file is followed anywhere, and a link in place of ours is replaced, not written through."""
    served(run_dir)
    (run_dir / "served").rename(tmp_path / "elsewhere")
    (run_dir / "served").symlink_to(tmp_path / "elsewhere")
    any_plugin.run("STATUS").error(50)
    (run_dir / "served").unlink()
    served(run_dir)
    (run_dir / "bridged").symlink_to(tmp_path / "theirs")
    any_plugin.run("STATUS").error(50)
    assert not (tmp_path / "theirs").exists()
    assert not (run_dir / "bridged").is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize(
    "spoil", [lambda path: os.chown(path, 65534, 65534), lambda path: path.chmod(0o622)], ids=["owner", "mode"]
)
def test_a_mark_that_others_may_write_is_no_mark(any_plugin, run_dir, spoil):
    """It belongs to root or to us, and only its owner writes it."""
    served(run_dir)
    spoil(run_dir / "served")
    any_plugin.run("STATUS").error(50)


USED_UP = {
    "one absence": ((500, 445), 10),
    "the present one goes on": ((300, 250), 15),
}


@pytest.mark.parametrize(("absence", "ago_s"), USED_UP.values(), ids=USED_UP.keys())
def test_a_minute_in_ten_is_bridged_and_no_more(any_plugin, run_dir, absence, ago_s):
    """All absences of ten minutes together: a crash loop shows, though each absence is short."""
    served(run_dir, ago_s=ago_s)
    bridged(run_dir, absence)
    document = any_plugin.run("STATUS").error(50)
    assert "60 s" in document["details"]


def test_absences_of_the_past_are_forgotten(any_plugin, run_dir):
    """What is over for ten minutes does not count, nor does another boot's, nor is it kept."""
    for absences, boot_id in ((((WINDOW_S + 60, WINDOW_S + 1),), BOOT_ID), (((100, 41),), OTHER_BOOT)):
        served(run_dir, ago_s=10)
        bridged(run_dir, *absences, boot_id=boot_id)
        assert any_plugin.run("STATUS").status == 0
        assert len((run_dir / "bridged").read_text().splitlines()) == 2


@pytest.mark.parametrize(("deaths", "status"), [(3, 0), (4, 1)])
def test_a_crash_loop_fails_status_within_a_minute(any_plugin, run_dir, deaths, status):
    """A daemon that comes, serves and dies again, 14 s of absence each time: the fifth absence is not bridged to its end."""
    served(run_dir, ago_s=10)
    bridged(run_dir, *[((number + 1) * 20 + 14, (number + 1) * 20) for number in range(deaths)])
    assert any_plugin.run("STATUS").status == status


DAMAGE = [b"", b"x", b"\xff" * 50, f"{BOOT_ID}\n1 2 3\n".encode(), f"{BOOT_ID}\n9 1\n".encode(), f"{BOOT_ID}\n1 2".encode()]


@pytest.mark.parametrize("content", DAMAGE)
def test_a_damaged_count_is_a_used_up_minute(any_plugin, run_dir, content):
    """Nothing is bridged, and the damage ends by itself ten minutes later."""
    served(run_dir)
    (run_dir / "bridged").write_bytes(content)
    any_plugin.run("STATUS").error(50)
    boot_id, line = (run_dir / "bridged").read_text().splitlines()
    begin_ms, end_ms = map(int, line.split())
    assert boot_id == BOOT_ID
    assert end_ms - begin_ms == min(BRIDGED_S * 1000, end_ms)
    any_plugin.run("STATUS").error(50)


def test_what_cannot_be_counted_is_not_bridged(instrumented, run_dir):
    """A full or read-only file system ends the patience, with its cause."""
    served(run_dir)
    outcome = instrumented(FAIL_AT="create:28", WAIT_FACTOR="10").run("STATUS")
    assert "No space" in outcome.error(50)["details"]
    outcome = instrumented(FAIL_AT="rename:30", WAIT_FACTOR="10").run("STATUS")
    assert "Read-only" in outcome.error(50)["details"]
    assert sorted(os.listdir(run_dir)) == ["served"]


def test_a_daemon_that_starts_is_within_the_same_minute(any_plugin, run_dir, daemon):
    """Its own patience with its start is counted too, so that one that dies while it starts is not passed over for ever."""
    daemon.reply = lambda _: cni_pb2.ExecReply(protocol=1, is_starting=True)
    assert any_plugin.run("STATUS").status == 0, "the first start of a boot: no mark, and the daemon says yes"
    served(run_dir, ago_s=10)
    assert any_plugin.run("STATUS").status == 0
    assert len((run_dir / "bridged").read_text().splitlines()) == 2
    served(run_dir, ago_s=BRIDGED_S + 1)
    any_plugin.run("STATUS").error(50)


def test_what_the_daemon_refuses_stays_refused(any_plugin, run_dir, daemon):
    """A daemon that says 50 is not overruled, and one that serves costs nothing."""
    served(run_dir)
    assert any_plugin.run("STATUS").status == 0
    daemon.reply = lambda _: cni_pb2.ExecReply(protocol=1, error=cni_pb2.CniError(code=50, message="no address"))
    any_plugin.run("STATUS").error(50)
    assert not (run_dir / "bridged").exists()


@pytest.mark.parametrize("call", ["create", "write:1", "rename"])
def test_kill_9_while_it_counts_leaves_a_whole_file_or_none(instrumented, any_plugin, run_dir, call):
    """What a dead plugin leaves is no damage."""
    served(run_dir)
    process = start(instrumented(HALT_AT=call, WAIT_FACTOR="10"), "STATUS")
    assert process.stderr.readline() == b"halted\n"
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    assert not (run_dir / "bridged").exists()
    assert any_plugin.run("STATUS").status == 0


def test_many_status_at_once_agree(any_plugin, run_dir):
    """Each writes a whole file: the last one stands."""
    served(run_dir)
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(start(any_plugin, "STATUS")) for _ in range(6)]
        assert [process.wait(PATIENCE_S) for process in processes] == [0] * 6
    assert len((run_dir / "bridged").read_text().splitlines()) == 2
    assert [name for name in os.listdir(run_dir) if name.startswith(".")] == []
