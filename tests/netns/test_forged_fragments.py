"""A sandbox's fragment joins nobody else's datagram: a forged one is dropped before the kernel puts fragments together.

What honest senders fragment arrives: tests/netns/test_fragments.py.
"""

from __future__ import annotations

import contextlib
import itertools
import socket

import pytest

from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.kernel.nft import Nftables
from ipamd.model.repairs import RepairCode
from tests.netns import packets
from tests.netns.confined import EXTRA, NODE, PRIMARY, RELEASE_BEFORE, SECONDARY, VPC, WORLD, Node
from tests.netns.conftest import PRIMARY_MAC
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.privileged

PORT, NODE_PORT = 4000, 30001
TEXT_BYTES = 40
HONEST = ((0, 16), (16, 32), (32, 48))
"""The victim's datagram in three fragments: a UDP header and `TEXT_BYTES`."""

FORGED = {
    "first": (0, 16),
    "middle": (16, 32),
    "last": (32, 48),
    "over-the-first": (8, 24),
    "over-the-last": (24, 48),
    "early-end": (16, 24),
    "late-end": (48, 56),
}
CASES = [(name, order, place) for name in FORGED for order in ("in order", "last first") for place in range(len(HONEST) + 1)]
"""Which fragment is forged, the order of the honest ones, and how many of them come before it."""

FROM_SANDBOX = ("sandbox-to-sandbox", "sandbox-to-node", "sandbox-to-vpc", "sandbox-to-outside")
FROM_VPC = ("vpc-to-sandbox", "vpc-to-node", "node-port")


def heard_by(server, number, send):
    """What came before a last packet, of which `send` sends the text. Again if nothing did: on a busy machine it may pass others."""
    heard = []
    for attempt in range(5):
        end = b"end of %d.%d" % (number, attempt)
        send(end)
        heard += iter(lambda: server.recv(2048), end)
        if heard:
            break
    return heard


class Victim:
    """A sender and a receiver of one path, and a third sandbox on the node that sends as the sender.

    Across nodes the ENI's other end stands for the other node: the datagram leaves by it, or arrives by it.
    """

    def __init__(self, world, path, stack):
        self.node = node = Node(world)
        self.attacker = world.space()
        world.wiring.wire(world.spec(self.attacker, number=31))
        node.host.sh(
            "nft 'add table ip kube; add chain ip kube pre { type nat hook prerouting priority dstnat; };"
            f" add rule ip kube pre ip daddr {NODE} udp dport {NODE_PORT} dnat to {PRIMARY}:{PORT}'"
        )
        sandbox, vpc = (node.primary, "eth0", PRIMARY), (node.vpc, "p0", VPC)
        sender, server, self._target = {
            "sandbox-to-sandbox": (sandbox, node.secondary, SECONDARY),
            "sandbox-to-node": (sandbox, node.host, NODE),
            "sandbox-to-vpc": (sandbox, node.vpc, VPC),
            "sandbox-to-outside": (sandbox, node.vpc, WORLD),
            "vpc-to-sandbox": (vpc, node.primary, PRIMARY),
            "vpc-to-node": (vpc, node.host, NODE),
            "node-port": (vpc, node.primary, NODE),
        }[path]
        self._space, self._link, self._source = sender
        self._mac = PRIMARY_MAC if self._space is node.vpc else ""
        self._port = NODE_PORT if path == "node-port" else PORT
        self._server = stack.enter_context(server.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM))
        self._server.bind(("0.0.0.0", PORT))
        self._server.settimeout(PATIENCE_S)
        self._numbers = itertools.count(1)

    def hears(self, name, order, place):
        """Send an honest datagram and one forged fragment of the same number; "" if the honest one is heard and nothing else."""
        number = next(self._numbers)
        text, false = (b"%s %d." % (word, number) for word in (b"honest", b"forged"))
        honest = self._packet(text.ljust(TEXT_BYTES, b"."))
        start, end = FORGED[name]
        ends = {"early-end": end - 8, "late-end": end - 8}.get(name, TEXT_BYTES)
        forged = packets.piece(self._packet(false.ljust(ends, b"!")), start, end, number=number)
        pieces = [packets.piece(honest, *each, number=number) for each in (HONEST if order == "in order" else HONEST[::-1])]
        self._send(pieces[:place])
        packets.send(self.attacker, "eth0", [forged])
        self._send(pieces[place:])
        heard = heard_by(self._server, number, lambda end: self._send([self._packet(end)]))
        return "" if heard == [text.ljust(TEXT_BYTES, b".")] else f"heard {heard}"

    def _packet(self, text):
        return packets.udp(self._source, self._target, text, port=self._port)

    def _send(self, frames):
        if frames:
            packets.send(self._space, self._link, frames, to=self._mac)


@pytest.mark.parametrize("path", [*FROM_SANDBOX, *FROM_VPC])
def test_a_forged_fragment_joins_no_datagram(world, path):
    """I16: whichever fragment is forged and whenever it comes, the victim's datagram arrives as it was sent; each is counted once."""
    with contextlib.ExitStack() as stack:
        victim = Victim(world, path, stack)
        found = {case: verdict for case in CASES if (verdict := victim.hears(*case))}
        assert not found, f"{len(found)} of {len(CASES)}: {found}"
        assert victim.node.dropped()["source"] == len(CASES)


