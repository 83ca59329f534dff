"""A sandbox is confined: spoofed packets, redirects and IPv6 go nowhere, its own traffic always passes."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from ipaddress import IPv4Address, IPv4Network

import pytest

from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.kernel.nft import Nftables
from tests.netns import packets
from tests.netns.confined import EXTRA, NODE, OPEN, PRIMARY, SECONDARY, VPC, WORLD, Node
from tests.netns.test_host_network import udp_peer
from tests.patience import PATIENCE_S
from tests.rig import wait_until

pytestmark = pytest.mark.privileged
FOREIGN = (
    "10.0.0.31",
    "10.0.1.99",
    NODE,
    "10.0.1.10",
    VPC,
    WORLD,
    "127.0.0.1",
    "0.0.0.0",
    "169.254.1.1",
    "224.0.0.1",
    "198.51.100.7",
)
"""Other pods of the subnets, the node's two addresses, the VPC's and outside ones, and some that nobody may send from."""


MODES = pytest.mark.parametrize(
    ("all_rp_filter", "src_valid_mark"), [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)], ids=lambda value: str(value)
)


@MODES
def test_spoofed_packets_arrive_nowhere(world, all_rp_filter, src_valid_mark):
    """No foreign source leaves a sandbox, to the node, to a sandbox of either ENI, to the VPC or outside; each is counted."""
    node = Node(world, all_rp_filter=all_rp_filter, src_valid_mark=src_valid_mark)
    for sender, own, other in ((node.primary, PRIMARY, SECONDARY), (node.secondary, SECONDARY, PRIMARY)):
        before = node.dropped()["source"]
        sources = (*FOREIGN, other)
        targets = (NODE, "10.0.1.10", other, VPC, WORLD)
        assert node.spoof(sender, own, sources, targets=targets) == []
        assert node.dropped()["source"] - before == len(sources) * len(targets)


def test_without_the_table_spoofed_packets_arrive(world):
    """The ear hears: without table and strict rp_filter, other sandboxes' and outside addresses reach sandboxes, node and VPC."""
    node = Node(world)
    node.host.sh(OPEN)
    heard = node.spoof(node.primary, PRIMARY, (WORLD, "10.0.0.31"), targets=(NODE, SECONDARY, VPC))
    assert len(heard) >= 3


def test_the_second_line_falls_when_others_turn_it_off(world):
    """Strict on the veth holds without the table, whatever all.rp_filter is; but anybody may set it to 0: hence the table."""
    node = Node(world)
    node.host.sh("nft flush ruleset")
    for value in (2, 1, 0):
        node.host.sh(f"sysctl -qw net.ipv4.conf.all.rp_filter={value}")
        assert node.spoof(node.primary, PRIMARY, (WORLD,), targets=(SECONDARY, VPC)) == []
    node.host.sh(f"sysctl -qw net.ipv4.conf.{node.veths[0]}.rp_filter=0")
    assert node.spoof(node.primary, PRIMARY, (WORLD,), targets=(SECONDARY, VPC))
    node.world.hostnet.confine_sandboxes()
    assert node.host.sh(f"cat /proc/sys/net/ipv4/conf/{node.veths[0]}/rp_filter") == "1\n"


@MODES
def test_a_sandboxs_own_traffic_passes(world, all_rp_filter, src_valid_mark):
    """Between ENIs, to the VPC, SNATed outside, from the node, by NodePort from outside and from a sandbox, and to itself."""
    node = Node(world, all_rp_filter=all_rp_filter, src_valid_mark=src_valid_mark)
    assert udp_peer(node.vpc, VPC, node.secondary) == SECONDARY
    assert udp_peer(node.vpc, VPC, node.primary) == PRIMARY
    assert udp_peer(node.secondary, SECONDARY, node.primary) == PRIMARY
    assert udp_peer(node.primary, PRIMARY, node.secondary) == SECONDARY
    assert udp_peer(node.secondary, SECONDARY, node.vpc, VPC) == VPC
    assert udp_peer(node.primary, PRIMARY, node.vpc, VPC) == VPC
    assert udp_peer(node.vpc, WORLD, node.secondary) == NODE
    assert udp_peer(node.vpc, WORLD, node.primary) == NODE
    assert udp_peer(node.secondary, SECONDARY, node.host, NODE) == NODE
    assert udp_peer(node.host, NODE, node.secondary) == SECONDARY
    # what kube-proxy does: a NodePort on each ENI's sandbox, and masquerading where a sandbox reaches itself
    node.host.sh(
        "nft 'add table ip kube; add chain ip kube pre { type nat hook prerouting priority dstnat; };"
        " add chain ip kube post { type nat hook postrouting priority srcnat; };"
        f" add rule ip kube pre ip daddr {NODE} udp dport 30001 dnat to {PRIMARY}:4000;"
        f" add rule ip kube pre ip daddr {NODE} udp dport 30002 dnat to {SECONDARY}:4000;"
        f" add rule ip kube post ip saddr {SECONDARY} ip daddr {SECONDARY} masquerade;"
        f" add rule ip kube post ip saddr {PRIMARY} ip daddr {PRIMARY} masquerade'"
    )
    assert _node_port(node.primary, node.vpc, 30001, own=VPC) == VPC
    assert _node_port(node.secondary, node.vpc, 30002, own=VPC) == VPC
    assert _node_port(node.primary, node.secondary, 30001) == SECONDARY
    assert _node_port(node.secondary, node.primary, 30002) == PRIMARY
    assert _node_port(node.primary, node.primary, 30001) not in (PRIMARY, "")
    assert _node_port(node.secondary, node.secondary, 30002) not in (SECONDARY, "")
    assert node.dropped()["source"] == 0


