"""Compare one sandbox's wiring with its specification (CNI CHECK): read only, one sentence per difference.

Each sentence names the actual and the expected value; the runtime gets it unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address

from ipamd.kernel import messages, records, survey, uapi
from ipamd.kernel.netlink import NetlinkSocket, Outcome
from ipamd.model import kernel as dataplane
from ipamd.model.attachment import WiringSpec
from ipamd.model.kernel import SANDBOX_GATEWAY

OUTSIDE = IPv4Address("192.0.2.1")
"""An address to which nothing but a default route should lead. Source: RFC 5737, TEST-NET-1: no host has it."""


def host_differences(sock: NetlinkSocket, spec: WiringSpec) -> list[str]:
    """Compare the host side: 0 or more sentences. Raises: KernelDumpError, WiringError."""
    link = find_link(sock, spec.host_veth)
    found: list[str] = []
    if link is None:
        found.append(f"host link {spec.host_veth} is missing")
    else:
        found += _link_differences(link, spec, side="host", alias=spec.alias)
        if link.group == uapi.DYING_GROUP:
            found.append(f"host link {link.name} is marked for deletion")
    found += _route_differences(sock, spec, link)
    found += _rule_differences(sock, spec)
    return found


def sandbox_differences(sock: NetlinkSocket, spec: WiringSpec, *, host_link: records.Link | None) -> list[str]:
    """Compare the sandbox side; `sock` is a socket of its namespace. Raises: WiringError.

    Who runs there may have made any number of anything, so single objects are asked for, and nothing is dumped (I16). Routes are
    looked up through our link: what leads through another one, as a VPN's does, neither hides ours nor stands for them.
    """
    name = spec.key.ifname
    link = find_link(sock, name)
    if link is None:
        return [f"interface {name} is missing in {spec.netns}"]
    found = list(_link_differences(link, spec, side="sandbox"))
    if host_link is not None and host_link.peer_index != link.index:
        found.append(f"interface {name} is not the other end of {spec.host_veth}")
    if not link.is_up:
        return found  # it has no routes then, and none can be looked up through it
    wanted = (
        (spec.address, (spec.address, 32, None, uapi.RTN_LOCAL), f"interface {name} does not have {spec.address}"),
        (
            SANDBOX_GATEWAY,
            (SANDBOX_GATEWAY, 32, None, uapi.RTN_UNICAST),
            f"the route to {SANDBOX_GATEWAY} dev {name} is missing in the sandbox",
        ),
        (
            OUTSIDE,
            (None, 0, SANDBOX_GATEWAY, uapi.RTN_UNICAST),
            f"the default route via {SANDBOX_GATEWAY} dev {name} is missing in the sandbox, or not in use",
        ),
    )
    asked = [messages.match_route(address, index=link.index) for address, _, _ in wanted]
    *looked, neighbour = sock.request([*asked, messages.get_neighbour(link.index, SANDBOX_GATEWAY)])
    for outcome, (address, route, sentence) in zip(looked, wanted, strict=True):
        taken = records.read_route(outcome.replies[0]) if outcome.replies else None
        if taken is None:
            found.append(f"{sentence} (the kernel says of {address}: {outcome.cause})")
        elif (taken.destination, taken.length, taken.via, taken.route_type) != route:
            found.append(f"{sentence} (the kernel takes {taken.destination or 'default'}/{taken.length} for {address})")
    return [*found, *_neighbour_differences(neighbour, spec)]


def find_link(sock: NetlinkSocket, which: str | int) -> records.Link | None:
    """Find one link by name or index, without a dump; None for index 0."""
    if not which:
        return None
    (looked,) = sock.request([messages.get_link(which)])
    return records.read_link(looked.replies[0]) if looked.replies else None


def _link_differences(link: records.Link, spec: WiringSpec, *, side: str, alias: str | None = None) -> Iterable[str]:
    what = f"host link {link.name}" if side == "host" else f"interface {link.name}"
    mac = spec.mac(side)
    if link.kind != uapi.VETH_KIND:
        yield f"{what} is of kind {link.kind or 'hardware'}, not veth"
    if not link.is_up:
        yield f"{what} is down"
    if mac and link.mac != mac:
        yield f"{what} has MAC {link.mac}, not {mac}"
    if spec.is_mtu_known and link.mtu != spec.mtu:
        yield f"{what} has MTU {link.mtu}, not {spec.mtu}"
    if alias is not None and link.alias != alias:
        yield f"{what} has alias {link.alias!r}, not {alias!r}"


def _route_differences(sock: NetlinkSocket, spec: WiringSpec, link: records.Link | None) -> Iterable[str]:
    routes = [
        one for one in survey.routes_of(sock, table=uapi.RT_TABLE_MAIN) if one.destination == spec.address and one.length == 32
    ]
    if not routes:
        yield f"the route {spec.address} dev {spec.host_veth} is missing on the host"
    for route in routes:
        if link is None or route.index != link.index or route.via is not None:
            yield f"{spec.address} is routed through link {route.index}, not through {spec.host_veth}"


def _rule_differences(sock: NetlinkSocket, spec: WiringSpec) -> Iterable[str]:
    rules = survey.rules_of(sock)
    if not any(survey.is_to_sandbox(rule) and rule.destination == spec.address for rule in rules):
        yield f"rule {dataplane.TO_SANDBOX_PRIORITY} to {spec.address} lookup main is missing"
    tables = [rule.table for rule in rules if survey.is_from_sandbox(rule) and rule.source == spec.address]
    if spec.route_table != uapi.RT_TABLE_MAIN and spec.route_table not in tables:
        yield f"rule {dataplane.FROM_SANDBOX_PRIORITY} from {spec.address} lookup {spec.route_table} is missing"
    for table in tables:
        if table != spec.route_table:
            yield f"rule {dataplane.FROM_SANDBOX_PRIORITY} from {spec.address} looks up table {table}, not {spec.route_table}"


def _neighbour_differences(looked: Outcome, spec: WiringSpec) -> Iterable[str]:
    mac = spec.mac("host")
    entry = records.read_neighbour(looked.replies[0]) if looked.replies else None
    if entry is None and looked.errno not in messages.ABSENT:
        return  # a kernel that cannot be asked for one entry says nothing about it (I11)
    if entry is None or not entry.is_permanent or entry.mac != (mac or entry.mac):
        now = "none" if entry is None else f"{entry.mac}{'' if entry.is_permanent else ' (not permanent)'}"
        yield f"the neighbour {SANDBOX_GATEWAY} in the sandbox is {now}, not {mac or 'one'} (permanent)"
