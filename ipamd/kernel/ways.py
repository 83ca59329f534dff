"""Would a packet arrive? The kernel is asked where it would send those that a sandbox gets and sends, and who takes them there.

Only the outcome is compared, so this does not know the form of our routes and rules, and finds whatever leads packets elsewhere: a
rule ahead of ours, a blackhole, an address that is local on the host, forwarding or a source check that refuses. Single objects are
asked for and nothing is sent. Rejected: a ping, which a sandbox may leave unanswered, and which says nothing of the way of others.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ipamd.kernel import checks, messages, survey, uapi
from ipamd.kernel.messages import Link
from ipamd.kernel.netlink import NetlinkSocket, Outcome
from ipamd.model.attachment import WiringSpec
from ipamd.model.family import IPV4, IpAddress, family_of
from ipamd.model.kernel import RoutingDifference

MASQUERADE_MARK = 0x4000
"""What kube-proxy sets on packets to a sandbox that it will translate. Source: kubernetes pkg/proxy/iptables/proxier.go."""


class _Packet(NamedTuple):
    """By which link a packet must go: to an address, of the host's or of a source that comes in by a link."""

    by: Link
    to: IpAddress
    source: IpAddress | None = None
    incoming: Link | None = None
    mark: int = 0

    def __str__(self) -> str:
        by = f" from {self.source} iif {self.incoming.name}" if self.incoming else ""
        return f"ip route get {self.to}{by} mark {self.mark}"


Uplinks = Mapping[int, tuple[Link, IpAddress]]
"""The links of ENIs, each with its subnet's router, or of IPv6 what is outside, by the route table of their sandboxes."""


def differences(sock: NetlinkSocket, specs: Sequence[WiringSpec], uplinks: Uplinks, *, mark: int) -> Iterator[RoutingDifference]:
    """Find what keeps packets from sandboxes, or theirs from the network; `mark` leads by the primary ENI. Raises: WiringError.

    All are asked for together: a send for each would cost as much as what it asks. What goes wrong first is told of a link.
    """
    every = [(spec, one) for spec in specs for one in spec.links]
    names = [*(one.host_veth for _, one in every), *(one.branch.link for one in specs if one.branch)]
    found = (looked.read(survey.read_link) for looked in sock.request([messages.get_link(name) for name in names]))
    links = {link.name: link for link in found if link and link.group != uapi.DYING_GROUP}
    # A node without a way out has none for sandboxes. Of IPv6 its router is not known: without a default route there is no way at all.
    families = {family_of(one.address) for _, one in every}
    refusals = {family: sock.request([messages.look_up_route(family.outside)])[0].errno for family in families}
    asked, seen = list[tuple[WiringSpec, WiringSpec, list[_Packet]]](), set[int]()
    questions = []
    for first, spec in every:
        if (veth := links.get(spec.host_veth)) is None:
            continue  # `wiring_differences` tells of it; a DEL that the disk refused is tried again by the runtime
        refusal, is_first = refusals[family_of(spec.address)], spec.route_table not in seen
        if spec.is_egress or spec.branch:
            packets = _of_others(spec, veth, links, uplinks, refusal=refusal)
        else:
            packets = _of_pool(spec, veth, uplinks, refusal=refusal, mark=mark, is_first=is_first)
            seen.add(spec.route_table)
        asked.append((first, spec, packets))
        questions.append(messages.get_neighbour(veth.index, spec.address))
        questions += [
            messages.look_up_route(one.to, one.source, one.incoming.index if one.incoming else 0, one.mark) for one in packets
        ]
    outcomes = iter(sock.request(questions))
    for first, spec, packets in asked:
        if wrong := checks.wrong_neighbour(next(outcomes), spec):
            yield RoutingDifference(str(first.address), wrong)
        led_away = [_led_away(spec, packet, next(outcomes)) for packet in packets]
        yield from [RoutingDifference(str(first.address), what, False, mend) for what, mend in led_away if what][:1]


def _of_pool(spec: WiringSpec, veth: Link, uplinks: Uplinks, *, refusal: int, mark: int, is_first: bool) -> list[_Packet]:
    """Of the first sandbox of each ENI every packet is asked for, of the others what may concern one alone."""
    if not {spec.route_table, uapi.RT_TABLE_MAIN} <= uplinks.keys():  # a link that is missing is told of as such
        return []
    uplink, router = uplinks[spec.route_table]
    into, out = _Packet(veth, spec.address, router, uplink), _Packet(uplink, router, spec.address, veth)
    far = out if refusal == errno.ENETUNREACH else out._replace(to=family_of(spec.address).outside)
    if not is_first:
        return [into, far]
    by_primary = far._replace(mark=mark, by=uplinks[uapi.RT_TABLE_MAIN][0] if mark else uplink)
    return [into, far, into._replace(mark=MASQUERADE_MARK), out, _Packet(veth, spec.address), out if far is out else by_primary]


def _of_others(spec: WiringSpec, veth: Link, links: Mapping[str, Link], uplinks: Uplinks, *, refusal: int) -> list[_Packet]:
    """Of a second link, by the primary ENI; of a branch ENI; in strict mode nothing leads there from the node itself but the VPC."""
    far_off = family_of(spec.address).outside
    if spec.branch is None:
        link = None if refusal or uapi.RT_TABLE_MAIN not in uplinks else uplinks[uapi.RT_TABLE_MAIN][0]
    else:
        link = links.get(spec.branch.link)  # `wiring_differences` tells of one that is missing
    if link is None:
        return []
    packets = [_Packet(veth, spec.address, far_off, link)]
    if spec.branch is None or spec.branch.is_strict:
        return [*packets, _Packet(link, far_off, spec.address, veth)]
    packets.append(_Packet(veth, spec.address))
    if family_of(spec.address) is IPV4:
        packets.append(_Packet(link, spec.branch.gateway, spec.address, veth))
    return packets


def _led_away(spec: WiringSpec, packet: _Packet, outcome: Outcome) -> tuple[str, str]:
    """What the kernel does with a packet instead of sending it by its link, and what to do; twice "" if nothing else."""
    route = outcome.read(messages.read_route)
    if route is not None and (route.index, route.route_type) == (packet.by.index, uapi.RTN_UNICAST):
        return "", ""
    says = f"goes by table {route.table}" if route else f"is refused, {outcome.cause}"
    what = f"a packet of {spec.address} does not go by {packet.by.name}: `{packet}` {says}"
    ip = "ip" if spec.address.version == 4 else "ip -6"
    if outcome.errno == errno.ENETUNREACH:
        return what, f"bring back the node's default route, or its rule 32766 to main: `{ip} route`, `{ip} rule`"
    return what, f"remove the rule or route that does it, unless rule 32766 to main is missing: `{ip} rule`"
