"""What honest senders fragment arrives, by every path of a sandbox's packets; a redirect does not, in however many fragments.

Forged fragments: tests/netns/test_forged_fragments.py.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

import pytest

from tests.netns import packets
from tests.netns.confined import EXTRA, NODE, OPEN, PRIMARY, SECONDARY, VPC, WORLD, Node
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.privileged

BIG_BYTES = 20_000
"""Three fragments at the MTU of 9001."""

IP_MTU_DISCOVER, IP_PMTUDISC_DONT = 10, 0
"""Linux/in.h: no DF, so the sender's kernel makes fragments."""

ECHO_REQUEST, ECHO_REPLY, REDIRECT = 8, 0, 5
"""RFC 792."""


def build(world):
    """A node whose VPC takes frames of 9001 bytes, with services that lead to each sandbox, as kube-proxy makes them."""
    node = Node(world)
    node.vpc.sh("ip link set p0 mtu 9001; ip link set p1 mtu 9001")
    node.host.sh(
        "nft 'add table ip kube; add chain ip kube pre { type nat hook prerouting priority dstnat; };"
        " add chain ip kube post { type nat hook postrouting priority srcnat; };"
        f" add rule ip kube pre ip daddr {NODE} udp dport 30001 dnat to {PRIMARY}:4000;"
        f" add rule ip kube pre ip daddr {NODE} udp dport 30002 dnat to {SECONDARY}:4000;"
        f" add rule ip kube post ip saddr {SECONDARY} ip daddr {SECONDARY} masquerade;"
        f" add rule ip kube post ip saddr {PRIMARY} ip daddr {PRIMARY} masquerade'"
    )
    return node


def udp_socket(stack, space, address="0.0.0.0", port=0):
    """A socket whose datagrams are fragmented."""
    sock = stack.enter_context(space.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM))
    sock.settimeout(PATIENCE_S)
    sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT)
    sock.bind((address, port))
    return sock


