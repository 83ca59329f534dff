"""Keep a second IPv6 default route, which no sandbox can make the kernel remove.

The kernel learns a default route from a router advertisement. It removes that route if a neighbour advertisement from the router's
address, on any link, lacks the router flag. A sandbox can cause this with two forged frames that have the router's address as their
source: a router advertisement and a neighbour advertisement. No setting of the link prevents it: with accept_ra=0 the kernel still
learns the neighbour (net/ipv6/ndisc.c, ndisc_router_discovery and ndisc_recv_na; net/ipv6/route.c, rt6_clean_tohost, which compares
addresses and not links). Our tables drop these frames, but the tables are missing for a moment after `nft flush ruleset`. The kernel
never removes a static route in this way. Our static route leads through the same router, has a higher metric than the announced route,
and stays until another router is announced.

Rejected:

- a permanent neighbour entry for the router on each host veth: it needs a further message in each ADD, must be changed on every veth
  for another router, and does not protect links of other software;
- IFF_NOARP on host veths: IPv4 needs ARP there;
- a router solicitation after the table is back: the node has no route until it is answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ipamd.kernel import answers, messages, uapi
from ipamd.kernel.repair import Repair
from ipamd.model import kernel_numbers
from ipamd.model.family import IpAddress
from ipamd.model.repairs import RepairCode, RepairKind

METRIC = kernel_numbers.OWN_TABLE
"""Metric of the second default route. Ours: higher than the metrics of announced routes (1024, and up to 2048 with networkd). It is
the number of our own route table, so that people recognise the route as ours.
"""


def repairs(routes: Iterable[answers.Route], link: answers.Link) -> Iterator[Repair]:
    """Yield the repairs of the second default route, which must lead through the router of the announced default route.

    If the kernel has no announced default route, the second route stays as it is.

    `routes`: the node's routes. `link`: the primary ENI's link.
    """
    static_routers: list[IpAddress] = []
    announced: list[tuple[int, int, IpAddress]] = []
    for route in routes:
        if not _is_default(route) or route.index != link.index or route.via is None:
            continue
        if route.metric == METRIC:
            static_routers.append(route.via)
        elif route.protocol == uapi.RTPROT_RA:
            announced.append((route.metric, int(route.via), route.via))
    if not announced:
        return
    _, _, router = min(announced)
    if router in static_routers:
        return
    words = f"default route via {router} dev {link.name} metric {METRIC}"
    change = messages.add_route(None, via=router, index=link.index, step=f"add {words}", is_replaced=True, metric=METRIC)
    if static_routers:
        target = f"router of the kept default route dev {link.name} metric {METRIC}"
        yield Repair(RepairKind.ROUTE, RepairCode.VALUE_SET, target, change, before=str(static_routers[0]), after=str(router))
    else:
        yield Repair(RepairKind.ROUTE, RepairCode.ADDED, words, change)


def removals(routes: Iterable[answers.Route]) -> Iterator[Repair]:
    """Yield the repairs that remove the second default route from a node that we no longer manage."""
    for route in routes:
        if _is_default(route) and route.metric == METRIC and route.via is not None:
            words = f"default route via {route.via} metric {METRIC}"
            change = messages.delete_route(
                None, length=0, table=route.table, index=route.index, metric=METRIC, via=route.via, step=f"delete {words}"
            )
            yield Repair(RepairKind.ROUTE, RepairCode.REMOVED, words, change)


def _is_default(route: answers.Route) -> bool:
    return (route.table, route.destination, route.length) == (uapi.RT_TABLE_MAIN, None, 0)
