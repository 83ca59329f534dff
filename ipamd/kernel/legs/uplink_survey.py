"""Read the uplinks out of a survey's dumps: the VLAN links, the routes of their tables, and the rules by incoming link."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from ipamd.kernel import answers, uapi
from ipamd.model import kernel as dataplane
from ipamd.model import kernel_numbers
from ipamd.model.attachment import VETH_HASH_LENGTH
from ipamd.model.family import IPV4, IpAddress, IpNetwork, family_of
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.kernel import IncomingRule, KernelSurvey, UplinkRoute, VlanLink
from ipamd.model.kernel_numbers import LINK_PREFIX, STRICT_VETH_PREFIX, TABLE_BASE
from ipamd.model.legs import Leg
from ipamd.model.legs.branch import BRANCH_TAG, BranchLeg
from ipamd.model.legs.branch_alias import decode_link_alias
from ipamd.model.legs.branch_eni import Branch
from ipamd.model.record import replace
from ipamd.ports.kernel import VlanLinks

_STRICT_VETH = re.compile(rf"{STRICT_VETH_PREFIX}[0-9a-f]{{{VETH_HASH_LENGTH}}}")


def with_uplinks(
    survey: KernelSurvey,
    vlans: tuple[VlanLink, ...],
    *,
    routes: Iterable[answers.Route],
    rules: Iterable[answers.PolicyRule],
    names: Mapping[int, str],
) -> KernelSurvey:
    """Add uplinks to a survey: VLAN links, their routes and their rules. `names`: index -> name of the links."""
    incoming = incoming_rules(rules)
    uplink_routes = _uplink_routes(routes, _uplink_tables(vlans, incoming, survey), names)
    return replace(survey, vlans=vlans, uplink_routes=uplink_routes, incoming_rules=incoming)


def may_have_uplink(link: answers.Link) -> bool:
    """Whether a link may be the uplink of a sandbox, or the host veth of a sandbox with an uplink."""
    return link.name.startswith(STRICT_VETH_PREFIX) or link.alias.startswith(f"{BRANCH_TAG} ")


def is_uplinked(link: answers.Link, kind: type[Leg] | None) -> bool:
    """Whether a host veth is of a leg with an uplink. `kind`: the kind of leg in the link's alias; None if the alias is not ours."""
    return kind is BranchLeg or (kind is None and is_strict_veth(link))


def is_strict_veth(link: answers.Link) -> bool:
    """Whether a link is a veth whose name has the form of host veths in strict mode."""
    return link.kind == uapi.VETH_KIND and bool(_STRICT_VETH.fullmatch(link.name))


def vlan_link(link: answers.Link, vlan_links: VlanLinks | None = None) -> VlanLink | None:
    """Convert one link whose name has the form of a branch ENI's link; None for any other link.

    If the link cannot lead to a branch ENI in spite of its name, `VlanLink.impostor_why` has the reason.

    `vlan_links`: recognises the links that a lab uses in place of VLAN links; None if the kernel makes VLAN links.
    """
    identity = decode_link_alias(link.alias, name=link.name, mac=link.mac)
    number = link.name.removeprefix(LINK_PREFIX)
    if number == link.name or not (number.isascii() and number.isdigit()):
        return None
    unfinished = Branch(int(number), MacAddress(link.mac), IPV4.gateway, False) if link.group == uapi.MAKING_GROUP else None
    address, eni_id, branch = identity or (None, EniId(""), unfinished)
    why, parent = _impostor_why(link, int(number), vlan_links)
    return VlanLink(
        name=link.name,
        ifindex=link.index,
        vlan=int(number),
        mac=link.mac,
        alias=link.alias,
        parent=parent,
        is_dying=link.group == uapi.DYING_GROUP,
        is_up=link.is_up,
        address=address,
        eni_id=eni_id,
        uplink=branch,
        impostor_why=why,
    )


