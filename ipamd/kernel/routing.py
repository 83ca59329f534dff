"""Compare link, address, table and rule of a secondary ENI on the host with what they should be, and list the repairs.

Every step reads first and changes only what differs, so setup, repeated setup and reconciliation are the same code. Source of the
steps: amazon-vpc-cni-k8s pkg/networkutils/network.go, setupENINetwork, with a deliberate difference. amazon-vpc-cni-k8s deletes routes
before it replaces them, and removes the connected route after the kernel has added it. This module replaces routes in one call and
adds the address without its connected route, so traffic is not interrupted.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator

from ipamd.kernel import answers, messages, source_tree, survey, uapi
from ipamd.kernel.host_state import HostState
from ipamd.kernel.netlink import Message, NetlinkSocket
from ipamd.kernel.repair import Repair, route_removal, rule_repair
from ipamd.model import kernel_numbers, source_rules
from ipamd.model.eni import Eni
from ipamd.model.errors import WiringError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import Family, IpAddress, family_of
from ipamd.model.record import replace
from ipamd.model.repairs import RepairCode, RepairKind

KERNEL_TABLES = frozenset({uapi.RT_TABLE_UNSPEC, uapi.RT_TABLE_DEFAULT, uapi.RT_TABLE_MAIN, uapi.RT_TABLE_LOCAL})
"""Tables that no ENI may fill or clear."""


def refuse_kernel_table(eni: Eni) -> None:
    """Raise WiringError for the primary ENI, and for an ENI whose table is one of the kernel's.

    Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, setupENINetwork, which refuses the primary ENI.
    """
    if eni.is_primary or eni.route_table in KERNEL_TABLES:
        raise failure(WiringError, FailureCode.ENI_WITHOUT_TABLE, eni=eni.eni_id, table=eni.route_table)


def link_repairs(eni: Eni, link: answers.Link, *, mtu: int) -> Iterator[Repair]:
    """Yield the repairs of an ENI's link that has another MTU (bytes) than `mtu`, or is down."""
    link_text = f"{link.name} ({eni.eni_id})"
    if link.mtu != mtu:
        change = messages.change_link(link.index, step=f"set MTU of {link_text}", mtu=mtu)
        yield Repair(RepairKind.LINK, RepairCode.VALUE_SET, f"MTU of {link_text}", change, before=str(link.mtu), after=str(mtu))
    if not link.is_up:
        change = messages.change_link(link.index, step=f"raise {link_text}", is_up=True)
        yield Repair(RepairKind.LINK, RepairCode.VALUE_SET, f"state of {link_text}", change, before="down", after="up")


def address_repairs(host_state: HostState, eni: Eni, link: answers.Link) -> Iterator[Repair]:
    """Yield the repairs of the link's addresses: it must have the ENI's primary address, and no other address of global scope.

    The address must have no connected route in the main table.
    """
    link_text = f"{link.name} ({eni.eni_id})"
    present = [address for address in host_state.addresses if address.index == link.index]
    wanted = (eni.primary_address, eni.subnet_cidr.prefixlen)
    for configured in present:
        if configured.scope == uapi.RT_SCOPE_UNIVERSE and (configured.address, configured.length) != wanted:
            yield address_removal(configured, link, present, link_text=link_text)
    if wanted not in {(configured.address, configured.length) for configured in present}:
        address, length = wanted
        target = f"address {address}/{length} of {link_text}"
        change = messages.add_address(link.index, address, length=length, step=f"add {target}", is_connected=False)
        change = replace(change, tolerated=messages.PRESENT)
        yield Repair(RepairKind.ADDRESS, RepairCode.ADDED, target, change)
    for route in host_state.routes:
        connected = (uapi.RT_TABLE_MAIN, eni.subnet_cidr.network_address, wanted[1], link.index, None)
        if (route.table, route.destination, route.length, route.index, route.via) == connected:
            target = f"connected route {eni.subnet_cidr} dev {link_text} table main"
            yield Repair(RepairKind.ROUTE, RepairCode.REMOVED, target, route_removal(route, f"delete {target}"))


def address_removal(
    configured: answers.InterfaceAddress, link: answers.Link, present: Iterable[answers.InterfaceAddress], *, link_text: str
) -> Repair:
    """Return the repair that removes an address from a link and keeps the other addresses of its subnet.

    The ENI's primary address may be among these. If the first address of a subnet is removed, the kernel also removes the other ones
    (secondary addresses), or keeps them if promote_secondaries is set (net/ipv4/devinet.c, __inet_del_ifa). So the repair sets
    promote_secondaries first where that is needed.

    Args:
        present: all addresses of the link.
        link_text: names the link in reports.
    """
    target = f"address {configured.address}/{configured.length} of {link_text}"
    network = family_of(configured.address).network((configured.address, configured.length), strict=False)
    has_secondaries = any(
        other.is_secondary and other.length == configured.length and other.address in network for other in present
    )
    change = messages.delete_address(link.index, configured.address, length=configured.length, step=f"delete {target}")
    promote = None
    if has_secondaries and not configured.is_secondary:
        # Source: the kernel's Documentation/networking/ip-sysctl.rst, promote_secondaries; systemd sets it for all links.
        promote = (f"net/ipv4/conf/{link.name}/promote_secondaries", "1")
    return Repair(RepairKind.ADDRESS, RepairCode.FOREIGN_REMOVED, target, change, sysctl=promote)


