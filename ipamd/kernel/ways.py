"""Would a packet arrive? The kernel is asked where it would send those that a sandbox gets and sends, and who takes them there.

Only the outcome is compared, so this does not know the form of our routes and rules, and finds whatever leads packets elsewhere: a
rule ahead of ours, a blackhole, an address that is local on the host, forwarding or a source check that refuses. Single objects are
asked for and nothing is sent. Rejected: a ping, which a sandbox may leave unanswered, and which says nothing of the way of others.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator, Mapping, Sequence
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

    Of the first sandbox of each ENI every packet is asked for, of the others what may concern one alone.
    """
    if not specs:
        return
    far_off = family_of(specs[0].address).outside  # sandboxes of a node are of one family
    # A node without a way out has none for sandboxes. Of IPv6 its router is not known: without a default route there is no way at all.
    (outside,) = sock.request([messages.look_up_route(far_off)])
    first = {spec.route_table: spec for spec in reversed(specs)}
    for spec in specs:
        yield from _of_second(sock, spec, uplinks)
        (looked,) = sock.request([messages.get_link(spec.host_veth)])
        if (veth := _living(looked)) is None:
            continue  # `wiring_differences` tells of it; a DEL that the disk refused is tried again by the runtime
        packets = list[_Packet]()
        if {spec.route_table, uapi.RT_TABLE_MAIN} <= uplinks.keys():  # a link that is missing is told of as such
            uplink, router = uplinks[spec.route_table]
            into, out = _Packet(veth, spec.address, router, uplink), _Packet(uplink, router, spec.address, veth)
            primary = uplinks[uapi.RT_TABLE_MAIN][0] if mark else uplink
            far = out if outside.errno == errno.ENETUNREACH else out._replace(to=far_off)
            packets = [into, far]
            if spec is first[spec.route_table]:
                packets += [into._replace(mark=MASQUERADE_MARK), out, _Packet(veth, spec.address)]
                packets.append(out if far is out else far._replace(mark=mark, by=primary))
        yield from _of_one(sock, spec, veth, packets, str(spec.address))


def branch_differences(sock: NetlinkSocket, specs: Sequence[WiringSpec], uplinks: Uplinks) -> Iterator[RoutingDifference]:
    """The same of sandboxes with branch ENIs. Nothing leads from the node itself to one in strict mode but the VPC."""
    for spec in specs:
        if spec.branch is None:
            continue
        yield from _of_second(sock, spec, uplinks)
        looked = sock.request([messages.get_link(name) for name in (spec.host_veth, spec.branch.link)])
        veth, link = map(_living, looked)
        if veth is None or link is None:
            continue  # `wiring_differences` tells of it
        far_off = family_of(spec.address).outside
        packets = [_Packet(veth, spec.address, far_off, link)]
        if spec.branch.is_strict:
            packets.append(_Packet(link, far_off, spec.address, veth))
        else:
            packets.append(_Packet(veth, spec.address))
            if family_of(spec.address) is IPV4:
                packets.append(_Packet(link, spec.branch.gateway, spec.address, veth))
        yield from _of_one(sock, spec, veth, packets, str(spec.address))


def _living(looked: Outcome) -> Link | None:
    """A link that was looked at, unless it is gone or on its way out."""
    link = looked.read(survey.read_link)
    return None if link is None or link.group == uapi.DYING_GROUP else link


def _of_second(sock: NetlinkSocket, first: WiringSpec, uplinks: Uplinks) -> Iterator[RoutingDifference]:
    if (spec := first.second) is None:
        return
    far_off = family_of(spec.address).outside
    looked, outside = sock.request([messages.get_link(spec.host_veth), messages.look_up_route(far_off)])
    if (veth := _living(looked)) and not outside.errno and uapi.RT_TABLE_MAIN in uplinks:
        uplink, _ = uplinks[uapi.RT_TABLE_MAIN]
        packets = _Packet(veth, spec.address, far_off, uplink), _Packet(uplink, far_off, spec.address, veth)
        yield from _of_one(sock, spec, veth, packets, str(first.address))


def _of_one(
    sock: NetlinkSocket, spec: WiringSpec, veth: Link, packets: Collection[_Packet], subject: str
) -> Iterator[RoutingDifference]:
    asked = [messages.look_up_route(one.to, one.source, one.incoming.index if one.incoming else 0, one.mark) for one in packets]
    *looked, neighbour = sock.request([*asked, messages.get_neighbour(veth.index, spec.address)])
    if wrong := checks.wrong_neighbour(neighbour, spec):
        yield RoutingDifference(subject, wrong)
    for packet, outcome in zip(packets, looked, strict=True):
        route = outcome.read(messages.read_route)
        if route is None or (route.index, route.route_type) != (packet.by.index, uapi.RTN_UNICAST):
            says = f"goes by table {route.table}" if route else f"is refused, {outcome.cause}"
            what = f"a packet of {spec.address} does not go by {packet.by.name}: `{packet}` {says}"
            ip = "ip" if spec.address.version == 4 else "ip -6"
            mend = f"remove the rule or route that does it, unless rule 32766 to main is missing: `{ip} rule`"
            if outcome.errno == errno.ENETUNREACH:
                mend = f"bring back the node's default route, or its rule 32766 to main: `{ip} route`, `{ip} rule`"
            yield RoutingDifference(subject, what, False, mend)
            return
