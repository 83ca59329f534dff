"""Check whether packets from and to sandboxes would arrive, by route and neighbour lookups in the kernel.

The check uses only the kernel's decision and not the form of our routes and rules. So it finds everything that diverts packets: a rule
ahead of ours, a blackhole, an address that is local on the host, disabled forwarding or a failing source check. The check requests
single objects and sends no packet. Rejected: a ping, which a sandbox may leave unanswered, and which does not show the path of other
packets.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ipamd.kernel import answers, checks, messages, survey, uapi
from ipamd.kernel.answers import Link
from ipamd.kernel.legs.wirings import LegWirings
from ipamd.kernel.netlink import AnswerOutcome, Message, NetlinkSocket
from ipamd.kernel.packets import EniLinks, LegPacket, LegPaths
from ipamd.model.attachment import WiringSpec
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.family import Family, family_of
from ipamd.model.legs import Leg, legs_of
from ipamd.model.routing_difference import RoutingDifference, routing_difference


class _CheckedLink(NamedTuple):
    """A leg, its host veth, and the packets whose routes are looked up."""

    leg: Leg
    veth: Link
    packets: list[LegPacket]


def unreachable(
    sock: NetlinkSocket, specs: Sequence[WiringSpec], eni_links: EniLinks, *, wirings: LegWirings, mark: int
) -> Iterator[RoutingDifference]:
    """Find the problems that keep packets from reaching sandboxes, or sandboxes' packets from the network. Raises: WiringError.

    All lookups are sent together, because a send for each would cost as much as the lookups. For each link at most two problems are
    reported: its wrong neighbour entry, and the first of its packets that is refused or takes another way. `mark`: see `LegPaths`.
    """
    checked = _checked_links(sock, specs, eni_links, wirings=wirings, mark=mark)
    requests = list[Message]()
    for link in checked:
        requests.append(messages.get_neighbour(link.veth.index, link.leg.address))
        requests += [packet.lookup() for packet in link.packets]
    outcomes = iter(sock.request(requests))
    for link in checked:
        subject = str(link.leg.sandbox.address)
        wrong_neighbour = checks.wrong_neighbour(next(outcomes), link.leg)
        if wrong_neighbour is not None:
            yield RoutingDifference(wrong_neighbour.code, subject, wrong_neighbour.fields)
        answered = [_diverted(link.leg, packet, next(outcomes), subject) for packet in link.packets]
        diverted = next(filter(None, answered), None)
        if diverted is not None:
            yield diverted


def _checked_links(
    sock: NetlinkSocket, specs: Sequence[WiringSpec], eni_links: EniLinks, *, wirings: LegWirings, mark: int
) -> list[_CheckedLink]:
    """Return each leg whose host veth exists and is not being deleted, with the packets to look up."""
    legs = list[Leg]()
    for sandbox in specs:
        legs += legs_of(sandbox)
    links = _present_links(sock, legs)
    refusals = _outside_refusals(sock, {family_of(leg.address) for leg in legs})
    checked = list[_CheckedLink]()
    tables_seen = set[int]()
    for leg in legs:
        veth = links.get(leg.host_veth)
        if veth is None:
            # `wiring_differences` reports the missing link. A missing link is not a fault if the disk refused to
            # record a DEL: then the row stays until the DEL is repeated.
            continue
        is_first = leg.route_table not in tables_seen
        paths = LegPaths(veth, links, eni_links, refusals[family_of(leg.address)], mark, is_first_of_table=is_first)
        if leg.is_first and leg.sandbox.is_of_pool:
            tables_seen.add(leg.route_table)
        checked.append(_CheckedLink(leg, veth, wirings.of(leg).packets(leg, paths)))
    return checked


def _present_links(sock: NetlinkSocket, legs: Iterable[Leg]) -> dict[str, Link]:
    """Return the links of legs on the host by name, without those that are being deleted."""
    names = list[str]()
    for leg in legs:
        names += leg.links
    links = dict[str, Link]()
    for outcome in sock.request([messages.get_link(name) for name in names]):
        link = outcome.read(survey.read_link)
        if link and link.group != uapi.DYING_GROUP:
            links[link.name] = link
    return links


def _outside_refusals(sock: NetlinkSocket, families: Iterable[Family]) -> dict[Family, int]:
    """Return by family the error number of a lookup to the outside, 0 if there is a route.

    If the node has no route to the outside, its sandboxes have none either, and no packet to the outside is expected to pass.
    """
    return {family: sock.request([messages.look_up_route(family.outside)])[0].errno for family in families}


def _diverted(leg: Leg, packet: LegPacket, outcome: AnswerOutcome, subject: str) -> RoutingDifference | None:
    """Return the difference if the kernel does not send a packet by its link; None if it does."""
    route = outcome.read(answers.read_route)
    if route is not None and (route.index, route.route_type) == (packet.by.index, uapi.RTN_UNICAST):
        return None
    ip = "ip"
    if leg.address.version == 6:
        ip = "ip -6"
    fields = {"address": leg.address, "link": packet.by.name, "packet": packet, "ip": ip}
    if route is not None:
        return routing_difference(DifferenceCode.PACKET_DIVERTED, subject, table=route.table, **fields)
    code = DifferenceCode.PACKET_REFUSED
    if outcome.errno == errno.ENETUNREACH:
        code = DifferenceCode.PACKET_WITHOUT_ROUTE
    return routing_difference(code, subject, cause=outcome.cause, **fields)
