"""Daemons forked from one process that has imported what they import: three quarters of what the start of a daemon costs.

The process that asks EC2 for a daemon (`ipamd/cloud/child.py`) is forked in the same way, from a second one: it needs TLS, which the
daemon keeps out, and botocore, which the daemon has not. Without it each start of a daemon would execute Python for it. `ipamctl` is
forked from the second one, too.

For tests alone, which start hundreds; the demo, chaos, benchmarks and whatever measures a start execute Python anew. Both processes
take the requests of `lab/node/init.py`, with the node's PID beside them. What they fork lives in the node's PID namespace, so it dies
with the node, and is forked by a process of its own that stays outside, waits for it and tells its exit status.
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

from lab.node.process import BASE_ENVIRONMENT, START_TIMEOUT_S, Spawner

REPOSITORY = Path(__file__).resolve().parents[2]
MESSAGE_MAX_BYTES = 1 << 17
CLONE_NEWPID = 0x20000000
NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x40000000 | 0x02000000
"""Mounts, host name, IPC, network, cgroup. Source: linux/sched.h."""

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
"""By which all else that the start and the first question import is there, but the daemon's own module, which each runs anew."""

IPAMCTL = "ipamd.ipamctl.main"
IPAMCTL_IMPORTED = (IPAMCTL, "ipamd.ipamctl.client", "grpc._channel")

EC2_FD = 3
"""A forked daemon's end of the control socket of the process that forks what asks EC2."""


class Preloaded(Spawner):
    """The lab's end of the first process; what `Node.spawn` takes as `by` for a daemon. `with_tls`: the same of the second one, for
    `ipamctl`. Concurrency: any thread.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        """Start both; they end when this process and every daemon has ended.

        Args:
            environment: Python's own options, by which every daemon runs then.
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
        """End them; daemons that run are not touched."""
        self._control.close()
        self.with_tls._control.close()
        self._process.wait(START_TIMEOUT_S)


def serve(control: socket.socket, *, kept: socket.socket | None = None) -> dict[str, Any] | None:
    """Fork a process per request, until the control socket closes. Returns: None then, and in each such process what it is to run.

    Args:
        kept: what these processes have as EC2_FD.
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
    """In the process that waits: the new one's PID, 0 for none, and why there is none. In the new one: None."""
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
    """Tell of the new process what `lab/node/init.py` tells; the asker may have gone away."""
    with suppress(OSError):
        if failure:
            notify.send(json.dumps({"error": failure}).encode())
        else:
            socket.send_fds(notify, [json.dumps({"pid": pid}).encode()], [os.pidfd_open(pid)])
            os.closerange(0, notify.fileno())
            notify.send(json.dumps({"status": os.waitpid(pid, 0)[1]}).encode())
    os._exit(0)


def main() -> None:
    """Import, serve; in what is forked, run its module as `python -m` does."""
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
    """Import what a daemon imports."""
    importlib.import_module(DAEMON)._do_without_tls()  # what it keeps out must not be imported before
    for name in IMPORTED:
        importlib.import_module(name)
    _use_a_datastore()
    del sys.modules[DAEMON]
    _keep_pages()


def _use_a_datastore() -> None:
    """Open one as each daemon does: what SQLAlchemy makes of the tables at their first use is there then."""
    from ipamd.core.deadline import SystemClock
    from ipamd.datastore.open import open_datastore

    with tempfile.TemporaryDirectory() as directory:
        for _ in range(2):  # a new one, and one that is read
            opened = open_datastore(Path(directory, "state.db"), boot_id="boot", clock=SystemClock())
            opened.datastore.close()


def _prepare_with_tls() -> None:
    """Import what `ipamctl` and the process that asks EC2 import, but their own modules, which each runs anew."""
    from lab.node import forked_ec2_process

    forked_ec2_process.import_all()
    for name in IPAMCTL_IMPORTED:
        importlib.import_module(name)
    for name in (forked_ec2_process.MODULE, IPAMCTL):
        del sys.modules[name]
    _keep_pages()


def _keep_pages() -> None:
    gc.freeze()  # a collection in what is forked would copy every page
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects those that wait


def _fork_ec2_processes(node_pid: int) -> None:
    """In a daemon: have its processes for EC2 forked."""
    from ipamd.cloud import child
    from lab.node.forked_ec2_process import start

    child.start = partial(start, Spawner(socket.socket(fileno=EC2_FD), node="preloaded"), node_pid)


if __name__ == "__main__":
    main()
