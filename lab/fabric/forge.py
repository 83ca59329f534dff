"""Send forged packets from inside a namespace: with a foreign source address, as fragments, or as router advertisements.

The packets are built here with all headers, so that the kernel does not check them. They are sent by a raw socket with IP_HDRINCL
(raw(7)): the kernel looks a route up, but does not check the source address. Router advertisements are sent by a packet socket
(packet(7)).
"""

from __future__ import annotations

import socket
import struct
from ipaddress import IPv6Address

from lab.fabric.netns import link_mac, run_inside
from lab.fabric.talk import PORT
from lab.vpc.family import IPV6, family_of
from lab.vpc.model import Address

ETH_P_IPV6 = 0x86DD  # linux/if_ether.h
ALL_NODES = IPv6Address("ff02::1")
ALL_NODES_MAC = bytes.fromhex("333300000001")  # RFC 2464, section 7
ROUTER_ADVERTISEMENT, ICMP_REDIRECT, ICMP_ECHO_REPLY = 134, 5, 0  # RFC 4861, RFC 792
NEIGHBOUR_ADVERTISEMENT, REDIRECT_6, OVERRIDE = 136, 137, 0x20000000  # RFC 4861, sections 4.4 and 4.5
HOP_BY_HOP, DESTINATION_OPTIONS, FRAGMENT = 0, 60, 44  # RFC 8200, section 4
MORE_FRAGMENTS = 0x2000  # RFC 791, section 3.1
_ROUTER_LIFETIME_S = 1800
_TTL = 64


def udp(
    netns_path: str,
    *,
    source: Address,
    target: Address,
    payload: bytes,
    source_port: int = 5999,
    port: int = PORT,
    behind: tuple[int, ...] = (),
) -> None:
    """Send one UDP datagram with the source address `source`.

    Args:
        behind: for IPv6, the extension headers before the UDP header: HOP_BY_HOP, DESTINATION_OPTIONS or FRAGMENT. The fragment
            header says that the packet is the whole datagram.
    Raises: FabricError if the namespace cannot be entered.
    """
    datagram = _datagram(source, target, payload, source_port, port)
    if isinstance(source, IPv6Address):
        kinds, extensions = (*behind, socket.IPPROTO_UDP), b""
        for kind, following in zip(behind, kinds[1:], strict=True):
            extensions += (
                struct.pack("!BBHI", following, 0, 0, 1) if kind == FRAGMENT else bytes((following, 0, 1, 4, 0, 0, 0, 0))
            )
        _send(netns_path, _ipv6(source, target, kinds[0], extensions + datagram), target)
        return
    _send(netns_path, _ipv4(source, target, socket.IPPROTO_UDP, datagram), target)


def udp_fragment(
    netns_path: str, *, source: Address, target: Address, payload: bytes, part: tuple[int, int], number: int
) -> None:
    """Send one fragment of the datagram that `udp` would send.

    Args:
        part: first byte, and the byte after the last one, counted from the UDP header; multiples of 8, except at the end.
        number: identifies the datagram to which the fragment belongs; not 0.
    """
    datagram = _datagram(source, target, payload, 5999, PORT)
    start, end = part
    more = end < len(datagram)
    if isinstance(source, IPv6Address):
        head = struct.pack("!BBHI", socket.IPPROTO_UDP, 0, start | more, number)
        _send(netns_path, _ipv6(source, target, FRAGMENT, head + datagram[start:end]), target)
        return
    fragment = (MORE_FRAGMENTS if more else 0) | start // 8
    _send(netns_path, _ipv4(source, target, socket.IPPROTO_UDP, datagram[start:end], number=number, fragment=fragment), target)


def redirect(netns_path: str, *, source: Address, target: Address, of: Address, to: Address) -> None:
    """Send `target` an ICMP redirect in the name of `source`: packets to `of` should go by `to`.

    In IPv4 the redirect quotes an echo reply of the target, because for these the kernel does not look for a socket (net/ipv4/icmp.c,
    icmp_err).
    """
    if isinstance(source, IPv6Address):
        _send(netns_path, _icmp6(source, target, REDIRECT_6, bytes(4) + to.packed + of.packed), target)
        return
    reply = struct.pack("!BBHHH", ICMP_ECHO_REPLY, 0, checksum(struct.pack("!BBHHH", ICMP_ECHO_REPLY, 0, 0, 1, 1)), 1, 1)
    lost = _ipv4(target, of, socket.IPPROTO_ICMP, reply, length=28)
    head = struct.pack("!BBH4s", ICMP_REDIRECT, 1, 0, to.packed)
    message = struct.pack("!BBH4s", ICMP_REDIRECT, 1, checksum(head + lost), to.packed) + lost
    _send(netns_path, _ipv4(source, target, socket.IPPROTO_ICMP, message), target)


