"""The number that nftables counts up with every change of its rules: what was read at the same number is still true.

Asking for it costs microseconds; listing the chains of a node with thousands of services costs a tenth of a second of CPU.
Source: linux/netfilter/nf_tables.h, NFT_MSG_GETGEN; linux/netfilter/nfnetlink.h.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

from ipamd.kernel import uapi
from ipamd.kernel.netns import HostNetns

NETLINK_NETFILTER: Final = 12
GET_GENERATION: Final = 10 << 8 | 16  # NFNL_SUBSYS_NFTABLES, NFT_MSG_GETGEN
NEW_GENERATION: Final = 10 << 8 | 15
GENERATION_ID: Final = 1
TIMEOUT_S: Final = 2.0

_HEADER = struct.Struct("=IHHIIBBH")  # nlmsghdr and nfgenmsg
_ATTRIBUTE = struct.Struct("=HH")


def generation(host: HostNetns) -> int | None:
    """The number in the host's namespace; None if the kernel does not say."""
    with host.entered():
        try:
            sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER)
        except OSError:
            return None
    with sock:
        sock.settimeout(TIMEOUT_S)
        try:
            sock.sendto(_HEADER.pack(_HEADER.size, GET_GENERATION, uapi.NLM_F_REQUEST, 1, 0, 0, 0, 0), (0, 0))
            answer, sender = sock.recvfrom(4096)
        except OSError:
            return None
    return _read(answer) if sender[0] == 0 else None


def _read(answer: bytes) -> int | None:
    """Find the number in an answer of the kernel; None in any other."""
    if len(answer) < _HEADER.size or _HEADER.unpack_from(answer)[1] != NEW_GENERATION:
        return None
    offset = _HEADER.size
    while offset + _ATTRIBUTE.size <= len(answer):
        size, kind = _ATTRIBUTE.unpack_from(answer, offset)
        if size < _ATTRIBUTE.size:
            return None
        if kind == GENERATION_ID and size >= 8:
            return int.from_bytes(answer[offset + 4 : offset + 8], "big")
        offset += (size + 3) & ~3
    return None
