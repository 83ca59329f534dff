"""One lab node, the inside of an EC2 instance: namespaces, PID 1, containerd, Amazon's link-local endpoints.

No process of a node outlives the node. All are in the PID namespace of its PID 1, which ends when our control socket closes, and then
the kernel ends the others. A node has its own /run, /etc, /opt and /var. Elsewhere its processes see, and can write to, the machine's
file system: they are trusted.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.fabric.netns import Netns
from lab.node import amazon_linux, containerd
from lab.node.cri import CriClient
from lab.node.errors import NodeError
from lab.node.process import NodeProcess, Spawner

REPOSITORY = Path(__file__).resolve().parents[2]
IMDS_ADDRESS, IMDS_PORT = "169.254.169.254", 80  # as on EC2
EC2_ADDRESS, EC2_PORT = "169.254.169.253", 8000  # ours: a link-local address, because the lab's network forwards no packet to one
START_TIMEOUT_S = 30.0  # ours: a start takes milliseconds, but many times that on a busy machine
# CLONE_NEWNS, NEWUTS, NEWIPC, NEWPID, NEWNET (linux/sched.h). PID 1 makes the cgroup namespace itself, after it has entered its
# cgroup.
NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)


class Node:
    """A running node. `Node.start` makes it, and `close` ends it. Concurrency: safe from any thread."""

    def __init__(self, name: str, init: subprocess.Popen[bytes], control: socket.socket) -> None:
        """Only `start` calls this."""
        self.name = name
        self.pid = init.pid
        self.instance_id = ""
        self.containerd: NodeProcess | None = None
        self._init = init
        self._control = control
        self._spawner = Spawner(control, node=name)
        self._cri: CriClient | None = None
        self.netns = Netns.at(f"/proc/{init.pid}/ns/net", name=name)

    @classmethod
    def start(cls, name: str, *, cgroup: str) -> Node:
        """Make the namespaces and PID 1, with loopback up, Amazon's addresses on it, and Amazon Linux's sysctls.

        Args:
            cgroup: an existing cgroup v2 directory that only this node uses.
        Raises: NodeError if the node cannot be built; nothing of it remains then.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            init = _start_init(name, theirs, cgroup)
            ours.settimeout(START_TIMEOUT_S)
            answer = ours.recv(4096)
        except OSError as exc:
            ours.close()
            raise NodeError(f"node {name} did not start: {exc}") from exc
        finally:
            theirs.close()
        if b"ready" not in answer:
            ours.close()
            init.wait(START_TIMEOUT_S)
            raise NodeError(f"node {name} did not start: {answer.decode() or 'PID 1 ended'}")
        ours.settimeout(None)
        node = cls(name, init, ours)
        amazon_linux.boot(node.netns)
        # Scope link, so that a masquerade never chooses Amazon's address as source when the link of the packet has none of its own.
        amazon = (f"addr add {address}/32 dev lo scope link" for address in (IMDS_ADDRESS, EC2_ADDRESS))
        node.netns.ip(["link set lo up", *amazon])
        return node

    @property
    def root(self) -> str:
        """The path of the node's root directory on the machine. Absolute symbolic links below it lead out of the node."""
        return f"/proc/{self.pid}/root"

    @property
    def cri(self) -> CriClient:
        """The CRI client of the node's container runtime, by which the lab does kubelet's part."""
        if self._cri is None:
            self._cri = CriClient(self.root + containerd.SOCKET)
        return self._cri

    def start_containerd(self, directory: str = "") -> None:
        """Start containerd, also after it was killed. Returns when containerd can run sandboxes.

        `directory`: directory of another containerd; by default the machine's is started.
        """
        self.containerd = containerd.start(self._spawner, root=self.root, write_file=self.write_file, directory=directory)

    def spawn(self, argv: Sequence[str], **options: Any) -> NodeProcess:
        """Start a process in the node. `options`: as in `Spawner.spawn`: env, stdin, stdout, stderr, cwd, netns, by."""
        return self._spawner.spawn(argv, node_pid=self.pid, **options)

    def run(self, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a process in the node to its end. `options`: as in `Spawner.run`: stdin_bytes, timeout_s, check, and those of
        `spawn`."""
        return self._spawner.run(argv, node_pid=self.pid, **options)

    def write_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Write a file in the node, and make its directories."""
        self.run(["install", "-D", "-m", f"{mode:o}", "/dev/stdin", path], stdin_bytes=content)

    def install(self, source: Path, path: str) -> None:
        """Copy an executable of the machine into the node."""
        self.write_file(path, source.read_bytes(), 0o755)

    def make_netns(self, name: str) -> str:
        """Make a named network namespace with loopback up, in place of a sandbox. Returns: its path in the node."""
        path = f"/run/netns/{name}"
        self.run(["/bin/sh", "-c", f"touch {path} && exec unshare --net={path} ip link set lo up"])
        return path

    def remove_netns(self, name: str) -> None:
        """Unmount and remove a namespace that `make_netns` made. The kernel removes its links when no process uses the namespace."""
        self.run(["/bin/sh", "-c", f"umount /run/netns/{name} && rm /run/netns/{name}"])

    def netns_path(self, sandbox: str = "") -> str:
        """Return the path by which this process opens a network namespace.

        `sandbox`: a sandbox ID, or the path of a namespace in the node; "" for the node's own namespace.
        """
        return self.root + self.inside_netns_path(sandbox) if sandbox else f"/proc/{self.pid}/ns/net"

    def inside_netns_path(self, sandbox: str) -> str:
        """Return the path in the node of a sandbox's network namespace. `sandbox`: its ID, or the path itself.

        Raises: SandboxError for an unknown ID, NodeError if the sandbox has no namespace.
        """
        path = sandbox if sandbox.startswith("/") else self.cri.status(sandbox).netns_path
        if not path:
            raise NodeError(f"sandbox {sandbox} on {self.name} has no network namespace (any more)")
        return path.replace("/var/run/", "/run/", 1)  # the link /var/run would lead out of the node

    def daemon_environment(self, region: str) -> dict[str, str]:
        """Return environment variables with which an AWS client in this node calls only the lab."""
        return {
            "AWS_ENDPOINT_URL_EC2": f"http://{EC2_ADDRESS}:{EC2_PORT}",
            "AWS_REGION": region,
            "AWS_DEFAULT_REGION": region,
            "AWS_ACCESS_KEY_ID": "lab",
            "AWS_SECRET_ACCESS_KEY": "lab",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{IMDS_ADDRESS}:{IMDS_PORT}",
            "NODE_NAME": self.name,
            "MY_NODE_NAME": self.name,
            "PYTHONUNBUFFERED": "1",
        }

    def close(self) -> None:
        """End PID 1 and with it everything in the node; idempotent."""
        if self._cri is not None:
            self._cri.close()
        self._control.close()
        try:
            self._init.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._init.kill()
            self._init.wait()
        self._spawner.release()
        self.netns.close()


def _start_init(name: str, control: socket.socket, cgroup: str) -> subprocess.Popen[bytes]:
    """Start PID 1 in new namespaces. A thread of its own unshares them, because `unshare` affects only the calling thread, and the
    thread's child is a child of this process."""
    argv = [sys.executable, "-I", "-S", str(Path(__file__).with_name("init.py")), str(control.fileno()), cgroup, name]
    result: list[subprocess.Popen[bytes] | OSError] = []

    def start() -> None:
        try:
            if _libc.unshare(NAMESPACES) != 0:
                errno = ctypes.get_errno()
                raise OSError(errno, f"unshare: {os.strerror(errno)}")
            result.append(
                subprocess.Popen(argv, pass_fds=[control.fileno()], stdin=subprocess.DEVNULL, cwd="/", start_new_session=True)
            )
        except OSError as exc:
            result.append(exc)

    thread = threading.Thread(target=start, name=f"start-{name}")
    thread.start()
    thread.join()
    if isinstance(result[0], OSError):
        raise result[0]
    return result[0]
