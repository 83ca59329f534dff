"""Route packets by source address, so that a sandbox's further interface, such as Multus's `net1`, works without the default route.

Inside the sandbox the interface gets a route table of its own with the next hop and a default route, and a rule from its address to
that table. So replies to a packet leave by the interface that it came by, whatever the default route of the sandbox is. A sandbox
without any default route also gets one through the interface, with a metric so high that the pod's own interface, if it is added
later, is preferred. For an interface of a further network card (`mNicIf1`), table and priority follow from the number in its name
(`ipamd/model/card_interfaces.py`). Any other interface has the table TABLES plus its index, and the priority FROM_SANDBOX_PRIORITY.

On the host a further interface is wired like any other. When its link is deleted, the kernel removes the interface's routes inside the
sandbox, but not the rule, which `remove_source_rule` removes. A rule that stays after a crash has no effect, because its table is
empty (docs/adr/0070).
"""

from __future__ import annotations

from ipamd.kernel import messages
from ipamd.kernel.netlink import Message, NetlinkSocket, must
from ipamd.kernel.netns import HostNetns, opened_netns
from ipamd.model import kernel_numbers
from ipamd.model.card_interfaces import inside_routing, interface_number
from ipamd.model.cni_request import NetnsIdentity
from ipamd.model.family import Family, IpAddress
from ipamd.model.legs import Leg
from ipamd.model.record import replace

TABLES = 113_300_000
"""The table of an interface is this number plus its link index, which is unique in the sandbox. Ours: far from the tables that CNI's
`sbr` plugin chooses (from 100 on) and from those of amazon-vpc-cni-k8s (the interface's number)."""

METRIC = 113_213
"""Metric of the routes that a sandbox without a default route gets in its table main. Ours: higher than the metrics that other plugins
use, so that the routes of an interface that is added later are preferred."""


def routing(leg: Leg, index: int, *, has_default_route: bool) -> list[Message]:
    """Build the routes of a further interface and the rule that leads to them, in the order that the kernel needs.

    Args:
        index: index of the link inside the sandbox.
        has_default_route: whether the sandbox has a default route already; then no route is added to its table main.
    """
    name = leg.ifname
    gateway = leg.gateway
    table, priority = _place(name, index)
    batch = [
        messages.add_route(gateway, index=index, table=table, step=f"add route {gateway} dev {name} table {table}"),
        messages.add_route(None, index=index, via=gateway, table=table, step=f"add default route via {gateway} table {table}"),
    ]
    if not has_default_route:
        batch += [
            messages.add_route(gateway, index=index, metric=METRIC, step=f"add route {gateway} dev {name}"),
            messages.add_route(None, index=index, via=gateway, metric=METRIC, step=f"add default route via {gateway}"),
        ]
    return [*batch, messages.add_rule(priority, table=table, source=leg.address)]


def _place(ifname: str, index: int) -> tuple[int, int]:
    """Return the route table of an interface, and the priority of the rule to that table.

    `index`: of the link inside the sandbox.
    """
    table, priority = inside_routing(interface_number(ifname) or 0)
    if priority is not None:
        return table, priority
    return TABLES + index, kernel_numbers.FROM_SANDBOX_PRIORITY


def has_default_route(sandbox: NetlinkSocket, family: Family) -> bool:
    """Whether a sandbox has a default route of a family, through any interface. Raises: WiringError."""
    outcomes = sandbox.request([messages.look_up_route(family.outside)])
    must(outcomes, "look at the default route of a sandbox")
    return bool(outcomes[0].replies)


def remove_added_rules(sandbox: NetlinkSocket, removals: list[Message], *, cause: BaseException) -> None:
    """Remove the rules that a failed wiring has added. If the kernel refuses a removal, a note about it is added to `cause`."""
    if not removals:
        return
    for outcome in sandbox.request(removals):
        if outcome.is_refused:
            cause.add_note(f"{outcome.message.step} failed: {outcome.cause}")


def remove_source_rule(host: HostNetns, netns: str, identity: NetnsIdentity | None, *, ifname: str, address: IpAddress) -> None:
    """Remove, inside a sandbox, the rule that selects packets by the source `address`.

    Does nothing if the path leads to the host's namespace, or to another namespace than `identity`. Raises: NetnsError, WiringError.

    Args:
        netns: path of the sandbox's namespace.
        identity: of the sandbox's namespace; None: the namespace at the path is not compared.
    """
    _, priority = _place(ifname, 0)
    removal = messages.delete_rule(priority, table=0, source=address)
    with opened_netns(netns) as (descriptor, present):
        if present == host.identity or (identity is not None and present != identity):
            return
        with host.sandbox_netlink(descriptor) as sandbox:
            sandbox.carry_out([replace(removal, step=f"delete the rule from {address}")], operation=f"removal of {address}")
