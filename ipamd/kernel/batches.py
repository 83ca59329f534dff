"""The batches of netlink messages that wire and unwire one sandbox: values in, messages out, no I/O but one dump.

Which routes, rules and neighbours exist is compatible with amazon-vpc-cni-k8s (`ipamd/model/kernel.py`). `wiring` sends them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import IPv4Address

from ipamd.kernel import messages, records, survey, uapi
from ipamd.kernel.netlink import Message, NetlinkSocket, Outcome
from ipamd.model import kernel as dataplane
from ipamd.model.attachment import WiringSpec
from ipamd.model.kernel import SANDBOX_GATEWAY


def host_side(spec: WiringSpec, index: int, *, ipv4_conf: Mapping[int, int]) -> list[Message]:
    """Host side of a sandbox whose host veth has link index `index`: 4 messages, 5 on a secondary ENI.

    `ipv4_conf`: the host veth's settings (`devconf.host_veth`). An IPv6 address would cost more than the rest of the batch, and
    is one more way to the node.
    """
    name = spec.host_veth
    batch = [
        messages.give_no_ipv6_address(index, step=f"keep IPv6 off {name}"),
        messages.change_link(index, step=f"name and raise {name}", is_up=True, alias=spec.alias, ipv4_conf=ipv4_conf),
        messages.add_route(spec.address, index=index, step=f"add route {spec.address} dev {spec.host_veth}"),
    ]
    return batch + sandbox_rules(messages.add_rule, spec.address, spec.route_table)


def sandbox_side(spec: WiringSpec, index: int, host_mac: str) -> list[Message]:
    """Sandbox side, in the order that the kernel needs: link up, then routes; the next hop's route before the default route."""
    name = spec.key.ifname
    return [
        messages.change_link(index, step=f"raise {name}", is_up=True),
        messages.add_address(index, spec.address, length=32, step=f"add address {spec.address} to {name}"),
        messages.add_route(SANDBOX_GATEWAY, index=index, step=f"add route {SANDBOX_GATEWAY} dev {name}"),
        messages.add_route(None, index=index, via=SANDBOX_GATEWAY, step=f"add default route via {SANDBOX_GATEWAY}"),
        messages.add_neighbour(index, SANDBOX_GATEWAY, mac=host_mac, step=f"add neighbour {SANDBOX_GATEWAY}"),
    ]


def sandbox_rules(make: Callable[..., Message], address: IPv4Address, route_table: int) -> list[Message]:
    """Add or delete rule 512, and rule 1536 unless the address is routed by main: `make` is `messages.add_rule` or `delete_rule`."""
    batch = [make(dataplane.TO_SANDBOX_PRIORITY, table=uapi.RT_TABLE_MAIN, destination=address)]
    if route_table != uapi.RT_TABLE_MAIN:
        batch.append(make(dataplane.FROM_SANDBOX_PRIORITY, table=route_table, source=address))
    return batch


def retirement(address: IPv4Address, link: records.Link) -> list[Message]:
    """Mark a host veth as dying and leave it up: its route goes, and the last message looks up where the address leads now."""
    group = messages.change_link(link.index, step=f"mark link {link.name}", group=uapi.DYING_GROUP)
    step = f"delete route {address} dev {link.name}"
    return [
        messages.delete_route(address, length=32, table=uapi.RT_TABLE_MAIN, index=link.index, step=step),
        replace(group, tolerated=messages.ABSENT),
        messages.look_up_route(address),
    ]


def leads_elsewhere(looked: Outcome, link: records.Link) -> bool:
    """Whether the last message of `retirement` found the address unreachable, or routed through another link (I11: no in doubt)."""
    if looked.errno in messages.UNREACHABLE:
        return True
    return looked.errno == 0 and bool(looked.replies) and records.read_route(looked.replies[0]).index not in {0, link.index}


def address_removals(host: NetlinkSocket, address: IPv4Address) -> list[Message]:
    """Remove every route and rule of address/32, in all tables but the kernel's own (local). Dumps.

    Raises: KernelDumpError, WiringError.
    """
    batch = [
        messages.delete_route(
            address, length=32, table=route.table, index=route.index, metric=route.metric,
            step=f"delete route {address} of table {route.table}",
        )
        for route in survey.routes_of(host)
        if route.destination == address and route.length == 32 and route.route_type == uapi.RTN_UNICAST
    ]  # fmt: skip
    for rule in survey.rules_of(host):
        if survey.is_to_sandbox(rule) and rule.destination == address:
            batch.append(messages.delete_rule(rule.priority, table=rule.table, destination=address))
        if survey.is_from_sandbox(rule) and rule.source == address:
            # Old releases of amazon-vpc-cni-k8s added one rule for each VPC CIDR (from address to CIDR); their restart merged
            # them (pkg/networkutils/network.go, UpdateRuleListBySrc). One deletion each, for any destination.
            batch.append(messages.delete_rule(rule.priority, table=rule.table, source=address))
    return batch


def removal_of(message: Message) -> Message | None:
    """Make the message that undoes an added rule; None for any other message."""
    if message.kind != uapi.RTM_NEWRULE:
        return None
    return replace(message, step=f"undo: {message.step}", kind=uapi.RTM_DELRULE, flags=0, tolerated=messages.ABSENT)
