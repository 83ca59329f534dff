"""STATUS bridges a daemon that takes the request and answers late, within the same minute of ten as its absence (I17).

On an overloaded node the daemon runs and leaves its mark, and kubelet must not hear of every answer that takes longer than STATUS has.
A daemon that answers nobody at all still fails STATUS within a minute, though its mark stays young.
"""

from __future__ import annotations

import contextlib
import threading

import grpc
import pytest

from ipamd.pb import cni_pb2
from tests.contract.plugin.marks import BRIDGED_S, boottime_ms, bridged, counted, served
from tests.contract.plugin.rolls import start
from tests.patience import PATIENCE_S

SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
HALF_AN_ANSWER = SETTINGS + b"\x00\x00\x01\x01\x04\x00\x00\x00\x01\x88"


def silent(connection):
    """Take the request, answer nothing."""
    connection.recv(65536)


def half_an_answer(connection):
    """Stop after the headers."""
    connection.sendall(HALF_AN_ANSWER)


def does_not_read(connection):
    """Accept, and not even read."""
    del connection


@pytest.fixture
def cut_short(instrumented):
    """The plugin from source, whose waits are ten times shorter than it thinks; the clock of the boot is the real one."""
    return instrumented(WAIT_FACTOR="10")


@pytest.mark.parametrize("stall", [silent, half_an_answer, does_not_read])
def test_a_daemon_that_does_not_answer_in_time_is_bridged(any_plugin, run_dir, raw_peer, stall):
    """Success, nothing printed, and what STATUS waited is counted at least: the mark may have been left while it waited."""
    served(run_dir, ago_s=0)
    with raw_peer(stall):
        outcome = any_plugin.run("STATUS")
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, b"", b"")
    ((begin_ms, end_ms),) = counted(run_dir)
    assert 4000 <= end_ms - begin_ms < BRIDGED_S * 1000


def test_an_answer_that_comes_too_late_is_bridged(any_plugin, run_dir, daemon):
    """A real server, which has its answer only after the plugin has gone."""
    served(run_dir)
    is_over = threading.Event()

    def late(_):
        is_over.wait(PATIENCE_S)
        return cni_pb2.ExecReply(protocol=1)

    daemon.reply = late
    outcome = any_plugin.run("STATUS")
    is_over.set()
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, b"", b"")
    assert [request.verb for request in daemon.requests] == ["STATUS"]
    assert len(counted(run_dir)) == 1


def test_a_daemon_that_has_no_room_is_asked_again(any_plugin, run_dir, daemon):
    """It refuses with RESOURCE_EXHAUSTED: once it has room the answer is its own, and nothing is used up."""
    served(run_dir)
    daemon.abort = (grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!")
    process = start(any_plugin, "STATUS")
    while not daemon.requests:
        assert process.poll() is None
    daemon.abort = None
    stdout, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, stdout) == (0, b"")
    assert counted(run_dir) == []


