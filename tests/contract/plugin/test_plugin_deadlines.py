"""A peer that stalls costs the verb's deadline and not more; what the runtime hears then depends on the verb.

STATUS runs in real time; the others behind a seam whose clock runs a hundred times faster (`instrumented_plugin.py`).
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import time

import pytest

FACTOR = 50
DEADLINES_S = {"ADD": 60, "CHECK": 10, "GC": 60, "STATUS": 5}
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


@pytest.mark.parametrize("stall", STALLS)
@pytest.mark.parametrize("verb", DEADLINES_S)
def test_a_stalled_daemon_is_an_error_within_the_deadline(instrumented, raw_peer, spooled, verb, stall):
    """ADD, CHECK and GC end with 11 and STATUS with 50, before the deadline and not long before."""
    plugin = instrumented(CLOCK_FACTOR=str(FACTOR))
    with raw_peer(stall):
        outcome = plugin.run(verb, b"{" + b" " * 900_000 + b"}")
    outcome.error(50 if verb == "STATUS" else 11)
    assert DEADLINES_S[verb] / FACTOR * 0.8 < outcome.elapsed_s < DEADLINES_S[verb] / FACTOR + 1  # 1 s: start of a process
    assert spooled() == []


@pytest.mark.parametrize("stall", STALLS)
def test_a_del_that_stalls_is_spooled(instrumented, raw_peer, spooled, stall):
    """I3: DEL is idempotent, so one that may have been done is kept all the same, and within the deadline."""
    with raw_peer(stall):
        outcome = instrumented(CLOCK_FACTOR=str(FACTOR)).run("DEL")
    assert (outcome.status, outcome.stdout) == (0, b"")
    assert outcome.elapsed_s < 30 / FACTOR + 1
    assert [entry.verb for entry in spooled()] == ["DEL"]


def test_status_keeps_its_deadline_in_real_time(any_plugin, raw_peer):
    """Five seconds from exec to exit, as installed, not counting what the plugin waits for a processor."""
    with raw_peer(silent):
        started, before_s = time.monotonic(), unscheduled_s("thread-self")
        process = any_plugin.start("STATUS")
        process.stdin.write(b'{"cniVersion":"1.0.0"}')
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # not waited for yet, it still has its statistics
        elapsed_s = time.monotonic() - started
        held_up_s = unscheduled_s(process.pid) + unscheduled_s("thread-self") - before_s
    with process:
        assert b'"code":50' in (said := process.stdout.read())
    assert b"in time" in said
    assert 4 < elapsed_s < 5 + held_up_s


def unscheduled_s(pid):
    """Seconds that a process was runnable without a processor. Source: Linux, Documentation/scheduler/sched-stats.rst."""
    with open(f"/proc/{pid}/schedstat") as statistics:
        return int(statistics.read().split()[1]) / 1e9


def test_a_full_queue_of_connections_is_waited_for(instrumented, run_dir, spooled):
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
        plugin = instrumented(CLOCK_FACTOR=str(FACTOR))
        assert "queue" in plugin.run("STATUS").error(50)["details"]
        assert plugin.run("DEL").status == 0
    assert len(spooled()) == 1


@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"])
def test_standard_input_that_never_ends_is_an_io_error(instrumented, daemon, spooled, verb):
    """A runtime that forgets to close our standard input gets code 5 within the deadline."""
    plugin = instrumented(CLOCK_FACTOR=str(FACTOR))
    process = plugin.start(verb)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write(b'{"cniVersion":"1.0.0",')
    process.stdin.flush()
    assert b'"code":5' in process.stdout.read()
    assert process.wait(10) == 1
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()
    assert daemon.requests == []
    assert spooled() == []


def test_standard_output_that_nobody_reads_ends_the_process(instrumented, daemon):
    """A full pipe on standard output holds the process until its deadline, not for ever."""
    reader, writer = os.pipe()
    capacity = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)
    os.write(writer, bytes(capacity))
    plugin = instrumented(CLOCK_FACTOR=str(FACTOR))
    started = time.monotonic()
    process = subprocess.Popen(plugin.argv, env=plugin.environment("VERSION"), stdin=subprocess.DEVNULL, stdout=writer)
    assert process.wait(10) == 1
    assert time.monotonic() - started < 5 / FACTOR + 1
    os.close(reader)
    os.close(writer)


def test_a_lock_held_for_ever_is_an_error(instrumented, run_dir, spooled):
    """I3: a DEL that can be neither done nor spooled within the deadline is an error, not a success."""
    with open(run_dir / "spool.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        outcome = instrumented(CLOCK_FACTOR=str(FACTOR)).run("DEL")
    assert "spool.lock" in outcome.error(11)["msg"]
    assert outcome.elapsed_s < 30 / FACTOR + 1
    assert spooled() == []