def _node_port(server, client, port, *, own=""):
    """Reach a server by the node's address and a port; as whom the server saw the client, which got its answer."""
    with contextlib.ExitStack() as stack:
        bound = stack.enter_context(server.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM))
        bound.settimeout(PATIENCE_S)
        bound.bind(("0.0.0.0", 4000))
        sender = stack.enter_context(client.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM))
        sender.settimeout(PATIENCE_S)
        sender.bind((own, 0))
        sender.connect((NODE, port))
        sender.send(b"in")
        _, peer = bound.recvfrom(16)
        bound.sendto(b"answer", peer)
        assert sender.recv(16) == b"answer"
        return peer[0]


def test_a_restart_that_knows_the_primary_eni_makes_its_tables_once(world):
    """The primary ENI's link is virtual here: the tables of the first process accept router advertisements by it."""
    list_table = "nft --handle list table ip6 vpc-ipamd-confine"
    world.fabric()
    world.hostnet.confine_sandboxes()
    world.hostnet.setup_node(world.identity())
    restarted = KernelHostNetwork(world.netns, config=world.config, nft=Nftables(world.netns))
    restarted.recall_primary_mac(world.identity().primary_mac)
    assert restarted.confine_sandboxes() == []
    made = world.host.sh(list_table)
    restarted.setup_node(world.identity())
    assert world.host.sh(list_table) == made


def test_no_packet_is_lost_while_the_table_is_replaced(world):
    """A restarted daemon replaces the table in one transaction: traffic passes before, meanwhile and after; spoofing does not."""
    node = Node(world)
    restarted = KernelHostNetwork(world.netns, config=world.config, nft=Nftables(world.netns))
    is_over = threading.Event()

    def replace_it():
        for _ in range(40):
            node.host.sh("nft add rule ip vpc-ipamd-confine from_veths counter")
            restarted.confine_sandboxes()
        is_over.set()

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(node.secondary.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM))
        server.bind((SECONDARY, 4000))
        server.settimeout(PATIENCE_S)
        client = stack.enter_context(node.primary.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM))
        ear = packets.Ear(stack, links=[(node.secondary, "eth0")])
        thread = threading.Thread(target=replace_it)
        thread.start()
        for number in range(20000):
            client.sendto(b"%d" % number, (SECONDARY, 4000))
            if number % 50 == 0:
                packets.send(node.primary, "eth0", [packets.udp(WORLD, SECONDARY, b"spoofed")])
            assert server.recv(16) == b"%d" % number
            if is_over.is_set():
                break
        thread.join(timeout=120)
        assert is_over.is_set()
        assert ear.heard(b"spoofed") == []


def test_a_router_advertisement_gives_the_node_no_route(world):
    """CVE-2020-10749's class: a sandbox's router advertisement gives the node no IPv6 route; without all this it does."""
    node = Node(world)
    veth = node.veths[0]
    mac = node.host.ip(f"link show {veth}")[0]["address"]
    assert [one["prefixlen"] for one in node.host.ip(f"-6 addr show dev {veth}") if one] == [], (
        "no address, so no link-local route"
    )

    def advertise():
        packets.send(node.primary, "eth0", [packets.router_advertisement()] * 3, to="33:33:00:00:00:01", kind=packets.ETH_P_IPV6)
        packets.send(node.primary, "eth0", [packets.router_advertisement("fe80::cafe")], to=mac, kind=packets.ETH_P_IPV6)
        with contextlib.ExitStack() as stack:
            packets.Ear(stack).heard(b"")
        return node.host.sh("ip -6 route show default") + node.host.sh(f"ip -6 neigh show dev {veth}")

    assert advertise() == ""
    assert node.host.sh(f"cat /proc/sys/net/ipv6/conf/{veth}/disable_ipv6") == "0\n"
    assert node.dropped()["ipv6"] >= 4
    # the second line, set by the repair that counted: without the table the kernel does not read it either
    assert node.host.sh(f"cat /proc/sys/net/ipv6/conf/{veth}/disable_ipv6") == "1\n"
    node.host.sh("nft flush ruleset")
    assert advertise() == ""
    node.host.sh(f"echo 0 > /proc/sys/net/ipv6/conf/{veth}/disable_ipv6")
    wait_until(lambda: f"dev {veth}" in advertise(), what="nothing is shown by this test")


