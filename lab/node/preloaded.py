"""Fork daemons from a process that has already imported their modules, which saves three quarters of the cost of a daemon's start.

The process that calls EC2 for a daemon (`ipamd/cloud/child.py`) is forked in the same way from a second process, because it needs two
things that a daemon must not import: TLS and botocore. `ipamctl` is forked from the second process, too.

Only tests do this, because they start hundreds of daemons. The demo, chaos runs, benchmarks, and tests that measure a start execute
Python for each daemon. Both processes accept the requests of `lab/node/init.py` with one more field, the PID of the node's PID 1. A
forked process is in the node's PID namespace, so it dies with the node. Its parent is forked for it alone, stays outside the node,
waits for its end and reports its exit status.
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
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ipamd.unused_modules import leave_out_unused_modules
from lab.node.process import BASE_ENVIRONMENT, START_TIMEOUT_S, Spawner

REPOSITORY = Path(__file__).resolve().parents[2]
MESSAGE_MAX_BYTES = 1 << 17
CLONE_NEWPID = 0x20000000
NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x40000000 | 0x02000000
"""The node's namespaces of mounts, host name, IPC, network and cgroups. Source: linux/sched.h."""

DAEMON = "ipamd.daemon"
IMPORTED = (
    "ipamd.process.adapters",
    "ipamd.process.bootstrap",
    "ipamd.cloud.child",
    "ipamd.process.lifecycle",
    "ipamd.metrics.page",
    "ipamd.http.health_pages",
    "ipamd.http.late_ports",
    "ipamd.http.port",
    "ipamd.rpc.introspection",
    "ipamd.rpc.server",
    "ipamd.rpc.watch",
    "grpc._channel",
    "grpc._server",
    "encodings.idna",
    "lab.node.forked_ec2_process",
)
"""Modules whose import brings in all modules that a daemon imports at its start and at the first request. Only the daemon's own
module is not kept, because each forked process executes it as `python -m` does."""

IPAMCTL = "ipamd.ipamctl.main"
IPAMCTL_IMPORTED = (IPAMCTL, "ipamd.ipamctl.client", "grpc._channel")

EC2_FD = 3
"""File descriptor by which a forked daemon requests its EC2 process from the second process: a copy of the lab's socket to it."""


class Preloaded(Spawner):
    """Forks daemons: the lab's end of the first process, the argument `by` of `Node.spawn` for a daemon.

    `with_tls`: the lab's end of the second process, for `ipamctl`. Concurrency: any thread.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        """Start the two processes. They end when this process and every forked daemon have ended.

        Args:
            environment: environment variables with Python's own options. All forked daemons run with these options.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        to_second, of_second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(ours, node="preloaded")
        self.with_tls = Spawner(to_second, node="preloaded")
        fds = [theirs.fileno(), to_second.fileno(), of_second.fileno()]
        with theirs, of_second:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, *map(str, fds)],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                cwd=REPOSITORY,
                env=BASE_ENVIRONMENT | environment,
                start_new_session=True,
            )

    def close(self) -> None:
        """End the two processes. Daemons that run are not ended."""
        self._control.close()
        self.with_tls._control.close()
        self._process.wait(START_TIMEOUT_S)


def serve(control: socket.socket, *, kept: socket.socket | None = None) -> dict[str, Any] | None:
    """Fork a process for each request, until the control socket closes.

    Args:
        kept: the socket that each forked process gets as EC2_FD, if any.
    Returns: in the calling process None after the socket has closed; in each forked process the request that it must carry out.
    """
    while True:
        message, fds, _, _ = socket.recv_fds(control, MESSAGE_MAX_BYTES, 8)
        if not message:
            return None
        if os.fork() == 0:
            control.close()
            request: dict[str, Any] = json.loads(message)
            if (failure := _fork_into(request, fds, kept=kept)) is not None:
                _wait(*failure, notify=socket.socket(fileno=fds[3]))
            return request
        for fd in fds:
            os.close(fd)