def test_a_daemon_that_finds_no_room_is_bridged(cut_short, run_dir, daemon):
    """All the time that STATUS has: asked a few times, not as often as one that is away."""
    served(run_dir)
    daemon.abort = (grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!")
    assert cut_short.run("STATUS").status == 0
    assert 2 <= len(daemon.requests) <= 20
    assert len(counted(run_dir)) == 1


def test_what_a_daemon_says_in_time_stands(cut_short, run_dir, daemon):
    """One that does not serve, and says so, is not overruled by its young mark."""
    served(run_dir)
    daemon.reply = lambda _: cni_pb2.ExecReply(protocol=1, error=cni_pb2.CniError(code=50, message="no address"))
    assert cut_short.run("STATUS").error(50)["msg"] == "no address"
    assert counted(run_dir) == []


UNMARKED = {
    "no mark": (lambda run_dir: None, "boot"),
    "another boot": (lambda run_dir: served(run_dir, boot_id="11111111-2222-3333-4444-555555555555"), "boot"),
    "over a minute": (lambda run_dir: served(run_dir, ago_s=BRIDGED_S + 1), "last served"),
    "from the future": (lambda run_dir: served(run_dir, ago_s=-3600), "damaged"),
}


@pytest.mark.parametrize(("leave", "cause"), UNMARKED.values(), ids=UNMARKED.keys())
def test_without_a_fresh_mark_lateness_fails_status(cut_short, run_dir, raw_peer, leave, cause):
    """Code 50, with both causes: nobody answered in time, and why that is not passed over (I11, I14)."""
    leave(run_dir)
    with raw_peer(silent):
        document = cut_short.run("STATUS").error(50)
    assert "overloaded or stuck" in document["msg"]
    assert "in time" in document["details"]
    assert cause in document["details"]


USED_UP = {
    "an absence": [(500, 442)],
    "a crash loop": [(94, 80), (74, 60), (54, 40), (34, 20)],
    "answers that were late before": [(58, 4)],
}


@pytest.mark.parametrize("absences", USED_UP.values(), ids=USED_UP.keys())
def test_lateness_and_absence_have_one_minute(any_plugin, run_dir, raw_peer, absences):
    """However young the mark is: with what was bridged before, the time that STATUS waited is more than 60 s in ten minutes."""
    served(run_dir, ago_s=0)
    bridged(run_dir, *absences)
    with raw_peer(silent):
        document = any_plugin.run("STATUS").error(50)
    assert "60 s" in document["details"]
    assert "in time" in document["details"]


WITHIN = {
    "a crash loop": [(74, 60), (54, 40), (34, 20)],
    "late twice, and served in between": [(75, 24)],
}


@pytest.mark.parametrize("absences", WITHIN.values(), ids=WITHIN.keys())
def test_lateness_that_began_a_moment_ago_counts_as_that(cut_short, run_dir, raw_peer, absences):
    """What lies between it and an earlier absence is not counted where an answer in time may lie there too."""
    served(run_dir, ago_s=0)
    bridged(run_dir, *absences)
    with raw_peer(silent):
        assert cut_short.run("STATUS").status == 0


def test_a_daemon_that_answers_nobody_fails_status_within_a_minute(cut_short, run_dir, raw_peer):
    """Its mark stays young, as kubelet asks 5 s after each answer: the time between two late answers is lateness too."""
    bridged(run_dir, (52, 5))
    with raw_peer(silent):
        served(run_dir, ago_s=0)
        assert cut_short.run("STATUS").status == 0
        ((begin_ms, end_ms),) = counted(run_dir)
        assert end_ms - begin_ms > 52_000
        bridged(run_dir, (61, 5))
        served(run_dir, ago_s=0)
        cut_short.run("STATUS").error(50)


def test_lateness_that_is_refused_goes_on_being_counted(cut_short, run_dir, raw_peer):
    """Or a daemon that hangs would be said to serve again when its first minute is forgotten, and the node would flap."""
    bridged(run_dir, (300, 240))
    with raw_peer(silent):
        served(run_dir, ago_s=0)
        asked_ms = boottime_ms()
        cut_short.run("STATUS").error(50)
    assert counted(run_dir)[-1][1] >= asked_ms


def test_many_late_status_at_once_count_once(any_plugin, run_dir, raw_peer):
    """Each waits for itself; together they have waited no longer than one."""
    served(run_dir, ago_s=0)
    with raw_peer(silent), contextlib.ExitStack() as stack:
        processes = [stack.enter_context(start(any_plugin, "STATUS")) for _ in range(6)]
        assert [process.wait(PATIENCE_S) for process in processes] == [0] * 6
    assert len(counted(run_dir)) == 1


def test_other_verbs_are_not_bridged(cut_short, run_dir, raw_peer):
    """A young mark says nothing of an address: CHECK fails as ever."""
    served(run_dir)
    with raw_peer(silent):
        cut_short.run("CHECK").error(11)
    assert counted(run_dir) == []
