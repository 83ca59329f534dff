"""The interfaces of a pod that has one on each managed network card: their names, next hops and route tables (docs/adr/0086). Pure.

The pod's first interface has the name that the runtime gives, eth0. The others are numbered from 1, in the order of their cards; the
number determines name, next hop and route table. Source: amazon-vpc-cni-k8s pkg/networkutils/names.go; pkg/networkutils/helper.go,
CalculatePodIPv6GatewayIP; cmd/routed-eni-cni-plugin/driver/driver.go.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ipamd.model.attachment import POD_IFNAME
from ipamd.model.eni import MAIN_TABLE
from ipamd.model.family import Family, IpAddress
from ipamd.model.ids import AttachmentKey, IfName

PREFIX = "mNicIf"
"""How the names of a pod's further interfaces begin; the number follows."""

NUMBER_MAX = 31
"""The most interfaces that a pod has in addition to its first one, and so the highest number of an interface. Ours: no instance type
has more than 32 cards (`network_cards.CARDS_MAX`)."""

FROM_PRIORITY = 1
"""Priority of the rule inside the sandbox that sends packets from a further interface's address to the interface's table."""


class InsideRouting(NamedTuple):
    """How the sandbox's kernel sends packets by one of its interfaces.

    table: the route table with the interface's routes.
    from_priority: the priority of the rule that selects this table for packets from the interface's address; None: there is no rule.
    """

    table: int
    from_priority: int | None


def interface_name(number: int) -> IfName:
    """Return the name of the pod's interface with a number; 0 is the first interface."""
    return IfName(f"{PREFIX}{number}" if number else POD_IFNAME)


def interface_number(ifname: str) -> int | None:
    """Return the number of the pod's interface with a name: 0 for the first one; None for any other name, such as Multus's `net1`."""
    if ifname == POD_IFNAME:
        return 0
    match = re.fullmatch(rf"{PREFIX}([1-9]\d?)", ifname, re.ASCII)
    if match is None or int(match[1]) > NUMBER_MAX:
        return None
    return int(match[1])


def interface_names(count: int) -> tuple[IfName, ...]:
    """Return the names of a pod's interfaces in their order. `count`: the number of managed network cards."""
    return tuple(map(interface_name, range(count)))


def inside_routing(number: int) -> InsideRouting:
    """Return how the sandbox sends packets by the interface with a number.

    The first interface has its routes in the sandbox's main table, and needs no rule.
    """
    if number:
        return InsideRouting(number, FROM_PRIORITY)
    return InsideRouting(MAIN_TABLE, None)


def next_hop(family: Family, ifname: str) -> IpAddress:
    """Return the next hop of an interface.

    For the first interface, and for an interface without a number such as Multus's `net1`, it is 169.254.1.1 or fe80::1. For an
    interface of a further network card the interface's number is added to this address.
    """
    return family.gateway + (interface_number(ifname) or 0)


def is_further_card(ifname: str) -> bool:
    """Whether an interface belongs to a further network card. Such an interface is made and removed with the pod's first interface."""
    return bool(interface_number(ifname))


def pod_key(key: AttachmentKey) -> AttachmentKey:
    """Return the key that the runtime uses for an interface.

    For an interface of a further card it is the key of the pod's first interface; for any other interface its own key.
    """
    if is_further_card(key.ifname):
        return AttachmentKey(key.container_id, IfName(POD_IFNAME))
    return key
