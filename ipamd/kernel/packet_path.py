"""Implement the port `PacketPaths`: route lookups as `ip route get` makes them, with the policy rule that decided.

The kernel's answer contains the table that decided, and not the rule. The rule is the first rule that selects the packet and leads to
that table, because the kernel tries rules in order and stops at the first table that decides. For a refusal the kernel returns only an
errno. Then this module walks rules and routes in the kernel's order until one of them refuses.
"""

from __future__ import annotations

import errno
from collections.abc import Container, Iterable, Iterator, Mapping

from ipamd.kernel import answers, checks, messages, survey, uapi
from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.kernel.netlink import AnswerOutcome, NetlinkSocket, attributes
from ipamd.kernel.netns import HostNetns, opened_netns
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.errors import WiringError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import IpAddress, family_of, unpack_address
from ipamd.model.ids import MacAddress
from ipamd.model.packet_path import NewConnection, RouteAnswer, RoutedPacket, RouteResult, Translation
from ipamd.model.record import replace
from ipamd.model.routing_difference import RoutingDifference
from ipamd.ports.packet_path import PacketPaths

_REFUSING_TYPES = frozenset({uapi.RTN_BLACKHOLE, uapi.RTN_UNREACHABLE, uapi.RTN_PROHIBIT})

_SOURCE_REFUSALS = frozenset({errno.EXDEV, errno.EINVAL})
"""The kernel's errnos for a source that it refuses. Source: its net/ipv4/fib_frontend.c, __fib_validate_source."""


class KernelPacketPaths(PacketPaths):
    """Asks the kernel by netlink. Concurrency: safe from any thread; `filters` takes the lock of `hostnet`, and `translation` may take
    that of `PodSnatSets`.
    """

    def __init__(self, host: HostNetns, hostnet: KernelHostNetwork) -> None:
        """`hostnet`: has the settings in force and the findings about other software."""
        self._host = host
        self._hostnet = hostnet

    def inside(self, netns: str, packet: RoutedPacket) -> RouteAnswer:
        """See `PacketPaths.inside`."""
        with opened_netns(netns) as (descriptor, identity):
            if identity == self._host.identity:
                raise failure(WiringError, FailureCode.HOST_NETNS_ASKED, netns=netns)
            with self._host.sandbox_netlink(descriptor) as sock:
                outcome = _look_up(sock, packet)
                return _answer(sock, outcome, packet)

    def on_node(self, packet: RoutedPacket) -> RouteAnswer:
        """See `PacketPaths.on_node`."""
        with self._host.netlink() as sock:
            outcome = _look_up(sock, packet)
            rules = [rule for rule in survey.rules_of(sock, family_of(packet.destination)) if _selects(rule, packet)]
            answer = _answer(sock, outcome, packet)
            if answer.result in (RouteResult.FORWARDED, RouteResult.LOCAL):
                return _with_rule(answer, rules, answer.table)
            return _explain_refusal(sock, outcome.errno, answer, rules, packet)

    def translation(self, packet: NewConnection, identity: InstanceIdentity) -> Translation:
        """See `PacketPaths.translation`."""
        return self._hostnet.translation(packet, identity)

    def eni_links(self, macs: Iterable[MacAddress]) -> Mapping[MacAddress, str]:
        """See `PacketPaths.eni_links`."""
        with self._host.netlink() as sock:
            return {mac: link.name for mac, link in self._hostnet.state_reader.links(sock, macs).items()}

    def filters(self, addresses: Container[IpAddress]) -> list[RoutingDifference]:
        """See `PacketPaths.filters`."""
        return self._hostnet.filter_problems(addresses)


def _look_up(sock: NetlinkSocket, packet: RoutedPacket) -> AnswerOutcome:
    """Look up the route of a packet. Raises: WiringError if the link by which it arrives is gone."""
    incoming = 0
    if packet.incoming:
        link = checks.find_link(sock, packet.incoming)
        if link is None:
            raise failure(WiringError, FailureCode.INCOMING_LINK_MISSING, link=packet.incoming)
        incoming = link.index
    lookup = messages.look_up_route(packet.destination, packet.source, incoming, packet.mark, port=packet.port)
    return sock.request([lookup])[0]


def _answer(sock: NetlinkSocket, outcome: AnswerOutcome, packet: RoutedPacket) -> RouteAnswer:
    """Return the kernel's decision about a packet. The answer does not contain the rule, which `_with_rule` adds."""
    route = outcome.read(answers.read_route)
    if route is None or route.route_type in _REFUSING_TYPES:
        return RouteAnswer(
            RouteResult.REFUSED, source=packet.source, error=outcome.cause if outcome.errno else "a route refuses it"
        )
    link = checks.find_link(sock, route.index)
    return RouteAnswer(
        RouteResult.LOCAL if route.route_type == uapi.RTN_LOCAL else RouteResult.FORWARDED,
        table=route.table,
        link=link.name if link else "",
        via=route.via,
        source=packet.source or _preferred_source(outcome.replies[0]),
    )


def _preferred_source(body: bytes) -> IpAddress | None:
    """Return the source that the kernel gives to a packet without a source; None if its answer contains none."""
    packed = attributes(body, messages.ROUTE.size).get(uapi.RTA_PREFSRC)
    if packed:
        return unpack_address(packed)
    return None


