"""Follow the kernel's notifications, so that changes of the host by other software are noticed at once and at little cost.

Our own ADDs and DELs cause most notifications of a node. The thread waits for SETTLE_S after the first notification and then reads all
of them, so a burst wakes it at most ten times a second. Notifications of routes and rules contain the port of the socket that made the
change: changes by our sockets are ignored. Notifications of links contain no port. So only the last state of each link is read, and
`ipamd/host/notifications.py` compares it with the records. An ENI's link that appears or goes away is a `LinkEvent`. If the queue is
full, the kernel drops notifications and reports the loss once; `HostEvents.follow` then yields a `LinkEvent` MISSED and a `HostChange`
MISSED. Changes inside sandboxes cause no notification here.

Rejected: only comparing everything at regular intervals, which finds the same changes half a minute later.

Source of the format: rtnetlink(7); a link that is moved to another namespace is announced as deleted (net/core/dev.c,
__dev_change_net_namespace). IPv4 routes that go with their link are not announced (net/ipv4/fib_frontend.c, fib_disable_ip), IPv6
routes are.
"""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from ipamd.kernel import answers, eni_links, survey, uapi
from ipamd.kernel.legs import uplink_survey
from ipamd.kernel.netlink import attributes
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.notice_socket import NEW_GENERATION, Notice, NoticeSocket
from ipamd.model.errors import WiringError
from ipamd.model.family import Family
from ipamd.model.ids import MacAddress
from ipamd.model.kernel import ChangeKind, HostChange, LinkEvent, LinkEventKind
from ipamd.ports.kernel import VlanLinks

SETTLE_S = 0.1
"""Pause between the first notification and the reading of all. Ours: short against the second in which a change must be repaired."""

AF_UNSPEC = 0

LINKS = {uapi.RTM_NEWLINK: LinkEventKind.SEEN, uapi.RTM_DELLINK: LinkEventKind.GONE}
ADDRESSES = frozenset({uapi.RTM_NEWADDR, uapi.RTM_DELADDR})
ROUTES = frozenset({uapi.RTM_NEWROUTE, uapi.RTM_DELROUTE})
RULES = frozenset({uapi.RTM_NEWRULE, uapi.RTM_DELRULE})

_INDEX = struct.Struct("=xxxxi")
_I32 = struct.Struct("=i")
_BIG_U32 = struct.Struct(">I")
_NETCONF_HEADER_BYTES = 4  # netconfmsg: the family, padded
_NFT_HEADER_BYTES = 4  # nfgenmsg


class HostEvents:
    """The stream of notifications of one namespace; `stop` ends it for good. One reader at a time."""

    def __init__(
        self, host: HostNetns, *, veth_prefix: str, families: Collection[Family], vlan_links: VlanLinks | None = None
    ) -> None:
        """Open nothing yet.

        Args:
            veth_prefix: beginning of the names of our host veths.
            families: address families whose addresses, routes, rules and sysctls are followed.
            vlan_links: recognises the links that a lab uses in place of VLAN links; None if the kernel makes VLAN links.
        """
        self._host = host
        self._vlan_links = vlan_links
        self._veth_prefix = veth_prefix
        self._families = families
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # after a stop it stays readable for ever

    def follow(self) -> Iterator[LinkEvent | HostChange]:
        """See `HostNetwork.host_events`."""
        with self._host.entered():
            sockets = [NoticeSocket(uapi.NETLINK_ROUTE, self._families)]
            with suppress(WiringError):  # a kernel without nftables
                sockets.append(NoticeSocket(uapi.NETLINK_NETFILTER))
        until_change, until_stop = select.poll(), select.poll()
        for poll in (until_change, until_stop):
            poll.register(self._stop_fd, select.POLLIN)
        for sock in sockets:
            until_change.register(sock.fileno(), select.POLLIN)
        try:
            yield LinkEvent(LinkEventKind.OPENED)
            while True:
                is_stopped = any(fd == self._stop_fd for fd, _ in until_change.poll())
                if is_stopped or until_stop.poll(SETTLE_S * 1000):
                    return
                notices: list[Notice] = []
                for sock in sockets:
                    taken, is_overrun = sock.take()
                    notices += taken
                    if is_overrun:
                        yield LinkEvent(LinkEventKind.MISSED)
                        yield HostChange(ChangeKind.MISSED)
                yield from host_events(notices, host=self._host, veth_prefix=self._veth_prefix, vlan_links=self._vlan_links)
        finally:
            for sock in sockets:
                sock.close()

    def stop(self) -> None:
        """End `follow`; idempotent, from any thread."""
        os.eventfd_write(self._stop_fd, 1)


