"""Network namespaces: which one a path leads to, and how a thread goes into one and comes back.

`setns` belongs to a thread. A thread that cannot come back would work for every later caller in some sandbox's namespace, so it
must not live: the process is ended at once, which every caller survives (I5: kill -9 at any instant). Rejected: a worker thread
for namespace work (two handovers per ADD), a fork (no fork in the daemon, design 10), trusting the ambient namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from typing import NoReturn

from ipamd.kernel import uapi
from ipamd.kernel.netlink import NetlinkSocket
from ipamd.model.attachment import NetnsIdentity
from ipamd.model.errors import NetnsError, WiringError

OWN_NETNS = "/proc/thread-self/ns/net"
"""The calling thread's own namespace. Source: proc(5); /proc/self would be the main thread's."""

_libc = ctypes.CDLL(None, use_errno=True)


class HostNetns:
    """The namespace that the adapters call the host's: that of the thread which makes this object.

    Holds a descriptor, so that no caller's ambient namespace matters, and a stack of idle sockets that were born inside.
    Concurrency: safe from any thread; list append and pop are atomic.
    """

    def __init__(self, *, fatal: Callable[[str], NoReturn] | None = None) -> None:
        """Hold the calling thread's namespace; `fatal` ends the process when a thread is stranded (tests replace it)."""
        self._fatal = fatal or _die
        self._fd = os.open(OWN_NETNS, os.O_RDONLY | os.O_CLOEXEC)
        self.identity = _identity(self._fd)
        self._idle: list[NetlinkSocket] = []

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Run the block inside, and come back."""
        with entered(self._fd, fatal=self._fatal):
            yield

    @contextlib.contextmanager
    def netlink(self) -> Iterator[NetlinkSocket]:
        """Lend a netlink socket of the host. One that leaves the block by an exception is out of step and is closed."""
        try:
            sock = self._idle.pop()
        except IndexError:
            sock = self.open_netlink()
        try:
            yield sock
        except BaseException:
            sock.close()
            raise
        self._idle.append(sock)

    def open_netlink(self, *, groups: int = 0) -> NetlinkSocket:
        """Open a socket of the caller's own in the host's namespace."""
        with self.entered():
            return NetlinkSocket(groups=groups)

    @contextlib.contextmanager
    def sandbox_netlink(self, fd: int) -> Iterator[NetlinkSocket]:
        """Lend a netlink socket that lives in the namespace of a descriptor; the thread itself is back before the block runs."""
        with entered(fd, fatal=self._fatal):
            sock = NetlinkSocket()
        try:
            yield sock
        finally:
            sock.close()

    def close(self) -> None:
        """Release the descriptor and the idle sockets; nothing may be running."""
        while self._idle:
            self._idle.pop().close()
        os.close(self._fd)


@contextlib.contextmanager
def opened_netns(path: str) -> Iterator[tuple[int, NetnsIdentity]]:
    """Open the network namespace at a path for the length of the block.

    Yields: its descriptor and its identity, both of the same open file, so that a path which is replaced changes nothing.
    Raises: NetnsError if the path is empty, gone, not a namespace, or a namespace of another kind.
    """
    fd = _open(path)
    try:
        yield fd, _identity(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def entered(fd: int, *, fatal: Callable[[str], NoReturn]) -> Iterator[None]:
    """Put the calling thread into the namespace of a descriptor for the length of the block.

    Raises: WiringError if the kernel does not let it in. Calls `fatal` if it does not let it back.
    """
    home = os.open(OWN_NETNS, os.O_RDONLY | os.O_CLOEXEC)
    try:
        code = _setns(fd)
        if code:
            raise WiringError(
                "the network namespace could not be entered",
                details=f"setns: {os.strerror(code)}; the daemon needs CAP_SYS_ADMIN",
            )
        try:
            yield
        finally:
            code = _setns(home)
            if code:
                fatal(f"a thread is stranded in a network namespace: setns back: {os.strerror(code)}")
    finally:
        os.close(home)


def _open(path: str) -> int:
    """Open a namespace file, touching nothing that is not one (a FIFO would block, a device could act)."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116  # a Path costs as much as the call
            raise NetnsError(f"{path or '(empty path)'} is not a network namespace", details="it is no nsfs file")
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as exc:
        cause = os.strerror(exc.errno) if isinstance(exc, OSError) and exc.errno else str(exc)
        raise NetnsError(
            f"network namespace {path or '(empty path)'} cannot be opened",
            details=f"{cause}; the sandbox has gone, or the path is not visible to the daemon (hostPath mount)",
        ) from exc
    try:
        kind = fcntl.ioctl(fd, uapi.NS_GET_NSTYPE)
    except OSError:
        kind = 0  # ENOTTY: a file of another file system
    if kind != uapi.CLONE_NEWNET:
        os.close(fd)
        what = "a namespace of another kind" if kind else "an ordinary file"
        raise NetnsError(f"{path} is not a network namespace", details=f"it is {what}")
    return fd


def _identity(fd: int) -> NetnsIdentity:
    found = os.fstat(fd)
    return NetnsIdentity(device=found.st_dev, inode=found.st_ino)


def _setns(fd: int) -> int:
    """Change the calling thread's network namespace; 0 or an errno. Python 3.11 has no os.setns."""
    return 0 if _libc.setns(fd, uapi.CLONE_NEWNET) == 0 else ctypes.get_errno()


def _die(reason: str) -> NoReturn:
    """End the process without unwinding: nothing that this thread would run now happens in the right namespace."""
    os.write(2, f"ipamd: fatal: {reason}\n".encode())
    os.abort()
