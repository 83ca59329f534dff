"""Packets packed by hand, as a hostile sandbox sends them, and an ear on a link that hears what arrives there."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from ipaddress import IPv4Address, IPv6Address

from tests.patience import PATIENCE_S

ETH_P_IP, ETH_P_ARP, ETH_P_IPV6, ETH_P_ALL = 0x0800, 0x0806, 0x86DD, 0x0003
UDP, ICMP, ICMPV6, FRAGMENT = 17, 1, 58, 44
HOP_BY_HOP, DESTINATION_OPTIONS = 0, 60
QUIET_S = 0.15
"""How long nothing may come for what came to be all."""
LOUD_S = 3.0
"""How long it may go on, once all has come that must."""


def checksum(data):
    """The internet checksum (RFC 1071)."""
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ipv4(source, destination, protocol, payload):
    """An IPv4 packet."""
    fields = (0x45, 0, 20 + len(payload), 1, 0, 64, protocol)
    addresses = IPv4Address(source).packed + IPv4Address(destination).packed
    head = struct.pack("!BBHHHBBH", *fields, 0) + addresses
    return struct.pack("!BBHHHBBH", *fields, checksum(head)) + addresses + payload


def piece(packet, start, end, *, number):
    """The fragment with bytes `start` to `end` of an IPv4 packet's content; `number` is the datagram's. `start` is a multiple of 8."""
    content = packet[20:]
    has_more = 0x2000 * (end < len(content))  # RFC 791, section 3.1: flags, and the offset in units of 8 bytes
    head = struct.pack("!HHHBBH", 20 + len(content[start:end]), number, has_more | start // 8, *packet[8:10], 0)
    head = packet[:2] + head + packet[12:20]
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + content[start:end]


def ipv6_piece(source, destination, content, start, end, *, number, following):
    """The same for IPv6 (RFC 8200, section 4.5); `following` is the protocol of the content."""
    has_more = int(end < len(content))
    extension = struct.pack("!BBHI", following, 0, start | has_more, number)
    addresses = IPv6Address(source).packed + IPv6Address(destination).packed
    body = extension + content[start:end]
    return struct.pack("!IHBB", 6 << 28, len(body), FRAGMENT, 64) + addresses + body


def ipv6(source, destination, protocol, payload, *, hop_limit=64):
    """An IPv6 packet; `protocol` is of the payload's first header."""
    addresses = IPv6Address(source).packed + IPv6Address(destination).packed
    return struct.pack("!IHBB", 6 << 28, len(payload), protocol, hop_limit) + addresses + payload


def udp6(source, destination, text, *, port=4000):
    """A UDP packet of IPv6; the source port is 9."""
    return ipv6(source, destination, UDP, udp6_content(source, destination, text, port=port))


def udp6_content(source, destination, text, *, port=4000):
    """What is behind its IPv6 header."""
    head = struct.pack("!HHHH", 9, port, 8 + len(text), 0)
    return head[:6] + struct.pack("!H", _checksum6(source, destination, UDP, head + text) or 0xFFFF) + text


