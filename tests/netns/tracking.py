"""Entries of nf_conntrack made by hand, as many as a test wants, and what the kernel shows of them."""

from __future__ import annotations

import re
import struct
from ipaddress import ip_address

from ipamd.kernel.netlink import Message, NetlinkSocket, attribute

NETFILTER = 12  # linux/netlink.h, NETLINK_NETFILTER
NEW = 1 << 8  # linux/netfilter/nfnetlink_conntrack.h, IPCTNL_MSG_CT_NEW
CREATE_EXCLUSIVELY = 0x600  # linux/netlink.h, NLM_F_CREATE | NLM_F_EXCL
NESTED = 0x8000
CONFIRMED = 1 << 3  # linux/netfilter/nf_conntrack_common.h, IPS_CONFIRMED
TIMEOUT_S = 600


def _tuple(source, destination, source_port, destination_port):
    kinds = (1, 2) if source.version == 4 else (3, 4)
    addresses = attribute(kinds[0], source.packed) + attribute(kinds[1], destination.packed)
    protocol = (
        attribute(1, b"\x11") + attribute(2, struct.pack(">H", source_port)) + attribute(3, struct.pack(">H", destination_port))
    )
    return attribute(NESTED | 1, addresses) + attribute(NESTED | 2, protocol)


def entry(source, destination, reply_source, reply_destination, *, port=1000, zone=0):
    """A UDP connection that is tracked from now on."""
    head = struct.pack("=BBH", 2 if source.version == 4 else 10, 0, 0)
    body = attribute(NESTED | 1, _tuple(source, destination, port, 53))
    body += attribute(NESTED | 2, _tuple(reply_source, reply_destination, 53, port))
    body += attribute(7, struct.pack(">I", TIMEOUT_S)) + attribute(3, struct.pack(">I", CONFIRMED))
    body += attribute(18, struct.pack(">H", zone)) if zone else b""
    return Message("track a connection", NEW, CREATE_EXCLUSIVELY, head + body)


def track(space, entries):
    """Have connections tracked in a namespace."""

    def fill():
        sock = NetlinkSocket(protocol=NETFILTER)
        try:
            sock.carry_out(entries, operation="tracking")
        finally:
            sock.close()

    space.call(fill)


def tracked(space):
    """The addresses of each entry of UDP and TCP, as the kernel's text lists them: four for each."""
    lines = space.sh("cat /proc/thread-self/net/nf_conntrack").splitlines()
    found = [tuple(map(ip_address, re.findall(r"(?:src|dst)=(\S+)", line))) for line in lines]
    return [addresses for addresses in found if len(addresses) == 4]