def test_a_router_advertisement_by_a_link_without_a_kind_passes(world):
    """An ENI's link has no kind: the VPC router's advertisements, by which the node renews its way out, are not among the drops. The
    loopback stands for it, because every other link that can be made here has a kind."""
    node = Node(world)
    chain = "add chain ip6 t in { type filter hook input priority 50; }"
    node.host.sh(f"nft 'add table ip6 t; {chain}; add rule ip6 t in icmpv6 type nd-router-advert counter'")
    node.host.sh("ip link set lo up")
    before = node.dropped()["ipv6"]
    advertised = [packets.router_advertisement("fe80:ec2::1")] * 3
    with contextlib.closing(node.host.call(socket.socket, socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)) as sock:
        for packet in advertised:
            sock.sendto(packet[40:], ("::1", 0))
    # A sandbox's own multicast may be dropped meanwhile; dropped advertisements would be as many as were sent.
    assert node.dropped()["ipv6"] - before < len(advertised)
    assert "counter packets 3" in node.host.sh("nft list table ip6 t")  # behind our chain, so it did pass
    node.host.sh("ip link add ve0 up type veth peer name ve1; ip link set ve1 up")
    packets.send(node.host, "ve0", advertised, to="33:33:00:00:00:01", kind=packets.ETH_P_IPV6)
    wait_until(lambda: node.dropped()["ipv6"] >= before + 3, what="what another link advertises is dropped")


def test_a_small_mtu_leaves_no_ipv6_to_turn_off(world):
    """Below 1280 bytes a link has no IPv6 at all, and the kernel refuses the message about it: no fault of the wiring."""
    spec = world.spec(world.space(), mtu=1000)
    world.wiring.wire(spec)
    assert world.wiring.check(spec) == []
    assert world.host.sh(f"cat /proc/sys/net/ipv4/conf/{spec.host_veth}/rp_filter") == "1\n"
    assert world.hostnet.confine_sandboxes()
    assert world.hostnet.confine_sandboxes() == []


def test_redirects_and_loopback_packets_arrive_nowhere(world):
    """No ICMP redirect leaves a sandbox, and none reaches what listens on the node's loopback only (CVE-2020-8558)."""
    node = Node(world)
    node.host.sh("sysctl -qw net.ipv4.conf.all.route_localnet=1")
    redirects = [packets.redirect(PRIMARY, target, about=WORLD, gateway=PRIMARY) for target in (NODE, SECONDARY, VPC)]
    local = packets.udp(PRIMARY, "127.0.0.1", b"local")

    def heard():
        with contextlib.ExitStack() as stack:
            links = [(node.vpc, "p0"), (node.secondary, "eth0")]
            ear = packets.Ear(stack, links=links, ports=[node.host])
            packets.send(node.primary, "eth0", [*redirects, local, packets.udp(PRIMARY, SECONDARY, b"honest")])
            return len(ear.heard(b"\x05\x01", until=b"honest")), len(ear.heard(b"local"))

    assert heard()[0] == 0
    with contextlib.ExitStack() as stack:
        ear = packets.Ear(stack, ports=[node.host])
        packets.send(node.primary, "eth0", [local])
        assert ear.heard(b"local") == []
    found = node.dropped()
    assert (found["redirect"], found["loopback"]) == (3, 2)
    node.host.sh(OPEN)
    with contextlib.ExitStack() as stack:
        ear = packets.Ear(stack, ports=[node.host])
        packets.send(node.primary, "eth0", [local])
        assert ear.heard(b"local", least=1), "the ear hears"
    assert heard()[0] > 0


NEIGHBOURS = 300
"""Senders of ARP requests; far below the kernel's limit of 1024 for the machine, which this test shares."""


