"""Follow the kernel's notifications, so that what other software does to the host is noticed at once and at little cost.

Most notifications of a node tell of our own ADDs and DELs. They are taken together after SETTLE_S, so a burst wakes this thread ten
times a second and no more. Routes and rules name the socket that changed them: ours are left out. Links do not, so of each link only
its last state is read, and the service compares it with what is recorded. An ENI whose link goes away is told apart (`LinkEvent`).
The kernel drops notifications when the queue is full and says so once: MISSED. What happens inside sandboxes is not heard here.
Rejected: looking at everything on a clock only, which finds the same half a minute later.
Source of the format: rtnetlink(7); a link that is moved to another namespace is announced as deleted (net/core/dev.c,
__dev_change_net_namespace). IPv4 routes that go with their link are not announced (net/ipv4/fib_frontend.c, fib_disable_ip).
"""

from __future__ import annotations

import select
import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from ipamd.kernel import layout, links, records, survey, uapi
from ipamd.kernel.netlink import attributes
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.notices import NEW_GENERATION, Notice, NoticeSocket, StopFlag
from ipamd.model.errors import WiringError
from ipamd.model.ids import MacAddress
from ipamd.model.kernel import ChangeKind, HostChange, LinkEvent, LinkEventKind

SETTLE_S = 0.1
"""Wait after the first notification before all are taken. Ours: short against the second in which a change must be repaired."""

AF_UNSPEC = 0
AF_INET = 2

LINKS = {uapi.RTM_NEWLINK: LinkEventKind.SEEN, uapi.RTM_DELLINK: LinkEventKind.GONE}
ADDRESSES = frozenset({uapi.RTM_NEWADDR, uapi.RTM_DELADDR})
ROUTES = frozenset({uapi.RTM_NEWROUTE, uapi.RTM_DELROUTE})
RULES = frozenset({uapi.RTM_NEWRULE, uapi.RTM_DELRULE})

_INDEX = struct.Struct("=xxxxi")
_I32 = struct.Struct("=i")
_BIG_U32 = struct.Struct(">I")


class HostEvents:
    """The stream of one namespace; `stop` ends it for good. One reader at a time."""

    def __init__(self, host: HostNetns, *, veth_prefix: str) -> None:
        self._host = host
        self._veth_prefix = veth_prefix
        self._stop = StopFlag()

    def follow(self) -> Iterator[LinkEvent | HostChange]:
        """See `HostNetwork.host_events`."""
        sockets = self._open()
        until_change, until_stop = select.poll(), select.poll()
        for poll in (until_change, until_stop):
            poll.register(self._stop.fileno(), select.POLLIN)
        for sock in sockets:
            until_change.register(sock.fileno(), select.POLLIN)
        try:
            yield LinkEvent(LinkEventKind.OPENED)
            while not (self._is_stopped(until_change.poll()) or until_stop.poll(SETTLE_S * 1000)):
                notices: list[Notice] = []
                for sock in sockets:
                    taken, is_overrun = sock.take()
                    notices += taken
                    if is_overrun:
                        yield LinkEvent(LinkEventKind.MISSED)
                        yield HostChange(ChangeKind.MISSED)
                yield from host_events(notices, host=self._host, veth_prefix=self._veth_prefix)
        finally:
            for sock in sockets:
                sock.close()

    def stop(self) -> None:
        """End `follow`; idempotent, from any thread."""
        self._stop.set()

    def _open(self) -> list[NoticeSocket]:
        """Subscribe. A kernel without nftables has nothing to tell of it."""
        with self._host.entered():
            sockets = [NoticeSocket(uapi.NETLINK_ROUTE)]
            try:
                sockets.append(NoticeSocket(uapi.NETLINK_NETFILTER))
            except WiringError:
                return sockets
        return sockets

    def _is_stopped(self, ready: Iterable[tuple[int, int]]) -> bool:
        return any(fd == self._stop.fileno() for fd, _ in ready)


