"""Nobody listens on the socket, or a process that must not be trusted."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import replace

import pytest

from ipamd.model.cni_versions import SUPPORTED_VERSIONS


def leave_stale_socket(run_dir):
    """What kill -9 leaves: a socket that nobody listens on."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{run_dir}/ipamd.sock")
    listener.close()


def remove_run_dir(run_dir):
    """What a reboot leaves: nothing."""
    run_dir.rmdir()


AWAY = {"no run directory": remove_run_dir, "no socket": lambda _: None, "nobody listens": leave_stale_socket}


@pytest.mark.parametrize("make_away", AWAY.values(), ids=AWAY.keys())
def test_a_daemon_that_is_away_has_a_code_per_verb(plugin, run_dir, spooled, make_away):
    """CHECK and GC say "try again" (11), STATUS says "not available" (50), DEL is kept and succeeds (I3).

    ADD waits: test_plugin_rolls.py.
    """
    make_away(run_dir)
    for verb in ("CHECK", "GC"):
        document = plugin.run(verb).error(11)
        assert verb in document["msg"]
        assert str(run_dir) in document["details"]
    plugin.run("STATUS").error(50)
    assert spooled() == []
    outcome = plugin.run("DEL", b'{"name":"vpc"}')
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, b"", b"")
    (entry,) = spooled()
    assert (entry.verb, entry.container_id, entry.ifname, entry.config) == ("DEL", "5a" * 32, "eth0", b'{"name":"vpc"}')


PASSING = ["ENOMEM", "ENFILE", "EMFILE", "ENOBUFS", "EINTR", "EIO", "ECONNRESET", "ECONNABORTED", "ENOSPC", "ETIMEDOUT"]
WRONG = ["EACCES", "EPERM", "ENOTDIR", "ELOOP", "EPROTOTYPE", "ENOTSOCK"]


@pytest.mark.parametrize("call", ["connect", "lstat"])
@pytest.mark.parametrize("name", PASSING)
def test_a_kernel_that_lacks_something_is_no_attack(instrumented, daemon, run_dir, name, call):
    """No memory, no descriptor: ADD and CHECK are to be tried again (11), STATUS is not available (50)."""
    plugin = instrumented(FAIL_AT=f"{call}:{getattr(errno, name)}", WAIT_FACTOR="1000")
    for verb, code in (("ADD", 11), ("CHECK", 11), ("STATUS", 50)):
        document = plugin.run(verb).error(code)
        assert os.strerror(getattr(errno, name)) in document["details"]
    assert daemon.requests == []


@pytest.mark.parametrize("name", PASSING)
def test_its_del_is_kept(instrumented, daemon, run_dir, spooled, name):
    """I3: the daemon replays it."""
    outcome = instrumented(FAIL_AT=f"connect:{getattr(errno, name)}", WAIT_FACTOR="1000").run("DEL")
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, b"", b"")
    assert [entry.verb for entry in spooled()] == ["DEL"]
    assert daemon.requests == []


@pytest.mark.parametrize("call", ["connect", "lstat"])
@pytest.mark.parametrize("name", WRONG)
def test_a_path_that_is_not_ours_stays_one(instrumented, daemon, run_dir, spooled, name, call):
    """Nothing is sent to it and nothing kept there."""
    for verb in ("ADD", "DEL", "STATUS"):
        instrumented(FAIL_AT=f"{call}:{getattr(errno, name)}", WAIT_FACTOR="1000").run(verb).error(191)
    assert daemon.requests == []
    assert spooled() == []


def test_without_a_descriptor_the_static_plugin_says_try_again(onefile_plugin, daemon):
    """The kernel's own refusal of socket(2). On this machine alone: an emulator needs descriptors for itself."""
    limited = replace(onefile_plugin, argv=["prlimit", "--nofile=3:3", *onefile_plugin.argv])
    limited.run("CHECK").error(11)
    assert daemon.requests == []


def test_the_error_keeps_the_version_of_the_request(any_plugin):
    """Also an error of the plugin's own carries the request's cniVersion."""
    for version in SUPPORTED_VERSIONS:
        assert any_plugin.run("CHECK", b'{"cniVersion":"%s"}' % version.encode()).error(11)["cniVersion"] == version


