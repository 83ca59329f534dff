"""Identify the network namespace at a path, and enter and leave namespaces.

`setns` acts on one thread. A thread that cannot return would handle later calls in a sandbox's namespace, so the process ends at once.
That is safe, because every operation survives kill -9 (I5). Rejected: a worker thread for namespace work (two handovers per
ADD), a fork (a forked copy of a process with threads may deadlock: docs/adr/0007), relying on the thread's current namespace.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NoReturn

from ipamd.kernel import uapi
from ipamd.kernel.netlink import NetlinkSocket
from ipamd.model.cni_request import NetnsIdentity
from ipamd.model.errors import NetnsError, WiringError
from ipamd.model.failures import FailureCode, failure

OWN_NETNS = "/proc/thread-self/ns/net"
"""The calling thread's own namespace; /proc/self would lead to the main thread's. Source: proc(5)."""

_PROOF_OF_ABSENCE = frozenset({errno.ENOENT, errno.ENOTDIR})
"""Errnos that prove that nothing is at the path. Every other errno (EMFILE, ENFILE, ENOMEM, EACCES, EIO) is a problem of the daemon or
the node, and proves nothing about the sandbox."""

PORT_REMEMBERED_S = 10.0
"""How long the port of a closed socket counts as ours. Ours: much longer than the fraction of a second after which its last
notifications are read. The time is limited because another process may get the port: the port of a process's first socket is its
process ID in its own PID namespace, which is 1 in many containers."""

_libc = ctypes.CDLL(None, use_errno=True)


class HostNetns:
    """The host's network namespace, which is the namespace of the thread that creates this object.

    Holds a descriptor, so that the caller's current namespace does not matter, and stacks of idle sockets of that namespace.
    Concurrency: safe from any thread, because single operations of lists and dictionaries are atomic.
    """

    def __init__(self) -> None:
        """Open the calling thread's namespace."""
        self._fd = os.open(OWN_NETNS, os.O_RDONLY | os.O_CLOEXEC)
        self.identity = _identity(self._fd)
        self._idle: list[NetlinkSocket] = []
        self._idle_netfilter: list[NetlinkSocket] = []
        self._ports: dict[int, NetlinkSocket] = {}

    def entered(self) -> AbstractContextManager[None]:
        """Run the block in this namespace, then go back to the thread's former one."""
        return self.entered_at(self._fd)

    def entered_at(self, fd: int) -> AbstractContextManager[None]:
        """Run the block in the namespace of a descriptor, then go back to the thread's former one."""
        return entered(fd, fatal=_abort)

    def netlink(self) -> AbstractContextManager[NetlinkSocket]:
        """Lend a netlink socket of the host. After an exception in the block it is closed: answers may be left in its queue."""
        return self._lent(self._idle, uapi.NETLINK_ROUTE)

    def netfilter(self) -> AbstractContextManager[NetlinkSocket]:
        """Lend a socket for nftables and connection tracking in the host's namespace, as `netlink` does."""
        return self._lent(self._idle_netfilter, uapi.NETLINK_NETFILTER)

    @contextmanager
    def _lent(self, idle: list[NetlinkSocket], protocol: int) -> Iterator[NetlinkSocket]:
        try:
            sock = idle.pop()
        except IndexError:
            sock = self.open_netlink(protocol=protocol)
        try:
            yield sock
        except BaseException:
            sock.close()
            raise
        idle.append(sock)

    def open_netlink(self, *, groups: int = 0, protocol: int = uapi.NETLINK_ROUTE) -> NetlinkSocket:
        """Open a socket in the host's namespace; the caller closes it."""
        with self.entered():
            sock = NetlinkSocket(groups=groups, protocol=protocol)
            try:
                if protocol == uapi.NETLINK_ROUTE and not groups:
                    sock.add_shorter()
            except BaseException:
                sock.close()
                raise
        # Only the ports of routing sockets are remembered: only notifications of NETLINK_ROUTE contain a port, and a socket of another
        # protocol may have the same port as a routing socket of another process.
        if protocol == uapi.NETLINK_ROUTE:
            self._ports[sock.port] = sock
            for port, known_sock in list(self._ports.items()):
                if not _is_remembered(known_sock):
                    self._ports.pop(port, None)
        return sock

    def is_own(self, port: int) -> bool:
        """Whether a netlink port belongs to one of our sockets, or did a moment ago.

        A notification with such a port reports our own change.
        """
        sock = self._ports.get(port)
        return sock is not None and _is_remembered(sock)

    @contextmanager
    def sandbox_netlink(self, fd: int) -> Iterator[NetlinkSocket]:
        """Lend a netlink socket in the namespace of a descriptor. The block runs in the thread's own namespace."""
        with self.entered_at(fd):
            sock = NetlinkSocket()
        try:
            yield sock
        finally:
            sock.close()

    def close(self) -> None:
        """Close the descriptor and the idle sockets. No other method may be called at the same time or later."""
        for idle in (self._idle, self._idle_netfilter):
            while idle:
                idle.pop().close()
        os.close(self._fd)


