"""The process, as the services see it: its clocks, its failpoints, and the host's connection tracking."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Protocol

from ipamd.model.family import IpAddress

Failpoint = Callable[[str], None]
"""Called with a name between two effects; tests kill or pause the process there (`ipamd.failpoints`)."""


def no_failpoint(_name: str) -> None:
    """Do nothing: in production no failpoint is armed."""


class Clock(Protocol):
    """Wall clock and monotonic clock, a port so that tests control time. The two are never mixed."""

    def now(self) -> datetime:
        """Aware UTC wall time: for records."""

    def monotonic(self) -> float:
        """Seconds that never go back: for deadlines and ages within one process."""


class ConnectionTracking(Protocol):
    """The connections that the host tracks (nf_conntrack), of both families."""

    def remove(self, addresses: Collection[IpAddress]) -> int:
        """Delete every entry that has one of the addresses as source or destination, in its original direction or in its reply.

        It reads the table once for all addresses, which takes up to a second; not for ADD or DEL.
        Returns: how many were deleted. Raises: KernelDumpError, WiringError; then some may be deleted, and it can be repeated.
        """


class NoConnections:
    """A host without connection tracking."""

    def remove(self, addresses: Collection[IpAddress]) -> int:  # noqa: ARG002  # the port's signature
        """Delete nothing."""
        return 0
