"""Values about the path of one packet: questions to the kernel, and its answers. Pure."""

from __future__ import annotations

from enum import StrEnum

from ipamd.model.family import IpAddress
from ipamd.model.record import dataclass


@dataclass(frozen=True, slots=True)
class RoutedPacket:
    """A packet whose route is looked up.

    `source`: the source address; None: the kernel chooses it.
    `incoming`: the link by which the packet arrives; "" if a process in the same namespace sends it.
    `mark`: the packet's mark (fwmark).
    `port`: the TCP port of the destination; 0 if it does not matter.
    """

    destination: IpAddress
    source: IpAddress | None = None
    incoming: str = ""
    mark: int = 0
    port: int = 0


class RouteResult(StrEnum):
    """What the kernel does with a packet.

    FORWARDED: it sends the packet by a link.
    LOCAL: the destination is an address of the same namespace.
    REFUSED: a route or rule refuses the packet, no route fits, or the link by which it arrives does not forward.
    DROPPED_BY_SOURCE: the kernel refuses the packet's source, for example because it is routed elsewhere (reverse-path filter).
    """

    FORWARDED = "forwarded"
    LOCAL = "local"
    REFUSED = "refused"
    DROPPED_BY_SOURCE = "dropped-by-source"


@dataclass(frozen=True, slots=True)
class RouteAnswer:
    """The kernel's decision about a packet.

    `rule`: the priority of the policy rule that selected `table` or refuses the packet; None if it is not known. For DROPPED_BY_SOURCE
        it is the rule that decides about packets to the source. Rules inside a sandbox are not listed, because the sandbox may make
        any number of them.
    `rule_text`: this rule in words; "" if it is not known.
    `table`: the route table that decides about the packet; 0 if it is not known, or if none does.
    `link`: the link by which the packet leaves, for LOCAL the loopback; "" if it is refused.
    `via`: the next hop; None if the destination is on the link.
    `source`: the source address of the packet; the kernel chose it if the question had none.
    `error`: why the packet is refused, in the kernel's words if it has any; "" without a refusal.
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
        """Whether the kernel sends the packet by a link."""
        return self.result is RouteResult.FORWARDED


@dataclass(frozen=True, slots=True)
class NewConnection:
    """The first packet of a connection, as our nftables rules see it.

    `source`: None for a packet of the node itself whose source the kernel has not chosen yet.
    `incoming`: the link by which it arrives; "" for a packet of the node itself.
    `outgoing`: the link by which it leaves; "" before its route is known.
    `is_for_node`: whether the destination is an address of the node.
    """

    source: IpAddress | None
    destination: IpAddress
    incoming: str = ""
    outgoing: str = ""
    is_for_node: bool = False


@dataclass(frozen=True, slots=True)
class Translation:
    """What our nftables rules do with a connection.

    `mark`: the mark bit that its packets get before their route is looked up; 0: none.
    `source`: the address that the other side sees instead of the sandbox's; None if the source is not translated.
    `is_rejected`: whether the connection is rejected, because its destination is in the local range, to which nobody may connect.
    """

    mark: int = 0
    source: IpAddress | None = None
    is_rejected: bool = False