def table_repairs(host_state: HostState, eni: Eni, link: answers.Link, *, router: IpAddress) -> Iterator[Repair]:
    """Yield the repairs of the ENI's table: it must have a route to the subnet's router on the link, and the default route through it.

    The table does not end with `unreachable default`, unlike the table of an uplink. A packet that finds no route here is routed by
    table main and leaves by the primary ENI. EC2's source/destination check drops it there, because its source is an address of
    another ENI. So no security group is circumvented.
    """
    table = eni.route_table
    present = {
        (route.destination, route.via) for route in host_state.routes if route.table == table and route.index == link.index
    }
    for to, via in ((router, None), (None, router)):
        if (to, via) not in present:
            words = f"{'default route via' if via else 'route'} {router} dev {link.name} table {table}"
            change = messages.add_route(to, via=via, index=link.index, table=table, step=f"add {words}", is_replaced=True)
            yield Repair(RepairKind.ROUTE, RepairCode.ADDED, f"{words} of {eni.eni_id}", change)


def rule_repairs(host_state: HostState, eni: Eni) -> Iterator[Repair]:
    """Yield the repairs of the rules from the ENI's primary address (FROM_ENI_PRIORITY): there must be one, to the ENI's table.

    For an ENI of a further network card the node's image may have made rules already, at another priority or to other tables. If one
    of them leads to the ENI's table, no rule is added. No rule of such an ENI is removed. If such a rule leads to a table with another
    number, we do not use that table in place of ours, unlike amazon-vpc-cni-k8s (pkg/networkutils/network.go,
    getRouteTableNumberForENI).
    """
    priority, address = kernel_numbers.FROM_ENI_PRIORITY, eni.primary_address
    tables = _tables_from_primary(host_state, eni)
    if eni.route_table not in tables:
        yield rule_repair(priority, table=eni.route_table, source=address, is_wanted=True)
    surplus = [] if eni.network_card else [table for table in tables if table != eni.route_table]
    for table in surplus:
        yield rule_repair(priority, table=table, source=address, is_wanted=False)


def _tables_from_primary(host_state: HostState, eni: Eni) -> list[int]:
    """Return the tables to which rules from the ENI's primary address lead. On network card 0 only rules at our priority count."""
    tables: list[int] = []
    for rule in host_state.rules:
        is_from_it = rule.source == eni.primary_address and rule.source_length == 32
        if is_from_it and (eni.network_card or rule.priority == kernel_numbers.FROM_ENI_PRIORITY):
            tables.append(rule.table)
    return tables


def removals(sock: NetlinkSocket, eni: Eni, *, remaining: Collection[Eni] = (), family: Family) -> list[Message]:
    """Return messages that remove everything in the ENI's table, our rules that look it up, and the `goto` rules for its subnet.

    Dumps routes and rules. Raises: KernelDumpError, WiringError.

    `remaining`: ENIs that stay. If one of them has the same table (a successor with the same device index), the table belongs to it
    now, and the rules of sandboxes may belong to it too. Then the table and the rules to it stay, except the rule from this ENI's
    primary address, which stays only if the successor has the same address. The routes through this ENI's link need no message,
    because the kernel has removed them together with the link. The `goto` rules stay if a remaining secondary ENI is in the same
    subnet.
    """
    table = eni.route_table
    successors = [other for other in remaining if other.route_table == table and other.eni_id != eni.eni_id]
    batch = [] if successors else _table_removals(sock, table, family)
    rules = survey.rules_of(sock, family)
    batch += _rule_removals(rules, eni, successors, family)
    has_other_in_subnet = any(not other.is_primary and other.subnet_cidr == eni.subnet_cidr for other in remaining)
    if not has_other_in_subnet:
        batch += source_tree.jump_removals(rules, eni.subnet_cidr)
    return batch


def _rule_removals(
    rules: Iterable[answers.PolicyRule], eni: Eni, successors: Collection[Eni], family: Family
) -> Iterator[Message]:
    """Yield the messages that remove the rules which lead to an ENI's table and are not needed without the ENI.

    `rules`: all rules of the node. `successors`: ENIs that have the same table now.
    """
    own_addresses = {eni.primary_address} - {other.primary_address for other in successors}
    for rule in rules:
        if rule.table != eni.route_table or rule.source is None:
            continue
        if _goes_with_eni(rule, family, own_addresses=own_addresses, has_successor=bool(successors)):
            prefix = family.network((rule.source, rule.source_length))
            yield messages.delete_rule(rule.priority, table=eni.route_table, source=prefix)


def _table_removals(sock: NetlinkSocket, table: int, family: Family) -> list[Message]:
    # Default routes come first, because the kernel does not remove a default route together with the route to its next hop. (It
    # removes a default route only together with its link.)
    routes = sorted(survey.routes_of(sock, table=table, family=family), key=lambda route: route.length)
    return [route_removal(route, f"delete route {route.destination or 'default'} of table {table}") for route in routes]


def _goes_with_eni(rule: answers.PolicyRule, family: Family, *, own_addresses: Container[IpAddress], has_successor: bool) -> bool:
    """Whether a rule to the table of an ENI is to be removed with the ENI.

    Args:
        own_addresses: the ENI's primary address; empty if a successor has that address.
        has_successor: whether another ENI has the same table now.
    """
    if rule.source is None or rule.source_length not in {rule.source.max_prefixlen, family.prefix_length}:
        return False
    if rule.priority == kernel_numbers.FROM_ENI_PRIORITY and rule.source in own_addresses:
        return True
    return not has_successor and rule.priority in {kernel_numbers.FROM_ENI_PRIORITY, *source_rules.SINGLE_PRIORITIES}
