"""Values about the path of one packet: queries of the kernel, and its answers. Pure."""

from __future__ import annotations

from enum import StrEnum

from ipamd.model.family import IpAddress
from ipamd.model.record import dataclass


@dataclass(frozen=True, slots=True)
class RoutedPacket:
    """A packet whose route is looked up.

    `source` None: the kernel chooses it.
    `incoming`: the link by which it comes, "" for one that a process here sends.
    `port`: of TCP at the destination, 0 if it does not matter.
    """

    destination: IpAddress
    source: IpAddress | None = None
    incoming: str = ""
    mark: int = 0
    port: int = 0


class RouteResult(StrEnum):
    """What the kernel does with a packet. DROPPED_BY_SOURCE: its reverse-path filter, because the source is routed elsewhere."""

    FORWARDED = "forwarded"
    LOCAL = "local"
    REFUSED = "refused"
    DROPPED_BY_SOURCE = "dropped-by-source"


@dataclass(frozen=True, slots=True)
class RouteAnswer:
    """The kernel's decision about a packet.

    `rule`: priority of the policy rule that led to `table`, None if it is not known (rules of a sandbox are not listed: it may make
        any number).
    `table`: 0 if none decided.
    `link`: by which the packet leaves, "" if it does not.
    `via`: the next hop, None for a neighbour.
    `source`: the source that the packet then has.
    `error`: the kernel's words for a refusal.
    """

    result: RouteResult
    rule: int | None = None
    rule_text: str = ""
    table: int = 0
    link: str = ""
    via: IpAddress | None = None
    source: IpAddress | None = None
    error: str = ""

    @property
    def is_sent(self) -> bool:
        """Whether the packet is sent by a link."""
        return self.result is RouteResult.FORWARDED


@dataclass(frozen=True, slots=True)
class NewConnection:
    """The first packet of a connection, as our nftables rules see it.

    `incoming`, `outgoing`: names of links, "" for a packet of the node itself, and before its route is known.
    `is_for_node`: the destination is an address of the node.
    """

    source: IpAddress | None
    destination: IpAddress
    incoming: str = ""
    outgoing: str = ""
    is_for_node: bool = False


@dataclass(frozen=True, slots=True)
class Translation:
    """What our nftables rules do with a connection.

    `mark`: bit that its packets get before the route is looked up, 0 for none.
    `source`: the address that the other side sees instead of the sandbox's, None if it is not translated.
    `is_rejected`: the destination is in the local range, to which nobody may connect.
    """

    mark: int = 0
    source: IpAddress | None = None
    is_rejected: bool = False
