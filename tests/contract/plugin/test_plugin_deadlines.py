"""A peer that stalls costs at most the verb's deadline; the answer to the runtime then depends on the verb.

STATUS runs in real time as well; all run behind a seam that cuts the waiting short (`instrumented_plugin.py`) and says how long the
plugin waited by its own clock, which does not depend on how busy the machine is.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import time

import pytest

from tests.contract.plugin.marks import served
from tests.patience import PATIENCE_S

DEADLINES_S = {"ADD": 60, "DEL": 30, "CHECK": 10, "GC": 60, "STATUS": 5, "VERSION": 5}
SILENCE_S = 1
"""Real seconds that stand for a verb's deadline. Long enough for a peer of ours on a busy machine to say what it has to say."""
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def silent(connection):
    """Take the request, answer nothing."""
    connection.recv(65536)


def half_an_answer(connection):
    """Stop after the headers."""
    connection.sendall(SETTINGS + b"\x00\x00\x01\x01\x04\x00\x00\x00\x01")


def does_not_read(connection):
    """Accept, and not even read."""
    del connection


STALLS = [silent, half_an_answer, does_not_read]


@pytest.fixture
def cut_short(instrumented, tmp_path):
    """Make the plugin for a verb, whose deadline is over after SILENCE_S of waiting."""
    return lambda verb: instrumented(WAIT_FACTOR=str(DEADLINES_S[verb] / SILENCE_S), WAITED_MS=str(tmp_path / "waited"))


def waited_s(plugin):
    """How long the plugin waited for nothing, by its own clock."""
    with open(plugin.extra_environment["WAITED_MS"]) as waited:
        return float(waited.read()) / 1000


@pytest.mark.parametrize("stall", STALLS)
@pytest.mark.parametrize("verb", ["ADD", "CHECK", "GC", "STATUS"])
def test_a_stalled_daemon_is_an_error_within_the_deadline(cut_short, raw_peer, spooled, verb, stall):
    """ADD, CHECK and GC end with 11 and STATUS with 50, before the deadline and not long before."""
    plugin = cut_short(verb)
    with raw_peer(stall):
        outcome = plugin.run(verb, b"{" + b" " * 900_000 + b"}")
    outcome.error(50 if verb == "STATUS" else 11)
    assert DEADLINES_S[verb] * 0.5 < waited_s(plugin) <= DEADLINES_S[verb]
    assert spooled() == []


@pytest.mark.parametrize("stall", STALLS)
def test_a_del_that_stalls_is_spooled(cut_short, raw_peer, spooled, stall):
    """I3: DEL is idempotent, so one that may have been done is kept all the same, and within the deadline."""
    plugin = cut_short("DEL")
    with raw_peer(stall):
        outcome = plugin.run("DEL")
    assert (outcome.status, outcome.stdout) == (0, b"")
    assert waited_s(plugin) <= DEADLINES_S["DEL"]
    assert [entry.verb for entry in spooled()] == ["DEL"]


@pytest.mark.parametrize("is_marked", [False, True], ids=["refused", "bridged"])
def test_status_keeps_its_deadline_in_real_time(any_plugin, run_dir, raw_peer, is_marked):
    """Five seconds from exec to exit, as installed, not counting what the plugin waits for a processor; also where it bridges."""
    if is_marked:
        served(run_dir)
    with raw_peer(silent):
        started, before_s = time.monotonic(), unscheduled_s("thread-self")
        process = any_plugin.start("STATUS")
        process.stdin.write(b'{"cniVersion":"1.0.0"}')
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # not waited for yet, it still has its statistics
        elapsed_s = time.monotonic() - started
        held_up_s = unscheduled_s(process.pid) + unscheduled_s("thread-self") - before_s
    with process:
        said = process.stdout.read()
    assert (b'"code":50' in said and b"in time" in said) if not is_marked else said == b""
    assert 4 < elapsed_s < 5 + held_up_s


def unscheduled_s(pid):
    """Seconds that a process was runnable without a processor. Source: Linux, Documentation/scheduler/sched-stats.rst."""
    with open(f"/proc/{pid}/schedstat") as statistics:
        return int(statistics.read().split()[1]) / 1e9


def test_an_add_that_waits_for_a_daemon_counts_from_the_start_of_its_process(cut_short):
    """On a busy machine the interpreter's start takes seconds, and the runtime counts them."""
    plugin = cut_short("ADD")
    plugin.argv = ["/bin/sh", "-c", 'sleep 2; exec "$@"', "sh", *plugin.argv]
    plugin.run("ADD").error(11)
    assert DEADLINES_S["ADD"] * 0.5 < waited_s(plugin) <= DEADLINES_S["ADD"] - 2


def test_a_full_queue_of_connections_is_waited_for(cut_short, run_dir, spooled):
    """A listener that never accepts: the same as a stalled daemon."""
    with (
        socket.socket(socket.AF_UNIX) as listener,
        socket.socket(socket.AF_UNIX) as first,
        socket.socket(socket.AF_UNIX) as second,
    ):
        listener.bind(f"{run_dir}/ipamd.sock")
        listener.listen(0)
        for client in (first, second):
            client.setblocking(False)
            client.connect_ex(f"{run_dir}/ipamd.sock")
        assert "queue" in cut_short("STATUS").run("STATUS").error(50)["details"]
        assert cut_short("DEL").run("DEL").status == 0
    assert len(spooled()) == 1


@pytest.mark.parametrize("verb", DEADLINES_S)
def test_standard_input_that_never_ends_is_an_io_error(cut_short, daemon, spooled, verb):
    """A runtime that forgets to close our standard input gets code 5 within the deadline."""
    process = cut_short(verb).start(verb)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write(b'{"cniVersion":"1.0.0",')
    process.stdin.flush()
    assert b'"code":5' in process.stdout.read()
    assert process.wait(PATIENCE_S) == 1
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()
    assert daemon.requests == []
    assert spooled() == []


def test_standard_output_that_nobody_reads_ends_the_process(cut_short, daemon):
    """A full pipe on standard output holds the process until its deadline, not for ever."""
    reader, writer = os.pipe()
    capacity = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)
    os.write(writer, bytes(capacity))
    plugin = cut_short("VERSION")
    process = subprocess.Popen(plugin.argv, env=plugin.environment("VERSION"), stdin=subprocess.DEVNULL, stdout=writer)
    assert process.wait(PATIENCE_S) == 1
    assert waited_s(plugin) <= DEADLINES_S["VERSION"]
    os.close(reader)
    os.close(writer)


def test_a_lock_held_for_ever_is_an_error(cut_short, run_dir, spooled):
    """I3: a DEL that can be neither done nor spooled within the deadline is an error, not a success."""
    with open(run_dir / "spool.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        plugin = cut_short("DEL")
        outcome = plugin.run("DEL")
    assert "spool.lock" in outcome.error(11)["msg"]
    assert waited_s(plugin) <= DEADLINES_S["DEL"]
    assert spooled() == []
