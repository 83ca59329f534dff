"""Threads that cannot be made, that end, or that hang: the daemon goes on, or it ends and says why. It is never half alive."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ipamd import daemon
from ipamd.failpoints import HOLD_NAME
from tests.contract.daemon import mishaps_daemon
from tests.patience import PATIENCE_S
from tests.rig import PLUGIN_PATH, Rig, rig, wait_until

pytestmark = pytest.mark.privileged

MODULE = mishaps_daemon.__name__
HEALTH = {"VPC_IPAMD_HEALTH_ADDRESS": "127.0.0.1:61677"}
LONG_SILENCE_S = 3 * mishaps_daemon.SILENCE_S


def page(made: Rig, path: str) -> int:
    """Status code of a page of the health port; 0 if nobody answers."""
    status, _ = made.page(f"http://127.0.0.1:61677{path}", timeout_s=5)
    return status


def await_end(made: Rig, timeout_s: float = PATIENCE_S) -> int:
    """Wait until the daemon has ended by itself. Returns: its exit status."""
    assert made.daemon is not None
    return made.daemon.wait(timeout_s)


def pids_root() -> Path:
    """The directory of the machine's cgroups in which processes are counted: of version 1, or 2."""
    first = Path("/sys/fs/cgroup/pids")
    if first.is_dir():
        return first
    second = Path("/sys/fs/cgroup")
    with suppress(OSError):
        (second / "cgroup.subtree_control").write_text("+pids")
    if "pids" not in (second / "cgroup.subtree_control").read_text().split():
        pytest.skip("this machine counts no processes in cgroups")
    return second