def neighbour_claim(netns_path: str, *, link: str, target: IPv6Address, of: IPv6Address) -> None:
    """Send `target` a neighbour advertisement in the name of `of`: the MAC of `of` is the sender's on `link`. It overrides the entry
    that the target has."""
    mac = bytes.fromhex(run_inside(netns_path, lambda: link_mac(link)).replace(":", ""))
    claim = struct.pack("!I", OVERRIDE) + of.packed + struct.pack("!BB6s", 2, 1, mac)
    _send(netns_path, _icmp6(of, target, NEIGHBOUR_ADVERTISEMENT, claim), target)


def router_advertisement(netns_path: str, *, link: str, prefix: IPv6Address) -> None:
    """Send on `link` a router advertisement: the sender is a router, and all nodes may make themselves an address in `prefix`/64."""
    mac = bytes.fromhex(run_inside(netns_path, lambda: link_mac(link)).replace(":", ""))
    source = IPv6Address(b"\xfe\x80" + bytes(6) + bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:])  # RFC 4291, EUI-64
    head = struct.pack("!BBHII", 64, 0, _ROUTER_LIFETIME_S, 0, 0)
    option = struct.pack("!BBBBIII16s", 3, 4, 64, 0xC0, 86400, 86400, 0, prefix.packed)
    message = head + option + struct.pack("!BB6s", 1, 1, mac)
    frame = ALL_NODES_MAC + mac + struct.pack("!H", ETH_P_IPV6) + _icmp6(source, ALL_NODES, ROUTER_ADVERTISEMENT, message)

    def send() -> None:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC) as sock:
            sock.bind((link, ETH_P_IPV6))
            sock.send(frame)

    run_inside(netns_path, send)


def checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    data += bytes(len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def _datagram(source: Address, target: Address, payload: bytes, source_port: int, port: int) -> bytes:
    datagram = struct.pack("!HHHH", source_port, port, 8 + len(payload), 0) + payload  # 0: no checksum (RFC 768)
    if family_of(source) is not IPV6:
        return datagram
    total = checksum(_pseudo(source, target, len(datagram), socket.IPPROTO_UDP) + datagram) or 0xFFFF  # RFC 8200, section 8.1
    return datagram[:6] + struct.pack("!H", total) + datagram[8:]


def _pseudo(source: Address, target: Address, length: int, protocol: int) -> bytes:
    return source.packed + target.packed + struct.pack("!II", length, protocol)


def _icmp6(source: IPv6Address, target: Address, kind: int, content: bytes) -> bytes:
    message = struct.pack("!BBH", kind, 0, 0) + content
    total = checksum(_pseudo(source, target, len(message), socket.IPPROTO_ICMPV6) + message)
    return _ipv6(source, target, socket.IPPROTO_ICMPV6, message[:2] + struct.pack("!H", total) + content, hops=255)


def _ipv6(source: Address, target: Address, following: int, content: bytes, *, hops: int = _TTL) -> bytes:
    return struct.pack("!IHBB16s16s", 6 << 28, len(content), following, hops, source.packed, target.packed) + content


def _ipv4(
    source: Address,
    target: Address,
    protocol: int,
    content: bytes,
    *,
    length: int = 0,
    number: int = 0,
    fragment: int = 0,
) -> bytes:
    # Of the packet that is sent, the kernel fills in the length, the checksum, and the ID if it is 0 (raw(7)). It does not do so for a
    # packet that is quoted in the payload.
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, length, number, fragment, _TTL, protocol, 0, source.packed, target.packed)
    return head + content


def _send(netns_path: str, packet: bytes, target: Address) -> None:
    def send() -> None:
        with socket.socket(family_of(target).number, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_RAW) as sock:
            sock.sendto(packet, (str(target), 0))

    run_inside(netns_path, send)