def _selects(rule: answers.PolicyRule, packet: RoutedPacket) -> bool:
    """Whether a rule selects a packet. If the rule has a selector that we do not read, the answer is False."""
    if rule.has_other_selectors or packet.mark & rule.mask != rule.mark:
        return False
    if rule.ports is not None and not rule.ports[0] <= packet.port <= rule.ports[1]:
        return False
    incoming = packet.incoming or "lo"  # rules select the host's own packets by "lo"
    protocol = uapi.IPPROTO_UDP
    if packet.port:
        protocol = uapi.IPPROTO_TCP
    if rule.incoming not in ("", incoming) or rule.protocol not in (0, protocol):
        return False
    is_from = _is_selected(packet.source, rule.source, rule.source_length)
    return is_from and _is_selected(packet.destination, rule.destination, rule.destination_length)


def _is_selected(address: IpAddress | None, network: IpAddress | None, length: int) -> bool:
    if network is None:
        return True
    return address is not None and address in family_of(network).network((network, length), strict=False)


def _with_rule(answer: RouteAnswer, rules: Iterable[answers.PolicyRule], table: int) -> RouteAnswer:
    """Add to an answer the policy rule that decided it.

    Args:
        rules: the rules that select the packet, in the order of their priority.
        table: the table that decided; the first of `rules` that leads to it is the rule.
    """
    rule = next((rule for rule in rules if rule.table == table), None)
    if rule is None:
        return answer
    return _by_rule(answer, rule)


def _by_rule(answer: RouteAnswer, rule: answers.PolicyRule) -> RouteAnswer:
    return replace(answer, rule=rule.priority, rule_text=_rule_text(rule), table=rule.table)


def _explain_refusal(
    sock: NetlinkSocket, code: int, answer: RouteAnswer, rules: Iterable[answers.PolicyRule], packet: RoutedPacket
) -> RouteAnswer:
    """Add to the answer the rule that refuses the packet, or the rule that leads to a table whose route refuses it.

    If no rule and no route refuses it, there are two other causes. Either the kernel refuses the packet's source, because the route to
    the source is refused or leads through another link; or the kernel does not forward packets that arrive on the link. Source: the
    kernel's net/ipv4/fib_frontend.c, __fib_validate_source; net/ipv4/route.c, ip_route_input_slow.
    """
    rule, is_refused = _deciding_rule(sock, rules, packet)
    if packet.incoming and not is_refused:
        if code in _SOURCE_REFUSALS and packet.source is not None:
            answer = replace(answer, result=RouteResult.DROPPED_BY_SOURCE)
            rule = _deciding_rule_on_the_way_back(sock, packet, packet.source)
        elif code == errno.EHOSTUNREACH and rule is not None:
            answer = replace(answer, error=f"{answer.error}: link {packet.incoming} does not forward")
    if rule is None:
        return answer
    return _by_rule(answer, rule)


def _deciding_rule_on_the_way_back(sock: NetlinkSocket, packet: RoutedPacket, source: IpAddress) -> answers.PolicyRule | None:
    """Return the rule that decides about a packet from the destination to the source of `packet`; None if none does."""
    back = RoutedPacket(source, packet.destination, mark=packet.mark)
    rules = [rule for rule in survey.rules_of(sock, family_of(source)) if _selects(rule, back)]
    rule, _ = _deciding_rule(sock, rules, back)
    return rule


def _deciding_rule(
    sock: NetlinkSocket, rules: Iterable[answers.PolicyRule], packet: RoutedPacket
) -> tuple[answers.PolicyRule | None, bool]:
    """Walk rules and tables as the kernel does for a packet. `rules`: those that select the packet.

    Returns: the rule that decides, and whether the rule or its table's route refuses the packet; None and True if no rule decides.
    """
    for rule in rules:
        if rule.is_refusal:
            return rule, True
        # A `goto` or `nop` rule. A `goto` need not be followed: the rules that it skips do not select the packet (docs/adr/0088).
        if not rule.table:
            continue
        route = _best_route(sock, rule.table, packet)
        if route is not None and route.route_type != uapi.RTN_THROW:
            return rule, route.route_type in _REFUSING_TYPES
    return None, True


def _best_route(sock: NetlinkSocket, table: int, packet: RoutedPacket) -> answers.Route | None:
    """Return the route of a table that the kernel prefers for a packet: the longest prefix, and among equal ones the lowest metric.

    None if no route of the table leads to the packet's destination.
    """
    routes = list(_routes_to(survey.routes_of(sock, table=table, family=family_of(packet.destination)), packet.destination))
    return min(routes, key=lambda route: (-route.length, route.metric), default=None)


def _routes_to(routes: Iterable[answers.Route], destination: IpAddress) -> Iterator[answers.Route]:
    for route in routes:
        if route.destination is None or _is_selected(destination, route.destination, route.length):
            yield route


def _rule_text(rule: answers.PolicyRule) -> str:
    """Write a rule in the words of `ip rule`, without its priority and protocol. A rule that refuses packets ends in "refuses"."""
    words = [f"from {_network(rule.source, rule.source_length)}"]
    if rule.destination is not None:
        words.append(f"to {_network(rule.destination, rule.destination_length)}")
    if rule.mask:
        words.append(f"fwmark {rule.mark:#x}/{rule.mask:#x}")
    if rule.incoming:
        words.append(f"iif {rule.incoming}")
    if rule.ports:
        words.append(f"dport {rule.ports[0]}-{rule.ports[1]}")
    words.append("refuses" if rule.is_refusal else f"lookup {rule.table}")
    return " ".join(words)


def _network(address: IpAddress | None, length: int) -> str:
    if address is None:
        return "all"
    if length == address.max_prefixlen:
        return str(address)
    return f"{address}/{length}"
