"""End the calls to other programs that grpcio does not end at their deadline.

If the other program sends a flood of frames and does not read, grpcio waits until its own frames are written, such as the answers to
PING and SETTINGS. Meanwhile it ends no call of that connection, not even at the call's deadline, and closing the channel waits as well
(grpcio 1.85; `tests/contract/peers`). Shutting the socket down ends the wait: each call of the connection fails with UNAVAILABLE.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

GRACE_S = 1.0
"""Time after a call's deadline during which grpcio may still end the call. Ours: grpcio usually ends it within milliseconds."""

CONNECT_S = 1.0
"""Longest wait for a connection to a server's socket, which is opened only to learn the name to which that socket is bound. Ours:
the kernel connects at once if the listener's queue has room."""

DESCRIPTORS = "/proc/self/fd"


class CallsInFlight:
    """The open calls, each with the path of its socket and its deadline. Safe from any thread."""

    def __init__(self) -> None:
        self._deadlines: dict[object, tuple[str, float]] = {}

    @contextmanager
    def registered(self, path: str, timeout_s: float) -> Iterator[None]:
        """Record an open call while the block runs. `path`: the program's socket. `timeout_s`: the timeout that grpcio was given."""
        call = object()
        self._deadlines[call] = (path, time.monotonic() + timeout_s)
        try:
            yield
        finally:
            del self._deadlines[call]

    def end_overdue(self) -> tuple[str, ...]:
        """Shut down the connections of every call that is open GRACE_S after its deadline. Returns: the sockets' paths, sorted."""
        latest = time.monotonic() - GRACE_S
        paths = {path for path, deadline in list(self._deadlines.values()) if deadline < latest}
        for path in paths:
            shut_connections(path)
        return tuple(sorted(paths))


CALLS = CallsInFlight()
"""All calls of this process that are under way. There is one object for the process, because connections belong to the process too."""


def shut_connections(path: str) -> None:
    """Shut down every connection of this process to the Unix socket at a path. Calls on these connections fail."""
    name = _bound_name(path)
    for descriptor in os.listdir(DESCRIPTORS):  # noqa: PTH208  # numbers, not paths
        with suppress(OSError):  # no socket, not connected, or closed meanwhile
            copy = socket.socket(fileno=os.dup(int(descriptor)))
            with copy:
                if copy.family == socket.AF_UNIX and copy.getpeername() == name:
                    copy.shutdown(socket.SHUT_RDWR)


def _bound_name(path: str) -> str:
    """Return the name to which a server bound its socket.

    The name differs from the path if the server has the directory at another mount point, or if the path is a symbolic link. If
    nobody listens, the path itself is returned.
    """
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(CONNECT_S)
        try:
            asking.connect(path)
            return str(asking.getpeername())
        except OSError:
            return path
