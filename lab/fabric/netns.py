"""A network namespace that is held by a file descriptor, and the thread that works in it.

`setns` and `unshare` change the namespace of one thread. So each namespace gets a thread of its own, which does all work in it (`ip`,
`nft`, sysctls). Sockets and child processes that this thread makes are in the namespace too. The lab's other threads stay in the
machine's namespace, and change nothing there.
Rejected: named namespaces (a name outlives a crash), `ip netns exec` (remounts /sys), pyroute2 (opens its sockets
lazily in whichever thread calls, that is, in the wrong namespace).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from lab.fabric.errors import FabricError

T = TypeVar("T")

CLONE_NEWNET = 0x40000000  # linux/sched.h
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1  # linux/sockios.h, linux/if.h
COMMAND_TIMEOUT_S = 30.0

_libc = ctypes.CDLL(None, use_errno=True)


class Netns:
    """One network namespace. It exists until `close` or the end of the process, and longer if something else holds it too.

    Concurrency: calls from many threads are run one after another in the namespace's thread.
    """

    def __init__(self, name: str, enter: Callable[[], None]) -> None:
        """`new` and `at` call this. `enter`: moves the calling thread into the namespace; it is called once, in the new thread."""
        self.name = name
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"netns-{name}")
        try:
            self._fd = self.call(lambda: _entered(enter))
        except BaseException:
            self._thread.shutdown(wait=False)
            raise

    @classmethod
    def new(cls, name: str) -> Netns:
        """Make a new namespace. Its loopback is up."""

        def enter() -> None:
            _syscall("unshare", CLONE_NEWNET)
            raise_loopback()

        return cls(name, enter)

    @classmethod
    def at(cls, path: str, *, name: str) -> Netns:
        """Enter the namespace at `path` (`/proc/PID/ns/net`, or a bind mount of one)."""
        return cls(name, lambda: enter_netns(path))

    @property
    def path(self) -> str:
        """A path that opens this namespace from any process of the machine, while this object is open."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` in the namespace. Returns: its result. Raises: its exceptions; FabricError if this object is closed."""
        try:
            return self._thread.submit(function).result()
        except RuntimeError as exc:
            if "shutdown" in str(exc):
                raise FabricError(f"network namespace {self.name} is closed") from exc
            raise

    def ip(self, lines: Iterable[str]) -> None:
        """Run lines of `ip -batch` in the namespace, until the first failure.

        Raises: FabricError, whose text names the line that failed.
        """
        script = "\n".join(lines)
        if script:
            self.tool(["ip", "-batch", "-"], script=script)

    def tool(self, argv: list[str], *, script: str = "") -> str:
        """Run a command in the namespace with `script` as standard input. Returns: its standard output. Raises: FabricError."""
        try:
            done = self.call(
                lambda: subprocess.run(argv, input=script, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
            )
        except subprocess.TimeoutExpired as exc:
            raise FabricError(f"in {self.name}: {' '.join(argv)} took over {COMMAND_TIMEOUT_S:.0f} s") from exc
        if done.returncode:
            raise FabricError(f"in {self.name}: {' '.join(argv)}: {done.stderr.strip()}\n{script}")
        return done.stdout

    def sysctl(self, settings: dict[str, str]) -> None:
        """Write settings below /proc/sys/net. The kernel changes the namespace of the thread that writes."""

        def write() -> None:
            for key, value in settings.items():
                Path("/proc/sys/net", key).write_text(value, encoding="ascii")

        self.call(write)

    def listener(self, address: str, port: int, *, link: str = "") -> socket.socket:
        """Make a TCP socket that listens in the namespace. Any thread may serve it. `link`: listen only on this link; "" for all."""

        def listen() -> socket.socket:
            server = socket.create_server((address, port), backlog=64)
            if link:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, link.encode())
            return server

        return self.call(listen)

    def interfaces(self) -> dict[str, str]:
        """Return name and MAC of every interface in the namespace, except the loopback."""

        def look() -> dict[str, str]:
            names = [name for _, name in socket.if_nameindex() if name != "lo"]
            return {name: link_mac(name) for name in names}

        return self.call(look)

    def close(self) -> None:
        """End the thread and release the namespace; idempotent."""
        if self._fd >= 0:
            self._thread.shutdown(wait=True)
            os.close(self._fd)
            self._fd = -1


def enter_netns(path: str) -> None:
    """Move the calling thread into the namespace at `path`. Call this only in a thread made for it, never in the main thread."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _syscall("setns", fd, CLONE_NEWNET)
    finally:
        os.close(fd)


def run_inside(path: str, function: Callable[[], T]) -> T:
    """Run a function in the namespace at `path`, in a thread of its own. Returns: the function's result.

    Raises: FabricError if the namespace cannot be entered, or if the function raises OSError.
    """
    result: list[T] = []
    failure: list[OSError] = []

    def run() -> None:
        try:
            enter_netns(path)
            result.append(function())
        except OSError as exc:
            failure.append(exc)

    thread = threading.Thread(target=run, name="inside", daemon=True)
    thread.start()
    thread.join()
    if failure:
        raise FabricError(f"in {path}: {failure[0]}") from failure[0]
    return result[0]


def link_mac(interface: str) -> str:
    """Return the MAC of an interface of the calling thread's namespace; "" if it was deleted meanwhile."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            answer = fcntl.ioctl(sock, 0x8927, interface.encode().ljust(40, b"\0"))  # SIOCGIFHWADDR, linux/sockios.h
        except OSError:
            return ""
    return answer[18:24].hex(":")


def raise_loopback() -> None:
    """Set the loopback of the calling thread's namespace up. No process of `ip` is started, because tests make thousands of
    namespaces."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", IFF_UP))


def _entered(enter: Callable[[], None]) -> int:
    enter()
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _syscall(name: str, *arguments: int) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{name}: {os.strerror(errno)}")
