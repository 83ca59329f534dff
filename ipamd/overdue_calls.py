"""End the calls to other programs that grpcio does not end at their deadline.

A program that floods its end of a connection without reading makes grpcio wait until its own frames are written, such as the answers
to PING and SETTINGS. It completes no further call of that connection meanwhile, whatever the call's deadline, and closing the channel
waits as well (grpcio 1.85; `tests/contract/peers`). Shutting the socket down ends the wait: each of its calls fails with UNAVAILABLE.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

GRACE_S = 1.0
"""How long after its deadline a call is left to grpcio. Ours: grpcio ends a call within milliseconds of it."""

CONNECT_S = 1.0
"""Longest wait for the connection that asks for a socket's name. Ours: the kernel answers at once if there is room."""

DESCRIPTORS = "/proc/self/fd"


class CallsInFlight:
    """The calls that are open now, each with the socket that it goes to and its deadline. Safe from any thread."""

    def __init__(self) -> None:
        self._deadlines: dict[object, tuple[str, float]] = {}

    @contextmanager
    def registered(self, path: str, timeout_s: float) -> Iterator[None]:
        """While the block runs, a call to the program at this path is open. `timeout_s`: the deadline that grpcio was given."""
        call = object()
        self._deadlines[call] = (path, time.monotonic() + timeout_s)
        try:
            yield
        finally:
            del self._deadlines[call]

    def end_overdue(self) -> tuple[str, ...]:
        """Shut down the connections of every call that is open GRACE_S after its deadline. Returns: the paths, sorted."""
        latest = time.monotonic() - GRACE_S
        paths = {path for path, deadline in list(self._deadlines.values()) if deadline < latest}
        for path in paths:
            shut_connections(path)
        return tuple(sorted(paths))


CALLS = CallsInFlight()
"""All calls of this process that are under way. There is one object for the process, because connections belong to the process too."""


def shut_connections(path: str) -> None:
    """Shut down every connection of this process to the Unix socket at a path. Whoever uses one finds that it has ended."""
    name = _bound_name(path)
    for descriptor in os.listdir(DESCRIPTORS):  # noqa: PTH208  # numbers, not paths
        with suppress(OSError):  # no socket, not connected, or closed meanwhile
            copy = socket.socket(fileno=os.dup(int(descriptor)))
            with copy:
                if copy.family == socket.AF_UNIX and copy.getpeername() == name:
                    copy.shutdown(socket.SHUT_RDWR)


def _bound_name(path: str) -> str:
    """Return the name to which a server bound its socket.

    It differs from the path where the server has the directory at another mount point, or the path is a symbolic link. Returns: the
    path if nobody listens.
    """
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(CONNECT_S)
        try:
            asking.connect(path)
            return str(asking.getpeername())
        except OSError:
            return path
