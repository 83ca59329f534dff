"""The spool: no DEL is lost between a daemon that leaves and one that comes, none is half written, and it has a cap."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
import threading
from pathlib import Path

import grpc
import pytest

from ipamd.pb import cni_pb2

BOUND_S = 20


@contextlib.contextmanager
def locked(run_dir, operation):
    """Hold the spool's lock, as the daemon (exclusive) or as another plugin (shared)."""
    with open(run_dir / "spool.lock", "a") as lock:
        fcntl.flock(lock, operation)
        yield


def wait_until_waiting_for_lock(process, run_dir):
    """Watch the process until it has the lock file open, which it has only while it waits for the lock."""
    lock = str(run_dir / "spool.lock")
    descriptors = Path(f"/proc/{process.pid}/fd")
    while process.poll() is None:
        with contextlib.suppress(OSError):
            if lock in [os.readlink(link) for link in descriptors.iterdir()]:
                return
    pytest.fail(f"the plugin ended: {process.communicate()}")


def finish(process):
    """Exit status, standard output and standard error, within a bound."""
    stdout, stderr = process.communicate(timeout=BOUND_S)
    return process.returncode, stdout, stderr


def start_del(plugin, **variables):
    """Start a DEL whose standard input is complete."""
    process = plugin.start("DEL", **variables)
    process.stdin.write(b"{}")
    process.stdin.close()
    process.stdin = None
    return process


def test_entries_are_private_and_named_as_agreed(plugin, run_dir, spooled):
    """Lock 0600, directory 0700, entry 0600 under the name `del-*`, nothing temporary left; all that is missing is made."""
    run_dir.rmdir()
    assert plugin.run("DEL").status == 0
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [run_dir, *run_dir.rglob("*")]}
    (entry,) = os.listdir(run_dir / "spool")
    assert entry.startswith("del-")
    assert modes == {"run": 0o700, "spool": 0o700, "spool.lock": 0o600, entry: 0o600}
    assert len(spooled()) == 1


def test_every_del_is_an_entry_of_its_own(any_plugin, run_dir, spooled):
    """Concurrent DELs share the lock and never overwrite each other (I3)."""
    with locked(run_dir, fcntl.LOCK_SH):  # another plugin
        processes = [start_del(any_plugin, CNI_CONTAINERID=f"c{number}") for number in range(24)]
        assert [finish(process) for process in processes] == [(0, b"", b"")] * 24
    assert sorted(entry.container_id for entry in spooled()) == sorted(f"c{number}" for number in range(24))


def test_the_spool_is_capped(any_plugin, run_dir, spooled):
    """At 256 entries DEL is an error that says how many wait; temporary files do not count."""
    (run_dir / "spool").mkdir(mode=0o700)
    for number in range(255):
        (run_dir / "spool" / f"del-{number}").write_bytes(b"")
    for number in range(300):
        (run_dir / "spool" / f".tmp-{number}").write_bytes(b"")
    assert any_plugin.run("DEL").status == 0
    document = any_plugin.run("DEL").error(11)
    assert "full" in document["msg"]
    assert "256" in document["details"]
    assert len(spooled()) == 256


@pytest.mark.parametrize("config", [b"", b" ", b"[]", b'{"cut":', b"garbage"])
def test_a_cut_configuration_is_not_spooled(any_plugin, spooled, config):
    """Only a DEL that the daemon can make sense of later is kept; the rest is an error now."""
    any_plugin.run("DEL", config).error(7)
    assert spooled() == []


def test_a_replaying_daemon_is_waited_for_and_then_called(plugin, run_dir, new_daemon, serve, spooled):
    """The daemon listens before it replays: a DEL that found nobody waits for the lock and then finds it (I3)."""
    daemon = new_daemon()
    with contextlib.ExitStack() as stack:
        with locked(run_dir, fcntl.LOCK_EX):
            process = start_del(plugin)
            wait_until_waiting_for_lock(process, run_dir)
            stack.enter_context(serve(daemon))
        assert finish(process) == (0, b"", b"")
    assert [request.verb for request in daemon.requests] == ["DEL"]
    assert spooled() == []


def test_a_daemon_that_died_replaying_leaves_the_del_to_the_next(plugin, run_dir, spooled):
    """The lock is free again and nobody listens: the DEL is spooled."""
    with locked(run_dir, fcntl.LOCK_EX):
        process = start_del(plugin)
        wait_until_waiting_for_lock(process, run_dir)
    assert finish(process) == (0, b"", b"")
    assert len(spooled()) == 1


def test_the_daemon_that_came_may_refuse(any_plugin, run_dir, new_daemon, serve, spooled):
    """The answer of a daemon that appeared meanwhile counts like any other."""
    daemon = new_daemon()
    daemon.reply = lambda _: cni_pb2.ExecReply(protocol=1, error=cni_pb2.CniError(code=107, message="disk"))
    with contextlib.ExitStack() as stack:
        with locked(run_dir, fcntl.LOCK_EX):
            process = start_del(any_plugin)
            wait_until_waiting_for_lock(process, run_dir)
            stack.enter_context(serve(daemon))
        status, stdout, _ = finish(process)
    assert status == 1
    assert b'"code":107' in stdout
    assert spooled() == []


