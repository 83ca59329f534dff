"""Compare one sandbox's wiring with its specification (CNI CHECK): read only, one sentence per difference.

Each sentence names the actual and the expected value; the runtime gets it unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ipamd.kernel import layout, messages, records, survey, uapi
from ipamd.kernel.netlink import NetlinkSocket
from ipamd.model import dataplane
from ipamd.model.attachment import WiringSpec
from ipamd.model.dataplane import SANDBOX_GATEWAY


def host_differences(sock: NetlinkSocket, spec: WiringSpec) -> tuple[list[str], records.Link | None]:
    """Compare the host side.

    Returns: 0 or more sentences, and the host veth if it is there. Raises: KernelDumpError, WiringError.
    """
    link = find_link(sock, spec.host_veth)
    found: list[str] = []
    if link is None:
        found.append(f"host link {spec.host_veth} is missing")
    else:
        found += _link_differences(link, spec, side="host", alias=spec.alias)
        if link.group == layout.DYING_GROUP:
            found.append(f"host link {link.name} is marked for deletion")
    found += _route_differences(sock, spec, link)
    found += _rule_differences(sock, spec)
    return found, link


def sandbox_differences(sock: NetlinkSocket, spec: WiringSpec, *, host_link: records.Link | None) -> list[str]:
    """Compare the sandbox side; `sock` is a socket of its namespace. Raises: KernelDumpError, WiringError."""
    name = spec.key.ifname
    link = find_link(sock, name)
    if link is None:
        return [f"interface {name} is missing in {spec.netns}"]
    found = list(_link_differences(link, spec, side="sandbox"))
    if host_link is not None and host_link.peer_index != link.index:
        found.append(f"interface {name} is not the other end of {spec.host_veth}")
    addresses = [records.read_address(body) for body in sock.dump(messages.dump_addresses())]
    own = [one for one in addresses if one.index == link.index and one.scope == uapi.RT_SCOPE_UNIVERSE]
    if (spec.address, 32) not in {(one.address, one.length) for one in own}:
        found.append(f"interface {name} has {_listed(f'{one.address}/{one.length}' for one in own)}, not {spec.address}/32")
    routes = [one for one in survey.routes_of(sock, table=uapi.RT_TABLE_MAIN) if one.index == link.index]
    if not any(one.destination == SANDBOX_GATEWAY and one.length == 32 and one.via is None for one in routes):
        found.append(f"the route to {SANDBOX_GATEWAY} dev {name} is missing in the sandbox")
    if not any(one.destination is None and one.via == SANDBOX_GATEWAY for one in routes):
        found.append(f"the default route via {SANDBOX_GATEWAY} dev {name} is missing in the sandbox")
    return [*found, *_neighbour_differences(sock, spec, link)]


def find_link(sock: NetlinkSocket, name: str) -> records.Link | None:
    """Find one link by name, without a dump."""
    (looked,) = sock.request([replace(messages.get_link(name), tolerated=messages.ABSENT)])
    return records.read_link(looked.replies[0]) if looked.replies else None


def find_link_by_index(sock: NetlinkSocket, index: int) -> records.Link | None:
    """Find one link by index, without a dump; None for index 0."""
    if index <= 0:
        return None
    (looked,) = sock.request([replace(messages.get_link_by_index(index), tolerated=messages.ABSENT)])
    return records.read_link(looked.replies[0]) if looked.replies else None


def has_gateway_neighbour(sock: NetlinkSocket, spec: WiringSpec, link: records.Link) -> bool:
    """Whether the sandbox's permanent neighbour entry of its gateway has the host veth's MAC. Raises: KernelDumpError."""
    return not any(_neighbour_differences(sock, spec, link))


def _link_differences(link: records.Link, spec: WiringSpec, *, side: str, alias: str | None = None) -> Iterable[str]:
    what = f"host link {link.name}" if side == "host" else f"interface {link.name}"
    mac = spec.mac(side)
    if link.kind != layout.VETH_KIND:
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


def _neighbour_differences(sock: NetlinkSocket, spec: WiringSpec, link: records.Link) -> Iterable[str]:
    mac = spec.mac("host")
    neighbours = [records.read_neighbour(body) for body in sock.dump(messages.dump_neighbours())]
    entries = [one for one in neighbours if one.index == link.index and one.address == SANDBOX_GATEWAY]
    if not any(one.is_permanent and one.mac == (mac or one.mac) for one in entries):
        now = _listed(f"{one.mac}{'' if one.is_permanent else ' (not permanent)'}" for one in entries)
        yield f"the neighbour {SANDBOX_GATEWAY} in the sandbox is {now}, not {mac or 'one'} (permanent)"


def _listed(parts: Iterable[str]) -> str:
    return ", ".join(parts) or "none"
