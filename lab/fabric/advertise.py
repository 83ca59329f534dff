"""The VPC router's advertisements: on each port when it is wired, after each solicitation, and every few seconds.

From them a node learns its IPv6 default route, as on EC2, where the router is fe80:ec2::1 on every link. The lab announces no on-link
prefix, because an instance has only its own address (/128) and reaches all others through the router (ours: whether EC2 announces a
prefix is not documented).
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
"""The router's link-local address in each subnet ("VPC router", VPC user guide)."""

LIFETIME_S = 65535
"""Lifetime of the default route, the longest that an advertisement can carry. EC2's route lasts half an hour and is renewed all the
time. A lab node's link is a veth, on which a daemon accepts no advertisement before it knows the primary ENI, so the route of the boot
must last until then. In a chaos run of half an hour EC2's lifetime was too short."""
PERIOD_S = 5.0  # ours: short enough that a node whose route was removed gets it back while a test waits
SOLICITATION, ADVERTISEMENT = 133, 134  # RFC 4861
MANAGED = 0x80  # addresses come by DHCPv6
ALL_NODES, ALL_ROUTERS = "ff02::1", "ff02::2"
ICMP6_FILTER = 1  # linux/icmpv6.h
BLOCKS_ALL_BUT_SOLICITATIONS = b"".join(
    struct.pack("=I", 0xFFFFFFFF & ~(1 << SOLICITATION % 32 if word == SOLICITATION // 32 else 0)) for word in range(8)
)


class Advertiser:
    """Sends the advertisements, by a thread with a raw socket in the router's namespace. Call `close` at the end."""

    def __init__(self, router: Netns) -> None:
        self._router = router
        self._ports: set[int] = set()
        self._socket = router.call(_socket)
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="lab-router-advertisements", daemon=True)
        self._thread.start()

    def add(self, port: str) -> None:
        """Advertise on a port now, and regularly from now on."""
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
        for sock in (self._socket, self._wake, self._waker):
            sock.close()

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
        """Send an advertisement to all nodes of a link. If the link does not exist any more, stop advertising on it."""
        message = struct.pack("!BBHBBHII", ADVERTISEMENT, 0, 0, 64, MANAGED, LIFETIME_S, 0, 0)
        try:
            self._socket.sendto(message, (ALL_NODES, 0, 0, index))
        except OSError:
            self._ports.discard(index)


def _socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET6, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_ICMPV6)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
    sock.setsockopt(socket.IPPROTO_ICMPV6, ICMP6_FILTER, BLOCKS_ALL_BUT_SOLICITATIONS)
    return sock
