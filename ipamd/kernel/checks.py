"""Compare one sandbox's wiring with its specification (CNI CHECK). Nothing is changed.

A difference of a value has the actual and the expected one.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

from ipamd.kernel import answers, messages, survey, uapi
from ipamd.kernel.netlink import AnswerOutcome, Message, NetlinkSocket
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.family import IPV6, IpAddress, family_of
from ipamd.model.legs import Leg
from ipamd.model.repairs import RepairKind
from ipamd.model.wiring_difference import WiringDifference, wiring_difference

_Route = tuple[IpAddress | None, int, IpAddress | None, int]
"""Destination, length, next hop and type of a route."""

_ExpectedRoute = tuple[IpAddress, _Route, DifferenceCode, dict[str, object]]
"""An address to look up, the route that the kernel should take for it, and the code and fields of the difference that is reported if
the kernel takes another route."""

REFUSALS = frozenset({errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL})
"""The kernel's errnos if a lookup ends at a route of type unreachable, prohibit or blackhole. Source: the kernel's net/ipv6/route.c,
ip6_rt_type_to_error."""


def sandbox_differences(
    sock: NetlinkSocket, leg: Leg, *, host_link: answers.Link | None, is_arrival_only: bool
) -> list[WiringDifference]:
    """Compare the objects inside the sandbox with what the leg needs. Raises: WiringError.

    Processes in the sandbox may have created any number of links and routes, so single objects are read, and nothing is dumped (I16).
    Routes are looked up through our link, so that a route through another link, for example a VPN's, neither hides nor replaces ours.

    Args:
        sock: a socket of the sandbox's namespace.
        host_link: the leg's host veth, which must be the other end of the interface; None: not compared.
        is_arrival_only: compare only the objects without which no packet arrives.
    """
    name = leg.ifname
    link = find_link(sock, name)
    if link is None:
        return [wiring_difference(DifferenceCode.INTERFACE_MISSING, ifname=name, netns=leg.netns)]
    differences = _link_differences(link, leg, is_mtu_compared=leg.is_mtu_known and not is_arrival_only)
    if host_link is not None and host_link.peer_index != link.index:
        differences.append(wiring_difference(DifferenceCode.INTERFACE_NOT_THE_OTHER_END, ifname=name, link=leg.host_veth))
    if not link.is_up:
        return differences  # a link that is down has no routes, and none can be looked up through it
    return differences + _differences_through_link(sock, link, leg, is_arrival_only=is_arrival_only)


def _differences_through_link(
    sock: NetlinkSocket, link: answers.Link, leg: Leg, *, is_arrival_only: bool
) -> list[WiringDifference]:
    """Compare the addresses, routes and neighbour of an interface that is up, in one request."""
    family = family_of(leg.address)
    expected = _expected_routes(leg)
    if is_arrival_only:
        expected = expected[:1]
    source = None
    if leg.is_further_interface:
        source = leg.address
    route_requests = [messages.match_route(address, index=link.index, source=source) for address, *_ in expected]
    # With IPv6 two more lookups are needed. The route of the wiring outlives the address (`messages.add_local_route`), so the address
    # itself is looked up. (With IPv4 the kernel answers no request for a single address.) A route that refuses packets belongs to no
    # link, so a lookup through our link does not find it. Therefore the route to the outside is also looked up without naming a link.
    ipv6_requests: list[Message] = []
    if family is IPV6:
        ipv6_requests = [messages.get_address(link.index, leg.address), messages.look_up_route(family.outside, leg.address)]
    *outcomes, neighbour = sock.request([*ipv6_requests, *route_requests, messages.get_neighbour(link.index, leg.gateway)])
    differences: list[WiringDifference] = []
    if family is IPV6:
        has_address, sent, *outcomes = outcomes
        differences += _ipv6_differences(has_address, sent, leg, is_arrival_only=is_arrival_only)
    differences += _route_differences(outcomes, expected, index=link.index)
    return differences + _gateway_differences(neighbour, leg)


def wrong_neighbour(outcome: AnswerOutcome, leg: Leg) -> WiringDifference | None:
    """Return the difference of the host's neighbour entry for a sandbox; None if the entry is right.

    A permanent entry with another MAC than the recorded one is wrong. Where the entry must be permanent, a missing entry and an entry
    that the kernel itself has resolved are wrong too. If the kernel refuses to answer, that proves nothing (I11), and the result is
    None.

    Args:
        outcome: the kernel's answer to `messages.get_neighbour`.
    """
    neighbour = outcome.read(answers.read_neighbour)
    mac = leg.mac("sandbox")
    if neighbour is not None and neighbour.is_permanent:
        if not mac or neighbour.mac == mac:
            return None
        fields = {"address": leg.address, "link": leg.host_veth, "actual": neighbour.mac, "expected": mac}
        return wiring_difference(DifferenceCode.NEIGHBOUR_OF_ANOTHER, RepairKind.LINK, **fields)
    if not leg.is_neighbour_fixed:
        return None
    if neighbour is None and outcome.errno not in messages.ABSENT:
        return None
    actual = "missing" if neighbour is None else neighbour.mac or "not known"
    fields = {"address": leg.address, "link": leg.host_veth, "actual": actual}
    return wiring_difference(DifferenceCode.NEIGHBOUR_NOT_FIXED, RepairKind.LINK, **fields)


def link_inside(sock: NetlinkSocket, link: answers.Link) -> answers.Link | None:
    """Find a veth's other end in another namespace; None if it is in this namespace, or if the kernel does not report it."""
    if not link.netnsid:
        return None
    (outcome,) = sock.request([messages.get_link(link.peer_index, netnsid=link.netnsid)])
    return outcome.read(answers.read_link)


