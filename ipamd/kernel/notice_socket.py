"""Netlink sockets that only listen to notifications: of links, of a family's addresses, routes, rules and sysctls, or of nftables."""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from collections.abc import Iterable

from ipamd.kernel import uapi
from ipamd.kernel.netlink import BUFFER_BYTES, describe_errno, split
from ipamd.model.errors import WiringError
from ipamd.model.family import IPV4, IPV6, Family

QUEUE_BYTES = 4 << 20
"""Size of the queue in bytes. Ours: room for some 1,500 notifications of links, which are the largest. Memory is used only while
notifications wait."""

TAKEN_MAX = 4096
"""The largest number of datagrams that one `take` reads, so that a flood is handled in parts and the list does not grow without bound.
Ours: more than the notifications of links that a full queue holds."""

GROUPS = {
    IPV4: (uapi.RTMGRP_IPV4_IFADDR | uapi.RTMGRP_IPV4_ROUTE | uapi.RTMGRP_IPV4_RULE, (uapi.RTNLGRP_IPV4_NETCONF,)),
    IPV6: (uapi.RTMGRP_IPV6_IFADDR | uapi.RTMGRP_IPV6_ROUTE, (uapi.RTNLGRP_IPV6_RULE, uapi.RTNLGRP_IPV6_NETCONF)),
}
"""Family -> its multicast groups: a bit mask of the groups that have a bit (RTMGRP), and the numbers (RTNLGRP) of the groups that have
no bit."""

NEW_GENERATION = uapi.NFNL_SUBSYS_NFTABLES << 8 | uapi.NFT_MSG_NEWGEN
"""Type of the message that ends a transaction of nftables."""

_INSTRUCTION = struct.Struct("=HBBI")  # sock_filter: code, jump if true, jump if false, operand

Notice = tuple[int, int, bytes]
"""One notification: its type, the netlink port of the socket that made the change (0 if unknown), and its body."""


class NoticeSocket:
    """A socket in the namespace of the thread that makes it, which only listens to notifications. One user at a time.

    Its queue is large, because a burst of ADDs makes hundreds of notifications before the listener's thread runs, and after a lost
    notification everything must be compared. For nftables only the message that ends a transaction is queued, which contains the name
    of the process. The transaction's other messages are dropped, because a transaction of kube-proxy may have thousands of them.
    """

    def __init__(self, protocol: int, families: Iterable[Family] = ()) -> None:
        """Listen to links, and to the addresses, routes, rules and sysctls of families (NETLINK_ROUTE), or to the ends of nftables'
        transactions (NETLINK_NETFILTER).

        Raises: WiringError.
        """
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
            try:
                self._enlarge_queue()
                if protocol == uapi.NETLINK_ROUTE:
                    self._join_routing_groups(families)
                else:
                    self._take_only(NEW_GENERATION)
                    self._socket.bind((0, 0))
                    self._join_group(uapi.NFNLGRP_NFTABLES)
            except BaseException:
                self._socket.close()
                raise
        except OSError as exc:
            raise WiringError(
                "the kernel's notifications could not be subscribed to",
                details=f"{describe_errno(exc.errno or 0)}; the host is compared only at regular intervals",
            ) from exc

    def fileno(self) -> int:
        """The descriptor, for poll(2)."""
        return self._socket.fileno()

    def close(self) -> None:
        """Release the descriptor; idempotent."""
        self._socket.close()

    def take(self) -> tuple[list[Notice], bool]:
        """Read the notifications that are queued, at most TAKEN_MAX datagrams, without waiting.

        Returns: the notifications in order, and whether some were lost because the queue was full (ENOBUFS).
        Raises: WiringError if the socket is broken.
        """
        notices: list[Notice] = []
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
                        details=f"{describe_errno(exc.errno or 0)}; the socket is opened again",
                    ) from exc
                is_overrun = True
                continue
            if sender == 0:  # the kernel's port
                notices += [(kind, port, data[start:end]) for kind, _, _, port, start, end in split(data)]
        return notices, is_overrun

    def _enlarge_queue(self) -> None:
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, uapi.SO_RCVBUFFORCE, QUEUE_BYTES)
        except PermissionError:  # without CAP_NET_ADMIN the queue grows only as far as net.core.rmem_max allows
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, QUEUE_BYTES)

    def _join_routing_groups(self, families: Iterable[Family]) -> None:
        """Listen to links, and to the addresses, routes, rules and sysctls of families."""
        groups = [GROUPS[family] for family in families]
        mask = uapi.RTMGRP_LINK
        for bits, _ in groups:
            mask |= bits
        self._socket.bind((0, mask))
        for _, numbers in groups:
            for number in numbers:
                self._join_group(number)

    def _join_group(self, number: int) -> None:
        self._socket.setsockopt(uapi.SOL_NETLINK, uapi.NETLINK_ADD_MEMBERSHIP, number)

    def _take_only(self, kind: int) -> None:
        """Make the kernel drop every datagram whose first message has another type than `kind`.

        No message of that type is lost, because net/netfilter sends each of them in a separate datagram.
        """
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
