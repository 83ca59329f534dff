"""Netlink sockets that only listen: notifications of links, IPv4 addresses, routes, rules and sysctls, and of nftables.

The queue is large, because a burst of ADDs makes hundreds of notifications before the listener's thread runs, and a lost one costs a
look at everything. Of nftables only the end of each transaction is taken, by a filter in the kernel: kube-proxy may send thousands of
messages in one, and the last one names the process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct

from ipamd.kernel import uapi
from ipamd.kernel.netlink import BUFFER_BYTES, describe_errno
from ipamd.model.errors import WiringError

QUEUE_BYTES = 4 << 20
"""Ours: some 1,500 notifications of links, the largest. Memory is used only while they wait."""

TAKEN_MAX = 4096
"""Datagrams taken at once, so that a flood is handled in parts and does not grow without bound. Ours."""

ROUTING_GROUPS = uapi.RTMGRP_LINK | uapi.RTMGRP_IPV4_IFADDR | uapi.RTMGRP_IPV4_ROUTE | uapi.RTMGRP_IPV4_RULE

NEW_GENERATION = uapi.NFNL_SUBSYS_NFTABLES << 8 | uapi.NFT_MSG_NEWGEN

_HEADER = struct.Struct("=IHHII")
_INSTRUCTION = struct.Struct("=HBBI")  # sock_filter: code, jump if true, jump if false, operand


Notice = tuple[int, int, bytes]
"""One notification: its type, the netlink port of the socket that asked for the change (0 where the kernel does not say), its body."""


class NoticeSocket:
    """A listening socket in the namespace of the thread that makes it. One user at a time."""

    def __init__(self, protocol: int) -> None:
        """Listen to routing (NETLINK_ROUTE) or to ends of nftables' transactions (NETLINK_NETFILTER). Raises: WiringError."""
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
            try:
                self._grow_queue()
                if protocol == uapi.NETLINK_ROUTE:
                    self._socket.bind((0, ROUTING_GROUPS))
                    self._socket.setsockopt(uapi.SOL_NETLINK, uapi.NETLINK_ADD_MEMBERSHIP, uapi.RTNLGRP_IPV4_NETCONF)
                else:
                    self._take_only(NEW_GENERATION)
                    self._socket.bind((0, 0))
                    self._socket.setsockopt(uapi.SOL_NETLINK, uapi.NETLINK_ADD_MEMBERSHIP, uapi.NFNLGRP_NFTABLES)
            except BaseException:
                self._socket.close()
                raise
        except OSError as exc:
            details = f"{describe_errno(exc.errno or 0)}; the host is compared on the clock only"
            raise WiringError("the kernel's notifications could not be subscribed to", details=details) from exc

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
                    details = f"{describe_errno(exc.errno or 0)}; they are opened again"
                    raise WiringError("the kernel's notifications cannot be read", details=details) from exc
                is_overrun = True
                continue
            if sender == 0:  # the kernel's port
                _split_into(found, data)
        return found, is_overrun

    def _grow_queue(self) -> None:
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, uapi.SO_RCVBUFFORCE, QUEUE_BYTES)
        except PermissionError:  # without CAP_NET_ADMIN: as far as net.core.rmem_max allows
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, QUEUE_BYTES)

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


class StopFlag:
    """An eventfd that ends a wait; it stays set."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        """The descriptor, readable once it is set."""
        return self._fd

    def set(self) -> None:
        """Set it; idempotent, from any thread."""
        os.eventfd_write(self._fd, 1)


def _split_into(found: list[Notice], data: bytes) -> None:
    start, unpack = 0, _HEADER.unpack_from
    while start + _HEADER.size <= len(data):
        length, kind, _, _, port = unpack(data, start)
        if length < _HEADER.size:
            return
        found.append((kind, port, data[start + _HEADER.size : start + length]))
        start += (length + 3) & ~3
