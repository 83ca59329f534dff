"""Follow the kernel's notifications, so that what other software does to the host is noticed at once and at little cost.

Most notifications of a node tell of our own ADDs and DELs. They are taken together after SETTLE_S, so a burst wakes this thread ten
times a second and no more. Routes and rules name the socket that changed them: ours are left out. Links do not, so of each link only
its last state is read, and the service compares it with what is recorded. An ENI whose link goes away is told apart (`LinkEvent`).
The kernel drops notifications when the queue is full and says so once: MISSED. What happens inside sandboxes is not heard here.
Rejected: looking at everything on a clock only, which finds the same half a minute later.
Source of the format: rtnetlink(7); a link that is moved to another namespace is announced as deleted (net/core/dev.c,
__dev_change_net_namespace). IPv4 routes that go with their link are not announced (net/ipv4/fib_frontend.c, fib_disable_ip), IPv6
routes are.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache, reduce
from itertools import chain
from operator import or_
from pathlib import Path

from ipamd.kernel import messages, routing, survey, uapi
from ipamd.kernel.netlink import BUFFER_BYTES, attributes, describe_errno, split
from ipamd.kernel.netns import HostNetns
from ipamd.model.errors import WiringError
from ipamd.model.family import IPV4, IPV6, Family
from ipamd.model.ids import MacAddress
from ipamd.model.kernel import ChangeKind, HostChange, LinkEvent, LinkEventKind

# Netlink sockets that only listen: notifications of links, of a family's addresses, routes, rules and sysctls, and of nftables.
#
# The queue is large, because a burst of ADDs makes hundreds of notifications before the listener's thread runs, and a lost one
# costs a look at everything. Of nftables only the end of each transaction is taken, by a filter in the kernel: kube-proxy may
# send thousands of messages in one, and the last one names the process.


QUEUE_BYTES = 4 << 20
"""Ours: some 1,500 notifications of links, the largest. Memory is used only while they wait."""

TAKEN_MAX = 4096
"""Datagrams taken at once, so that a flood is handled in parts and does not grow without bound. Ours."""

GROUPS = {
    IPV4: (uapi.RTMGRP_IPV4_IFADDR | uapi.RTMGRP_IPV4_ROUTE | uapi.RTMGRP_IPV4_RULE, (uapi.RTNLGRP_IPV4_NETCONF,)),
    IPV6: (uapi.RTMGRP_IPV6_IFADDR | uapi.RTMGRP_IPV6_ROUTE, (uapi.RTNLGRP_IPV6_RULE, uapi.RTNLGRP_IPV6_NETCONF)),
}
"""What tells of a family: the groups that have a bit, and the numbers of those that have none."""

NEW_GENERATION = uapi.NFNL_SUBSYS_NFTABLES << 8 | uapi.NFT_MSG_NEWGEN

_INSTRUCTION = struct.Struct("=HBBI")  # sock_filter: code, jump if true, jump if false, operand


Notice = tuple[int, int, bytes]
"""One notification: its type, the netlink port of the socket that asked for the change (0 where the kernel does not say), its body."""


class NoticeSocket:
    """A listening socket in the namespace of the thread that makes it. One user at a time."""

    def __init__(self, protocol: int, families: Iterable[Family] = ()) -> None:
        """Listen to routing of families (NETLINK_ROUTE) or to ends of nftables' transactions (NETLINK_NETFILTER).

        Raises: WiringError.
        """
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
            try:
                try:
                    self._socket.setsockopt(socket.SOL_SOCKET, uapi.SO_RCVBUFFORCE, QUEUE_BYTES)
                except PermissionError:  # without CAP_NET_ADMIN: as far as net.core.rmem_max allows
                    self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, QUEUE_BYTES)
                if protocol == uapi.NETLINK_ROUTE:
                    groups = [GROUPS[family] for family in families]
                    self._socket.bind((0, reduce(or_, (bits for bits, _ in groups), uapi.RTMGRP_LINK)))
                    for number in chain.from_iterable(numbers for _, numbers in groups):
                        self._socket.setsockopt(uapi.SOL_NETLINK, uapi.NETLINK_ADD_MEMBERSHIP, number)
                else:
                    self._take_only(NEW_GENERATION)
                    self._socket.bind((0, 0))
                    self._socket.setsockopt(uapi.SOL_NETLINK, uapi.NETLINK_ADD_MEMBERSHIP, uapi.NFNLGRP_NFTABLES)
            except BaseException:
                self._socket.close()
                raise
        except OSError as exc:
            raise WiringError(
                "the kernel's notifications could not be subscribed to",
                details=f"{describe_errno(exc.errno or 0)}; the host is compared on the clock only",
            ) from exc

    def fileno(self) -> int:
        """The descriptor, for poll(2)."""
        return self._socket.fileno()

    def close(self) -> None:
        """Release the descriptor; idempotent."""
        self._socket.close()

    def take(self) -> tuple[list[Notice], bool]:
        """Take the notifications that are queued, at most TAKEN_MAX datagrams, without waiting.

        Returns: them in order, and whether some were lost because the queue was full (ENOBUFS).
        Raises: WiringError if the socket is broken.
        """
        found: list[Notice] = []
        is_overrun = False
        for _ in range(TAKEN_MAX):
            try:
                data, (sender, _) = self._socket.recvfrom(BUFFER_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError as exc:
                if exc.errno != errno.ENOBUFS:
                    raise WiringError(
                        "the kernel's notifications cannot be read",
                        details=f"{describe_errno(exc.errno or 0)}; they are opened again",
                    ) from exc
                is_overrun = True
                continue
            if sender == 0:  # the kernel's port
                found += [(kind, port, data[start:end]) for kind, _, _, port, start, end in split(data)]
        return found, is_overrun

    def _take_only(self, kind: int) -> None:
        """Have the kernel drop every datagram whose first message is of another type (net/netfilter sends this one alone)."""
        program = b"".join(
            (
                _INSTRUCTION.pack(uapi.BPF_LOAD_HALF_ABSOLUTE, 0, 0, 4),  # nlmsg_type, read as big-endian
                _INSTRUCTION.pack(uapi.BPF_JUMP_EQUAL, 0, 1, socket.htons(kind)),
                _INSTRUCTION.pack(uapi.BPF_RETURN, 0, 0, 0xFFFFFFFF),
                _INSTRUCTION.pack(uapi.BPF_RETURN, 0, 0, 0),
            )
        )
        buffer = ctypes.create_string_buffer(program, len(program))
        # sock_fprog: number of instructions, padding, pointer
        attached = struct.pack("@HxxxxxxP" if struct.calcsize("P") == 8 else "@HxxP", len(program) // 8, ctypes.addressof(buffer))
        self._socket.setsockopt(socket.SOL_SOCKET, uapi.SO_ATTACH_FILTER, attached)


SETTLE_S = 0.1
"""Wait after the first notification before all are taken. Ours: short against the second in which a change must be repaired."""

AF_UNSPEC = 0

LINKS = {uapi.RTM_NEWLINK: LinkEventKind.SEEN, uapi.RTM_DELLINK: LinkEventKind.GONE}
ADDRESSES = frozenset({uapi.RTM_NEWADDR, uapi.RTM_DELADDR})
ROUTES = frozenset({uapi.RTM_NEWROUTE, uapi.RTM_DELROUTE})
RULES = frozenset({uapi.RTM_NEWRULE, uapi.RTM_DELRULE})

_INDEX = struct.Struct("=xxxxi")
_I32 = struct.Struct("=i")
_BIG_U32 = struct.Struct(">I")


class HostEvents:
    """The stream of one namespace; `stop` ends it for good. One reader at a time."""

    def __init__(self, host: HostNetns, *, veth_prefix: str, families: Collection[Family]) -> None:
        self._host = host
        self._veth_prefix = veth_prefix
        self._families = families
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # it stays set

    def follow(self) -> Iterator[LinkEvent | HostChange]:
        """See `HostNetwork.host_events`."""
        with self._host.entered():
            sockets = [NoticeSocket(uapi.NETLINK_ROUTE, self._families)]
            with suppress(WiringError):  # a kernel without nftables has nothing to tell of it
                sockets.append(NoticeSocket(uapi.NETLINK_NETFILTER))
        until_change, until_stop = select.poll(), select.poll()
        for poll in (until_change, until_stop):
            poll.register(self._stop_fd, select.POLLIN)
        for sock in sockets:
            until_change.register(sock.fileno(), select.POLLIN)
        try:
            yield LinkEvent(LinkEventKind.OPENED)
            while not (any(fd == self._stop_fd for fd, _ in until_change.poll()) or until_stop.poll(SETTLE_S * 1000)):
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
        os.eventfd_write(self._stop_fd, 1)


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
                rule = messages.read_rule(body)
                address, length = rule.destination, rule.destination_length
                if address is None:
                    address, length = rule.source, rule.source_length
                changed = HostChange(ChangeKind.RULE, address=address, length=length, table=rule.table, priority=rule.priority)
                changes[changed] = None
        elif kind in ROUTES:
            if not host.is_own(port) and (route := messages.read_route(body)).table != uapi.RT_TABLE_LOCAL:
                changed = HostChange(
                    ChangeKind.ROUTE,
                    address=route.destination,
                    length=route.length,
                    table=route.table,
                    is_gone=kind == uapi.RTM_DELROUTE,
                )
                changes[changed] = None
        elif kind in ADDRESSES:
            found = messages.read_address(body)
            changes[HostChange(ChangeKind.ADDRESS, address=found.address, length=found.length)] = None
        elif kind == uapi.RTM_NEWNETCONF:
            # Of conf.all, as ip_forward is; netconfmsg is four bytes. One of a link is left to the clock.
            index = attributes(body, 4).get(uapi.NETCONFA_IFINDEX, b"")
            if len(index) == _I32.size and _I32.unpack(index)[0] == uapi.NETCONFA_IFINDEX_ALL:
                changes[HostChange(ChangeKind.SYSCTL)] = None
        elif kind == NEW_GENERATION:
            changes[HostChange(ChangeKind.NFT, process=_process(body))] = None
    events: list[LinkEvent | HostChange] = list(_link_events(last.values(), veth_prefix))
    return events + list(changes)


def _link_events(notices: Iterable[Notice], veth_prefix: str) -> Iterator[LinkEvent | HostChange]:
    latest: dict[str, LinkEventKind] = {}
    for message_kind, _, body in notices:
        link = messages.read_link(body)
        veths = list(survey.our_veths([link], veth_prefix)) if link.kind == uapi.VETH_KIND else []
        if veths and message_kind == uapi.RTM_NEWLINK:
            yield HostChange(ChangeKind.LINK, veth=veths[0])
        elif veths:
            yield HostChange(ChangeKind.VETH_GONE)
        elif vlan := survey.vlan_link(link):
            yield HostChange(ChangeKind.VLAN_LINK, vlan=vlan, is_gone=message_kind == uapi.RTM_DELLINK)
        if link.kind and not veths:
            yield HostChange(ChangeKind.OTHER_LINK)  # it may lead into a sandbox, or have led there
        if not veths and link.mac and routing.may_be_eni(link, veth_prefix=veth_prefix):
            latest[link.mac] = LINKS[message_kind]  # several links may have had an ENI's MAC: the last one tells
    for mac, kind in latest.items():
        yield LinkEvent(kind, MacAddress(mac))


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
