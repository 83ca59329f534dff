"""Build the batches of netlink messages that wire and unwire any leg of a sandbox.

The modules in `legs` combine these batches, and `wiring` sends them. The functions take values and return messages; only
`address_removals` does I/O, to dump routes and rules. The routes, rules and neighbour entries are compatible with those of
amazon-vpc-cni-k8s (`ipamd/model/kernel_numbers.py`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from pathlib import Path

from ipamd.kernel import further_interfaces, messages, sandbox_repair, survey, uapi
from ipamd.kernel.netlink import Message, NetlinkSocket
from ipamd.model import kernel_numbers
from ipamd.model.family import IPV4, IPV6, IpAddress, family_of
from ipamd.model.legs import Leg

NETNS_DIRECTORY = Path("/run/netns")
"""The directory in which runtimes mount the namespaces of their sandboxes. Source: github.com/containerd/containerd pkg/netns;
ip-netns(8)."""

IPV6_IS_OFF = errno.EACCES
"""The kernel's errno if an IPv6 address or route is added to a link for which IPv6 is turned off. Source: net/ipv6/addrconf.c,
inet6_addr_add."""


def name_host_veth(leg: Leg, index: int, ipv4_conf: Mapping[int, int]) -> list[Message]:
    """Give a host veth its alias and settings, and then raise it, unless the sandbox's links must stay down (`is_kept_down`).

    The link gets no IPv6 address: adding one would take longer than all other messages of the batch, and the sandbox could reach the
    node by it.

    A separate message raises the link, after all other changes. Each change to a link that is up makes the kernel walk all IPv6 routes
    of the namespace, which takes a millisecond with 2,500 sandboxes. Source: net/core/dev.c, netif_state_change;
    net/ipv6/addrconf.c, addrconf_notify.

    Args:
        index: of the host veth.
        ipv4_conf: the settings (`devconf.host_veth`).
    """
    name = leg.host_veth
    batch = [
        messages.disable_ipv6_autoconfiguration(index, step=f"keep IPv6 off {name}"),
        messages.change_link(index, step=f"name host link {name}", alias=leg.alias, ipv4_conf=ipv4_conf),
    ]
    if not leg.sandbox.is_kept_down:
        batch.append(messages.change_link(index, step=f"raise host link {name}", is_up=True))
    return batch


def fixed_neighbour(leg: Leg, index: int) -> list[Message]:
    """Return the message that adds the sandbox's permanent neighbour entry on the host veth `index`; none if the leg needs no such
    entry.
    """
    if leg.is_neighbour_fixed:
        return [messages.add_neighbour(index, leg.address, mac=leg.mac("sandbox"))]
    return []


def rule_from_sandbox(leg: Leg) -> list[Message]:
    """Return the message that adds the rule from the leg's address, or from its prefix; none for a leg that uses table main."""
    if leg.route_table == uapi.RT_TABLE_MAIN:
        return []
    source = leg.prefix or leg.address
    return [messages.add_rule(leg.rule_priority, table=leg.route_table, source=source)]


def sandbox_side(leg: Leg, index: int, *, has_default_route: bool = False) -> list[Message]:
    """Configure the sandbox side, in the order that the kernel needs.

    The link is raised before routes are added, and the route to the next hop is added before the default route. Neighbours and
    addresses, which can be set while the link is down, come first: once both ends are up, the kernel announces the host veth's carrier
    and holds its lock for links meanwhile (for two milliseconds with 2,500 sandboxes of IPv6), so later messages would wait.

    Args:
        index: of the link inside the sandbox.
        has_default_route: whether the sandbox has a default route already; used only for a further interface.
    """
    name, address, gateway = leg.ifname, leg.address, leg.gateway
    batch = [
        messages.add_neighbour(index, gateway, mac=leg.mac("host")),
        messages.add_address(index, address, length=address.max_prefixlen, step=f"add address {address} to {name}"),
        messages.change_link(index, step=f"raise {name}", is_up=True),
    ]
    if leg.is_neighbour_fixed:
        batch.insert(0, messages.disable_ipv6_autoconfiguration(index, step=f"keep other addresses off {name}"))
    if family_of(address) is IPV6:
        batch.append(messages.add_local_route(address, index=index, step=f"deliver packets for {address}"))
    if leg.is_further_interface:
        batch += further_interfaces.routing(leg, index, has_default_route=has_default_route)
    else:
        batch += [
            messages.add_route(gateway, index=index, step=f"add route {gateway} dev {name}"),
            messages.add_route(None, index=index, via=gateway, step=f"add default route via {gateway}"),
        ]
    return batch