def _fork_into(request: dict[str, Any], fds: list[int], *, kept: socket.socket | None) -> tuple[int, str] | None:
    """Fork a process into the node.

    Returns: in the calling process, which then waits, the PID of the new process and ""; or 0 and the error if there is none. In the
        new process, which is in the node then, None.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        node = os.pidfd_open(request["node_pid"])
        _enter(node, CLONE_NEWPID)  # setns(2): only processes that are forked afterwards are in this PID namespace
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
    first_unused = EC2_FD
    if kept is not None:
        os.dup2(kept.detach(), EC2_FD)
        os.set_inheritable(EC2_FD, False)
        first_unused += 1
    os.closerange(first_unused, 1024)
    os.chdir(request["cwd"])
    return None


def _enter(pidfd: int, namespaces: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(pidfd, namespaces) != 0:
        raise OSError(ctypes.get_errno(), "the node's namespaces cannot be entered")


def _wait(pid: int, failure: str, *, notify: socket.socket) -> None:
    """Send the messages that `lab/node/init.py` sends about a started process: PID and pidfd, and later the status; or the error."""
    with suppress(OSError):  # the process that made the request may have ended
        if failure:
            notify.send(json.dumps({"error": failure}).encode())
        else:
            socket.send_fds(notify, [json.dumps({"pid": pid}).encode()], [os.pidfd_open(pid)])
            os.closerange(0, notify.fileno())
            notify.send(json.dumps({"status": os.waitpid(pid, 0)[1]}).encode())
    os._exit(0)


def main() -> None:
    """Import the modules and serve. In a forked process, run the requested module as `python -m` does."""
    control, to_second, of_second = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    gc.disable()
    is_second = os.fork() == 0
    if is_second:
        control.close()
        to_second.close()
        _prepare_with_tls()
        request = serve(of_second)
    else:
        of_second.close()
        _prepare_daemon()
        request = serve(control, kept=to_second)
    if request is None:
        return
    if not is_second:
        _fork_ec2_processes(request["node_pid"])
    os.environ.clear()
    os.environ.update(request["env"])
    module, *arguments = request["argv"][2:]  # after the interpreter and its -m
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _prepare_daemon() -> None:
    """Import the modules of a daemon."""
    leave_out_unused_modules()  # before the other imports, as in a daemon
    importlib.import_module(DAEMON)
    for name in IMPORTED:
        importlib.import_module(name)
    _use_a_datastore()
    del sys.modules[DAEMON]
    _keep_pages()


def _use_a_datastore() -> None:
    """Open a datastore as a daemon does, so that SQLAlchemy has already done its work of the first use of each table."""
    from ipamd.core.deadline import SystemClock
    from ipamd.datastore.open import open_datastore

    with tempfile.TemporaryDirectory() as directory:
        for _ in range(2):  # the first time the file is created, and the second time it is read
            opened = open_datastore(Path(directory, "state.db"), boot_id="boot", clock=SystemClock())
            opened.datastore.close()


def _prepare_with_tls() -> None:
    """Import the modules of `ipamctl` and of the process that calls EC2. Their main modules are removed again, because each forked
    process executes its main module itself."""
    from lab.node import forked_ec2_process

    forked_ec2_process.import_all()
    for name in IPAMCTL_IMPORTED:
        importlib.import_module(name)
    for name in (forked_ec2_process.MODULE, IPAMCTL):
        del sys.modules[name]
    _keep_pages()


def _keep_pages() -> None:
    gc.freeze()  # otherwise a garbage collection in a forked process would write to, and so copy, every page
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that the kernel reaps the parents of the forked processes


def _fork_ec2_processes(node_pid: int) -> None:
    """In a forked daemon: let the second process fork the daemon's EC2 process, instead of executing Python for it."""
    from ipamd.cloud import child
    from lab.node.forked_ec2_process import start

    child.start = partial(start, Spawner(socket.socket(fileno=EC2_FD), node="preloaded"), node_pid)


if __name__ == "__main__":
    main()