@pytest.mark.parametrize("path", FROM_SANDBOX)
def test_with_extra_sources_neither(make_world, path):
    """I16: another sandbox's datagram is as safe where sandboxes may send from more addresses."""
    with contextlib.ExitStack() as stack:
        victim = Victim(make_world(extra_source_cidrs=EXTRA), path, stack)
        found = {case: verdict for case in CASES if (verdict := victim.hears(*case))}
        assert not found, f"{len(found)} of {len(CASES)}: {found}"
        assert victim.node.dropped()["source"] == len(CASES)


def test_the_table_of_the_release_before_is_replaced_under_running_sandboxes(world):
    """I16: it lets forged fragments in; a daemon that starts replaces it at once, and then none joins."""
    with contextlib.ExitStack() as stack:
        victim = Victim(world, "sandbox-to-sandbox", stack)
        victim.node.host.sh("; ".join(RELEASE_BEFORE.values()))
        for name, order, mark in (("first", "in order", "forged"), ("last", "last first", "!!!!")):
            assert any(mark in victim.hears(name, order, 0) for _ in range(20))  # a busy machine may change their order
        restarted = KernelHostNetwork(world.netns, config=world.config, nft=Nftables(world.netns))
        assert not restarted.is_source_checked()
        said = restarted.confine_sandboxes()
        assert RepairCode.TABLE_RENEWED in [one.code for one in said]
        assert restarted.is_source_checked()
        assert victim.hears("first", "in order", 0) == ""
        assert restarted.confine_sandboxes() == []
        assert restarted.dropped_packets()["source"] == 1


V6_NODE, V6_VPC = "2001:db8::10", "2001:db8::77"
UNKNOWN = 253
"""A protocol for experiments (RFC 3692, section 2.1): what arrives is not looked at, and has no checksum."""


class Ipv6Victim:
    """The node hears by IPv6 from the VPC. It tracks connections, so fragments are put together before any other check."""

    def __init__(self, world, stack):
        self.node = node = Node(world)
        node.host.sh(
            f"ip addr add {V6_NODE}/64 dev eth0 nodad; nft 'add table ip6 t; add chain ip6 t c"
            " { type filter hook prerouting priority 0; }; add rule ip6 t c ct state invalid drop'"
        )
        node.vpc.sh(f"ip addr add {V6_VPC}/64 dev p0 nodad")
        for sandbox in (node.primary, node.secondary):  # their own reports and solicitations are counted too
            sandbox.sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1")
        self._server = stack.enter_context(node.host.call(socket.socket, socket.AF_INET6, socket.SOCK_RAW, UNKNOWN))
        self._server.settimeout(PATIENCE_S)
        self._numbers = itertools.count(1)
        (veth,) = (one for one in node.host.ip("link") if one["ifname"] == node.veths[0])
        self._veth_mac = veth["address"]

    def hears(self, forged, *, at, place, following=UNKNOWN):
        """Two honest fragments of 16 bytes and a forged one at `at` before the one with the number `place`; all that was heard."""
        number = next(self._numbers)
        honest = (b"honest %d" % number).ljust(32, b".")
        pieces = [
            packets.ipv6_piece(V6_VPC, V6_NODE, honest, start, start + 16, number=number, following=UNKNOWN) for start in (0, 16)
        ]
        for count, each in enumerate([*pieces, None]):
            if count == place:
                content = bytes(at) + forged + b"\0" * 16 * (at == 0)
                false = packets.ipv6_piece(V6_VPC, V6_NODE, content, at, at + len(forged), number=number, following=following)
                packets.send(self.node.primary, "eth0", [false], to=self._veth_mac, kind=packets.ETH_P_IPV6)
            if each is not None:
                self._send(each)
        ends = itertools.count(10_000 * number)
        heard = heard_by(
            self._server,
            number,
            lambda end: self._send(packets.ipv6_piece(V6_VPC, V6_NODE, end, 0, 64, number=next(ends), following=UNKNOWN)),
        )
        return "" if heard == [honest] else f"heard {heard}"

    def _send(self, frame):
        packets.send(self.node.vpc, "p0", [frame], to=PRIMARY_MAC, kind=packets.ETH_P_IPV6)


def test_nothing_of_ipv6_joins_a_datagram(world):
    """I16: no fragment of a sandbox, with or without a complete header of the next layer, reaches the node's IPv6 reassembly."""
    with contextlib.ExitStack() as stack:
        victim = Ipv6Victim(world, stack)
        before = victim.node.dropped_now("ipv6")
        forged = [
            {"forged": b"forged first....", "at": 0, "following": UNKNOWN},
            {"forged": b"forged last.....", "at": 16, "following": UNKNOWN},
            {"forged": b"forged over.....", "at": 8, "following": UNKNOWN},
            # no complete header of TCP (20 bytes), of options that go on in the next fragment, of ICMPv6 (an odd first fragment)
            {"forged": b"\0\7" + bytes(6), "at": 0, "following": socket.IPPROTO_TCP},
            {"forged": b"\x3a\7" + bytes(6), "at": 0, "following": socket.IPPROTO_DSTOPTS},
            {"forged": b"\x86", "at": 0, "following": packets.ICMPV6},
        ]
        found = {(number, place): victim.hears(**case, place=place) for number, case in enumerate(forged) for place in range(3)}
        assert not any(found.values()), found
        assert victim.node.dropped_now("ipv6") - before == len(found)
