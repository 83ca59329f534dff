"""The packets whose routes show whether a leg works: each packet must leave the host by a certain link."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ipamd.kernel import messages
from ipamd.kernel.answers import Link
from ipamd.kernel.netlink import Message
from ipamd.model.family import IpAddress

EniLinks = Mapping[int, tuple[Link, IpAddress]]
"""Route table of sandboxes -> the link of their ENI, and its subnet's router, or for IPv6 an address outside the node."""


class LegPacket(NamedTuple):
    """A packet and the link `by` which it must leave the host. Without `source` and `incoming` the host itself sends it."""

    by: Link
    to: IpAddress
    source: IpAddress | None = None
    incoming: Link | None = None
    mark: int = 0

    def __str__(self) -> str:
        origin = ""
        if self.incoming:
            origin = f" from {self.source} iif {self.incoming.name}"
        return f"ip route get {self.to}{origin} mark {self.mark}"

    def lookup(self) -> Message:
        """Return the message that looks up the route of the packet."""
        return messages.look_up_route(self.to, self.source, self.incoming.index if self.incoming else 0, self.mark)


class LegPaths(NamedTuple):
    """The links by which packets of one leg may pass.

    `links`: of all sandboxes, by name. `refusal`: the errno of a lookup to the outside in the leg's family, 0 if there is a route.
    `mark`: the packet mark that selects the primary ENI, 0 if the node uses none. `is_first_of_table`: no other leg with the same
    route table has been checked yet.
    """

    veth: Link
    links: Mapping[str, Link]
    eni_links: EniLinks
    refusal: int
    mark: int
    is_first_of_table: bool
