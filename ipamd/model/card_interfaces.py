"""The interfaces of a pod that has one of each managed network card: their names, next hops and route tables (docs/adr/0086). Pure.

The pod's first interface has the name that the runtime gives, eth0. The others are numbered from 1, in the order of their cards, and
the number says everything else. Source: amazon-vpc-cni-k8s pkg/networkutils/names.go; pkg/networkutils/helper.go,
CalculatePodIPv6GatewayIP; cmd/routed-eni-cni-plugin/driver/driver.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ipamd.model.attachment import POD_IFNAME
from ipamd.model.eni import MAIN_TABLE
from ipamd.model.family import Family, IpAddress
from ipamd.model.ids import AttachmentKey, IfName

PREFIX = "mNicIf"

NUMBER_MAX = 31
"""Interfaces beside the first one. Ours: no instance type has more than 32 cards (`network_cards.CARDS_MAX`)."""

FROM_PRIORITY = 1
"""Priority of the rule in the sandbox from the address of a further interface to its table."""


class InsideRouting(NamedTuple):
    """How the sandbox's kernel sends packets by one of its interfaces.

    table: the route table with the interface's routes.
    from_priority: the priority of the rule that selects this table for packets from the interface's address; None: there is no rule.
    """

    table: int
    from_priority: int | None


def interface_name(number: int) -> IfName:
    """Return the name of a pod's interface: 0 is the first one."""
    return IfName(f"{PREFIX}{number}" if number else POD_IFNAME)


def interface_number(ifname: str) -> int | None:
    """Return the number of an interface of a pod, None for any other name, as Multus's `net1`."""
    if ifname == POD_IFNAME:
        return 0
    match = re.fullmatch(rf"{PREFIX}([1-9]\d?)", ifname, re.ASCII)
    if match is None or int(match[1]) > NUMBER_MAX:
        return None
    return int(match[1])


def interface_names(count: int) -> tuple[IfName, ...]:
    """Return the names of a pod's interfaces, the first one first. `count`: of managed cards."""
    return tuple(map(interface_name, range(count)))


def inside_routing(number: int) -> InsideRouting:
    """Return how the sandbox routes by an interface. The first one has its routes in the main table, and needs no rule."""
    if number:
        return InsideRouting(number, FROM_PRIORITY)
    return InsideRouting(MAIN_TABLE, None)


def next_hop(family: Family, ifname: str) -> IpAddress:
    """Return the next hop of an interface: 169.254.1.1 or fe80::1 for the first one, and the following addresses for the others."""
    return family.gateway + (interface_number(ifname) or 0)


def further_keys(key: AttachmentKey) -> Iterator[AttachmentKey]:
    """Yield the keys that the interfaces of further cards have in the sandbox of a pod's first interface; none for any other key."""
    if key.ifname != POD_IFNAME:
        return
    for number in range(1, NUMBER_MAX + 1):
        yield AttachmentKey(key.container_id, interface_name(number))


def is_further_card(ifname: str) -> bool:
    """Whether an interface is one of a further card, which lives and ends with the pod's first interface."""
    return bool(interface_number(ifname))


def pod_key(key: AttachmentKey) -> AttachmentKey:
    """Return the key by which the runtime knows an interface: that of the pod's first one for those of further cards."""
    if is_further_card(key.ifname):
        return AttachmentKey(key.container_id, IfName(POD_IFNAME))
    return key