def vlans_among(by_index: Mapping[int, answers.Link], vlan_links: VlanLinks | None) -> tuple[VlanLink, ...]:
    """Return the links whose names have the form of branch ENIs' links, each with the MAC of its parent link."""
    vlans: list[VlanLink] = []
    for link in by_index.values():
        vlan = vlan_link(link, vlan_links)
        if vlan:
            vlans.append(_with_parent(vlan, by_index))
    return tuple(vlans)


def incoming_rules(rules: Iterable[answers.PolicyRule]) -> frozenset[IncomingRule]:
    """Return the rules of strict mode, which select packets by incoming link and lead them to the tables of branch ENIs."""
    return frozenset(
        IncomingRule(rule.incoming, rule.table)
        for rule in rules
        if rule.priority == kernel_numbers.INCOMING_PRIORITY and rule.incoming
    )


def is_end(route: answers.Route) -> bool:
    """Whether a route is the one that ends the table of a branch (`messages.add_table_end`)."""
    selector = (route.destination, route.length, route.metric, route.route_type)
    return selector == (None, 0, dataplane.END_METRIC, uapi.RTN_UNREACHABLE)


def _uplink_tables(vlans: Iterable[VlanLink], incoming: Iterable[IncomingRule], result: KernelSurvey) -> set[int]:
    """Return the numbers of the tables of branch ENIs, even if the VLAN link is missing, and of STRICT_TABLE, in which sources of
    packets are looked up in strict mode.
    """
    tables = {kernel_numbers.STRICT_TABLE}
    tables.update(TABLE_BASE + vlan.vlan for vlan in vlans)
    tables.update(rule.table for rule in incoming)
    for veth in result.uplinked:
        if veth.address:
            tables.update(result.from_rules.get(veth.address, ()))
    return tables


def _uplink_routes(routes: Iterable[answers.Route], tables: Collection[int], names: Mapping[int, str]) -> frozenset[UplinkRoute]:
    """Convert the routes that are in the tables of branch ENIs."""
    uplink_routes = set[UplinkRoute]()
    for route in routes:
        if route.table in tables:
            branch_route = _uplink_route(route, names)
            if branch_route:
                uplink_routes.add(branch_route)
    return frozenset(uplink_routes)


def _uplink_route(route: answers.Route, names: Mapping[int, str]) -> UplinkRoute | None:
    """Convert a route in the table of a branch; None for a route that is neither unicast nor the route that ends the table."""
    if is_end(route):
        return UplinkRoute(route.table, None, None, "", is_end=True)
    if route.route_type != uapi.RTN_UNICAST:
        return None
    return UplinkRoute(route.table, _destination(route), route.via, names.get(route.index, f"link {route.index}"))


def _destination(route: answers.Route) -> IpAddress | IpNetwork | None:
    """Return the destination of a route in the form of `UplinkRoute`: None, one address, or a network."""
    address = route.destination
    return address if address is None or route.is_to(address) else family_of(address).network((address, route.length))


def _with_parent(vlan: VlanLink, by_index: Mapping[int, answers.Link]) -> VlanLink:
    """Add the MAC of the link that a VLAN link is on."""
    parent = by_index.get(vlan.parent)
    return replace(vlan, parent_mac=parent.mac) if parent else vlan


def _impostor_why(link: answers.Link, vlan: int, vlan_links: VlanLinks | None) -> tuple[str, int]:
    """Return why a link cannot be the VLAN link that its name claims, "" if it can; and the index of its parent link.

    `vlan`: the VLAN ID in the link's name.
    """
    kind = vlan_links.kind if vlan_links else uapi.VLAN_KIND
    if link.kind != kind:
        return f"is of kind {link.kind or 'hardware'}, not {kind}", link.peer_index
    if link.netnsid:
        return "leads into another network namespace", link.peer_index
    parent, number, protocol = link.peer_index, link.vlan, link.vlan_protocol
    if vlan_links:
        (parent, number), protocol = vlan_links.place(link.name, peer=link.peer_index), uapi.ETH_P_8021Q
    if (number, protocol) != (vlan, uapi.ETH_P_8021Q):
        return f"carries VLAN ID {number} by protocol {protocol:#06x}, not {vlan} by 802.1Q", parent
    return "", parent
