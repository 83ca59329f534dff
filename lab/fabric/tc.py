"""Queueing disciplines (qdiscs) and eBPF filters of links, by netlink: clsact, its filters, and the ingress qdisc.

A link has either clsact or an ingress qdisc. All functions work in the namespace of the calling thread. Source: rtnetlink(7),
linux/rtnetlink.h, linux/pkt_sched.h, linux/pkt_cls.h. The text of an OSError is the message in the kernel's extended acknowledgement
(net/sched/sch_api.c), if it has one.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import IntEnum

_NEWQDISC, _DELQDISC, _GETQDISC, _NEWTFILTER, _DELTFILTER, _GETTFILTER, _ERROR, _DONE = 36, 37, 38, 44, 45, 46, 2, 3
_REQUEST, _ACK, _DUMP, _CREATE, _EXCL = 0x1, 0x4, 0x300, 0x400, 0x200
_INGRESS_ROOT, _INGRESS_HANDLE = 0xFFFFFFF1, 0xFFFF0000  # TC_H_INGRESS = TC_H_CLSACT, and the handle that both have
_KIND, _OPTIONS = 1, 2
_BPF_FD, _BPF_NAME, _BPF_FLAGS, _BPF_ID, _ACT_DIRECT = 6, 7, 8, 11, 1
_HEADER, _MESSAGE = struct.Struct("<IHHII"), struct.Struct("<BxxxiIII")  # nlmsghdr, tcmsg
_ALL_PROTOCOLS = 0x0300  # htons(ETH_P_ALL)
_PRIORITY, _HANDLE = 1, 1
_SOL_NETLINK, _EXT_ACK, _ACK_WORDS = 270, 11, 1  # linux/netlink.h
_BUFFER_BYTES = 1 << 16


class Hook(IntEnum):
    """The packets on which clsact runs a filter: those that arrive from the link's other end, or those that are sent to it."""

    FROM_LINK = 0xFFFFFFF2
    TO_LINK = 0xFFFFFFF3


@dataclass(frozen=True)
class Filter:
    """One eBPF filter: its hook, the name of its program, and the kernel's ID of the program."""

    hook: Hook
    name: str
    program_id: int


def add_clsact(ifindex: int) -> None:
    """Add clsact to a link, unless the link has it. Raises: OSError, for example if the link has an ingress qdisc."""
    if "clsact" not in qdiscs(ifindex):
        _add_qdisc(ifindex, "clsact")


def add_ingress(ifindex: int) -> None:
    """Add an ingress qdisc to a link, as the bandwidth plugin does. Raises: OSError, for example if the link has clsact."""
    _add_qdisc(ifindex, "ingress")


def delete_qdisc(ifindex: int) -> None:
    """Remove clsact or the ingress qdisc from a link, with all filters. Idempotent."""
    try:
        _ask(_DELQDISC, 0, _MESSAGE.pack(0, ifindex, 0, _INGRESS_ROOT, 0))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EINVAL, errno.ENODEV):
            raise


def qdiscs(ifindex: int) -> list[str]:
    """Return the kinds of a link's queueing disciplines; none if the link does not exist."""
    return [
        _text(attributes[_KIND])
        for payload in _dump(_GETQDISC, _MESSAGE.pack(0, ifindex, 0, 0, 0))
        if _MESSAGE.unpack_from(payload)[1] == ifindex and _KIND in (attributes := dict(_attributes(payload[_MESSAGE.size :])))
    ]


def add_filter(ifindex: int, hook: Hook, *, program: int, name: str, priority: int = _PRIORITY) -> None:
    """Attach a program to a hook of a link. Raises: FileExistsError if the hook has a program of this priority already; OSError."""
    options = _attribute(_BPF_FD, struct.pack("<I", program)) + _attribute(_BPF_NAME, name.encode() + b"\0")
    options += _attribute(_BPF_FLAGS, struct.pack("<I", _ACT_DIRECT))
    body = _MESSAGE.pack(0, ifindex, _HANDLE, hook, priority << 16 | _ALL_PROTOCOLS)
    _ask(_NEWTFILTER, _CREATE | _EXCL, body + _attribute(_KIND, b"bpf\0") + _attribute(_OPTIONS, options))


