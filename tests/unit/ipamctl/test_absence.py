"""Why the daemon does not answer: dead, in a crash loop and hung are told apart within two seconds."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from ipamd.ipamctl.absence import LOOP_STARTS, AbsenceKind, Listener, MissingDaemon, command_here, gone, listener
from ipamd.ipamctl.client import MOMENT_S, TIMEOUT_S, Client
from ipamd.ipamctl.verb import AwayError
from ipamd.settings.start_record import STARTS_MAX, STARTS_NAME, ProcessStart, StartRecord, read_starts
from tests.rig import wait_until

LISTENING = """
import socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.bind(sys.argv[1])
sock.listen()
print("listening", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run directory, private as the daemon makes it."""
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def mute(run_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that takes connections at ipamd.sock and never answers."""
    command = [sys.executable, "-c", LISTENING, str(run_dir / "ipamd.sock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        yield process
        process.kill()


def _kind(run_dir: Path) -> str:
    with Client(str(run_dir / "ipamd.sock")) as client, pytest.raises(AwayError) as away:
        client.ask("GetStatus")
    return away.value.kind


def test_nobody_has_the_socket(run_dir: Path) -> None:
    """Never made, or left behind by a process that ended."""
    assert _kind(run_dir) == AbsenceKind.DEAD
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(run_dir / "ipamd.sock"))
    assert _kind(run_dir) == AbsenceKind.DEAD


def test_many_starts_are_a_crash_loop(run_dir: Path) -> None:
    """With the status and the reason of the last end; fewer are a restart."""
    for number in range(LOOP_STARTS):
        assert _kind(run_dir) == AbsenceKind.DEAD, number
        record = StartRecord(run_dir)
        record.begin()
        record.end(2, reason=f"WARM_IP_TARGET {number} is wrong")
    assert _kind(run_dir) == AbsenceKind.CRASH_LOOP
    absence = gone(run_dir)
    assert f"WARM_IP_TARGET {LOOP_STARTS - 1} is wrong" in absence.text


def test_a_crash_loop_has_the_next_step_of_the_last_end(run_dir: Path) -> None:
    """Without one, the log is named."""
    for step in ("", "", "set WARM_IP_TARGET"):
        record = StartRecord(run_dir)
        record.begin()
        record.end(2, reason="wrong", next_step=step)
    assert gone(run_dir).next_step == "set WARM_IP_TARGET"
    StartRecord(run_dir).begin()
    assert "--previous" in gone(run_dir).next_step


@pytest.mark.parametrize(("environ", "is_in_pod"), [({}, False), ({"KUBERNETES_SERVICE_HOST": "10.100.0.1"}, True)])
def test_a_command_names_the_pod_inside_of_one(environ: dict[str, str], is_in_pod: bool) -> None:
    """A process number of a container is wrong on its node."""
    assert ("exec POD -- sh -c 'kill -CONT 25'" in command_here("kill -CONT 25", environ)) is is_in_pod


def test_a_node_whose_first_daemon_never_started_has_its_crash_loop(tmp_path: Path) -> None:
    """The directory is as kubelet makes it, open to all, because no daemon came so far as to close it."""
    tmp_path.chmod(0o755)
    for _ in range(LOOP_STARTS):
        record = StartRecord(tmp_path)
        record.begin()
        record.end(2, reason="WARM_IP_TARGET is wrong")
    assert [start.exit_status for start in read_starts(tmp_path)] == [2] * LOOP_STARTS
    assert _kind(tmp_path) == AbsenceKind.CRASH_LOOP


KUBELETS_PAUSES_S = (10, 20, 40, 80, 160, *[300] * 10)
"""Between two starts of a container that ends at once."""


def _ago(run_dir: Path, ages_s: Iterable[float], exit_status: int | None = 2) -> None:
    """Write the record of a daemon whose processes started so long ago."""
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    starts = [ProcessStart(now_s - age_s, 7, exit_status, "told by the test") for age_s in sorted(ages_s, reverse=True)]
    (run_dir / STARTS_NAME).write_text("".join(f"{json.dumps(start._asdict())}\n" for start in starts[-STARTS_MAX:]))


@pytest.mark.parametrize("since_last_s", [1, 299])
@pytest.mark.parametrize("restarts", range(LOOP_STARTS - 1, len(KUBELETS_PAUSES_S)))
@pytest.mark.parametrize("exit_status", [2, None])
def test_a_crash_loop_stays_one(run_dir: Path, restarts: int, since_last_s: float, exit_status: int | None) -> None:
    """Hours later, when kubelet waits five minutes before each start, so that ten minutes have two of them."""
    pauses = KUBELETS_PAUSES_S[:restarts]
    _ago(run_dir, (since_last_s + sum(pauses[number:]) for number in range(restarts + 1)), exit_status)
    assert gone(run_dir).kind is AbsenceKind.CRASH_LOOP


@pytest.mark.parametrize(
    ("ages_s", "exit_status"),
    [((9000, 6000, 3000), 2), ((3600, 3590, 3570), 2), ((90, 60), 2), ((90, 60, 30), 0)],
    ids=["far apart", "an hour ago", "two", "rolls"],
)
def test_what_is_no_crash_loop(run_dir: Path, ages_s: tuple[float, ...], exit_status: int) -> None:
    """Starts far apart or long ago, fewer of them, and processes that ended as they were asked to."""
    _ago(run_dir, ages_s, exit_status)
    assert gone(run_dir).kind is AbsenceKind.DEAD


def test_a_stopped_process_is_hung(run_dir: Path, mute: subprocess.Popen[str]) -> None:
    """It is named by its PID after a moment, not after the whole timeout of the call."""
    found = listener(str(run_dir / "ipamd.sock"))
    assert found == Listener(mute.pid)
    os.kill(mute.pid, signal.SIGSTOP)
    wait_until(lambda: Listener(mute.pid).is_stopped, what="the process is stopped")
    assert MOMENT_S < 2 < TIMEOUT_S
    assert _kind(run_dir) == AbsenceKind.HUNG


def test_a_mute_process_is_told_of_before_the_call_ends(
    run_dir: Path, mute: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A slow daemon may still answer: the verb waits on, and a person has read why."""
    assert _kind(run_dir) == AbsenceKind.HUNG
    assert str(mute.pid) in capsys.readouterr().err


def test_a_full_backlog_is_hung(run_dir: Path) -> None:
    """Nobody takes connections from the socket's queue."""
    path = str(run_dir / "ipamd.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(path)
        absence = listener(path)
        for client in waiting:
            client.close()
    assert isinstance(absence, MissingDaemon)
    assert absence.kind is AbsenceKind.HUNG


def test_the_record_keeps_the_last_starts(run_dir: Path) -> None:
    """Oldest first; one that was killed has no status."""
    for _ in range(STARTS_MAX + 2):
        StartRecord(run_dir).begin()
    starts = read_starts(run_dir)
    assert len(starts) == STARTS_MAX
    assert [start.exit_status for start in starts] == [None] * STARTS_MAX
    assert sorted(start.boottime_s for start in starts) == [start.boottime_s for start in starts]


DAMAGED = (
    "",
    "{",
    "[]\n",
    '{"boottime_s": 1, "pid": 2, "later": 3}\n',
    '{"boottime_s": "1", "pid": 2}\n',
    '{"boottime_s": 1, "pid": 2, "reason": ["x"]}\n',
    "[" * 100_000,
    "\x00",
)


@pytest.mark.parametrize("content", DAMAGED)
def test_a_record_that_is_none_counts_no_start(run_dir: Path, content: str) -> None:
    """It is for people: nothing fails for want of it, and the next start writes it anew."""
    (run_dir / STARTS_NAME).write_text(content)
    assert read_starts(run_dir) == ()
    StartRecord(run_dir).begin()
    assert len(read_starts(run_dir)) == 1


@pytest.mark.timeout(30)
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_what_is_in_the_place_of_the_record_does_not_block(run_dir: Path, mode: int) -> None:
    """A FIFO has neither a writer nor a reader: the start must not wait for one."""
    run_dir.chmod(mode)
    os.mkfifo(run_dir / STARTS_NAME)
    os.mkfifo(run_dir / f".{STARTS_NAME}")
    assert read_starts(run_dir) == ()
    StartRecord(run_dir).begin()
    assert len(read_starts(run_dir)) == (1 if mode == 0o700 else 0)


def test_nothing_is_written_to_a_directory_of_others(tmp_path: Path) -> None:
    """A wrong setting may name any: not there, or open to all and in use."""
    StartRecord(tmp_path / "none").begin()
    tmp_path.chmod(0o755)
    (tmp_path / "passwd").touch()
    StartRecord(tmp_path).begin()
    assert [path.name for path in tmp_path.iterdir()] == ["passwd"]
    (tmp_path / STARTS_NAME).write_text("of somebody else\n")
    StartRecord(tmp_path).begin()
    assert (tmp_path / STARTS_NAME).read_text() == "of somebody else\n"
