"""Daemons forked from one process that has imported what they import: three quarters of what the start of a daemon costs.

For tests alone, which start hundreds; the demo, chaos, benchmarks and whatever measures a start execute Python anew. The process
takes the requests of `lab/node/init.py`, with the node's PID beside them. Each daemon is forked into the node's PID namespace, so
it dies with the node, and by a process of its own that stays outside, waits for it and tells its exit status.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from lab.node.process import BASE_ENVIRONMENT, START_TIMEOUT_S, Spawner

REPOSITORY = Path(__file__).resolve().parents[2]
MESSAGE_MAX_BYTES = 1 << 17
CLONE_NEWPID = 0x20000000
NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x40000000 | 0x02000000
"""Mounts, host name, IPC, network, cgroup. Source: linux/sched.h."""

IMPORTED = (
    "ipamd.process.adapters",
    "ipamd.process.bootstrap",
    "ipamd.cloud.child",
    "ipamd.process.lifecycle",
    "ipamd.metrics.page",
    "ipamd.http.port",
)
"""By which all else that the start imports is there, but the daemon's own module, which each runs anew."""


class Preloaded(Spawner):
    """The lab's end of that process; what `Node.spawn` takes as `by`. Concurrency: any thread."""

    def __init__(self, environment: dict[str, str]) -> None:
        """Start it; it ends when this process does.

        Args:
            environment: Python's own options, by which every daemon runs then.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(ours, node="preloaded")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=REPOSITORY,
                env=BASE_ENVIRONMENT | environment,
                start_new_session=True,
            )

    def close(self) -> None:
        """End it; daemons that run are not touched."""
        self._control.close()
        self._process.wait(START_TIMEOUT_S)


def serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork a daemon per request, until the control socket closes. Returns: None then, and in each daemon what it is to run."""
    while True:
        message, fds, _, _ = socket.recv_fds(control, MESSAGE_MAX_BYTES, 8)
        if not message:
            return None
        if os.fork() == 0:
            control.close()
            request: dict[str, Any] = json.loads(message)
            if (failure := _fork_into(request, fds)) is not None:
                _wait(*failure, notify=socket.socket(fileno=fds[3]))
            return request
        for fd in fds:
            os.close(fd)


def _fork_into(request: dict[str, Any], fds: list[int]) -> tuple[int, str] | None:
    """In the process that waits: the daemon's PID, 0 for none, and why there is none. In the daemon: None."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        node = os.pidfd_open(request["node_pid"])
        _enter(node, CLONE_NEWPID)  # of what is forked from here
        pid = os.fork()
    except OSError as exc:
        return 0, str(exc)
    if pid:
        return pid, ""
    os.setsid()
    Path(f"/proc/{request['node_pid']}/root/sys/fs/cgroup/init/cgroup.procs").write_text("0", encoding="ascii")
    _enter(node, NAMESPACES)
    for target, fd in enumerate(fds[:3]):
        os.dup2(fd, target)
    os.closerange(3, 1024)
    os.chdir(request["cwd"])
    return None


def _enter(pidfd: int, namespaces: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(pidfd, namespaces) != 0:
        raise OSError(ctypes.get_errno(), "the node's namespaces cannot be entered")


def _wait(pid: int, failure: str, *, notify: socket.socket) -> None:
    """Tell of the daemon what `lab/node/init.py` tells; the asker may have gone away."""
    with suppress(OSError):
        if failure:
            notify.send(json.dumps({"error": failure}).encode())
        else:
            socket.send_fds(notify, [json.dumps({"pid": pid}).encode()], [os.pidfd_open(pid)])
            os.closerange(0, notify.fileno())
            notify.send(json.dumps({"status": os.waitpid(pid, 0)[1]}).encode())
    os._exit(0)


def main() -> None:
    """Import, serve; in a daemon, run its module as `python -m` does."""
    control = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()
    importlib.import_module("ipamd.daemon")._do_without_tls()  # what it keeps out must not be imported before
    for name in IMPORTED:
        importlib.import_module(name)
    del sys.modules["ipamd.daemon"]
    gc.freeze()  # a collection in a daemon would copy every page
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects those that wait
    request = serve(control)
    if request is None:
        return
    os.environ.clear()
    os.environ.update(request["env"])
    module, *arguments = request["argv"][2:]  # after the interpreter and its -m
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