def _is_remembered(sock: NetlinkSocket) -> bool:
    return sock.closed_monotonic_s is None or time.monotonic() - sock.closed_monotonic_s < PORT_REMEMBERED_S


@contextmanager
def opened_netns(path: str) -> Iterator[tuple[int, NetnsIdentity]]:
    """Open the network namespace at a path for the length of the block.

    Yields: its descriptor and its identity, both of the same open file, so that it does not matter if the path is replaced meanwhile.
    Raises: NetnsError if the path is empty, gone, not a namespace, or a namespace of another kind; WiringError if the file could
        not be examined (no descriptor left, for example), which is no evidence of absence (I11).
    """
    fd = _open(path)
    try:
        yield fd, _identity(fd)
    finally:
        os.close(fd)


@contextmanager
def entered(fd: int, *, fatal: Callable[[str], NoReturn]) -> Iterator[None]:
    """Move the calling thread into the namespace of a descriptor for the length of the block.

    Raises: WiringError if the kernel refuses. If the kernel refuses to move the thread back, `fatal` is called with the reason.
    """
    try:
        home = os.open(OWN_NETNS, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as exc:
        raise failure(WiringError, FailureCode.NETNS_NOT_ENTERED, path=OWN_NETNS, cause=_cause(exc)) from exc
    try:
        code = _setns(fd)
        if code:
            raise failure(WiringError, FailureCode.NETNS_ENTRY_REFUSED, cause=os.strerror(code))
        try:
            yield
        finally:
            code = _setns(home)
            if code:
                fatal(f"a thread is stranded in a network namespace: setns back: {os.strerror(code)}")
    finally:
        os.close(home)


def _open(path: str) -> int:
    """Open the file of a network namespace. Any other file is not opened: a FIFO would block, and a device may react.

    Raises: NetnsError, WiringError.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116  # a Path costs as much as the call
            raise failure(NetnsError, FailureCode.NETNS_NO_NSFS, path=path or "(empty path)")
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as exc:
        if isinstance(exc, OSError) and exc.errno not in _PROOF_OF_ABSENCE:
            raise _inconclusive(path, exc) from exc
        raise failure(NetnsError, FailureCode.NETNS_GONE, path=path or "(empty path)", cause=_cause(exc)) from exc
    try:
        _require_network_namespace(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _require_network_namespace(fd: int, path: str) -> None:
    """Raise NetnsError if an open file is not a network namespace, WiringError if the kernel does not answer."""
    try:
        kind = fcntl.ioctl(fd, uapi.NS_GET_NSTYPE)
    except OSError as exc:
        if exc.errno != errno.ENOTTY:
            raise _inconclusive(path, exc) from exc
        raise failure(NetnsError, FailureCode.NETNS_ORDINARY_FILE, path=path) from None
    if kind != uapi.CLONE_NEWNET:
        raise failure(NetnsError, FailureCode.NETNS_OTHER_KIND, path=path)


def _inconclusive(path: str, exc: OSError) -> WiringError:
    return failure(WiringError, FailureCode.NETNS_NOT_OPENED, path=path, cause=_cause(exc))


def _cause(exc: OSError | ValueError) -> str:
    if isinstance(exc, OSError) and exc.errno:
        return os.strerror(exc.errno)
    return str(exc)


def _identity(fd: int) -> NetnsIdentity:
    status = os.fstat(fd)
    return NetnsIdentity(device=status.st_dev, inode=status.st_ino)


def _setns(fd: int) -> int:
    """Change the calling thread's network namespace; 0 or an errno. Python 3.11 has no os.setns."""
    if _libc.setns(fd, uapi.CLONE_NEWNET) == 0:
        return 0
    return ctypes.get_errno()


def _abort(reason: str) -> NoReturn:
    """End the process without unwinding, because any further code of this thread would run in the wrong namespace."""
    os.write(2, f"ipamd: fatal: {reason}\n".encode())
    os.abort()
