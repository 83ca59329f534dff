"""Keep a second IPv6 default route, which no sandbox can make the kernel remove.

The kernel removes the default route that it learnt from a router advertisement when a neighbour with the router's address, on any
link, no longer calls itself a router. A sandbox can forge that with two frames in the router's name: a router advertisement and a
neighbour advertisement. No setting of the link keeps them away: with accept_ra=0 the kernel still learns the neighbour
(net/ipv6/ndisc.c, ndisc_router_discovery and ndisc_recv_na; net/ipv6/route.c, rt6_clean_tohost, which compares addresses and not
links). Our tables drop these frames, but the tables are missing for a moment after `nft flush ruleset`. The kernel never removes a
static route in this way. Ours leads through the same router, has a higher metric than the announced route, and stays until another
router is announced.

Rejected: a permanent neighbour for the router on each host veth (a further message in each ADD, all of them again for another router,
no protection on links of others); IFF_NOARP on host veths (IPv4 needs ARP there); a router solicitation after the table is back (until
it is answered the node has no route).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ipamd.kernel import answers, messages, uapi
from ipamd.kernel.repair import Repair
from ipamd.model import kernel_numbers
from ipamd.model.family import IpAddress
from ipamd.model.repairs import RepairCode, RepairKind

METRIC = kernel_numbers.OWN_TABLE
"""Ours: higher than the metrics of announced routes (1024, and up to 2048 with networkd). It is the number of our own table, so that
people see whose route it is.
"""


def repairs(routes: Iterable[answers.Route], link: answers.Link) -> Iterator[Repair]:
    """Yield the repairs of the second default route, which must agree with the route that the primary ENI's router announced last.

    If no route is announced, the second route stays as it is.
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
