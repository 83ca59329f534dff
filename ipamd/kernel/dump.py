"""Dump everything that the kernel has of one kind, for people who read a support archive. The image has neither `ip` nor `nft`.

Our own netlink code reads the tables, because it recognises an interrupted dump (I11). pyroute2 decodes the answers, because our code
reads only the attributes that the daemon needs (docs/adr/0004). If every attempt of a dump was interrupted, the first row says so.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ipamd.kernel import messages, uapi
from ipamd.kernel.netlink import Message, NetlinkSocket
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.model.family import IPV4, IPV6

Rows = list[dict[str, Any]]
"""Objects of the kernel, each as names and values of its fields; the names are pyroute2's."""

OpenSocket = Callable[[], NetlinkSocket]

INTERRUPTED = {"problem": "the table changed while it was read, in every try: entries may be missing"}
"""The first row of a dump of which every attempt was interrupted."""

_LEFT_OUT = frozenset({"attrs", "header", "event", "__align"})

_HEADER = struct.Struct("=IHHII")
"""nlmsghdr, which pyroute2 expects before a body. Source: linux/netlink.h."""


def links(open_socket: OpenSocket = NetlinkSocket) -> Rows:
    """Dump all links of this network namespace, with statistics. Raises: WiringError."""
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

    return _rows([Message("dump of links", uapi.RTM_GETLINK, 0, messages.LINK.pack(0, 0, 0, 0, 0))], ifinfmsg, open_socket)


def addresses(open_socket: OpenSocket = NetlinkSocket) -> Rows:
    """Dump all addresses. Raises: WiringError."""
    from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg

    return _rows([messages.dump_addresses(family) for family in (IPV4, IPV6)], ifaddrmsg, open_socket)


def rules(open_socket: OpenSocket = NetlinkSocket) -> Rows:
    """Dump the routing rules of both families. Raises: WiringError."""
    from pyroute2.netlink.rtnl.fibmsg import fibmsg

    return _rows([messages.dump_rules(family) for family in (IPV4, IPV6)], fibmsg, open_socket)


def routes(open_socket: OpenSocket = NetlinkSocket) -> Rows:
    """Dump the routes of all tables, of both families. Raises: WiringError."""
    from pyroute2.netlink.rtnl.rtmsg import rtmsg

    return _rows([messages.dump_routes(0, family=family) for family in (IPV4, IPV6)], rtmsg, open_socket)


def neighbours(open_socket: OpenSocket = NetlinkSocket) -> Rows:
    """Dump the neighbour entries of both families. The node reaches a sandbox by IPv6 only if it has a permanent entry for the
    sandbox.

    Raises: WiringError.
    """
    from pyroute2.netlink.rtnl.ndmsg import ndmsg

    bodies = [messages.NEIGHBOUR.pack(family.number, 0, 0, 0, 0) for family in (IPV4, IPV6)]
    return _rows([Message("dump of neighbours", uapi.RTM_GETNEIGH, 0, body) for body in bodies], ndmsg, open_socket)


def nft_ruleset() -> str:
    """List all of nftables as text. Raises: WiringError."""
    return Nftables(HostNetns()).run("list ruleset\n")


def _rows(requests: Sequence[Message], kind: Callable[[bytes], Any], open_socket: OpenSocket) -> Rows:
    """Make the dumps that `requests` ask for, and return all their rows; INTERRUPTED comes first if a dump was interrupted.

    `kind`: pyroute2's class that decodes the messages.
    """
    rows: Rows = []
    are_all_whole = True
    sock = open_socket()
    try:
        for request in requests:
            passes, is_whole = sock.dump_passes(request)
            are_all_whole = are_all_whole and is_whole
            rows += [_decoded(kind, body) for body in passes[-1]]
    finally:
        sock.close()
    if are_all_whole:
        return rows
    return [INTERRUPTED, *rows]


def _decoded(kind: Callable[[bytes], Any], body: bytes) -> dict[str, Any]:
    message = kind(_HEADER.pack(_HEADER.size + len(body), 0, 0, 0, 0) + body)
    message.decode()
    return dict(_flat(message))


def _flat(message: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields and attributes of one message on one level; nested messages become objects."""
    for name, value in message.items():
        if name not in _LEFT_OUT:
            yield str(name), _value(value)
    for name, value in message.get("attrs", ()):
        yield str(name), _value(value)


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return dict(_flat(value))
    if isinstance(value, (list, tuple)):
        return [_value(member) for member in value]
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    return str(value)
