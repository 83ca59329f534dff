"""The objects that a lab creates on the machine: a state directory, a cgroup, and the guard process that removes both.

The lab and its guard share the open file description that holds the lock on the state directory. So a name is free again only when
both have ended, and a new lab of the same name cannot collide with the clean-up of the old one.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.node import guard
from lab.node.errors import NodeError

STATE_ROOT = Path("/run/vpc-lab")
LOCK_DEADLINE_S = 15.0  # longer than KILL_DEADLINE_S of a guard, because a guard at work holds the lock
POLL_S = 0.02
GUARD_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Record:
    """The facts by which `vpc-lab down` removes a lab whose process and guard were both killed."""

    name: str
    pid: int
    started: int  # start time of the process in clock ticks since boot, because its PID may have been reused
    cgroup: str


class Workspace:
    """The state directory, cgroup and guard of one lab, and the lock on its name."""

    def __init__(self, name: str) -> None:
        """Lock the name, remove the remains of a killed lab of that name, make the directories, and start the guard.

        Raises: NodeError if a lab of that name is up.
        """
        self.state_dir = STATE_ROOT / name
        self._lock = _lock(self.state_dir)
        old = read_record(name)
        if old is not None:
            guard.clean("", old.cgroup)
        self.cgroup = f"{_own_cgroup()}/vpc-lab.{name}"
        Path(self.cgroup).mkdir(parents=True, exist_ok=True)
        record = Record(name, os.getpid(), _start_time(os.getpid()), self.cgroup)
        (self.state_dir / "lab.json").write_text(json.dumps(asdict(record)), encoding="ascii")
        lifeline, self._lifeline = os.pipe2(os.O_CLOEXEC)
        argv = [sys.executable, "-I", "-S", guard.__file__, str(lifeline), str(self.state_dir), self.cgroup]
        try:
            self._guard = subprocess.Popen(
                argv, pass_fds=[lifeline, self._lock], stdin=subprocess.DEVNULL, cwd="/", start_new_session=True
            )
        finally:
            os.close(lifeline)

    def node_cgroup(self, node: str) -> str:
        """Make the cgroup of one node. Returns: its path."""
        path = f"{self.cgroup}/{node}"
        Path(path).mkdir()
        return path

    def close(self) -> None:
        """Let the guard remove everything, and wait for it; idempotent."""
        if self._lifeline < 0:
            return
        os.close(self._lifeline)
        self._lifeline = -1
        os.close(self._lock)
        self._guard.wait(GUARD_TIMEOUT_S)


def names() -> list[str]:
    """List the names of all labs that are up, or were killed and not removed."""
    return sorted(path.name for path in STATE_ROOT.iterdir() if path.is_dir()) if STATE_ROOT.is_dir() else []


def read_record(name: str) -> Record | None:
    """Read a lab's record. Returns: None if it is missing or incomplete."""
    try:
        return Record(**json.loads((STATE_ROOT / name / "lab.json").read_text(encoding="ascii")))
    except (OSError, ValueError, TypeError):
        return None


def is_up(name: str) -> bool:
    """Whether a lab process or a guard holds the name."""
    try:
        fd = os.open(STATE_ROOT / name / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def is_running(record: Record) -> bool:
    """Whether the recorded lab process still runs. The start time distinguishes it from a later process with the same PID."""
    return _start_time(record.pid) == record.started


def clean(name: str) -> bool:
    """Remove the remains of a lab whose process and guard were killed. Returns: whether nothing is left."""
    record = read_record(name)
    return guard.clean(str(STATE_ROOT / name), record.cgroup if record else "")


def _lock(state_dir: Path) -> int:
    deadline = time.monotonic() + LOCK_DEADLINE_S
    while True:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            fd = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # a guard has just removed the directory
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), (state_dir / "lock").stat()):
                return fd
        except BlockingIOError:
            record = read_record(state_dir.name)
            if (record and is_running(record)) or time.monotonic() > deadline:
                os.close(fd)
                raise NodeError(
                    f"lab {state_dir.name!r} is up already: `vpc-lab down --name {state_dir.name}`, or take another name"
                ) from None
            time.sleep(POLL_S)  # a guard at work holds the lock, and ends within KILL_DEADLINE_S
        except FileNotFoundError:
            pass
        os.close(fd)


def _start_time(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])  # proc(5)
    except (OSError, ValueError):
        return -1


def _own_cgroup() -> str:
    """Find the cgroup v2 directory of this process. The lab's cgroup is made in it, so that the same limits hold for the lab."""
    relative = "/"
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        if line.startswith("0::"):
            relative = line[3:]
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.split()[0] == "cgroup2":
            return f"{fields.split()[4]}{relative}".rstrip("/")
    raise NodeError("the lab needs a mounted cgroup v2 hierarchy (unified or hybrid); this machine has none")
