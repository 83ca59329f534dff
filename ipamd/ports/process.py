"""The ports `Clock`, `Failpoint` and `ConnectionTracking`, as the services use them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Protocol

from ipamd.model.family import IpAddress

Failpoint = Callable[[str], None]
"""A function that is called, with the name of the place, between two steps that change something outside memory. There tests kill or
pause the process (`ipamd.failpoints`)."""


def no_failpoint(_name: str) -> None:
    """Do nothing: in production no failpoint is armed."""


class Clock(Protocol):
    """The wall clock and the monotonic clock. They are a port so that tests control time. Times of one clock are never compared with
    times of the other.
    """

    def now(self) -> datetime:
        """Return the wall time (aware UTC), for records that people read."""

    def monotonic(self) -> float:
        """Return seconds of the machine's monotonic clock, for deadlines and ages. It continues across restarts of the daemon until
        the next boot.
        """


class ConnectionTracking(Protocol):
    """The connections that the host tracks (nf_conntrack), of both families."""

    def remove(self, addresses: Collection[IpAddress]) -> int:
        """Delete every entry that has one of the addresses as source or destination, in its original direction or in its reply.

        The whole table may be read, once for all addresses. This takes up to a second, so ADD and DEL must not call this method.
        Returns: how many entries were deleted. Raises: KernelDumpError, WiringError. Then some entries may be deleted already, and the
        call can be repeated.
        """


class NoConnections:
    """The connection tracking of a host that has none."""

    def remove(self, addresses: Collection[IpAddress]) -> int:  # noqa: ARG002  # the port's signature
        """Delete nothing. Returns: 0."""
        return 0