@contextmanager
def counted_threads(pid: int) -> Iterator[Path]:
    """A cgroup with this process alone."""
    root = pids_root()
    group = root / f"test-pids-{pid}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(pid))
        yield group
    finally:
        (group / "pids.max").write_text("max")
        for left in (group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                (root / "cgroup.procs").write_text(left)
        wait_until(lambda: not (group / "cgroup.procs").read_text(), what="the cgroup is empty")
        group.rmdir()


def thread_count(pid: int) -> int:
    """How many threads a process has now."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_a_pids_limit_that_is_reached_delays_requests_only() -> None:
    """The kernel's own limit: what needs a further thread waits for the one that is there; afterwards all is as before."""
    environment = HEALTH | {"VPC_IPAMD_FAILPOINT": "attach.wired=pause"}
    with rig(module=MODULE, env=environment) as made, counted_threads(made.driver.pid) as group, ThreadPoolExecutor(8) as callers:
        pid = made.driver.pid
        rest(pid)
        (group / "pids.max").write_text(str(thread_count(pid)))
        held = callers.submit(made.add, "held")
        wait_until((made.driver.run_dir / HOLD_NAME).exists, what="the only thread is busy")
        waiting = [callers.submit(made.add, f"waiting{number}") for number in range(3)]
        wait_until(lambda: "request threads" in made.log_tail(), what="a condition says it")
        assert not any(reply.done() for reply in waiting)
        assert [page(made, "/healthz"), page(made, "/readyz")] == [200, 200]
        (made.driver.run_dir / HOLD_NAME).unlink()
        assert all(reply.result(PATIENCE_S).ok for reply in [held, *waiting])
        assert made.cni("STATUS", "", netns="", version="1.1.0").ok
        (group / "pids.max").write_text("max")
        assert all(reply.ok for reply in callers.map(made.add, ["after", "at-last"]))
        wait_until(lambda: "request threads" not in subjects(made), what="the condition has ended")
        assert made.driver.pid == pid
        made.assert_sound(expected=6)


@pytest.mark.parametrize("most", [4, 6, 8])
def test_a_pids_limit_at_the_start_leaves_no_daemon_that_answers_nothing(most: int) -> None:
    """Where gRPC could not make its own threads, none of its calls ends, not even the daemon's own: then the daemon ends itself."""
    with rig(module=MODULE, start=False) as made:
        made.start(wait=False)
        with counted_threads(made.driver.pid) as group:
            (group / "pids.max").write_text(str(most))
            time.sleep(2 * 1.0)
            made.cni("STATUS", "", netns="", version="1.1.0")
            (group / "pids.max").write_text("max")
            bound = time.monotonic() + LONG_SILENCE_S + mishaps_daemon.END_MAX_S
            while made.driver.is_running and not (made.status() or {}).get("ready"):
                assert time.monotonic() < bound
                time.sleep(0.2)
        if not made.driver.is_running:
            made.start()
        assert made.add("after").ok
        made.assert_sound(expected=1)


def rest(pid: int) -> None:
    """Wait until the number of a process's threads has been the same for longer than an idle thread of requests lives."""
    count, since = thread_count(pid), time.monotonic()
    bound = since + PATIENCE_S
    while time.monotonic() < min(since + 3 * mishaps_daemon.IDLE_S, bound):
        time.sleep(0.05)
        if (now := thread_count(pid)) != count:
            count, since = now, time.monotonic()


def subjects(made: Rig) -> set[str]:
    """Subjects of the daemon's conditions; `ipamctl status` is answered by the service that is looked at."""
    status = made.status()
    assert status is not None
    return {condition["subject"] for condition in status["conditions"]}


def mishap(made: Rig, name: str) -> Path:
    """The file that makes it happen while it is there."""
    return Path(made.node.root) / "run" / name


def fail_to_start(made: Rig, thread: str) -> str:
    """Start the daemon on a node where this thread cannot be made. Returns: its log once it has ended by itself."""
    cause = mishap(made, f"no-{thread}")
    cause.touch()
    made.start(wait=False)
    assert await_end(made) == daemon.EXIT_FAILED, thread
    cause.unlink()
    log = made.driver.log_text()
    assert "can't start new thread" in log, thread
    assert "ready after start" not in log, thread
    return log


FIRST = ["rpc", "answers", "metrics", "ports", "start-up"]
"""Threads that the main thread makes."""

LOOPS = ["cooldown", "history", "files", "cloud", "maintenance", "pool", "host-network", "links"]
"""Threads that the start-up makes; `runtime` and `events` are made like them where there is a runtime."""


def test_a_missing_thread_ends_the_process() -> None:
    """Each that the daemon needs: it ends and says why. None of them serves an ADD, which waits for the next daemon."""
    with rig(module=MODULE, env=HEALTH, start=False) as made, ThreadPoolExecutor(1) as callers:
        for thread in FIRST + LOOPS[:-1]:
            fail_to_start(made, thread)
        waiting = callers.submit(made.add, "waiting")
        fail_to_start(made, LOOPS[-1])
        made.start()
        assert waiting.result(PATIENCE_S).ok
        made.assert_sound(expected=1)


def test_a_loop_that_ends_ends_the_process() -> None:
    """By an exception that is none of a turn: nobody would do its work any more."""
    with rig(module=MODULE, env=HEALTH) as made:
        cause = mishap(made, "end-maintenance")
        cause.touch()
        assert await_end(made) == daemon.EXIT_FAILED
        assert "the thread maintenance was ended by an exception" in made.log_tail()
        cause.unlink()
        made.start()
        made.assert_sound(expected=0)


@pytest.mark.parametrize("name", ["raise", "hang"])
def test_a_service_that_answers_nothing_ends_the_daemon(name: str) -> None:
    """grpcio's thread that hands requests out ends, or hangs with a lock that the end of the daemon needs; the next daemon serves."""
    with rig(module=MODULE, env=HEALTH) as made:
        assert made.add("before").ok
        mishap(made, name).touch()
        began = time.monotonic()
        ended = await_end(made)
        took_s = time.monotonic() - began
        assert ended == {"raise": daemon.EXIT_FAILED, "hang": -signal.SIGALRM}[name]
        assert took_s < LONG_SILENCE_S + mishaps_daemon.END_MAX_S
        assert "exiting after an internal failure" in made.log_tail()
        mishap(made, name).unlink()
        made.start()
        assert made.add("after").ok
        made.assert_sound(expected=2)


def test_a_pause_of_the_whole_process_is_no_silence() -> None:
    """SIGSTOP for longer than the silence that ends the daemon: no probe fails after it, and it is the same process."""
    with rig(module=MODULE, env=HEALTH) as made:
        pid = made.driver.pid
        for _ in range(2):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(1.5 * mishaps_daemon.SILENCE_S)
            os.kill(pid, signal.SIGCONT)
            assert page(made, "/healthz") == 200
            assert made.add(f"after{time.monotonic_ns()}").ok
        time.sleep(mishaps_daemon.SILENCE_S)  # in vain: the end would have come
        assert page(made, "/healthz") == 200
        assert made.driver.pid == pid
        assert made.driver.is_running
        assert "exiting after an internal failure" not in made.log_tail(200)
        made.assert_sound(expected=2)


@pytest.mark.heavy
def test_a_pause_of_fifty_seconds_causes_no_restart() -> None:
    """With the bounds as they are shipped."""
    with rig(env=HEALTH) as made:
        pid = made.driver.pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(50)
        os.kill(pid, signal.SIGCONT)
        statuses = []
        for _ in range(20):
            statuses.append(page(made, "/healthz"))
            time.sleep(1)
        assert set(statuses) == {200}
        assert made.driver.is_running
        made.assert_sound(expected=0)


WAITING_COUNT = 200
ADDS = f"""
export CNI_COMMAND=ADD CNI_NETNS=/run/netns/w CNI_PATH=/opt/cni/bin
for number in $(seq {WAITING_COUNT}); do
    echo '{{"cniVersion": "1.0.0", "name": "vpc-ipamd", "type": "vpc-cni"}}' |
        CNI_CONTAINERID=w$number CNI_IFNAME=e$number {PLUGIN_PATH} > /dev/null &
done
wait
"""


@pytest.mark.slow
def test_two_hundred_waiting_adds_are_no_silence() -> None:
    """They wait for addresses for longer than the silence that ends the daemon: its own call has a place beside them."""
    with rig(module=MODULE, env=HEALTH) as made:
        made.node.make_netns("w")
        hang = {"hang": True}
        made.lab.faults.apply(
            {"apis": {"AssignPrivateIpAddresses": hang, "CreateNetworkInterface": hang, "AttachNetworkInterface": hang}}
        )
        for number in range(made.pool()["free_count"]):
            assert made.add(f"held{number}").ok
        pid, idle_count = made.driver.pid, thread_count(made.driver.pid)
        with ThreadPoolExecutor(1) as callers:
            asked = callers.submit(made.node.run, ["sh", "-c", ADDS], timeout_s=2 * PATIENCE_S)
            wait_until(lambda: thread_count(pid) >= idle_count + WAITING_COUNT * 3 // 4, what="they wait")
            began = time.monotonic()
            statuses = set()
            while time.monotonic() < began + LONG_SILENCE_S:
                statuses.add(page(made, "/healthz"))
                statuses.add(page(made, "/readyz"))
                time.sleep(0.5)
            waiting_count = thread_count(pid) - idle_count
            made.kill()
            made.node.run(["sh", "-c", "kill -9 $(pidof vpc-cni)"], check=False)
            asked.result(PATIENCE_S)
        assert waiting_count >= WAITING_COUNT * 3 // 4
        assert statuses == {200}
        assert "exiting after an internal failure" not in made.log_tail(1000)
