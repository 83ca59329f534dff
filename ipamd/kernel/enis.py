"""One secondary ENI on the host: compare link, address, table and rule with what they should be, and list the repairs.

Every step reads first and writes only differences, so setup, repeated setup and reconciliation are the same code; each repair has
one sentence. Source of the steps: amazon-vpc-cni-k8s pkg/networkutils/network.go, setupENINetwork. Different on purpose: it
deletes routes before it replaces them, and removes the connected route after the kernel has added it; here routes are replaced
in one call and the address is added without its connected route, so traffic has no gap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from ipaddress import IPv4Network
from typing import NamedTuple

from ipamd.kernel import messages, records, survey, uapi
from ipamd.kernel.links import HostLook
from ipamd.kernel.netlink import Message, NetlinkSocket
from ipamd.model import kernel as dataplane
from ipamd.model.eni import Eni, gateway
from ipamd.model.errors import WiringError
from ipamd.model.kernel import RepairKind

KERNEL_TABLES = frozenset({uapi.RT_TABLE_UNSPEC, uapi.RT_TABLE_DEFAULT, uapi.RT_TABLE_MAIN, uapi.RT_TABLE_LOCAL})
"""Tables that no ENI may fill or clear."""


KINDS = {
    uapi.RTM_NEWLINK: RepairKind.LINK,
    uapi.RTM_NEWADDR: RepairKind.ADDRESS,
    uapi.RTM_NEWROUTE: RepairKind.ROUTE,
    uapi.RTM_NEWRULE: RepairKind.RULE,
}
"""By the first of the four message types that each kind of object has: NEW, DEL, GET, SET. Source: linux/rtnetlink.h, RTM_FAM."""


class Repair(NamedTuple):
    """What to change; `found` says what differs, `done` what was done about it.

    `promoted_on`: the link whose promote_secondaries must be set first, or "".
    """

    change: Message
    found: str
    done: str
    promoted_on: str = ""

    def __str__(self) -> str:
        return f"{self.found}: {self.done}"

    @property
    def kind(self) -> RepairKind:
        """Of what kind the repaired object is."""
        return KINDS[self.change.kind & ~3]


def refuse_kernel_table(eni: Eni) -> None:
    """Raise WiringError for an ENI whose table is one of the kernel's.

    Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, setupENINetwork, which refuses the primary ENI.
    """
    if eni.is_primary or eni.route_table in KERNEL_TABLES:
        raise WiringError(
            f"{eni.eni_id} has no table of its own ({eni.route_table})",
            details="the primary ENI uses main, which ipamd neither fills nor clears",
        )


def link_repairs(eni: Eni, link: records.Link, *, mtu: int) -> Iterator[Repair]:
    """Compare MTU (bytes) and state of the link."""
    who = f"{link.name} ({eni.eni_id})"
    if link.mtu != mtu:
        change = messages.change_link(link.index, step=f"set MTU of {who}", mtu=mtu)
        yield Repair(change, f"{who} had MTU {link.mtu}", f"set to {mtu}")
    if not link.is_up:
        yield Repair(messages.change_link(link.index, step=f"raise {who}", is_up=True), f"{who} was down", "raised")


def address_repairs(look: HostLook, eni: Eni, link: records.Link) -> Iterator[Repair]:
    """Compare the link's addresses: the ENI's primary address and no other, and no connected route in main."""
    who = f"{link.name} ({eni.eni_id})"
    ours = [one for one in look.addresses if one.index == link.index]
    wanted = (eni.primary_address, eni.subnet_cidr.prefixlen)
    for one in ours:
        if one.scope == uapi.RT_SCOPE_UNIVERSE and (one.address, one.length) != wanted:
            yield address_removal(one, link, ours, who=who)
    if wanted not in {(one.address, one.length) for one in ours}:
        address, length = wanted
        step = f"add address {address}/{length} to {who}"
        change = messages.add_address(link.index, address, length=length, step=step, is_connected=False)
        yield Repair(replace(change, tolerated=messages.PRESENT), f"{who} lacked its address {address}/{length}", "added")
    for route in look.routes:
        if (route.table, route.destination, route.length) == (
            uapi.RT_TABLE_MAIN,
            eni.subnet_cidr.network_address,
            wanted[1],
        ) and (route.index == link.index and route.via is None):
            step = f"delete connected route {eni.subnet_cidr} of {who}"
            yield Repair(_removal(route, step), f"main had the connected route {eni.subnet_cidr} dev {who}", "removed")


def address_removal(
    one: records.InterfaceAddress, link: records.Link, ours: Iterable[records.InterfaceAddress], *, who: str
) -> Repair:
    """Remove an address from a link, but not with it the others of its subnet, among them perhaps the ENI's own.

    The kernel removes secondary addresses with the first one of their subnet unless promote_secondaries is set
    (net/ipv4/devinet.c, __inet_del_ifa).
    """
    network = IPv4Network((one.address, one.length), strict=False)
    others = any(each.is_secondary and each.length == one.length and each.address in network for each in ours)
    step = f"delete address {one.address}/{one.length} from {who}"
    change = messages.delete_address(link.index, one.address, length=one.length, step=step)
    promoted_on = link.name if others and not one.is_secondary else ""
    return Repair(change, f"{who} had a foreign address {one.address}/{one.length}", "removed", promoted_on)


def table_repairs(look: HostLook, eni: Eni, link: records.Link) -> Iterator[Repair]:
    """Compare the ENI's table: the subnet's router on the link, and the default route through it."""
    router, table = gateway(eni.subnet_cidr), eni.route_table
    routes = [one for one in look.routes if one.table == table and one.index == link.index]
    if not any(one.destination == router and one.length == 32 and one.via is None for one in routes):
        words = f"route {router} dev {link.name} table {table}"
        change = messages.add_route(router, index=link.index, table=table, step=f"add {words}", is_replaced=True)
        yield Repair(change, f"{words} of {eni.eni_id} was missing", "added")
    if not any(one.destination is None and one.via == router for one in routes):
        words = f"default route via {router} dev {link.name} table {table}"
        change = messages.add_route(None, via=router, index=link.index, table=table, step=f"add {words}", is_replaced=True)
        yield Repair(change, f"{words} of {eni.eni_id} was missing", "added")


def rule_repairs(look: HostLook, eni: Eni) -> Iterator[Repair]:
    """Compare the rules 32765 from the ENI's primary address: one, to the ENI's table."""
    priority, address = dataplane.FROM_ENI_PRIORITY, eni.primary_address
    tables = [
        rule.table for rule in look.rules if rule.priority == priority and rule.source == address and rule.source_length == 32
    ]
    if eni.route_table not in tables:
        change = messages.add_rule(priority, table=eni.route_table, source=address)
        yield Repair(change, f"rule {priority} from {address} lookup {eni.route_table} was missing", "added")
    for table in tables:
        if table != eni.route_table:
            change = messages.delete_rule(priority, table=table, source=address)
            yield Repair(change, f"rule {priority} from {address} looked up table {table}", "removed")


def removals(sock: NetlinkSocket, eni: Eni, *, keep: Collection[Eni] = ()) -> list[Message]:
    """Remove everything in the ENI's table, and our rules that look it up. Dumps.

    `keep`: ENIs that stay. If one of them has the same table (a successor at the same device), then the table is its own, and so
    may be the rules of sandboxes: only the rule from this ENI's own primary address goes, unless that is the successor's too. Routes
    through this ENI's link went with the link.
    """
    table = eni.route_table
    successors = [other for other in keep if other.route_table == table and other.eni_id != eni.eni_id]
    found: list[Message] = []
    if not successors:
        # Default routes first: the kernel removes one by itself only together with its link, not with the route to its next hop.
        routes = sorted(survey.routes_of(sock, table=table), key=lambda one: one.length)
        found += [_removal(one, f"delete route {one.destination or 'default'} of table {table}") for one in routes]
    own_source = {eni.primary_address} - {other.primary_address for other in successors}
    for rule in survey.rules_of(sock):
        if rule.table != table or rule.source is None or rule.source_length != 32:
            continue
        is_ours = rule.priority in {dataplane.FROM_ENI_PRIORITY, dataplane.FROM_SANDBOX_PRIORITY}
        is_own = rule.priority == dataplane.FROM_ENI_PRIORITY and rule.source in own_source
        if is_own or (is_ours and not successors):
            found.append(messages.delete_rule(rule.priority, table=table, source=rule.source))
    return found


def _removal(route: records.Route, step: str) -> Message:
    return messages.delete_route(
        route.destination, length=route.length, index=route.index, table=route.table, metric=route.metric, step=step
    )