def sandbox_routes(leg: Leg, index: int, name: str) -> list[Message]:
    """Return the messages that add the routes to a leg through its host veth. `name`: the present name of the veth."""
    return [sandbox_repair.wiring_route(leg.address, index, name, table=table) for table in leg.route_tables]


def sandbox_rules(make: Callable[..., Message], address: IpAddress, route_table: int) -> list[Message]:
    """Return the messages that add or delete the rule to an address (priority 512) and, unless `route_table` is main, the rule from it
    (priority 1536).

    amazon-vpc-cni-k8s and earlier releases made these rules. DEL removes both, whichever program added them
    (`sandbox_rule_removals`). `make`: `messages.add_rule` or `delete_rule`.
    """
    batch = [make(kernel_numbers.TO_SANDBOX_PRIORITY, table=uapi.RT_TABLE_MAIN, destination=address)]
    if route_table != uapi.RT_TABLE_MAIN:
        batch.append(make(kernel_numbers.FROM_SANDBOX_PRIORITY, table=route_table, source=address))
    return batch


def sandbox_rule_removals(address: IpAddress, route_table: int) -> list[Message]:
    """Return the messages that remove the rule to an address (priority 512), and the rule from it to a table other than main.

    With IPv6, which has no buckets, the rule from the address has priority 1536. With IPv4 its removal names no priority, because the
    priority depends on the bucket, and the subnet that determines the bucket may be unknown. That removal is sent twice, because while
    a repair moves the rule there is a rule at priority 1536 and another in a bucket.
    """
    if route_table == uapi.RT_TABLE_MAIN or family_of(address) is not IPV4:
        return sandbox_rules(messages.delete_rule, address, route_table)
    batch = sandbox_rules(messages.delete_rule, address, uapi.RT_TABLE_MAIN)
    removal = messages.delete_rule(None, table=route_table, source=address)
    return [*batch, removal, removal]


def address_removals(host: NetlinkSocket, address: IpAddress) -> list[Message]:
    """Dump routes and rules, and return the messages that remove every unicast route to an address, and every rule to or from it.

    Raises: KernelDumpError, WiringError.
    """
    batch: list[Message] = []
    for route in survey.routes_of(host, family=family_of(address)):
        if route.is_to(address) and route.route_type == uapi.RTN_UNICAST:
            removal = messages.delete_route(
                address,
                length=address.max_prefixlen,
                table=route.table,
                index=route.index,
                metric=route.metric,
                step=f"delete route {address} of table {route.table}",
            )
            batch.append(removal)
    for rule in survey.rules_of(host, family_of(address)):
        if survey.is_to_sandbox(rule) and rule.destination == address:
            batch.append(messages.delete_rule(rule.priority, table=rule.table, destination=address))
        if survey.is_from_sandbox(rule) and rule.source == address:
            # Old releases of amazon-vpc-cni-k8s added one rule for each VPC CIDR (from address to CIDR), and merged them at a
            # restart (pkg/networkutils/network.go, UpdateRuleListBySrc). Each deletion removes one, for any destination.
            batch.append(messages.delete_rule(rule.priority, table=rule.table, source=address))
    return batch