def mac_inside(sock: NetlinkSocket, link: answers.Link) -> str:
    """Return the MAC of a veth's other end in another namespace; "" if `link_inside` does not find it."""
    inside = link_inside(sock, link)
    if inside:
        return inside.mac
    return ""


def find_link(sock: NetlinkSocket, which: str | int) -> answers.Link | None:
    """Find one link by name or index, without a dump; None if there is no such link, or for index 0 or the name ""."""
    if not which:
        return None
    (outcome,) = sock.request([messages.get_link(which)])
    return outcome.read(answers.read_link)


def leads_elsewhere(sock: NetlinkSocket, link: answers.Link, leg: Leg) -> bool:
    """Whether a host veth does not lead into its sandbox's namespace.

    A sandbox with NET_ADMIN can create links on the node of any name, alias and MAC, but it cannot forge where a link leads. If the
    namespace is gone, nothing is proved (I11), and the result is False.
    """
    return survey.namespace_number(sock, leg.netns) not in (b"", link.netnsid)


def _link_differences(link: answers.Link, leg: Leg, *, is_mtu_compared: bool) -> list[WiringDifference]:
    """Compare kind, state, MAC and MTU of the sandbox's interface."""
    mac = leg.mac("sandbox")
    differences: list[WiringDifference] = []

    def add(code: DifferenceCode, **fields: object) -> None:
        differences.append(wiring_difference(code, ifname=leg.ifname, **fields))

    if link.kind != uapi.VETH_KIND:
        add(DifferenceCode.INTERFACE_KIND, actual=link.kind or "hardware")
    if not link.is_up:
        add(DifferenceCode.INTERFACE_DOWN)
    if mac and link.mac != mac:
        add(DifferenceCode.INTERFACE_MAC, actual=link.mac, expected=mac)
    if is_mtu_compared and link.mtu != leg.mtu:
        add(DifferenceCode.INTERFACE_MTU, actual=link.mtu, expected=leg.mtu)
    return differences


def _ipv6_differences(
    has_address: AnswerOutcome, sent: AnswerOutcome, leg: Leg, *, is_arrival_only: bool
) -> list[WiringDifference]:
    """Compare the answers to the two lookups that are made only for IPv6.

    `has_address`: the answer to the request for the interface's address. `sent`: the answer to the lookup of a route to the outside.
    """
    differences: list[WiringDifference] = []
    if has_address.errno in messages.ABSENT:
        fields = {"ifname": leg.ifname, "address": leg.address}
        differences.append(wiring_difference(DifferenceCode.INTERFACE_ADDRESS_MISSING, **fields))
    if sent.errno in REFUSALS and not is_arrival_only:
        outside = family_of(leg.address).outside
        differences.append(wiring_difference(DifferenceCode.INSIDE_REFUSES, answer=f"says of {outside}: {sent.cause}"))
    return differences


def _route_differences(
    outcomes: Iterable[AnswerOutcome], expected: Iterable[_ExpectedRoute], *, index: int
) -> list[WiringDifference]:
    """Compare the routes that the kernel takes with the expected ones.

    A route with a next hop must lead through link `index`. This is compared because, if an IPv6 request contains a source, the kernel
    may answer with another interface's route, although the request names this link.
    """
    differences: list[WiringDifference] = []
    for outcome, (address, expected_route, code, fields) in zip(outcomes, expected, strict=True):
        route = outcome.read(answers.read_route)
        answer = ""
        if route is None:
            answer = f"says of {address}: {outcome.cause}"
        elif (route.destination, route.length, route.via, route.route_type) != expected_route:
            destination = f"{route.destination or 'default'}/{route.length}"
            answer = f"takes {destination} for {address}"
        elif route.via is not None and route.index != index:
            answer = f"takes that of link {route.index} for {address}"
        if answer:
            differences.append(wiring_difference(code, answer=answer, **fields))
    return differences


def _gateway_differences(outcome: AnswerOutcome, leg: Leg) -> list[WiringDifference]:
    """Compare a sandbox's neighbour entry for its next hop. If the kernel refuses to answer, no difference is reported (I11)."""
    mac = leg.mac("host")
    neighbour = outcome.read(answers.read_neighbour)
    if neighbour is None:
        if outcome.errno not in messages.ABSENT:
            return []
        actual = "none"
    elif neighbour.is_permanent:
        if not mac or neighbour.mac == mac:
            return []
        actual = neighbour.mac
    else:
        actual = f"{neighbour.mac} (not permanent)"
    fields = {"gateway": leg.gateway, "actual": actual, "expected": mac or "the host veth's MAC"}
    return [wiring_difference(DifferenceCode.GATEWAY_NEIGHBOUR, **fields)]


def _expected_routes(leg: Leg) -> list[_ExpectedRoute]:
    """Return the routes of the sandbox side. The first is the local route to the sandbox's own address, without which the sandbox
    receives no packet.
    """
    name, address, gateway = leg.ifname, leg.address, leg.gateway
    length, unicast = address.max_prefixlen, uapi.RTN_UNICAST
    own_fields: dict[str, object] = {"ifname": name, "address": address}
    gateway_fields: dict[str, object] = {"ifname": name, "gateway": gateway}
    outside = family_of(address).outside
    return [
        (address, (address, length, None, uapi.RTN_LOCAL), DifferenceCode.INTERFACE_ADDRESS_UNUSED, own_fields),
        (gateway, (gateway, length, None, unicast), DifferenceCode.GATEWAY_ROUTE_UNUSED, gateway_fields),
        (outside, (None, 0, gateway, unicast), DifferenceCode.DEFAULT_ROUTE_UNUSED, gateway_fields),
    ]
