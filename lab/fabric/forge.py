"""Sends from inside a namespace what no honest program sends: a source that is not its own, a fragment, a router advertisement.

Packets are built here whole and given to the kernel past its own checks: IPv4 by a raw socket with its own header (raw(7),
IP_HDRINCL), IPv6 by a packet socket (packet(7)), so that neither routes nor addresses of the namespace stand in the way.
"""

from __future__ import annotations

import socket
import struct
from ipaddress import IPv4Address, IPv6Address

from lab.fabric.netns import link_mac, run_inside
from lab.fabric.talk import PORT

ETH_P_IPV6 = 0x86DD  # linux/if_ether.h
ALL_NODES = IPv6Address("ff02::1")
ALL_NODES_MAC = bytes.fromhex("333300000001")  # RFC 2464, section 7
ROUTER_ADVERTISEMENT, ICMP_REDIRECT, ICMP_ECHO_REPLY = 134, 5, 0  # RFC 4861, RFC 792
MORE_FRAGMENTS = 0x2000  # RFC 791, section 3.1
_ROUTER_LIFETIME_S = 1800
_TTL = 64


def udp(
    netns_path: str, *, source: IPv4Address, target: IPv4Address, payload: bytes, source_port: int = 5999, port: int = PORT
) -> None:
    """Send one datagram that says it comes from `source`. Raises: FabricError if the namespace cannot be entered."""
    _send_ipv4(netns_path, _ipv4(source, target, socket.IPPROTO_UDP, _datagram(payload, source_port, port)), target)


def udp_fragment(
    netns_path: str, *, source: IPv4Address, target: IPv4Address, payload: bytes, part: tuple[int, int], number: int
) -> None:
    """Send the bytes of `part` of the same datagram, header included, as its fragment; both ends count in 8 bytes. `number`: not 0."""
    datagram = _datagram(payload, 5999, PORT)
    start, end = part
    fragment = (MORE_FRAGMENTS if end < len(datagram) else 0) | start // 8
    packet = _ipv4(source, target, socket.IPPROTO_UDP, datagram[start:end], number=number, fragment=fragment)
    _send_ipv4(netns_path, packet, target)


def redirect(netns_path: str, *, source: IPv4Address, target: IPv4Address, of: IPv4Address, to: IPv4Address) -> None:
    """Tell `target`, as `source`, that the way to `of` leads by `to`.

    It speaks of an echo reply that the target sent: for these the kernel looks for no socket (its net/ipv4/icmp.c, icmp_err).
    """
    reply = struct.pack("!BBHHH", ICMP_ECHO_REPLY, 0, checksum(struct.pack("!BBHHH", ICMP_ECHO_REPLY, 0, 0, 1, 1)), 1, 1)
    lost = _ipv4(target, of, socket.IPPROTO_ICMP, reply, length=28)
    head = struct.pack("!BBH4s", ICMP_REDIRECT, 1, 0, to.packed)
    message = struct.pack("!BBH4s", ICMP_REDIRECT, 1, checksum(head + lost), to.packed) + lost
    _send_ipv4(netns_path, _ipv4(source, target, socket.IPPROTO_ICMP, message), target)


def router_advertisement(netns_path: str, *, link: str, prefix: IPv6Address) -> None:
    """Say on `link` that the sender is a router, and that everybody may make an address of `prefix`/64."""
    mac = bytes.fromhex(run_inside(netns_path, lambda: link_mac(link)).replace(":", ""))
    source = IPv6Address(b"\xfe\x80" + bytes(6) + bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:])  # RFC 4291, EUI-64
    head = struct.pack("!BBHBBHII", ROUTER_ADVERTISEMENT, 0, 0, 64, 0, _ROUTER_LIFETIME_S, 0, 0)
    option = struct.pack("!BBBBIII16s", 3, 4, 64, 0xC0, 86400, 86400, 0, prefix.packed)
    message = head + option + struct.pack("!BB6s", 1, 1, mac)
    pseudo = source.packed + ALL_NODES.packed + struct.pack("!II", len(message), socket.IPPROTO_ICMPV6)
    message = message[:2] + struct.pack("!H", checksum(pseudo + message)) + message[4:]
    packet = struct.pack("!IHBB16s16s", 6 << 28, len(message), socket.IPPROTO_ICMPV6, 255, source.packed, ALL_NODES.packed)
    frame = ALL_NODES_MAC + mac + struct.pack("!H", ETH_P_IPV6) + packet + message

    def send() -> None:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC) as sock:
            sock.bind((link, ETH_P_IPV6))
            sock.send(frame)

    run_inside(netns_path, send)


def checksum(data: bytes) -> int:
    """RFC 1071."""
    data += bytes(len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def _datagram(payload: bytes, source_port: int, port: int) -> bytes:
    return struct.pack("!HHHH", source_port, port, 8 + len(payload), 0) + payload  # checksum 0: none, RFC 768


def _ipv4(
    source: IPv4Address,
    target: IPv4Address,
    protocol: int,
    content: bytes,
    *,
    length: int = 0,
    number: int = 0,
    fragment: int = 0,
) -> bytes:
    # The kernel fills in length, checksum and an ID of 0 of what is sent: raw(7); not of a packet within the packet.
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, length, number, fragment, _TTL, protocol, 0, source.packed, target.packed)
    return head + content


def _send_ipv4(netns_path: str, packet: bytes, target: IPv4Address) -> None:
    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_RAW) as sock:
            sock.sendto(packet, (str(target), 0))

    run_inside(netns_path, send)