def test_a_daemon_that_keeps_saying_unavailable_gets_it_later(any_plugin, daemon, spooled):
    """Asked twice, the second time because it listens; then spooled while it runs."""
    daemon.abort = (grpc.StatusCode.UNAVAILABLE, "draining")
    assert any_plugin.run("DEL").status == 0
    assert len(daemon.requests) == 2
    assert len(spooled()) == 1


def test_no_del_is_lost_while_a_daemon_starts(any_plugin, run_dir, new_daemon, serve, spooled):
    """The race of cilium 22067: whatever DEL is called while the daemon starts is replayed or served, never neither (I3)."""
    daemon = new_daemon()
    replayed = []
    processes = []
    with contextlib.ExitStack() as stack:
        for number in range(60):
            processes.append(start_del(any_plugin, CNI_CONTAINERID=f"c{number}"))
            if number == 20:
                processes[0].wait(BOUND_S)  # at least one is in the spool
                stack.enter_context(serve(daemon))  # (1) listen
            if number == 30:
                with locked(run_dir, fcntl.LOCK_EX):  # (2) exclude writers, (3) replay
                    replayed = [entry.container_id for entry in spooled()]
                    for entry in (run_dir / "spool").glob("del-*"):
                        entry.unlink()
        assert [finish(process) for process in processes] == [(0, b"", b"")] * 60
    assert spooled() == []  # nothing was written after the replay
    done = replayed + [request.container_id for request in daemon.requests]
    assert set(done) == {f"c{number}" for number in range(60)}
    assert replayed
    assert daemon.requests


def test_the_lock_is_not_held_while_the_daemon_works(any_plugin, run_dir, new_daemon, serve):
    """A plugin that found the daemon under the lock gives it back before the call: the daemon may take it while it works."""
    daemon = new_daemon()
    taken = threading.Event()

    def reply(_):
        with open(run_dir / "spool.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        taken.set()
        return cni_pb2.ExecReply(protocol=1)

    daemon.reply = reply
    with contextlib.ExitStack() as stack:
        with locked(run_dir, fcntl.LOCK_EX):
            process = start_del(any_plugin)
            wait_until_waiting_for_lock(process, run_dir)
            stack.enter_context(serve(daemon))
        assert finish(process) == (0, b"", b"")
    assert taken.is_set()


STEPS = [
    "make_directory:1",
    "open_lock",
    "lock_shared",
    "make_directory:2",
    "names",
    "create",
    "write",
    "sync:1",
    "rename",
    "open_directory",
    "sync:2",
]


@pytest.mark.parametrize("step", STEPS)
def test_kill_9_at_any_step_leaves_a_whole_entry_or_none(instrumented, any_plugin, run_dir, spooled, step):
    """Before the rename there is no entry, after it a complete one; what a dead plugin leaves disturbs no other (I3)."""
    process = start_del(instrumented(HALT_AT=step))
    assert process.stderr.readline() == b"halted\n"
    process.send_signal(signal.SIGKILL)
    assert finish(process)[0] == -signal.SIGKILL
    entries = spooled()
    assert len(entries) == (1 if step in ("open_directory", "sync:2") else 0)
    assert all(entry.container_id == "5a" * 32 for entry in entries)
    assert any_plugin.run("DEL").status == 0
    assert len(spooled()) == len(entries) + 1


@pytest.mark.parametrize("call", ["open_lock", "create", "write", "sync", "rename", "names"])
def test_a_disk_that_refuses_is_an_error(instrumented, run_dir, spooled, call):
    """I3: no success without an entry on disk; the cause is named and nothing half is left."""
    if call == "write":  # standard output is written through the same call: an empty error is all that is left to say
        outcome = instrumented(FAIL_AT=f"{call}:{errno.ENOSPC}").run("DEL")
        assert (outcome.status, outcome.stdout) == (1, b"")
    else:
        outcome = instrumented(FAIL_AT=f"{call}:{errno.ENOSPC}").run("DEL")
        assert "No space left" in outcome.error(5)["details"]
    assert spooled() == []
    assert list(run_dir.rglob(".tmp-*")) == []


@pytest.mark.parametrize("mode", [0o770, 0o777])
def test_a_spool_that_others_may_write_is_refused(any_plugin, run_dir, mode):
    """Entries are requests of root: nobody else may plant or remove them."""
    (run_dir / "spool").mkdir()
    (run_dir / "spool").chmod(mode)
    any_plugin.run("DEL").error(191)


@pytest.mark.parametrize("name", ["spool.lock", "spool"])
def test_links_in_the_run_directory_are_not_followed(any_plugin, run_dir, tmp_path, name):
    """Neither lock nor spool may lead elsewhere."""
    (tmp_path / "elsewhere").mkdir()
    (run_dir / name).symlink_to(tmp_path / "elsewhere")
    outcome = any_plugin.run("DEL")
    assert outcome.document()["code"] in (5, 191)
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_missing_parent_of_the_run_directory_is_an_error(any_plugin, tmp_path):
    """Only the last component is made; a wrong path is not papered over."""
    any_plugin.run("DEL", VPC_IPAMD_RUN_DIR=str(tmp_path / "no" / "run")).error(5)


def test_only_del_is_spooled(any_plugin, run_dir):
    """Verbs other than DEL leave no trace in the run directory."""
    for verb in ("CHECK", "GC", "STATUS", "VERSION"):
        any_plugin.run(verb)
    assert os.listdir(run_dir) == []
