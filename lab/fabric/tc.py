"""Queueing disciplines and eBPF filters of links, by netlink: clsact, what hangs on it, and the ingress qdisc that excludes it.

Works in the namespace of the calling thread. Source: rtnetlink(7), linux/rtnetlink.h, linux/pkt_sched.h, linux/pkt_cls.h; the words of
the kernel's refusals are those of its extended acknowledgements (net/sched/sch_api.c).
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
    """Where clsact runs filters: on what comes from the link's other end, and on what goes to it."""

    FROM_LINK = 0xFFFFFFF2
    TO_LINK = 0xFFFFFFF3


@dataclass(frozen=True)
class Filter:
    """One eBPF filter: the name of its program, and the program's number."""

    hook: Hook
    name: str
    program_id: int


def add_clsact(ifindex: int) -> None:
    """Give a link its clsact, unless it has it. Raises: OSError, with the kernel's words if an ingress qdisc is there."""
    if "clsact" not in qdiscs(ifindex):
        _add_qdisc(ifindex, "clsact")


def add_ingress(ifindex: int) -> None:
    """Give a link an ingress qdisc, as the bandwidth plugin does. Raises: OSError, with the kernel's words if clsact is there."""
    _add_qdisc(ifindex, "ingress")


def delete_qdisc(ifindex: int) -> None:
    """Take clsact or ingress away, with all filters; nothing happens if neither is there."""
    try:
        _ask(_DELQDISC, 0, _MESSAGE.pack(0, ifindex, 0, _INGRESS_ROOT, 0))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EINVAL, errno.ENODEV):
            raise


def qdiscs(ifindex: int) -> list[str]:
    """The kinds of a link's queueing disciplines; none if the link has gone."""
    return [
        _text(found[_KIND])
        for payload in _dump(_GETQDISC, _MESSAGE.pack(0, ifindex, 0, 0, 0))
        if _MESSAGE.unpack_from(payload)[1] == ifindex and _KIND in (found := dict(_attributes(payload[_MESSAGE.size :])))
    ]


def add_filter(ifindex: int, hook: Hook, *, program: int, name: str, priority: int = _PRIORITY) -> None:
    """Hang a program on a link. Raises: FileExistsError if one of this priority hangs there already; OSError."""
    options = _attribute(_BPF_FD, struct.pack("<I", program)) + _attribute(_BPF_NAME, name.encode() + b"\0")
    options += _attribute(_BPF_FLAGS, struct.pack("<I", _ACT_DIRECT))
    body = _MESSAGE.pack(0, ifindex, _HANDLE, hook, priority << 16 | _ALL_PROTOCOLS)
    _ask(_NEWTFILTER, _CREATE | _EXCL, body + _attribute(_KIND, b"bpf\0") + _attribute(_OPTIONS, options))


def delete_filter(ifindex: int, hook: Hook, *, priority: int = _PRIORITY) -> None:
    """Take the program of a hook away. Raises: OSError."""
    body = _MESSAGE.pack(0, ifindex, _HANDLE, hook, priority << 16 | _ALL_PROTOCOLS)
    _ask(_DELTFILTER, 0, body + _attribute(_KIND, b"bpf\0"))


def filters(ifindex: int) -> list[Filter]:
    """The eBPF filters of a link, on both hooks; none if the link has gone."""
    return [found for hook in Hook for found in _filters(ifindex, hook)]


def links(prefixes: tuple[str, ...]) -> dict[str, tuple[int, dict[Hook, int]]]:
    """Links whose names begin so: name -> index, and the program on each hook that has one."""
    named = [(link, ifindex) for ifindex, link in socket.if_nameindex() if link.startswith(prefixes)]
    return {link: (ifindex, {one.hook: one.program_id for one in filters(ifindex)}) for link, ifindex in named}


def _filters(ifindex: int, hook: Hook) -> Iterator[Filter]:
    for payload in _dump(_GETTFILTER, _MESSAGE.pack(0, ifindex, 0, hook, 0)):
        found = dict(_attributes(payload[_MESSAGE.size :]))
        options = dict(_attributes(found.get(_OPTIONS, b"")))
        if _BPF_ID in options:  # not so of the first answer for a priority, which names the kind alone
            yield Filter(hook, _text(options.get(_BPF_NAME, b"")), int(struct.unpack("<I", options[_BPF_ID])[0]))


def _dump(kind: int, body: bytes) -> Iterator[bytes]:
    """Every answer to a question for all; none if the kernel refuses it: a link that has gone, or has no clsact."""
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
    """What the kernel says of its refusal, after the error number and the header of the request."""
    return _text(dict(_attributes(payload[4 + _HEADER.size :])).get(_ACK_WORDS, b""))


def _socket() -> socket.socket:
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    sock.setsockopt(_SOL_NETLINK, _EXT_ACK, 1)
    sock.setsockopt(_SOL_NETLINK, 10, 1)  # NETLINK_CAP_ACK: a refusal has the header of the request alone
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
