"""Processes in a node: the node's PID 1 starts them, and the lab waits for them and sends them signals by pidfds.

`nsenter` was rejected: it forks, so the caller has the PID of nsenter and not of the process that it wants to kill -9. Here PID 1
forks and sends a pidfd back, and /proc/self/fdinfo shows the PID of that process in our own PID namespace.
"""

from __future__ import annotations

import array
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from lab.node.errors import NodeError

START_TIMEOUT_S = 30.0
BASE_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}

File = int | IO[bytes] | IO[str] | None  # None: /dev/null


class NodeProcess:
    """One process of a node, used like subprocess.Popen. `pid`: its process ID in the machine's PID namespace.

    Concurrency: any thread may call any method.
    """

    def __init__(self, argv: Sequence[str], *, pidfd: int, notify: socket.socket) -> None:
        """Only `Spawner` calls this."""
        self.args = list(argv)
        self.returncode: int | None = None
        self.pid = _pid_of(pidfd)
        self._pidfd = pidfd
        self._notify = notify
        # So that no thread uses the pidfd while another closes it. No other lock is taken under this one.
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """A descriptor that becomes readable when the process ends. It is valid until `wait` or `poll` has returned the exit code."""
        return self._notify.fileno()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process.

        Returns: the exit code; the negative number of the signal if a signal ended it. Raises: subprocess.TimeoutExpired.
        """
        while self.returncode is None:
            poll = select.poll()  # not select(), which cannot handle descriptors above 1023
            try:
                poll.register(self._notify, select.POLLIN)
                is_over = bool(poll.poll(None if timeout is None else timeout * 1000))
            except (OSError, ValueError):
                continue  # another thread has just collected the exit code
            if not is_over:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            with self._lock:
                if self.returncode is None:
                    self.returncode = self._collect()
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code if the process has ended, otherwise None."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: signal.Signals | int) -> None:
        """Send a signal, unless the process has ended."""
        with self._lock:
            if self.returncode is None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, number)

    def _collect(self) -> int:
        message = self._notify.recv(4096)  # empty if PID 1 was killed, and with it all processes of the node
        status = json.loads(message)["status"] if message else signal.SIGKILL
        self._notify.close()
        os.close(self._pidfd)
        return os.waitstatus_to_exitcode(status)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Spawner:
    """The lab's end of the control socket of one node's PID 1. Concurrency: any thread; one request at a time."""

    def __init__(self, control: socket.socket, *, node: str) -> None:
        self._control = control
        self._node = node
        self._lock = threading.Lock()
        self._running: list[NodeProcess] = []

    def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: File = None,
        stdout: File = None,
        stderr: File = None,
        cwd: str = "/",
        netns: str = "",
        by: Spawner | None = None,
        node_pid: int = 0,
    ) -> NodeProcess:
        """Start `argv` in the node.

        Args:
            env: environment variables that are added to BASE_ENVIRONMENT; those of the lab's process are not inherited.
            netns: path in the node of the network namespace to start in, such as a sandbox's; by default the node's own.
            by: the spawner that forks the process in place of the node's PID 1 (`lab/node/preloaded.py`).
            node_pid: the PID of the node's PID 1 on the machine; `by` needs it.
        Raises: NodeError if the program cannot be executed, or the node is gone.
        """
        request: dict[str, Any] = {"argv": list(argv), "env": BASE_ENVIRONMENT | dict(env or {})}
        request |= {"cwd": cwd, "netns": netns, "node_pid": node_pid}
        forker = by or self
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ExitStack() as stack:
            stack.callback(theirs.close)
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            stack.callback(os.close, null)
            fds = [*(_fileno(file, null) for file in (stdin, stdout, stderr)), theirs.fileno()]
            try:
                with forker._lock:
                    socket.send_fds(forker._control, [json.dumps(request).encode()], fds)
                ours.settimeout(START_TIMEOUT_S)
                message, pidfds, _, _ = _receive_fd(ours)
            except OSError as exc:
                ours.close()
                raise NodeError(f"node {self._node} cannot start {argv[0]}: its PID 1 does not answer ({exc})") from exc
        answer: dict[str, Any] = json.loads(message or b'{"error": "its PID 1 has ended"}')
        if "error" in answer:
            ours.close()
            raise NodeError(f"node {self._node} cannot start {argv[0]}: {answer['error']}")
        ours.settimeout(None)
        process = NodeProcess(argv, pidfd=pidfds[0], notify=ours)
        with self._lock:
            self._running = [*(earlier for earlier in self._running if earlier.returncode is None), process]
        return process

    def run(
        self, argv: Sequence[str], *, stdin_bytes: bytes = b"", timeout_s: float = 30.0, check: bool = True, **rest: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run `argv` in the node to its end and return its output as text. `rest`: further arguments of `spawn`.

        Raises: NodeError if it ends with another status than 0 (with `check`), or if it was killed because it exceeded `timeout_s`.
        """
        with ExitStack() as stack:
            files = []
            for name in ("stdin", "stdout", "stderr"):
                file = stack.enter_context(os.fdopen(os.memfd_create(name), "w+b", buffering=0))
                files.append(file)
            files[0].write(stdin_bytes)
            files[0].seek(0)
            process = self.spawn(argv, stdin=files[0], stdout=files[1], stderr=files[2], **rest)
            started = time.monotonic()
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired as exc:
                process.kill()
                process.wait(START_TIMEOUT_S)
                spent = time.monotonic() - started
                raise NodeError(f"node {self._node}: {' '.join(argv)} took over {spent:.1f} s and was killed") from exc
            stdout, stderr = (_text(file) for file in files[1:])
        if check and code:
            raise NodeError(f"node {self._node}: {' '.join(argv)} ended with {code}: {stderr or stdout}")
        return subprocess.CompletedProcess(list(argv), code, stdout, stderr)

    def release(self) -> None:
        """Close the descriptors of every process that nobody waited for. Call this after the node's PID 1, and so all of them,
        ended."""
        with self._lock:
            for process in self._running:
                process.wait(START_TIMEOUT_S)
            self._running.clear()


def _receive_fd(sock: socket.socket) -> tuple[bytes, list[int], int, Any]:
    room = socket.CMSG_LEN(array.array("i").itemsize)
    message, ancillary, flags, address = sock.recvmsg(65536, room, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for _, _, data in ancillary:
        fds.frombytes(data)
    return message, list(fds), flags, address


def _pid_of(pidfd: int) -> int:
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(":")
        if key == "Pid":
            return int(value)
    return -1


def _fileno(file: File, null: int) -> int:
    if file is None:
        return null
    return file if isinstance(file, int) else file.fileno()


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))
