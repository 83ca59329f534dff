"""A daemon that is away for some seconds: ADD waits for it, within its deadline (I17)."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import grpc
import pytest

from tests.contract.plugin.rolls import start
from tests.patience import PATIENCE_S


@pytest.fixture
def cut_short(instrumented, tmp_path):
    """The plugin, whose waits are 30 times shorter than it thinks."""
    return instrumented(WAIT_FACTOR="30", WAITED_MS=str(tmp_path / "waited"))


def waited_s(plugin):
    """How long it waited for nothing, by its own clock."""
    return float(Path(plugin.extra_environment["WAITED_MS"]).read_text()) / 1000


def test_an_add_waits_for_the_daemon_and_reads_its_request_once(any_plugin, run_dir, new_daemon, serve):
    """The first call succeeds, with the request that the runtime wrote once (standard input has ended long ago)."""
    daemon = new_daemon()
    process = start(any_plugin, "ADD", b'{"cniVersion":"1.0.0","x":1}')
    with pytest.raises(Exception, match="timed out"):
        process.wait(0.5)
    with serve(daemon):
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, stdout, stderr) == (0, b"", b"")
    assert [request.config for request in daemon.requests] == [b'{"cniVersion":"1.0.0","x":1}']


@pytest.mark.parametrize("leave", [lambda _: None, os.rmdir], ids=["no socket", "no directory"])
def test_a_daemon_that_does_not_come_is_awaited_until_the_deadline(cut_short, run_dir, leave):
    """Code 11 as ever, with the last observation, before the ADD's 60 s are over; and no trace of it."""
    leave(run_dir)
    document = cut_short.run("ADD").error(11)
    assert str(run_dir) in document["details"]
    assert 50 < waited_s(cut_short) <= 60
    assert not run_dir.exists() or os.listdir(run_dir) == []


def test_a_daemon_that_sends_an_add_away_is_asked_again(any_plugin, daemon):
    """One that is about to exit answers UNAVAILABLE: the ADD is its successor's."""
    daemon.abort = (grpc.StatusCode.UNAVAILABLE, "draining")
    process = start(any_plugin, "ADD")
    while not daemon.requests:
        assert process.poll() is None
        time.sleep(0.01)
    daemon.abort = None
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, stdout, stderr) == (0, b"", b"")
    assert len(daemon.requests) >= 2


def test_an_add_whose_daemon_dies_is_given_to_the_next(any_plugin, run_dir, raw_peer, new_daemon, serve):
    """The daemon gives the stored result to a repetition, so it may be sent twice."""
    daemon, is_lost = new_daemon(), threading.Event()

    def die(connection):
        connection.recv(65536)
        (run_dir / "ipamd.sock").unlink(missing_ok=True)  # first: nobody is to come to it again
        connection.close()
        is_lost.set()

    with raw_peer(die):
        process = start(any_plugin, "ADD")
        assert is_lost.wait(PATIENCE_S)
    with serve(daemon):
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, stdout, stderr) == (0, b"", b"")
    assert len(daemon.requests) == 1


def test_an_add_is_not_what_every_daemon_dies_of(any_plugin, raw_peer):
    """After three daemons were lost with it, it is given back to the runtime."""
    lost = []

    def die(connection):
        connection.recv(65536)
        lost.append(connection)
        connection.close()

    with raw_peer(die):
        any_plugin.run("ADD").error(11)
    assert len(lost) == 3


def test_an_unsafe_socket_is_not_waited_for(any_plugin, run_dir):
    """Only absence is: the error comes at once."""
    (run_dir / "ipamd.sock").touch()
    any_plugin.run("ADD").error(191)