def delete_filter(ifindex: int, hook: Hook, *, priority: int = _PRIORITY) -> None:
    """Detach the program of this priority from a hook. Raises: OSError."""
    body = _MESSAGE.pack(0, ifindex, _HANDLE, hook, priority << 16 | _ALL_PROTOCOLS)
    _ask(_DELTFILTER, 0, body + _attribute(_KIND, b"bpf\0"))


def filters(ifindex: int) -> list[Filter]:
    """Return the eBPF filters of a link, on both hooks; none if the link does not exist."""
    return [item for hook in Hook for item in _filters(ifindex, hook)]


def links(prefixes: tuple[str, ...]) -> dict[str, tuple[int, dict[Hook, int]]]:
    """Return the links whose names have one of the prefixes: name -> index, and hook -> program ID for each hook with a program."""
    named = [(link, ifindex) for ifindex, link in socket.if_nameindex() if link.startswith(prefixes)]
    return {link: (ifindex, {item.hook: item.program_id for item in filters(ifindex)}) for link, ifindex in named}


def _filters(ifindex: int, hook: Hook) -> Iterator[Filter]:
    for payload in _dump(_GETTFILTER, _MESSAGE.pack(0, ifindex, 0, hook, 0)):
        attributes = dict(_attributes(payload[_MESSAGE.size :]))
        options = dict(_attributes(attributes.get(_OPTIONS, b"")))
        if _BPF_ID in options:  # the first message about a priority has only the kind
            yield Filter(hook, _text(options.get(_BPF_NAME, b"")), int(struct.unpack("<I", options[_BPF_ID])[0]))


def _dump(kind: int, body: bytes) -> Iterator[bytes]:
    """Yield the messages of a dump; none if the kernel refuses it, because the link does not exist or has no clsact."""
    with closing(_socket()) as sock:
        sock.send(_HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | _DUMP, 1, 0) + body)
        while True:
            for answer, payload in _messages(sock.recv(_BUFFER_BYTES)):
                if answer in (_DONE, _ERROR):
                    return
                yield payload


def _add_qdisc(ifindex: int, kind: str) -> None:
    body = _MESSAGE.pack(0, ifindex, _INGRESS_HANDLE, _INGRESS_ROOT, 0)
    _ask(_NEWQDISC, _CREATE | _EXCL, body + _attribute(_KIND, kind.encode() + b"\0"))


def _ask(kind: int, flags: int, body: bytes) -> None:
    with closing(_socket()) as sock:
        sock.send(_HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | _ACK | flags, 1, 0) + body)
        ((_, payload),) = _messages(sock.recv(_BUFFER_BYTES))
    number = -int(struct.unpack_from("<i", payload)[0])
    if number:
        raise OSError(number, _words(payload) or os.strerror(number))


def _words(payload: bytes) -> str:
    """Return the kernel's message about its refusal. It follows the error number and the header of the request."""
    return _text(dict(_attributes(payload[4 + _HEADER.size :])).get(_ACK_WORDS, b""))


def _socket() -> socket.socket:
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    sock.setsockopt(_SOL_NETLINK, _EXT_ACK, 1)
    sock.setsockopt(_SOL_NETLINK, 10, 1)  # NETLINK_CAP_ACK: a refusal quotes only the header of the request
    sock.settimeout(10)
    return sock


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, at)
        yield kind, data[at + _HEADER.size : at + length]
        at += -(-length // 4) * 4


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode()


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("<HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("<HH", data, at)
        if length < 4:
            return
        yield kind & 0x3FFF, data[at + 4 : at + length]
        at += -(-length // 4) * 4