def host_events(
    notices: Iterable[Notice], *, host: HostNetns, veth_prefix: str, vlan_links: VlanLinks | None = None
) -> list[LinkEvent | HostChange]:
    """Convert notifications to events: one for the last state of each link, and one for each other change that we did not make.

    Args:
        host: remembers the ports of our sockets, by which our own changes are recognised.
        vlan_links: as in `HostEvents`.
    """
    link_notices: dict[int, Notice] = {}
    changes: dict[HostChange, None] = {}  # a set that keeps the order
    for notice in notices:
        kind, _, body = notice
        if kind not in LINKS:
            change = _change(notice, host)
            if change is not None:
                changes[change] = None
        # A bridge announces a port that leaves it as RTM_DELLINK of family AF_BRIDGE: the link itself is still there.
        elif body and body[0] == AF_UNSPEC:
            link_notices[_INDEX.unpack_from(body)[0]] = notice
    return [*_link_events(link_notices.values(), veth_prefix, vlan_links), *changes]


def _change(notice: Notice, host: HostNetns) -> HostChange | None:
    """Convert a notification about anything other than a link.

    Returns: None for our own changes of routes and rules, and for changes after which nothing needs to be compared.
    """
    kind, port, body = notice
    if kind in RULES:
        if host.is_own(port):
            return None
        return _rule_change(body)
    if kind in ROUTES:
        if host.is_own(port):
            return None
        return _route_change(body, is_gone=kind == uapi.RTM_DELROUTE)
    if kind in ADDRESSES:
        address = answers.read_address(body)
        return HostChange(ChangeKind.ADDRESS, address=address.address, length=address.length)
    if kind == uapi.RTM_NEWNETCONF:
        return _sysctl_change(body)
    if kind == NEW_GENERATION:
        return HostChange(ChangeKind.NFT, process=_process(body))
    return None


def _rule_change(body: bytes) -> HostChange:
    """Convert a notification of a rule. The change's address is the destination that the rule selects, or else its source."""
    rule = answers.read_rule(body)
    address, length = rule.destination, rule.destination_length
    if address is None:
        address, length = rule.source, rule.source_length
    return HostChange(ChangeKind.RULE, address=address, length=length, table=rule.table, priority=rule.priority)


def _route_change(body: bytes, *, is_gone: bool) -> HostChange | None:
    """Convert a notification of a route; None for a route in the kernel's own table (local)."""
    route = answers.read_route(body)
    if route.table == uapi.RT_TABLE_LOCAL:
        return None
    return HostChange(ChangeKind.ROUTE, address=route.destination, length=route.length, table=route.table, is_gone=is_gone)


def _sysctl_change(body: bytes) -> HostChange | None:
    """Convert a notification of a sysctl for all links, such as ip_forward.

    Returns: None for a sysctl of a single link, whose change the regular comparison finds.
    """
    index = attributes(body, _NETCONF_HEADER_BYTES).get(uapi.NETCONFA_IFINDEX, b"")
    if len(index) == _I32.size and _I32.unpack(index)[0] == uapi.NETCONFA_IFINDEX_ALL:
        return HostChange(ChangeKind.SYSCTL)
    return None


def _link_events(notices: Iterable[Notice], veth_prefix: str, vlan_links: VlanLinks | None) -> Iterator[LinkEvent | HostChange]:
    """Yield the changes of host veths, VLAN links and other links, and then an event for each MAC that may be an ENI's."""
    enis: dict[str, LinkEventKind] = {}
    for kind, _, body in notices:
        link = answers.read_link(body)
        veth = next(iter(survey.our_veths([link], veth_prefix)), None) if link.kind == uapi.VETH_KIND else None
        if veth is not None:
            yield HostChange(ChangeKind.LINK, veth=veth) if kind == uapi.RTM_NEWLINK else HostChange(ChangeKind.VETH_GONE)
            continue
        vlan = uplink_survey.vlan_link(link, vlan_links)
        if vlan:
            yield HostChange(ChangeKind.VLAN_LINK, vlan=vlan, is_gone=kind == uapi.RTM_DELLINK)
        if link.kind:
            yield HostChange(ChangeKind.OTHER_LINK)  # the link may lead into a sandbox, or may have led there
        if link.mac and eni_links.may_be_eni(link, veth_prefix=veth_prefix):
            enis[link.mac] = LINKS[kind]  # several links may have had an ENI's MAC: the last notification counts
    for mac, link_kind in enis.items():
        yield LinkEvent(link_kind, MacAddress(mac))


def _process(body: bytes) -> str:
    """Return name and ID of the process that made a transaction of nftables; only the name if the kernel did not report the ID.

    The result is "" if the process has the name of this process, or if the kernel did not report the name.

    Only the name can be compared: the ID is that of a thread in the initial PID namespace, and a process in a container can read its
    own IDs only in its own PID namespace.
    """
    generation = attributes(body, _NFT_HEADER_BYTES)
    raw_name = generation.get(uapi.NFTA_GEN_PROC_NAME, b"").rstrip(b"\0").decode("utf-8", "replace")
    if raw_name == _own_name():
        return ""
    # Any process may choose its name.
    name = "".join(character if character.isprintable() else "?" for character in raw_name)
    pid = generation.get(uapi.NFTA_GEN_PROC_PID, b"")
    if not name or len(pid) != _BIG_U32.size:
        return name
    return f"{name} (process {_BIG_U32.unpack(pid)[0]})"


@lru_cache(maxsize=1)
def _own_name() -> str:
    return Path("/proc/self/comm").read_text(encoding="utf-8", errors="replace").rstrip("\n")
