# ruff: noqa: PTH106, PTH110, PTH112, PTH120, PTH123, SIM105
# (pathlib and contextlib would double the start time of a process that is started for every node)
"""Remove the directories and the cgroup of a lab when the lab ends, even if it was killed.

Of all processes of a lab, only this one runs on after the lab's end, and only until everything is removed.

It runs as `python -I -S guard.py LIFELINE_FD STATE_DIR CGROUP`, so it imports nothing of the project. The lab holds the other end of
the lifeline; end-of-file means that the lab is gone. Namespaces, mounts, interfaces and addresses need no guard, because they end with
the nodes' PID 1 and the lab's file descriptors. A lab that ends normally is removed in the same way, so every test runs the crash
path. `vpc-lab down` calls `clean` for a lab whose guard was killed as well.
"""

import os
import select
import shutil
import signal
import sys
import time

KILL_DEADLINE_S = 10.0  # ours: a node dies in ~50 ms, so a process that is left after 10 s cannot be killed at all


def main() -> None:
    """Wait for the lab's end, then clean."""
    lifeline, state_dir, cgroup = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C ends the lab, and then the lifeline ends this process
    while os.read(lifeline, 1):
        pass
    clean(state_dir, cgroup)


def clean(state_dir: str, cgroup: str) -> bool:
    """Kill the processes in `cgroup`, and remove it with its children, and `state_dir`. Returns: whether both are gone.

    Concurrency: the guard and `vpc-lab down` may run it at the same time; each step tolerates that it was done already.
    """
    if os.path.isdir(cgroup):
        _kill(cgroup)
        _remove_cgroup(cgroup)
    shutil.rmtree(state_dir, ignore_errors=True)
    try:
        os.rmdir(os.path.dirname(state_dir))
    except OSError:
        pass  # other labs live there
    return not os.path.exists(cgroup) and not os.path.exists(state_dir)


def _kill(cgroup: str) -> None:
    try:
        with open(f"{cgroup}/cgroup.kill", "w", encoding="ascii") as file:  # Linux >= 5.14
            file.write("1")
    except FileNotFoundError:
        for pid in _processes(cgroup):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    except OSError:
        pass
    _wait_empty(cgroup)


def _wait_empty(cgroup: str) -> None:
    """Wait until the kernel reports that no process is left in the cgroup and its children, or until KILL_DEADLINE_S."""
    deadline = time.monotonic() + KILL_DEADLINE_S
    try:
        fd = os.open(f"{cgroup}/cgroup.events", os.O_RDONLY)
    except OSError:
        return
    poll = select.poll()
    poll.register(fd, select.POLLPRI)
    try:
        while b"populated 1" in os.pread(fd, 4096, 0) and time.monotonic() < deadline:
            poll.poll(200)
    except OSError:
        pass  # removed by another cleaner
    finally:
        os.close(fd)


def _processes(cgroup: str) -> "list[int]":
    pids: list[int] = []
    for directory, _, _ in os.walk(cgroup):
        try:
            with open(f"{directory}/cgroup.procs", encoding="ascii") as file:
                pids.extend(int(line) for line in file)
        except OSError:
            continue
    return pids


def _remove_cgroup(cgroup: str) -> None:
    for directory, _, _ in os.walk(cgroup, topdown=False):
        try:
            os.rmdir(directory)
        except OSError:
            continue


if __name__ == "__main__":
    main()
