"""A sandbox of IPv6 is confined: what it sends in another's name, as a router or as a neighbour goes nowhere, however wrapped up."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time
from ipaddress import IPv6Address

import pytest

from ipamd.kernel import netlink, uapi
from ipamd.kernel.confinement import Confinement
from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.model.attachment import pod_veth_name
from ipamd.model.family import IPV6
from ipamd.model.repairs import RepairCode
from tests.netns import packets
from tests.netns.conftest import FIRST, NODE6, ROUTER, VPC6
from tests.netns.test_foreign_links import KINDS, into_tunnel, intrude
from tests.patience import PATIENCE_S
from tests.rig import wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.slow, pytest.mark.parametrize("family", [IPV6], ids=["ipv6"])]

NODE, PREFIX = str(NODE6), IPV6.network((FIRST[IPV6], 80))
OWN, OTHER, FREE = (str(FIRST[IPV6] + number) for number in (5, 6, 0x77))

FOREIGN = (OTHER, FREE, NODE, ROUTER, VPC6, "2001:db8:99::1", "::", "fe80::bad", "fe80::1", "::ffff:10.0.0.10", "64:ff9b::1")
"""Another sandbox, a free address of the prefix, the node, its router, the VPC, outside, none, link-local and mapped ones."""

SHAPES = {
    "plain": lambda source, target, text: [packets.udp6(source, target, text)],
    "behind options": lambda source, target, text: [
        packets.ipv6(
            source,
            target,
            packets.HOP_BY_HOP,
            packets.options(packets.DESTINATION_OPTIONS)
            + packets.options(packets.UDP, size=16)
            + packets.udp6_content(source, target, text),
        )
    ],
    "in fragments": lambda source, target, text: _pieces(source, target, packets.UDP, packets.udp6_content(source, target, text)),
    "options in fragments": lambda source, target, text: _pieces(
        source,
        target,
        packets.DESTINATION_OPTIONS,
        packets.options(packets.UDP, size=24) + packets.udp6_content(source, target, text),
        size=32,
    ),
    "an atomic fragment": lambda source, target, text: [
        packets.ipv6_piece(source, target, packets.udp6_content(source, target, text), 0, 4096, number=1, following=packets.UDP)
    ],
}
"""How a packet is wrapped up."""


def _pieces(source, target, following, content, *, size=16):
    """The last one first."""
    starts = range(0, len(content), size)
    return [
        packets.ipv6_piece(source, target, content, start, start + size, number=7, following=following)
        for start in reversed(starts)
    ]


class Node:
    """A node of IPv6, set up and confined, with two sandboxes: the first is hostile."""

    def __init__(self, world):
        self.world, self.host = world, world.host
        self.vpc = world.fabric()
        world.hostnet = KernelHostNetwork(world.netns, config=world.config, nft=world.nft, prefixes=lambda: {PREFIX: "eni-1"})
        world.hostnet.setup_node(world.identity())
        world.hostnet.confine_sandboxes()
        self.pod, self.other = world.space(), world.space()
        self.specs = [world.spec(self.pod, number=5), world.spec(self.other, number=6)]
        for spec in self.specs:
            world.wiring.wire(spec)

    def send(self, frames, *, to=""):
        """From the hostile sandbox."""
        packets.send(self.pod, "eth0", frames, to=to, kind=packets.ETH_P_IPV6)

    def ear(self, stack):
        """Hears what leaves the node, what comes to the other sandbox, and what comes to port 4000 of the node."""
        return packets.Ear(stack, links=[(self.vpc, "p0"), (self.other, "eth0")], ports=[self.host])

    def dropped(self, family="ip6"):
        """The counters now."""
        listed = json.loads(self.host.sh(f"nft -j list counters table {family} vpc-ipamd-confine"))["nftables"]
        return {one["counter"]["name"].removeprefix("dropped_"): one["counter"]["packets"] for one in listed if "counter" in one}

    def state(self):
        """What a router or neighbour could change of the node."""
        kept = self.host.sh("ip -6 route show default; ip -6 route show cache; ip -6 rule")
        known = [line for spec in self.specs for line in self.host.sh(f"ip -6 neigh show dev {spec.host_veth}").splitlines()]
        return kept, sorted(line for line in known if "NOARP" not in line)


@pytest.fixture
def node(world):
    """Set up, with its sandboxes."""
    return Node(world)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_conntrack", [False, True])
def test_spoofed_packets_arrive_nowhere(node, shape, has_conntrack):
    """No foreign source leaves a sandbox, to the node, a sandbox, the VPC or outside; each packet is counted. Its own passes."""
    if has_conntrack:
        node.host.sh(
            "nft 'table inet track { chain every { type filter hook prerouting priority 0; ct state invalid counter; }; }'"
        )
    make, targets = SHAPES[shape], (NODE, OTHER, VPC6)
    with contextlib.ExitStack() as stack:
        ear, before = node.ear(stack), node.dropped()["source"]
        frames = [frame for source in FOREIGN for target in targets for frame in make(source, target, b"spoofed-" * 3)]
        node.send(frames)
        node.send([frame for target in targets for frame in make(OWN, target, b"honest--" * 3)])
        assert ear.heard(b"spoofed-", until=b"honest--") == []
        assert node.dropped()["source"] - before == len(frames)
    with contextlib.ExitStack() as stack:
        ear = node.ear(stack)
        node.send([frame for target in targets for frame in make(OWN, target, b"honest--" * 3)])
        assert len(ear.heard(b"honest--", least=len(targets))) >= len(targets), "and what is its own does arrive"


def test_without_the_table_they_arrive(node):
    """The ear hears."""
    node.host.sh("nft flush ruleset")
    with contextlib.ExitStack() as stack:
        ear = node.ear(stack)
        node.send([packets.udp6(source, target, b"spoofed") for source in (VPC6, FREE) for target in (NODE, OTHER, VPC6)])
        assert len(ear.heard(b"spoofed", least=3)) >= 3


def _discovery(source, target_mac):
    """Messages of routers and neighbours from a source: solicitations, advertisements and a redirect, for the node and for all."""
    link = b"\2\1" + bytes.fromhex(target_mac.replace(":", ""))
    everybody, own = "ff02::1", IPv6Address(NODE)
    wanted = IPv6Address(VPC6).packed
    for target in (NODE, everybody, "ff02::2", str(IPv6Address(int(IPv6Address("ff02::1:ff00:0")) | (int(own) & 0xFFFFFF)))):
        yield target, 133, bytes(4) + b"\1\1" + link[2:]
        yield target, 134, struct.pack("!BBHII", 64, 0, 1800, 0, 0)
        yield target, 135, bytes(4) + own.packed + b"\1\1" + link[2:]
        for claimed in (own.packed, IPv6Address(ROUTER).packed, IPv6Address(OTHER).packed, wanted):
            yield target, 136, struct.pack("!I", 0x20000000) + claimed + link
        yield target, 137, bytes(4) + IPv6Address(source).packed + wanted + link


ATTACKS = {
    "plain": lambda source, target, kind, body: [packets.icmpv6(source, target, kind, body)],
    "behind options": lambda source, target, kind, body: [
        packets.ipv6(
            source,
            target,
            packets.DESTINATION_OPTIONS,
            packets.options(packets.ICMPV6) + packets.icmpv6_content(source, target, kind, body),
            hop_limit=255,
        )
    ],
    "in fragments": lambda source, target, kind, body: _in_pieces(source, target, kind, body, hidden=False),
    "hidden in fragments": lambda source, target, kind, body: _in_pieces(source, target, kind, body, hidden=True),
}


def _in_pieces(source, target, kind, body, *, hidden):
    content, following = packets.icmpv6_content(source, target, kind, body), packets.ICMPV6
    if hidden:  # the first fragment ends before the ICMP header
        content, following = packets.options(packets.ICMPV6, size=32) + content, packets.DESTINATION_OPTIONS
    pieces = _pieces(source, target, following, content)
    return [piece[:7] + b"\xff" + piece[8:] for piece in pieces]  # the hop limit


@pytest.mark.parametrize("has_conntrack", [False, True])
@pytest.mark.parametrize("shape", ATTACKS)
def test_nobody_listens_to_a_router_or_neighbour_in_a_sandbox(node, shape, has_conntrack):
    """Router advertisements, redirects, solicitations and claims, from its own, a link-local and another's address, to the node and to
    all, plain and wrapped up: nothing of the node changes, nobody answers, and nothing arrives at others.
    """
    if has_conntrack:
        node.host.sh(
            "nft 'table inet track { chain every { type filter hook prerouting priority 0; ct state invalid counter; }; }'"
        )
    node.host.sh("sysctl -qw net.ipv6.conf.all.accept_redirects=1")
    veth = node.specs[0].host_veth
    mac = node.host.ip(f"link show {veth}")[0]["address"]
    before, counted, sent_count, sources = node.state(), node.dropped(), 0, (OWN, "fe80::bad", ROUTER, OTHER)
    with contextlib.ExitStack() as stack:
        ear = packets.Ear(stack, links=[(node.vpc, "p0"), (node.other, "eth0")])
        answers = packets.Ear(stack, links=[(node.pod, "eth0")])
        for source in sources:
            for target, kind, body in _discovery(source, "02:00:00:00:66:66"):
                frames = ATTACKS[shape](source, target, kind, body)
                sent_count += len(frames)
                node.send(frames, to=mac if "ff02" not in target else "33:33:00:00:00:01")
        node.send([packets.udp6(OWN, OTHER, b"honest")])
        heard = [one for one in ear.heard(b"", until=b"honest") if one[:1] == b"\x60" and one[6:7] in (b"\x3a", b"\x2c", b"\x3c")]
        assert [one for one in heard if IPv6Address(one[8:24]) != IPv6Address(NODE) and b"\x66\x66" in one] == []
        received = [one for one in answers.heard(b"") if str(IPv6Address(one[8:24])) not in sources]
        assert [one for one in received if one[6:7] == b"\x3a" and one[40:41] == b"\x88"] == [], "nobody answers a solicitation"
    assert node.state() == before
    found = {reason: count - counted[reason] for reason, count in node.dropped().items()}
    assert found["discovery"] + found["redirect"] + found["source"] >= sent_count * (
        0.75 if shape == "hidden in fragments" else 1
    )


@pytest.mark.parametrize("kind", KINDS)
def test_by_a_link_that_it_made_a_sandbox_speaks_for_nobody_and_is_no_router(node, kind):
    """What a sandbox makes on the node, of each kind: no address that is routed elsewhere leaves by it, however wrapped up, and nobody
    takes a router advertisement or a redirect; without our tables both happen.
    """
    mac = intrude(node.pod, node.host, kind=kind)
    node.host.sh("sysctl -qw net.ipv6.conf.evil0.accept_ra=2 net.ipv6.conf.evil0.accept_redirects=1")
    routed = (OTHER, NODE, VPC6, "2001:db8:99::1", OWN)

    def send(frames):
        if kind == "vxlan":
            into_tunnel(node.pod, frames, to=mac, kind=packets.ETH_P_IPV6)
        else:
            packets.send(node.pod, "inner0", frames, to=mac, kind=packets.ETH_P_IPV6)

    def arrived():
        with contextlib.ExitStack() as stack:
            ear = node.ear(stack)
            for make in SHAPES.values():
                send([one for source in routed for target in (OTHER, VPC6) for one in make(source, target, b"spoofed-" * 3)])
            node.send([packets.udp6(OWN, target, b"honest--" * 3) for target in (OTHER, VPC6)])
            heard = ear.heard(b"spoofed-", until=b"honest--")
            return [one for one in heard if one[:1] != b"\x60" or one[6] != packets.ICMPV6]  # not the errors that answer them

    def state():
        """But for what the kernel knows of the new link by itself."""
        return [line for line in node.state()[0].splitlines() if "kernel" not in line]

    def advertised():
        before = state()
        for source in ("fe80::bad", ROUTER):
            frames = [packets.router_advertisement(source)]
            frames.append(packets.icmpv6(source, NODE, 137, bytes(4) + IPv6Address(source).packed + IPv6Address(VPC6).packed))
            send(frames * 3)
        time.sleep(0.3)
        return state() != before

    node.world.hostnet.confine_sandboxes()
    assert [one.name for one in node.world.hostnet.foreign_links()] == ["evil0"]
    assert arrived() == []
    assert not advertised()
    assert node.dropped()["foreign"] >= len(routed) * len(SHAPES)
    node.host.sh("nft flush ruleset")
    wait_until(lambda: bool(arrived()), what="without our tables they arrive")
    wait_until(advertised, what="without our tables the node listens")


def test_what_a_healthy_sandbox_sends_is_no_spoofing(node):
    """With a link-local address the kernel asks whether somebody has it, for routers, and tells to which multicast it listens."""
    node.pod.sh("sysctl -qw net.ipv6.conf.eth0.router_solicitation_delay=0; ip -6 addr add fe80::b/64 dev eth0")
    give_up = time.monotonic() + PATIENCE_S
    while not all(node.dropped()[reason] for reason in ("listening", "discovery")):
        assert time.monotonic() < give_up, node.dropped()
        node.pod.sh("ip -6 addr del fe80::b/64 dev eth0; ip -6 addr add fe80::b/64 dev eth0")
        time.sleep(0.2)
    found = node.dropped()
    assert {reason: count for reason, count in found.items() if count and reason not in ("listening", "discovery")} == {}
    node.world.hostnet.confine_sandboxes()
    told = node.world.hostnet.dropped_packets()
    assert (told["source"], told["listening"] > 0, told["discovery"] > 0) == (0, True, True)


@pytest.mark.parametrize("is_checked", [True, False], ids=["checked", "down"])
def test_a_deleted_sandbox_neither_sends_nor_hears(node, is_checked):
    """I4: at the reply of a DEL no route of the address is left, its link may stay up until the sweep, and nothing passes by it."""
    assert node.world.hostnet.is_source_checked()
    spec = node.specs[0]
    node.world.wiring.mark_for_deletion(spec, is_source_checked=is_checked)
    assert ("UP" in node.host.ip(f"link show {spec.host_veth}")[0]["flags"]) is is_checked
    assert f"{OWN} " not in node.host.sh("ip -6 route show table all; ip -6 rule")
    with contextlib.ExitStack() as stack:
        ear, inside = node.ear(stack), packets.Ear(stack, links=[(node.pod, "eth0")])
        node.send([packets.udp6(source, target, b"dead:") for source in (OWN, OTHER, VPC6) for target in (NODE, OTHER, VPC6)])
        mac = node.host.ip("link show eth0")[0]["address"]
        packets.send(node.vpc, "p0", [packets.udp6(VPC6, OWN, b"in vain")], to=mac, kind=packets.ETH_P_IPV6)
        packets.send(node.other, "eth0", [packets.udp6(OTHER, VPC6, b"alive")], kind=packets.ETH_P_IPV6)
        heard = [one for one in ear.heard(b"dead:", until=b"alive") if one[6] == packets.UDP]  # not the errors that answer
        assert (heard, inside.heard(b"in vain")) == ([], [])
    node.world.wiring.sweep()
    assert spec.host_veth not in node.host.link_names()


@pytest.mark.parametrize(("has_egress", "reason"), [(False, "ipv4"), (True, "source")])
def test_ipv4_of_its_sandboxes_is_dropped(make_world, has_egress, reason):
    """By its link of IPv6 a sandbox has no IPv4, with or without egress: what it sends goes nowhere, and is counted."""
    node = Node(make_world(v4_egress=has_egress))
    with contextlib.ExitStack() as stack:
        ear = packets.Ear(stack, links=[(node.vpc, "p0"), (node.other, "eth0")], ports=[node.host])
        frames = [packets.udp("10.0.0.5", target, b"of old") for target in ("10.0.0.10", "10.0.77.7", "127.0.0.1")]
        mac = node.host.ip(f"link show {node.specs[0].host_veth}")[0]["address"]
        packets.send(node.pod, "eth0", frames, to=mac)
        assert ear.heard(b"of old") == []
    counted = node.dropped("ip")
    assert counted[reason] + counted.get("loopback", 0) == len(frames)


class Theirs:
    """A sandbox as amazon-vpc-cni-k8s wires it: link-local addresses at both ends, no permanent neighbour on the host."""

    def __init__(self, world, number):
        self.space, self.address = world.space(), FIRST[IPV6] + number
        self.veth = pod_veth_name("default", f"pod{number}", prefix="eni")
        host = f"/proc/{os.getpid()}/fd/{world.host.fd}"
        self.space.sh(f"ip link add eth0 type veth peer name {self.veth}; ip link set {self.veth} netns {host}")
        world.host.sh(
            f"sysctl -qw net.ipv6.conf.{self.veth}.accept_ra=0 net.ipv6.conf.{self.veth}.dad_transmits=0; ip link set {self.veth} up;"
            f"ip -6 route add {self.address}/128 dev {self.veth}; ip -6 rule add prio 512 to {self.address} lookup main"
        )
        mac = world.host.ip(f"link show {self.veth}")[0]["address"]
        self.space.sh(
            f"sysctl -qw net.ipv6.conf.eth0.dad_transmits=0; ip link set eth0 up; ip -6 addr add {self.address}/128 dev eth0 nodad;"
            "ip -6 route add fe80::1/128 dev eth0; ip -6 route add default via fe80::1 dev eth0;"
            f"ip -6 neigh add fe80::1 lladdr {mac} dev eth0 nud permanent"
        )
        # What a neighbour is known for is short here, so that the host asks again and again.
        base = f"/proc/sys/net/ipv6/neigh/{self.veth}"
        world.host.sh(
            f"echo 100 > {base}/base_reachable_time_ms; echo 0 > {base}/delay_first_probe_time; echo 1 > {base}/ucast_solicit"
        )


class Traffic:
    """Datagrams from the VPC to an address, each of which is answered or not; `lost` are those that were not."""

    def __init__(self, node, sandbox, stack):
        self._server = stack.enter_context(sandbox.space.call(socket.socket, socket.AF_INET6, socket.SOCK_DGRAM))
        self._server.bind((str(sandbox.address), 4000))
        self._server.settimeout(1)
        self._client = stack.enter_context(node.vpc.call(socket.socket, socket.AF_INET6, socket.SOCK_DGRAM))
        self._client.bind((VPC6, 0))
        self._client.settimeout(1)
        self._client.connect((str(sandbox.address), 4000))
        self.sent_count, self.lost_count = 0, 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        stack.callback(self.stop)

    def _run(self):
        while not self._is_over.wait(0.02):
            self.sent_count += 1
            try:
                self._client.send(b"%d" % self.sent_count)
                data, peer = self._server.recvfrom(16)
                self._server.sendto(data, peer)
                self._client.recv(16)
            except OSError:
                self.lost_count += 1

    def settles(self):
        """Wait until the first have found their way, of which one may be lost."""
        self.runs_on()
        assert self.lost_count < 5
        self.lost_count = 0

    def runs_on(self, count=40):
        """Wait until so many more were sent."""
        goal, give_up = self.sent_count + count, time.monotonic() + PATIENCE_S
        while self.sent_count < goal:
            assert time.monotonic() < give_up
            time.sleep(0.02)

    def stop(self):
        """End it."""
        self._is_over.set()
        self._thread.join()


def test_a_start_asks_for_the_neighbours_of_others_only(world, monkeypatch):
    """In one send, however many there are: of what we wired every ADD made them, and hundreds would hold up the first one."""
    world.fabric()
    world.hostnet.setup_node(world.identity())
    for number in range(3):
        world.wiring.wire(world.spec(world.space(), number=10 + number))
    theirs = [Theirs(world, number) for number in (5, 6)]
    sent, request = [], netlink.NetlinkSocket.request
    monkeypatch.setattr(netlink.NetlinkSocket, "request", lambda self, batch: sent.append(batch) or request(self, batch))
    world.hostnet.confine_sandboxes()
    # Their links may have addresses of their own by then, which are theirs too.
    asked = [
        [one.step for one in batch if "neighbour fe80" not in one.step]
        for batch in sent
        if any(one.kind == uapi.RTM_GETNEIGH for one in batch)
    ]
    assert [sorted(batch) for batch in asked] == [sorted(f"look at neighbour {one.address}" for one in theirs)]
    assert all(world.host.ip(f"neigh show {one.address} dev {one.veth}")[0]["state"] == ["PERMANENT"] for one in theirs)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_node_comes_over_and_goes_back_without_a_lost_packet(world, is_first, monkeypatch):
    """What amazon-vpc-cni-k8s wired asks for neighbours: its entry is made permanent before that is dropped, so no packet is lost; the
    other way round they are. For the way back the drop goes first, and what is wired then has its neighbours.
    """
    if not is_first:
        monkeypatch.setattr(Confinement, "_fix_neighbours", lambda *_: None)
    vpc = world.fabric()
    node = type("Node", (), {"vpc": vpc})
    world.hostnet.setup_node(world.identity())
    sandbox = Theirs(world, 5)
    with contextlib.ExitStack() as stack:
        traffic = Traffic(node, sandbox, stack)
        traffic.settles()
        world.hostnet.confine_sandboxes()
        traffic.runs_on(5 if not is_first else 60)
        if not is_first:
            give_up = time.monotonic() + PATIENCE_S
            while not traffic.lost_count:
                assert time.monotonic() < give_up, "without the entry the host knows its neighbour no more"
                time.sleep(0.02)
            return
        assert traffic.lost_count == 0
        (entry,) = world.host.ip(f"neigh show {sandbox.address} dev {sandbox.veth}")
        assert entry["state"] == ["PERMANENT"]
        assert RepairCode.DISCOVERY_OPENED in [one.code for one in world.hostnet.allow_neighbour_discovery()]
        after = Theirs(world, 7)
        second = Traffic(node, after, stack)
        second.settles()
        second.runs_on(60)
        traffic.runs_on()
        assert (traffic.lost_count, second.lost_count) == (0, 0)
        assert world.hostnet.allow_neighbour_discovery() == []
