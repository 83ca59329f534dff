"""The VPC router's advertisements: one on each port when it is wired and at each solicitation, and again every few seconds.

A node learns its IPv6 default route so, as on EC2, where the router is fe80:ec2::1 on every link. No prefix is announced as on-link:
what EC2 gives is an address of its own (/128), and all else goes by the router (ours: whether EC2 announces one is not documented).
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from contextlib import suppress
from ipaddress import IPv6Address

from lab.fabric.netns import Netns

ROUTER = IPv6Address("fe80:ec2::1")
"""In each subnet ("VPC router", VPC user guide)."""

LIFETIME_S = 65535
"""The longest there is. EC2's lasts for half an hour and is renewed all the time; here the node's link is a veth, by which a daemon
takes no advertisement before it knows the primary ENI, so the route of the boot has to last (found by a chaos run of half an hour).
"""
PERIOD_S = 5.0  # ours, because: a node that lost its route by mistake gets it back while a test waits
SOLICITATION, ADVERTISEMENT = 133, 134  # RFC 4861
MANAGED = 0x80  # addresses come by DHCPv6
ALL_NODES, ALL_ROUTERS = "ff02::1", "ff02::2"
ICMP6_FILTER = 1  # linux/icmpv6.h
BLOCKS_ALL_BUT_SOLICITATIONS = b"".join(
    struct.pack("=I", 0xFFFFFFFF & ~(1 << SOLICITATION % 32 if word == SOLICITATION // 32 else 0)) for word in range(8)
)


class Advertiser:
    """One thread on one raw socket in the router's namespace. Close it."""

    def __init__(self, router: Netns) -> None:
        self._router = router
        self._ports: set[int] = set()
        self._socket = router.call(_socket)
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="lab-router-advertisements", daemon=True)
        self._thread.start()

    def add(self, port: str) -> None:
        """Advertise on a port from now on, at once too."""
        index = self._router.call(lambda: socket.if_nametoindex(port))
        group = socket.inet_pton(socket.AF_INET6, ALL_ROUTERS) + struct.pack("=I", index)
        self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
        self._ports.add(index)
        self._send(index)

    def advertise(self, port: str) -> None:
        """Advertise on a port once more, now."""
        self._send(self._router.call(lambda: socket.if_nametoindex(port)))

    def close(self) -> None:
        """End the thread; idempotent."""
        with suppress(OSError):
            self._waker.send(b"x")
        self._thread.join()
        for each in (self._socket, self._wake, self._waker):
            each.close()

    def _serve(self) -> None:
        while True:
            ready, _, _ = select.select([self._socket, self._wake], [], [], PERIOD_S)
            if self._wake in ready:
                return
            if ready:
                _, (_, _, _, index) = self._socket.recvfrom(1500)
                self._send(index)
            for port in () if ready else tuple(self._ports):
                self._send(port)

    def _send(self, index: int) -> None:
        """To all nodes of a link; a port that is gone is forgotten."""
        message = struct.pack("!BBHBBHII", ADVERTISEMENT, 0, 0, 64, MANAGED, LIFETIME_S, 0, 0)
        try:
            self._socket.sendto(message, (ALL_NODES, 0, 0, index))
        except OSError:
            self._ports.discard(index)


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_INET6, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_ICMPV6)
    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
    made.setsockopt(socket.IPPROTO_ICMPV6, ICMP6_FILTER, BLOCKS_ALL_BUT_SOLICITATIONS)
    return made