@pytest.mark.parametrize("verb", ["ADD", "DEL", "STATUS"])
@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
def test_a_run_directory_that_others_may_write_is_refused(any_plugin, daemon, run_dir, verb, mode):
    """Whoever can write the directory can be the daemon: nothing is sent and nothing spooled, and the error says why."""
    run_dir.chmod(mode)
    document = any_plugin.run(verb).error(191)
    assert str(run_dir) in document["msg"]
    assert "write" in document["details"]
    assert daemon.requests == []
    assert not (run_dir / "spool").exists()


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755, 0o711])
def test_a_readable_run_directory_is_accepted(any_plugin, daemon, run_dir, mode):
    """Only write permission of others is dangerous."""
    run_dir.chmod(mode)
    assert any_plugin.run("ADD").status == 0


def test_a_link_in_place_of_the_run_directory_is_refused(any_plugin, daemon, run_dir):
    """The last component is not followed."""
    link = run_dir.parent / "link"
    link.symlink_to(run_dir)
    assert "link" in any_plugin.run("ADD", VPC_IPAMD_RUN_DIR=str(link)).error(191)["details"]
    assert daemon.requests == []


def test_a_file_in_place_of_the_run_directory_is_refused(any_plugin, run_dir):
    """A path that is no directory is wrong, not missing."""
    (run_dir / "file").touch()
    any_plugin.run("ADD", VPC_IPAMD_RUN_DIR=str(run_dir / "file")).error(191)
    any_plugin.run("ADD", VPC_IPAMD_RUN_DIR=str(run_dir / "file" / "below")).error(191)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: open(path, "w").close()], ids=["fifo", "directory", "file"])
def test_something_else_in_place_of_the_socket_is_refused(any_plugin, run_dir, make):
    """Only a socket is connected to; a link to one is no socket."""
    make(run_dir / "ipamd.sock")
    assert "not a socket" in any_plugin.run("ADD").error(191)["details"]
    any_plugin.run("DEL").error(191)


def test_a_link_to_a_socket_is_refused(any_plugin, daemon, run_dir):
    """The socket is looked at with lstat."""
    (run_dir / "ipamd.sock").rename(run_dir / "real.sock")
    (run_dir / "ipamd.sock").symlink_to("real.sock")
    any_plugin.run("ADD").error(191)
    assert daemon.requests == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("what", [".", "ipamd.sock", "spool"])
def test_a_foreign_owner_is_refused(any_plugin, daemon, run_dir, what):
    """Directory, socket and spool belong to root or to the plugin's own user."""
    (run_dir / "spool").mkdir(mode=0o700)
    os.chown(run_dir / what, 65534, 65534)
    if what == "spool":
        (run_dir / "ipamd.sock").unlink()
    assert "65534" in any_plugin.run("DEL").error(191)["details"]
    assert daemon.requests == []


def test_a_datagram_socket_is_refused(any_plugin, run_dir):
    """A socket of another type is not the daemon."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram:
        datagram.bind(f"{run_dir}/ipamd.sock")
        any_plugin.run("ADD").error(191)


def test_a_daemon_that_dies_during_the_call_is_away(any_plugin, raw_peer, spooled):
    """A connection that ends before the answer: ADD says "try again", DEL is kept (I3)."""

    def close_after_the_request(connection):
        connection.recv(65536)
        connection.close()

    with raw_peer(close_after_the_request):
        any_plugin.run("ADD").error(11)
        any_plugin.run("STATUS").error(50)
        assert any_plugin.run("DEL").status == 0
    assert len(spooled()) == 1


def test_a_connection_closed_at_once_is_away(any_plugin, raw_peer, spooled):
    """A reset while the request is being written is no other case."""
    with raw_peer(socket.socket.close):
        any_plugin.run("ADD", b"{" + b" " * 900000 + b"}").error(11)
        assert any_plugin.run("DEL", b"{" + b" " * 900000 + b"}").status == 0
    assert len(spooled()) == 1