@pytest.mark.parametrize("extra", [(), (IPv4Network("10.0.0.0/8"),)], ids=["default", "extra-sources"])
def test_a_sandbox_does_not_fill_the_table_of_neighbours(make_world, extra):
    """Where rp_filter is 0: ARP requests of many senders leave no entry; without the table they do."""
    world = make_world(extra_source_cidrs=extra)
    node = Node(world)
    veth = node.veths[0]
    node.host.sh(f"sysctl -qw net.ipv4.conf.{veth}.rp_filter=0")
    assert _neighbours(node, veth) == 0
    assert node.world.hostnet.confine_sandboxes() is not None
    assert node.world.hostnet.dropped_packets()["arp"] == NEIGHBOURS
    assert udp_peer(node.host, NODE, node.primary) == PRIMARY, "the node still asks, and is answered"
    node.host.sh(f"nft delete table arp vpc-ipamd-confine; sysctl -qw net.ipv4.conf.{veth}.rp_filter=0")
    wait_until(lambda: _neighbours(node, veth) == NEIGHBOURS, what="nothing is shown by this test")


def _neighbours(node, veth):
    """Ask for the node's address in the name of many; how many entries the node has on the link then."""
    node.host.sh(f"ip neigh flush dev {veth}")
    target, sender = (
        bytes.fromhex(one["address"].replace(":", ""))
        for one in (node.host.ip(f"link show {veth}")[0], node.primary.ip("link show eth0")[0])
    )
    with contextlib.closing(node.primary.call(socket.socket, socket.AF_PACKET, socket.SOCK_RAW)) as sock:
        for number in range(NEIGHBOURS):
            who = (IPv4Address("10.9.0.0") + number).packed
            asked = struct.pack("!HHBBH", 1, packets.ETH_P_IP, 6, 4, 1) + sender + who + bytes(6) + IPv4Address(NODE).packed
            sock.sendto(target + sender + b"\x08\x06" + asked, ("eth0", 0))
    with contextlib.ExitStack() as stack:
        packets.Ear(stack).heard(b"")
    entries = len(node.host.sh(f"ip neigh show dev {veth} nud all").splitlines())
    node.host.sh(f"ip neigh flush dev {veth} nud all")
    return entries


@pytest.mark.parametrize("src_valid_mark", [0, 1])
def test_extra_sources_pass_for_sandboxes_that_route_for_others(make_world, src_valid_mark):
    """A VIP on a sandbox (DSR) and clients behind it pass if the setting names them; the node's and other sandboxes' never do."""
    world = make_world(extra_source_cidrs=EXTRA, exclude_snat_cidrs=EXTRA)
    node = Node(world, src_valid_mark=src_valid_mark)
    for sender, own, other in ((node.primary, PRIMARY, SECONDARY), (node.secondary, SECONDARY, PRIMARY)):
        assert len(node.spoof(sender, own, ("192.0.2.1", "10.99.0.5"), targets=(other, VPC))) == 4
        assert node.spoof(sender, own, (other, NODE, "10.0.1.10", WORLD, "127.0.0.1", "0.0.0.0"), targets=(VPC, NODE)) == []
    assert udp_peer(node.vpc, VPC, node.secondary) == SECONDARY
    assert not world.hostnet.is_source_checked()
    # direct server return: the client's packet reaches the sandbox by a host route, the answer comes from the VIP
    node.primary.sh("ip addr add 192.0.2.80/32 dev lo")
    node.host.sh(f"ip route add 192.0.2.80/32 via {PRIMARY} dev {node.veths[0]} onlink")
    node.vpc.sh("ip route add 192.0.2.80/32 via 10.0.0.10 dev p0 onlink")
    assert udp_peer(node.primary, "192.0.2.80", node.vpc, VPC) == VPC
    # a client behind a sandbox
    client = world.space()
    client.sh(f"ip link add c0 type veth peer name c1; ip link set c1 netns /proc/{os.getpid()}/fd/{node.secondary.fd}")
    client.sh("ip addr add 10.99.0.9/24 dev c0; ip link set c0 up; ip route add default via 10.99.0.1")
    node.secondary.sh("ip addr add 10.99.0.1/24 dev c1; ip link set c1 up; sysctl -qw net.ipv4.ip_forward=1")
    node.host.sh(f"ip route add 10.99.0.0/24 via {SECONDARY} dev {node.veths[1]} onlink")
    assert udp_peer(node.primary, PRIMARY, client) == "10.99.0.9"


def test_extra_sources_are_off_by_default(world):
    """Without the setting the same packets are dropped."""
    node = Node(world)
    assert node.spoof(node.primary, PRIMARY, ("192.0.2.1", "10.99.0.5"), targets=(SECONDARY, VPC)) == []
