"""Find out why the daemon does not answer: there is no process, it is in a crash loop, or it hangs. This takes milliseconds."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from ipamd.settings.start_record import ProcessStart, read_starts

CONNECT_S = 0.5
"""Longest wait for a connection. Ours: the kernel connects at once, whatever the listening program does, until its backlog is full."""

LOOP_STARTS = 3
PAUSE_MAX_S = 600.0
"""LOOP_STARTS failed starts, each at most PAUSE_MAX_S after the one before, count as a crash loop. Source: kubelet's pauses before it
starts an ended container again are 10 s, 20 s, 40 s, ... up to five minutes, and begin anew after a run of ten minutes
(https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#restart-policy)."""

_UCRED = struct.Struct("3i")
"""The form of SO_PEERCRED's value: pid, uid, gid. Source: unix(7)."""

_ENDS = "docs/troubleshooting.md#the-daemon-ends-by-itself"


class AbsenceKind(StrEnum):
    """Why the daemon does not answer.

    DEAD: no process listens on the socket.
    CRASH_LOOP: no process listens, and the last LOOP_STARTS starts failed, one soon after the other.
    HUNG: a process listens and does not answer.
    """

    DEAD = "dead"
    CRASH_LOOP = "crash-loop"
    HUNG = "hung"


class MissingDaemon(NamedTuple):
    """Why the daemon does not answer: the kind, the observation in words, and the next step in words."""

    kind: AbsenceKind
    text: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.text}; next: {self.next_step}"


class Listener(NamedTuple):
    """The process that listens on the socket. `pid`: 0 if the process is in another PID namespace, or if no connection was made."""

    pid: int

    @property
    def is_stopped(self) -> bool:
        """Whether the process is stopped, by a signal or a debugger; False if that cannot be read. Source: proc(5), /proc/pid/stat."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return False
        return self.pid > 0 and fields[0] in ("T", "t")


def listener(path: str) -> Listener | MissingDaemon:
    """Connect to the socket once. Returns: the process that listens, or why no connection was made."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(CONNECT_S)
        try:
            sock.connect(path)
            pid, _, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        except OSError as error:
            if isinstance(error, TimeoutError) or error.errno == errno.EAGAIN:
                return hung(Listener(0))
            return gone(Path(path).parent)
    return Listener(pid)


def hung(process: Listener) -> MissingDaemon:
    """Describe a process that listens and does not answer."""
    process_text = "a process"
    if process.pid:
        process_text = f"process {process.pid}"
    if process.is_stopped:
        step = f"{command_here(f'kill -CONT {process.pid}')}, and find out who stopped it"
        return MissingDaemon(AbsenceKind.HUNG, f"{process_text} is stopped", step)
    step = (
        "kubelet restarts it when its probe fails; before that, see `kubectl -n kube-system logs POD`, and run `ipamctl bundle`, "
        "which collects what can still be read"
    )
    return MissingDaemon(AbsenceKind.HUNG, f"{process_text} has the socket and is hung, or very busy", step)


def command_here(command: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the command as it is to be typed.

    The DaemonSet's pods have a PID namespace of their own, so in a pod a process number of this program is wrong on the node.
    """
    if environ.get("KUBERNETES_SERVICE_HOST"):  # kubelet sets it in every container
        return f"`kubectl -n kube-system exec POD -- sh -c '{command}'`"
    return f"`{command}` on the node"


def gone(run_dir: Path) -> MissingDaemon:
    """Describe why no process listens: it is not running, or it is in a crash loop."""
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    failed = _failed_in_a_row(read_starts(run_dir), now_s)
    if len(failed) >= LOOP_STARTS:
        minutes = (now_s - failed[0].boottime_s) / 60
        text = f"crash loop: {len(failed)} starts within {max(minutes, 1):.0f} min, the last one {_end_of(failed[-1])}"
        step = failed[-1].next_step
        if not step:
            step = f"`kubectl -n kube-system logs POD -c ipamd --previous`, and look the status up in {_ENDS}"
        return MissingDaemon(AbsenceKind.CRASH_LOOP, text, step)
    step = (
        "`kubectl -n kube-system get pods -o wide -l app.kubernetes.io/name=vpc-ipamd` shows whether its pod is on this node; "
        "`ipamctl history` works without it"
    )
    return MissingDaemon(AbsenceKind.DEAD, "no process has the socket: is the daemon running on this node?", step)


def _failed_in_a_row(starts: Sequence[ProcessStart], now_s: float) -> list[ProcessStart]:
    """Return the unbroken run of failed starts at the end of `starts`, oldest first.

    Each start is at most PAUSE_MAX_S before the next one, and the last start is at most PAUSE_MAX_S before now.
    """
    failed: list[ProcessStart] = []
    later_s = now_s
    for start in reversed(starts):
        if start.exit_status == 0 or not 0 <= later_s - start.boottime_s <= PAUSE_MAX_S:
            break
        failed.insert(0, start)
        later_s = start.boottime_s
    return failed


def _end_of(start: ProcessStart) -> str:
    if start.exit_status is None:
        return "was killed"
    text = f"ended with status {start.exit_status}"
    if start.reason:
        text += f": {start.reason}"
    return text
