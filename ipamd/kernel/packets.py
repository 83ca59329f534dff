"""The packets whose routes show whether a leg works: each packet must leave the host by a certain link."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ipamd.kernel import messages
from ipamd.kernel.answers import Link
from ipamd.kernel.netlink import Message
from ipamd.model.family import IpAddress

EniLinks = Mapping[int, tuple[Link, IpAddress]]
"""Number of a route table that sandboxes use -> the link of its ENI, and the router of the ENI's subnet. The router of IPv6 is
link-local, so for IPv6 an address that only the default route reaches takes its place (`Family.outside`)."""


class LegPacket(NamedTuple):
    """A packet, and the link by which it must leave the host.

    `by`: the link by which it must leave.
    `to`: the packet's destination.
    `source`: the packet's source; None if the host itself sends it.
    `incoming`: the link by which it arrives; None if the host itself sends it.
    `mark`: the packet's mark.
    """

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
    """What `LegWiring.packets` needs to choose the packets of one leg.

    `veth`: the leg's host veth.
    `links`: the links of all checked sandboxes on the host, by name.
    `eni_links`: the ENI's link and the router for each route table.
    `refusal`: the errno of a route lookup to the outside in the leg's family; 0 if there is a route.
    `mark`: the packet mark that leads to the primary ENI; 0 if the node uses none.
    `is_first_of_table`: no sandbox of the pool with the same route table came earlier in this check.
    """

    veth: Link
    links: Mapping[str, Link]
    eni_links: EniLinks
    refusal: int
    mark: int
    is_first_of_table: bool