def host_events(notices: Iterable[Notice], *, host: HostNetns, veth_prefix: str) -> list[LinkEvent | HostChange]:
    """Make events of notifications: of each link its last state, of everything else each change that is not ours once."""
    last: dict[int, Notice] = {}
    changes: dict[HostChange, None] = {}
    for notice in notices:
        kind, port, body = notice
        if kind in LINKS:
            # A bridge announces a port that leaves it as RTM_DELLINK of family AF_BRIDGE: the link itself is still there.
            if body and body[0] == AF_UNSPEC:
                last[_INDEX.unpack_from(body)[0]] = notice
        elif kind in RULES:
            if not host.is_own(port):
                changes[_rule_change(body)] = None
        elif kind in ROUTES:
            if not host.is_own(port):
                changes |= dict.fromkeys(_route_change(body))
        elif kind in ADDRESSES:
            found = records.read_address(body)
            changes[HostChange(ChangeKind.ADDRESS, address=found.address, length=found.length)] = None
        elif kind == uapi.RTM_NEWNETCONF:
            if _concerns_all_links(body):
                changes[HostChange(ChangeKind.SYSCTL)] = None
        elif kind == NEW_GENERATION:
            changes[HostChange(ChangeKind.NFT, process=_process(body))] = None
    events: list[LinkEvent | HostChange] = list(_link_events(last.values(), veth_prefix))
    return events + list(changes)


def _link_events(notices: Iterable[Notice], veth_prefix: str) -> Iterator[LinkEvent | HostChange]:
    latest: dict[str, LinkEventKind] = {}
    for message_kind, _, body in notices:
        link = records.read_link(body)
        veths = list(survey.host_veths([link], veth_prefix)) if link.kind == layout.VETH_KIND else []
        if veths and message_kind == uapi.RTM_NEWLINK:
            yield HostChange(ChangeKind.LINK, veth=veths[0])
        elif veths:
            yield HostChange(ChangeKind.VETH_GONE)
        elif not veths and link.mac and links.may_be_eni(link, veth_prefix=veth_prefix):
            latest[link.mac] = LINKS[message_kind]  # several links may have had an ENI's MAC: the last one tells
    for mac, kind in latest.items():
        yield LinkEvent(kind, MacAddress(mac))


def _route_change(body: bytes) -> Iterator[HostChange]:
    route = records.read_route(body)
    if route.table != uapi.RT_TABLE_LOCAL:
        yield HostChange(ChangeKind.ROUTE, address=route.destination, length=route.length, table=route.table)


def _rule_change(body: bytes) -> HostChange:
    rule = records.read_rule(body)
    address = rule.destination if rule.destination is not None else rule.source
    length = rule.destination_length if rule.destination is not None else rule.source_length
    return HostChange(ChangeKind.RULE, address=address, length=length, table=rule.table, priority=rule.priority)


def _concerns_all_links(body: bytes) -> bool:
    """Whether it tells of a sysctl of conf.all, as ip_forward is; netconfmsg is four bytes. One of a link is left to the clock."""
    index = attributes(body, 4).get(uapi.NETCONFA_IFINDEX, b"")
    return len(index) == _I32.size and _I32.unpack(index)[0] == uapi.NETCONFA_IFINDEX_ALL


def _process(body: bytes) -> str:
    """Name and ID of the process that ended a transaction of nftables, "" if its name is ours; nfgenmsg is four bytes.

    By name: the ID is that of a thread in the first namespace of process IDs, and a container knows its own IDs only in its own.
    """
    found = attributes(body, 4)
    raw = found.get(uapi.NFTA_GEN_PROC_NAME, b"").rstrip(b"\0").decode("utf-8", "replace")
    if raw == _own_name():
        return ""
    name = "".join(one if one.isprintable() else "?" for one in raw)  # any process may choose its name
    pid = found.get(uapi.NFTA_GEN_PROC_PID, b"")
    return f"{name} (process {_BIG_U32.unpack(pid)[0]})" if name and len(pid) == _BIG_U32.size else name


@lru_cache(maxsize=1)
def _own_name() -> str:
    return Path("/proc/self/comm").read_text(encoding="utf-8", errors="replace").rstrip("\n")
