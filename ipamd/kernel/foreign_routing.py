"""Find addresses, default routes and rules of the host's own network configuration that cut pods off.

The functions here only read the kernel's state. EC2 shows every address of an ENI to software on the host, and amazon-ec2-net-utils or
systemd-networkd may configure them all. Packets to an address that is local on the host never reach its sandbox. On the link of an ENI
only the ENI's primary address belongs. An address of the pool there is always wrong, so `pod_address_repairs` yields a repair that
removes it, and `hostnet.py` carries the repair out. If a link of no ENI has an address of the pool, somebody configured it on purpose,
so it is only reported, with the command that removes it. Four faults of routes and rules that are not ours are reported in the same
way: table main has no default route, its default route leads through a secondary ENI, no rule leads to table main, or a rule ahead of
ours refuses packets of sandboxes.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from ipamd.kernel import answers, checks, messages, uapi
from ipamd.kernel.host_state import HostState
from ipamd.kernel.netlink import NetlinkSocket
from ipamd.kernel.repair import Repair
from ipamd.kernel.routing import address_removal
from ipamd.model import source_rules
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.eni import gateway
from ipamd.model.family import IPV4, Family, IpAddress, family_of
from ipamd.model.ids import MacAddress
from ipamd.model.repairs import NODE
from ipamd.model.routing_difference import RoutingDifference, routing_difference


def pod_address_repairs(
    host_state: HostState, identity: InstanceIdentity, link: answers.Link, addresses: Container[IpAddress]
) -> Iterator[Repair]:
    """Yield the repairs that remove addresses of the pool from the primary ENI's link.

    `routing.address_repairs` does the same for other ENIs.
    """
    present = [configured for configured in host_state.addresses if configured.index == link.index]
    for configured in present:
        if configured.address in addresses and configured.address != identity.primary_address:
            yield address_removal(configured, link, present, link_text=f"{link.name} (primary)")


def foreign_differences(
    sock: NetlinkSocket,
    host_state: HostState,
    *,
    identity: InstanceIdentity,
    secondary: Iterable[MacAddress],
    addresses: Container[IpAddress],
    family: Family,
) -> list[RoutingDifference]:
    """Find faults of the host's own configuration that cut pods off.

    These are addresses of the pool on links that do not belong to an ENI, rules that refuse packets, a missing rule to table main, and
    a default route that is missing or leads through a secondary ENI. Raises: WiringError.
    """
    primary = host_state.links.get(identity.primary_mac)
    secondary_indexes = [host_state.links[mac].index for mac in secondary if mac in host_state.links]
    eni_indexes = secondary_indexes + ([primary.index] if primary else [])
    differences = list(_misplaced_addresses(sock, host_state, addresses, eni_indexes))
    differences += _refusing_rules(host_state, addresses)
    if not any(_leads_to_main(rule) for rule in host_state.rules):
        # `ip rule flush` removes the rule to table main. The kernel made this rule at boot, and nothing restores it.
        ip = "ip" if family is IPV4 else "ip -6"
        differences.append(routing_difference(DifferenceCode.MAIN_RULE_MISSING, NODE, ip=ip))
    default = _best_default(host_state)
    if default is not None:
        differences += _diverted_default(sock, default, secondary_indexes)
    elif primary and family is IPV4:  # not for IPv6, whose default route comes from router advertisements
        fields = {"gateway": gateway(identity.subnet_cidr), "link": primary.name}
        differences.append(routing_difference(DifferenceCode.NODE_ROUTE_MISSING, NODE, **fields))
    return differences


def _diverted_default(
    sock: NetlinkSocket, default: answers.Route, secondary_indexes: Container[int]
) -> Iterator[RoutingDifference]:
    """Report a default route through a secondary ENI."""
    if default.index in secondary_indexes:
        name = _name(sock, default.index)
        yield routing_difference(DifferenceCode.NODE_ROUTE_DIVERTED, NODE, link=name, metric=default.metric)


def _misplaced_addresses(
    sock: NetlinkSocket, host_state: HostState, addresses: Container[IpAddress], eni_indexes: Container[int]
) -> Iterator[RoutingDifference]:
    """Find addresses of the pool on links that do not belong to an ENI."""
    for configured in host_state.addresses:
        if configured.address in addresses and configured.index not in eni_indexes:
            fields = {"address": configured.address, "length": configured.length, "link": _name(sock, configured.index)}
            yield routing_difference(DifferenceCode.ADDRESS_ON_HOST, NODE, **fields)


def _refusing_rules(host_state: HostState, addresses: Container[IpAddress]) -> Iterator[RoutingDifference]:
    """Find rules ahead of ours that refuse packets of sandboxes, or all packets.

    Our route lookups do not find every such rule, because it may select a port or mark that no lookup contains.
    """
    for rule in host_state.rules:
        if not rule.is_refusal or rule.priority >= source_rules.END_PRIORITY:
            continue
        is_for_all = not (rule.source or rule.destination)
        if is_for_all or rule.source in addresses or rule.destination in addresses:
            yield routing_difference(DifferenceCode.RULE_REFUSES, NODE, priority=rule.priority)


def _leads_to_main(rule: answers.PolicyRule) -> bool:
    """Whether a rule leads all packets to table main. Our rules for a mark or a destination lead only some packets there."""
    return (rule.table, rule.mask, rule.source, rule.destination) == (uapi.RT_TABLE_MAIN, 0, None, None)


def _best_default(host_state: HostState) -> answers.Route | None:
    """Return the default route of table main with the lowest metric; None if there is none."""
    defaults = []
    for route in host_state.routes:
        if route.table == uapi.RT_TABLE_MAIN and route.destination is None and route.length == 0:
            defaults.append(route)
    return min(defaults, key=lambda route: route.metric, default=None)


def global_address(sock: NetlinkSocket, link: answers.Link, family: Family) -> IpAddress | None:
    """Return the lowest address of a family with global scope on a link; None if there is none.

    Raises: KernelDumpError, WiringError.
    """
    addresses = []
    for body in sock.dump(messages.dump_addresses(family)):
        configured = answers.read_address(body)
        is_global = (configured.index, configured.scope) == (link.index, uapi.RT_SCOPE_UNIVERSE)
        # The family is compared, because a kernel without this family answers with the addresses of all other families.
        if is_global and family_of(configured.address) is family:
            addresses.append(configured.address)
    return min(addresses, key=int, default=None)


def _name(sock: NetlinkSocket, index: int) -> str:
    link = checks.find_link(sock, index)
    if link:
        return link.name
    return f"link {index}"
