"""A host whose sandboxes have egress of the other family, and an outside beyond its primary ENI, for the tests beside it."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from dataclasses import replace
from ipaddress import IPv6Address, ip_address

from ipamd.model.family import IPV4, IPV6, family_of
from ipamd.model.legs import legs_of
from tests.netns import packets
from tests.patience import PATIENCE_S

OUTSIDE = {IPV4: "203.0.113.9", IPV6: "2001:db8:ff::9"}
DASH = {IPV4: "-4", IPV6: "-6"}
NODE = {IPV4: "10.0.0.10", IPV6: "2001:db8:1::10"}


class Node:
    """A host with sandboxes of one family and egress of the other, set up; the outside is beyond its primary ENI."""

    def __init__(self, make_world, *, is_wired=True, is_set_up=True, **config):
        self.world = make_world(v6_egress=True, **config)
        self.family = IPV6 if self.world.family is IPV4 else IPV4
        self.host, self.wiring, self.hostnet = self.world.host, self.world.wiring, self.world.hostnet
        self.outside = self.world.fabric()
        if self.family is IPV6:
            self.outside.sh(
                "sysctl -qw net.ipv6.conf.all.forwarding=1; ip -6 addr add 2001:db8:1::1/64 dev p0 nodad;"
                " ip -6 addr flush dev p0 scope link; ip -6 addr add fe80::a/64 dev p0 nodad;"
                f" ip -6 addr add {OUTSIDE[IPV6]}/128 dev lo nodad"
            )
            self.host.sh("ip -6 addr flush dev eth0 scope link; ip -6 addr add fe80::b/64 dev eth0 nodad")
            self.host.sh(f"ip -6 addr add {NODE[IPV6]}/64 dev eth0 nodad; ip -6 route add default via 2001:db8:1::1")
        if is_set_up:
            self.set_up()
        self.sandboxes = [self.world.space(), self.world.space()]
        self.specs = [self.spec(one, number) for number, one in enumerate(self.sandboxes)]
        for spec in self.specs if is_wired else ():
            self.wiring.wire(spec)

    def set_up(self):
        """As the daemon does at its start."""
        self.hostnet.confine_sandboxes()
        self.hostnet.setup_node(self.world.identity())

    def spec(self, sandbox, number):
        """What to wire: of the pool's family a number, and of the other one the range's."""
        other = self.family.address(int(self.family.local_range.first) + number)
        return replace(self.world.spec(sandbox, number=100 + number), other_address=other)

    @property
    def seconds(self):
        """The specs of the second links."""
        return [legs_of(spec)[1] for spec in self.specs]


def is_in_order(node, spec):
    """Whether nothing differs, a moment after the wiring: the kernel makes an IPv6 address local in a thread of its own."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := node.wiring.check(spec)) and time.monotonic() < deadline:
        select.select([], [], [], 0.01)
    return found == []


def reaches(space, address):
    """Whether a datagram that must be answered is: the first may be lost while neighbours beyond the node are looked for."""
    return any(is_answered(space, address) for _ in range(round(PATIENCE_S)))


def is_answered(space, address):
    """Whether a datagram arrives: its target says that nobody listens at that port."""
    family = family_of(ip_address(str(address)))
    sock = space.call(lambda: socket.socket(socket_family(family), socket.SOCK_DGRAM))
    with contextlib.closing(sock):
        sock.settimeout(1)
        sock.connect((str(address), 4001))
        with contextlib.suppress(TimeoutError):
            try:
                sock.send(b"asked")
                sock.recv(100)
            except ConnectionRefusedError:
                return True
    return False


def listens(stack, space, family, address):
    """A UDP socket in a namespace."""
    made = space.call(lambda: socket.socket(socket_family(family), socket.SOCK_DGRAM))
    stack.callback(made.close)
    made.settimeout(PATIENCE_S)
    made.bind((address, 0))
    return made


def socket_family(family):
    """The number of the socket module."""
    return socket.AF_INET if family is IPV4 else socket.AF_INET6


def send(node, spec, frames):
    """Send packets of either family from a link of the first sandbox."""
    for frame in frames:
        kind = packets.ETH_P_IPV6 if frame[0] >> 4 == 6 else packets.ETH_P_IP
        packets.send(node.sandboxes[0], spec.ifname, [frame], to=spec.mac("host"), kind=kind)


def udp(family, source, target, *, text=b"spoofed"):
    """A UDP packet of either family, without IPv4's checksum."""
    if family is IPV4:
        return packets.udp(str(source), str(target), text)
    body = struct.pack("!HHHH", 9, 4000, 8 + len(text), 0) + text
    addresses = IPv6Address(str(source)).packed + IPv6Address(str(target)).packed
    sum_of = packets.checksum(addresses + struct.pack("!II", len(body), packets.UDP) + body) or 0xFFFF
    body = body[:6] + struct.pack("!H", sum_of) + body[8:]
    return struct.pack("!IHBB", 6 << 28, len(body), packets.UDP, 64) + addresses + body
