"""Addresses of sandboxes and default routes that the host's own network configuration put where they cut pods off. No changes here.

EC2 shows every address of an ENI to software on the host, and amazon-ec2-net-utils or systemd-networkd may configure them all. An
address that is local on the host never reaches its sandbox. On the link of an ENI an address of the pool is wrong by construction
and removed; the ENI's own primary address is right. On any other link somebody put it there on purpose: it is named, with the command
that removes it. The same holds for a default route of main through a secondary ENI, which is not ours either.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from ipaddress import IPv4Address

from ipamd.kernel import checks, records, uapi
from ipamd.kernel.enis import Repair, address_removal
from ipamd.kernel.look import HostLook
from ipamd.kernel.netlink import NetlinkSocket
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.ids import MacAddress
from ipamd.model.kernel import NODE, RoutingDifference


def pod_address_repairs(
    look: HostLook, identity: InstanceIdentity, link: records.Link, addresses: Container[IPv4Address]
) -> Iterator[Repair]:
    """Find addresses of the pool on the primary ENI's link; secondary ENIs' links have `enis.address_repairs`."""
    ours = [one for one in look.addresses if one.index == link.index]
    for one in ours:
        if one.address in addresses and one.address != identity.primary_address:
            yield address_removal(one, link, ours, who=f"{link.name} (primary)")


def foreign_differences(
    sock: NetlinkSocket,
    look: HostLook,
    *,
    primary: MacAddress,
    secondary: Iterable[MacAddress],
    addresses: Container[IPv4Address],
) -> list[RoutingDifference]:
    """Find addresses of the pool on links of no ENI, and main's default route if it leads through a secondary ENI.

    Raises: WiringError.
    """
    others = [look.links[mac].index for mac in secondary if mac in look.links]
    enis = [*others, *(look.links[mac].index for mac in (primary,) if mac in look.links)]
    found = []
    for one in look.addresses:
        if one.address in addresses and one.index not in enis:
            name = _name(sock, one.index)
            what = f"{one.address}, an address for sandboxes, is local on {name}"
            command = f"ip address del {one.address}/{one.length} dev {name}"
            found.append(RoutingDifference(NODE, what, is_repaired=False, mend=command))
    defaults = [one for one in look.routes if one.table == uapi.RT_TABLE_MAIN and one.destination is None and one.length == 0]
    best = min(defaults, key=lambda one: one.metric, default=None)
    if best is not None and best.index in others:
        name = _name(sock, best.index)
        what = f"the node's default route leads through {name}, a secondary ENI"
        command = f"ip route del default dev {name} metric {best.metric}"
        found.append(RoutingDifference(NODE, what, is_repaired=False, mend=command))
    return found


def _name(sock: NetlinkSocket, index: int) -> str:
    link = checks.find_link_by_index(sock, index)
    return link.name if link is not None else f"link {index}"