def options(following, *, size=8):
    """A header of `size` bytes (a multiple of 8) with an option that nobody knows and everybody skips (RFC 8200, 4.2, RFC 4727)."""
    return struct.pack("!BBBB", following, size // 8 - 1, 0x1E, size - 4) + bytes(size - 4)


def icmpv6(source, destination, kind, body, *, hop_limit=255):
    """An ICMPv6 message; `body` is what follows the checksum."""
    return ipv6(source, destination, ICMPV6, icmpv6_content(source, destination, kind, body), hop_limit=hop_limit)


def icmpv6_content(source, destination, kind, body):
    """What is behind its IPv6 header."""
    head = struct.pack("!BBH", kind, 0, 0)
    return head[:2] + struct.pack("!H", _checksum6(source, destination, ICMPV6, head + body)) + body


def _checksum6(source, destination, protocol, content):
    addresses = IPv6Address(source).packed + IPv6Address(destination).packed
    return checksum(addresses + struct.pack("!II", len(content), protocol) + content)


def udp(source, destination, text, *, port=4000):
    """A UDP packet without checksum; the source port is 9."""
    return ipv4(source, destination, UDP, struct.pack("!HHHH", 9, port, 8 + len(text), 0) + text)


def redirect(source, destination, *, about, gateway):
    """An ICMP redirect (RFC 792): packets of `destination` to `about` shall go by `gateway`."""
    body = struct.pack("!BBH", 5, 1, 0) + IPv4Address(gateway).packed + udp(destination, about, b"")
    return ipv4(source, destination, ICMP, body[:2] + struct.pack("!H", checksum(body)) + body[4:])


def arp(operation, sender, target, *, mac):
    """An ARP request (1) or answer (2) of Ethernet and IPv4 (RFC 826)."""
    own, addresses = bytes.fromhex(mac.replace(":", "")), (IPv4Address(sender).packed, IPv4Address(target).packed)
    return struct.pack("!HHBBH", 1, ETH_P_IP, 6, 4, operation) + own + addresses[0] + bytes(6) + addresses[1]


def neighbour_advertisement(target, *, mac="02:00:00:00:66:66"):
    """A neighbour advertisement to all nodes (RFC 4861, 4.4) that nobody asked for: `target` has this MAC, whatever was known."""
    addresses = IPv6Address(target).packed + IPv6Address("ff02::1").packed
    body = struct.pack("!BBHI", 136, 0, 0, 0x20000000) + IPv6Address(target).packed
    body += b"\2\1" + bytes.fromhex(mac.replace(":", ""))
    pseudo = addresses + struct.pack("!II", len(body), ICMPV6)
    body = body[:2] + struct.pack("!H", checksum(pseudo + body)) + body[4:]
    return struct.pack("!IHBB", 6 << 28, len(body), ICMPV6, 255) + addresses + body


def router_advertisement(source="fe80::bad"):
    """A router advertisement to all nodes (RFC 4861, 4.2): a default router for half an hour."""
    addresses = IPv6Address(source).packed + IPv6Address("ff02::1").packed
    body = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0)
    pseudo = addresses + struct.pack("!II", len(body), ICMPV6)
    body = body[:2] + struct.pack("!H", checksum(pseudo + body)) + body[4:]
    return struct.pack("!IHBB", 6 << 28, len(body), ICMPV6, 255) + addresses + body


def send(space, link, frames, *, to="", kind=ETH_P_IP):
    """Send packets from a link of a space; to the MAC `to`, or to that of the link's permanent neighbour."""
    neighbours = space.ip(f"neigh show dev {link} nud permanent")
    mac = bytes.fromhex((to or neighbours[0]["lladdr"]).replace(":", ""))
    with contextlib.closing(space.call(socket.socket, socket.AF_PACKET, socket.SOCK_DGRAM)) as sock:
        for frame in frames:
            sock.sendto(frame, (link, kind, 0, 0, mac))


class Ear:
    """Hears what arrives at links of spaces (before their own filters), and at port 4000 of hosts (behind them)."""

    def __init__(self, stack, *, links=(), ports=()):
        """`links`: (space, name); `ports`: spaces in which any address is listened to."""
        self._sockets = []
        for space, name in links:
            sock = stack.enter_context(space.call(socket.socket, socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL)))
            sock.bind((name, ETH_P_ALL))
            self._sockets.append(sock)
        for space in ports:
            kind, any_address = (socket.AF_INET6, "::") if space.dash == "-6" else (socket.AF_INET, "0.0.0.0")
            sock = stack.enter_context(space.call(socket.socket, kind, socket.SOCK_DGRAM))
            sock.bind((any_address, 4000))
            self._sockets.append(sock)
        for sock in self._sockets:
            sock.setblocking(False)

    def heard(self, mark, *, until=b"", least=0):
        """Everything with `mark` in it, until nothing came for a moment. What must come has time before that: something with `until`,
        and `least` of those with the mark.
        """
        found, is_over = [], not until
        quiet_since, give_up = time.monotonic(), time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up:
            if is_over and len(found) >= least:
                give_up = min(give_up, time.monotonic() + LOUD_S)
                if time.monotonic() > quiet_since + QUIET_S:
                    break
            for sock in self._sockets:
                with contextlib.suppress(BlockingIOError):
                    while time.monotonic() < give_up:  # all that is there, before the clock says that nothing came
                        data = sock.recv(2048)
                        if until and until in data:
                            is_over, quiet_since = True, time.monotonic()
                        if mark in data:
                            found.append(data)
                            quiet_since = time.monotonic()
            time.sleep(0.002)
        return found
