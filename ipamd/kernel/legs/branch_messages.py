"""Build the batches of netlink messages that connect a leg to its branch ENI. Only `branch_route_removal` asks the kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ipamd.kernel import checks, devconf, messages
from ipamd.kernel.netlink import Message, NetlinkSocket
from ipamd.model import kernel as dataplane
from ipamd.model import kernel_numbers
from ipamd.model.family import IPV4, IpAddress, IpNetwork, family_of, read_address
from ipamd.model.kernel import IncomingRule, UplinkRoute
from ipamd.model.legs.branch import BranchLeg
from ipamd.model.legs.branch_eni import Branch
from ipamd.model.record import replace


def naming(leg: BranchLeg, index: int, *, is_up: bool = True) -> Message:
    """Return the message that gives a VLAN link its alias and settings, and takes it out of MAKING_GROUP, the link group of unfinished
    links.

    `is_up`: also bring the link up.
    """
    link = leg.branch.link
    return messages.change_link(
        index,
        step=f"name and raise {link}" if is_up else f"name and hold {link}",
        is_up=is_up or None,
        alias=leg.uplink_alias,
        group=0,
        ipv4_conf=devconf.UPLINK,
    )


def own_addresses(branch: Branch, index: int) -> list[Message]:
    """Return the message that adds the link-local address of a VLAN link, if the branch has IPv6; otherwise none.

    Without such an address the kernel sends no neighbour solicitation. A link-local address that the kernel adds itself is usable only
    after a second or two, but this one is usable at once. Source: the kernel's net/ipv6/ndisc.c, ndisc_send_ns; RFC 4291, appendix A.
    """
    if family_of(branch.gateway) is IPV4:
        return []
    mac = bytes.fromhex(branch.mac.replace(":", ""))
    number = bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:]
    address = read_address("fe80::") + int.from_bytes(number, "big")
    add = messages.add_address(index, address, length=64, step=f"add address {address} to {branch.link}")
    return [replace(add, tolerated=messages.PRESENT)]


def diversion_from_main(leg: BranchLeg) -> list[Message]:
    """Return the messages that keep the sandbox's packets out of table main: the route that ends the branch's table, and rules to it.

    They are sent before the host veth is brought up, because without them its packets would leave by the node's own ENI. An earlier
    sandbox whose link had the same name may have left its rule. That rule is removed first, because it would lead to another pod's
    branch ENI. In strict mode a rule that was left for the VLAN link needs no removal: it leads to the right table, because the link's
    name and the table's number depend on the same VLAN ID.
    """
    branch = leg.branch
    name, family = leg.host_veth if branch.is_strict else branch.link, family_of(branch.gateway)
    batch = [end_of_table(branch), messages.delete_rule(kernel_numbers.INCOMING_PRIORITY, table=0, incoming=name, family=family)]
    if branch.is_strict:
        return batch + [rule(messages.add_rule, incoming, branch) for incoming in leg.incoming_rules]
    return [*batch, messages.add_rule(kernel_numbers.FROM_SANDBOX_PRIORITY, table=branch.route_table, source=leg.address)]


def end_of_table(branch: Branch) -> Message:
    """Return the message that adds the route which ends the table of a branch (`messages.add_table_end`)."""
    return messages.add_table_end(branch.route_table, metric=dataplane.END_METRIC, family=family_of(branch.gateway))


def end_removal(branch: Branch) -> Message:
    """Return the message that removes the route which ends the table of a branch.

    It is sent after the removals of rules to the table.
    """
    return messages.delete_table_end(branch.route_table, metric=dataplane.END_METRIC, family=family_of(branch.gateway))


def uplink_side(leg: BranchLeg, *, link: int, veth: int) -> list[Message]:
    """Return the messages that configure the VLAN link (alias, settings, link-local address), bring it up, and add the leg's routes.

    They are sent after those of `diversion_from_main`.

    Args:
        link: index of the VLAN link.
        veth: index of the host veth.
    """
    branch = leg.branch
    indexes = {branch.link: link, leg.host_veth: veth}
    return [
        messages.disable_ipv6_autoconfiguration(link, step=f"keep other addresses off {branch.link}"),
        naming(leg, link),
        *own_addresses(branch, link),
        *(branch_route(route, indexes, branch) for route in leg.routes if not route.is_end),
    ]


def uplink_side_kept_down(leg: BranchLeg, *, link: int) -> list[Message]:
    """Return the messages for the VLAN link of a sandbox whose links stay down until EC2 has confirmed the ENI.

    No route or rule uses the link yet. The messages give the link its alias and settings, and remove the rule of an earlier sandbox,
    as those of `diversion_from_main` do. `link`: index of the VLAN link.
    """
    branch = leg.branch
    return [
        messages.disable_ipv6_autoconfiguration(link, step=f"keep other addresses off {branch.link}"),
        naming(leg, link, is_up=False),
        messages.delete_rule(kernel_numbers.INCOMING_PRIORITY, table=0, incoming=branch.link, family=family_of(branch.gateway)),
    ]


def rule(build: Callable[..., Message], incoming: IncomingRule, branch: Branch) -> Message:
    """Return the message that adds or deletes a rule by incoming link. `build`: `messages.add_rule` or `delete_rule`."""
    family = family_of(branch.gateway)
    return build(kernel_numbers.INCOMING_PRIORITY, table=incoming.table, incoming=incoming.incoming, family=family)


def branch_route(route: UplinkRoute, indexes: Mapping[str, int], branch: Branch) -> Message:
    """Return the message that adds a route of the branch's table. `indexes`: name -> index of the links."""
    if route.is_end:
        return end_of_table(branch)
    to, _ = _selector(route)
    return messages.add_route(to, via=route.via, index=indexes[route.device], table=route.table, step=f"add route {route}")


def branch_route_removal(route: UplinkRoute, sock: NetlinkSocket) -> Message:
    """Return the message that removes a route of the branch's table. The index of the route's link is looked up."""
    link = checks.find_link(sock, route.device)
    to, length = _selector(route)
    index = link.index if link else 0
    return messages.delete_route(to, length=length, table=route.table, index=index, via=route.via, step=f"delete route {route}")


def _selector(route: UplinkRoute) -> tuple[IpAddress | None, int]:
    """Return the destination of a route as the kernel has it: address and length; None and 0 for the default route."""
    to = route.destination
    if isinstance(to, IpNetwork):
        return to.network_address, to.prefixlen
    return to, to.max_prefixlen if to else 0