def seen_as(server, client, target, *, port=4000, own="0.0.0.0"):
    """Send a big datagram to a server and take its answer, as big; whom the server saw."""
    with contextlib.ExitStack() as stack:
        bound = udp_socket(stack, server, target if port == 4000 else "0.0.0.0", 4000)
        sender = udp_socket(stack, client, own)
        sender.connect((target, port))
        sender.send(b"out" * (BIG_BYTES // 3))
        heard, peer = bound.recvfrom(BIG_BYTES)
        assert heard == b"out" * (BIG_BYTES // 3)
        bound.sendto(b"back" * (BIG_BYTES // 4), peer)
        assert sender.recv(BIG_BYTES) == b"back" * (BIG_BYTES // 4)
        return peer[0]


def test_big_datagrams_pass_both_ways(world):
    """Between sandboxes, across nodes, to and from the node, SNATed to outside, by NodePort and to itself; nothing is dropped."""
    node = build(world)
    for own, sandbox, other, peer in (
        (PRIMARY, node.primary, SECONDARY, node.secondary),
        (SECONDARY, node.secondary, PRIMARY, node.primary),
    ):
        service, its_own = (30002, 30001) if own == PRIMARY else (30001, 30002)
        assert seen_as(peer, sandbox, other) == own
        assert seen_as(node.vpc, sandbox, VPC) == own
        assert seen_as(sandbox, node.vpc, own, own=VPC) == VPC
        assert seen_as(node.host, sandbox, NODE) == own
        assert seen_as(sandbox, node.host, own) == NODE
        assert seen_as(node.vpc, sandbox, WORLD) == NODE
        assert seen_as(sandbox, node.vpc, NODE, port=its_own, own=VPC) == VPC
        assert seen_as(peer, sandbox, NODE, port=service) == own
        assert seen_as(sandbox, sandbox, NODE, port=its_own) not in (own, "")
    assert {reason: count for reason, count in node.dropped().items() if reason not in ("ipv6", "arp") and count} == {}


def test_fragments_pass_in_every_order(world):
    """The last one first, and with the middle one late: a whole datagram arrives at a sandbox, the node, another node and outside."""
    node = build(world)
    text = b"in pieces".ljust(40, b".")
    with contextlib.ExitStack() as stack:
        for number, (server, target, port) in enumerate(
            ((node.secondary, SECONDARY, 4000), (node.host, NODE, 4000), (node.vpc, VPC, 4000), (node.secondary, NODE, 30002)), 1
        ):
            with udp_socket(stack, server, port=4000) as bound:
                whole = packets.udp(PRIMARY, target, text, port=port)
                for turn, order in enumerate((((32, 48), (16, 32), (0, 16)), ((0, 16), (32, 48), (16, 32)))):
                    pieces = [packets.piece(whole, *each, number=10 * number + turn) for each in order]
                    packets.send(node.primary, "eth0", pieces)
                    assert bound.recv(100) == text


def test_sandboxes_that_route_for_others_may_fragment(make_world):
    """With extra sources a VIP's datagram passes in fragments, the last one first too."""
    node = build(make_world(extra_source_cidrs=EXTRA, exclude_snat_cidrs=EXTRA))
    whole = packets.udp("192.0.2.1", SECONDARY, b"of a VIP".ljust(40, b"."))
    pieces = [packets.piece(whole, start, start + 16, number=7) for start in (32, 16, 0)]
    with contextlib.ExitStack() as stack:
        bound = udp_socket(stack, node.secondary, port=4000)
        packets.send(node.primary, "eth0", pieces)
        assert bound.recvfrom(100) == (b"of a VIP".ljust(40, b"."), ("192.0.2.1", 9))
    assert node.dropped()["source"] == 0


@pytest.mark.parametrize("target", [SECONDARY, NODE, VPC])
def test_a_big_echo_is_answered_whatever_its_bytes_say(world, target):
    """What a later fragment begins with is no ICMP type: an echo full of the number of a redirect is answered, and none is counted."""
    node = build(world)
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(node.primary.call(socket.socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
        sock.settimeout(PATIENCE_S)
        sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT)
        content = bytes((REDIRECT,)) * BIG_BYTES
        head = struct.pack("!BBHHH", ECHO_REQUEST, 0, 0, 7, 1)
        sock.sendto(head[:2] + struct.pack("!H", packets.checksum(head + content)) + head[4:] + content, (target, 0))
        while (answer := sock.recv(BIG_BYTES + 100))[20] != ECHO_REPLY:
            assert answer[20] == ECHO_REQUEST  # its own, where a raw socket hears it
        assert answer[28:] == content
    assert node.dropped()["redirect"] == 0


def test_a_stream_passes(world):
    """TCP is not touched: a megabyte goes between sandboxes and across nodes."""
    node = build(world)
    for client, server, address in ((node.primary, node.secondary, SECONDARY), (node.secondary, node.vpc, VPC)):
        assert _streamed(client, server, address) == 2**20
    assert node.dropped()["source"] == 0


def _streamed(client, server, address):
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(server.call(socket.create_server, (address, 4000)))
        listening.settimeout(PATIENCE_S)
        sender = stack.enter_context(client.call(socket.create_connection, (address, 4000), PATIENCE_S))
        accepted = stack.enter_context(listening.accept()[0])
        accepted.settimeout(PATIENCE_S)

        def send():
            sender.sendall(bytes(2**20))
            sender.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=send)
        thread.start()
        count = sum(map(len, iter(lambda: accepted.recv(2**16), b"")))
        thread.join(timeout=PATIENCE_S)
        return count


def test_a_redirect_in_fragments_arrives_nowhere(world):
    """I16: not in fragments of either order, nor with an overlap, a short or an empty one; without the tables it does."""
    node = build(world)
    targets = (SECONDARY, VPC)
    orders = (
        ((0, 8), (8, 36)),
        ((8, 36), (0, 8)),
        ((0, 16), (8, 36)),
        ((16, 36), (0, 16)),
        ((0, 1), (8, 36)),
        ((0, 0), (0, 8), (8, 36)),
    )

    def heard():
        with contextlib.ExitStack() as stack:
            ear = packets.Ear(stack, links=[(node.vpc, "p0"), (node.secondary, "eth0")])
            for target in targets:
                whole = packets.redirect(PRIMARY, target, about=WORLD, gateway=PRIMARY)
                for number, order in enumerate(orders, 1):
                    pieces = [packets.piece(whole, *each, number=number) for each in order]
                    packets.send(node.primary, "eth0", pieces)
                packets.send(node.primary, "eth0", [packets.udp(PRIMARY, target, b"honest")])
            return [one for one in ear.heard(b"\x05\x01", until=b"honest") if one[9] == packets.ICMP and one[20] == REDIRECT]

    assert heard() == []
    assert node.dropped()["redirect"] == len(targets) * len(orders)
    node.host.sh(OPEN)
    assert heard(), "the ear hears"
