"""The host's table of tracked connections as a set."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from ipamd.model.errors import IpamError
from ipamd.model.family import IpAddress


class Connection(NamedTuple):
    """The four addresses of an entry."""

    source: IpAddress
    destination: IpAddress
    reply_source: IpAddress
    reply_destination: IpAddress


class FakeConnectionTracking:
    """Implements `ConnectionTracking`. `fail` is raised, once per entry; `before` runs ahead of each removal."""

    def __init__(self) -> None:
        self.entries: set[Connection] = set()
        self.fail: list[IpamError] = []
        self.asked: list[frozenset[IpAddress]] = []
        self.before: Callable[[], None] = lambda: None

    def remove(self, addresses: Collection[IpAddress]) -> int:
        """See the port."""
        self.before()
        self.asked.append(frozenset(addresses))
        if self.fail:
            raise self.fail.pop(0)
        stale = {entry for entry in self.entries if not set(entry).isdisjoint(addresses)}
        self.entries -= stale
        return len(stale)
