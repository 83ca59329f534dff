"""A sandbox's packet that the VPC sends back to the node, to an address that no sandbox has, is not sent out again and again."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from ipaddress import IPv4Network

import pytest

from tests.netns import packets
from tests.netns.confined import NODE, PRIMARY, SECONDARY, VPC, Node
from tests.netns.test_confinement import _node_port
from tests.netns.test_host_network import udp_peer

pytestmark = pytest.mark.privileged

UNUSED_PRIMARY, UNUSED_SECONDARY = "10.0.0.77", "10.0.1.77"
"""Addresses of the two ENIs that are free or cooling: the VPC delivers their packets, no sandbox takes them."""

SENDERS = ((PRIMARY, UNUSED_PRIMARY), (PRIMARY, UNUSED_SECONDARY), (SECONDARY, UNUSED_PRIMARY), (SECONDARY, UNUSED_SECONDARY))

PASSES = 2
"""How often a fabric's link shows a packet that goes out once and comes back once."""


def build(world):
    """A node with a sandbox on each ENI, and a VPC that delivers the unused addresses to their ENIs."""
    node = Node(world)
    for address, link, number in ((UNUSED_PRIMARY, "p0", 1), (UNUSED_SECONDARY, "p1", 2)):
        node.vpc.sh(f"ip route add {address}/32 dev {link}; ip neigh add {address} dev {link} lladdr 02:00:00:00:00:0{number}")
    # A VPC answers ARP for every address of a subnet.
    mac = node.vpc.ip("link show p0")[0]["address"]
    node.host.sh(f"ip neigh add {UNUSED_PRIMARY} dev eth0 lladdr {mac}")
    return node


def shown(node, own, target):
    """How often both of the VPC's links show a packet from a sandbox to an address."""
    sender = node.primary if own == PRIMARY else node.secondary
    with contextlib.ExitStack() as stack:
        ear = packets.Ear(stack, links=[(node.vpc, "p0"), (node.vpc, "p1")])
        packets.send(sender, "eth0", [packets.udp(own, target, b"anybody?")])
        return len([one for one in ear.heard(b"anybody?", least=PASSES) if one[9] == packets.UDP])


@pytest.mark.parametrize(("own", "target"), SENDERS)
def test_a_packet_to_an_unused_address_goes_round_once(world, own, target):
    """It leaves, comes back and is dropped and counted, whichever ENI has the sandbox and whichever the unused address."""
    node = build(world)
    assert shown(node, own, target) == PASSES
    assert node.dropped()["returned"] == 1


@pytest.mark.parametrize(("own", "target"), SENDERS)
def test_without_the_rule_it_goes_round_until_its_hops_end(world, own, target):
    """The ear hears it go round: 64 hops, two for each turn."""
    node = build(world)
    node.host.sh("nft flush chain ip vpc-ipamd-confine returned")
    assert shown(node, own, target) > 20 * PASSES


def test_what_comes_back_to_a_sandbox_passes(world):
    """A load balancer that keeps the client's address, between two sandboxes of the node, by address and by NodePort."""
    node = build(world)
    for name in ("eth0", "eth1"):
        _arrive(node, name, packets.udp(PRIMARY, SECONDARY, b"balanced"))
    node.host.sh(
        "nft 'add table ip kube; add chain ip kube pre { type nat hook prerouting priority dstnat; };"
        f" add rule ip kube pre ip daddr {NODE} udp dport 30002 dnat to {SECONDARY}:4000;"
        f" add rule ip kube pre ip daddr {NODE} udp dport 30003 dnat to {VPC}:4000'"
    )
    assert _node_port(node.secondary, node.primary, 30002) == PRIMARY
    assert node.dropped()["returned"] == 0


def _arrive(node, link, frame):
    """A packet of a sandbox of the node comes in by an ENI and reaches the other sandbox."""
    with contextlib.ExitStack() as stack:
        ear = packets.Ear(stack, links=[(node.secondary, "eth0")])
        mac = node.host.ip(f"link show {link}")[0]["address"]
        packets.send(node.vpc, {"eth0": "p0", "eth1": "p1"}[link], [frame], to=mac)
        assert ear.heard(b"balanced", least=1)


def test_a_node_port_that_leads_to_another_node_passes(world):
    """Traffic of a sandbox of the node that comes in for a NodePort, client address kept, is led on to another node's endpoint."""
    node = build(world)
    node.host.sh(
        "nft 'add table ip kube; add chain ip kube pre { type nat hook prerouting priority dstnat; };"
        " add chain ip kube post { type nat hook postrouting priority srcnat; };"
        f" add rule ip kube pre ip daddr {NODE} udp dport 30003 dnat to {VPC}:4000;"
        f" add rule ip kube post udp dport 4000 ip daddr {VPC} masquerade'"
    )
    with contextlib.ExitStack() as stack:
        ear = packets.Ear(stack, links=[(node.vpc, "p0"), (node.vpc, "p1")])
        mac = node.host.ip("link show eth0")[0]["address"]
        packets.send(node.vpc, "p0", [packets.udp(SECONDARY, NODE, b"balanced", port=30003)], to=mac)
        heard = [one for one in ear.heard(b"balanced", least=2) if one[16:20] == bytes((10, 0, 77, 7))]
    assert heard, "led on"
    assert node.dropped()["returned"] == 0


def test_other_links_and_other_sources_are_not_looked_at(world):
    """A tunnel's or bridge's packets with a sandbox's source, and a router's between the ENIs, go where they are routed."""
    node = build(world)
    tunnel = world.space()
    node.host.sh(
        "ip link add br0 type bridge; ip link set br0 up; ip link add t0 type veth peer name t1; ip link set t0 master br0 up"
    )
    node.host.sh(f"ip link set t1 netns /proc/{os.getpid()}/fd/{tunnel.fd}; sysctl -qw net.ipv4.ip_forward=1")
    tunnel.sh("ip link set t1 up")
    bridge = node.host.ip("link show br0")[0]["address"]
    with contextlib.ExitStack() as stack:
        ear = packets.Ear(stack, links=[(node.vpc, "p1")])
        packets.send(tunnel, "t1", [packets.udp(SECONDARY, VPC, b"by tunnel")], to=bridge)
        assert ear.heard(b"by tunnel", least=1)
    with contextlib.ExitStack() as stack:
        ear = packets.Ear(stack, links=[(node.vpc, "p0")])
        mac = node.host.ip("link show eth1")[0]["address"]
        packets.send(node.vpc, "p1", [packets.udp("10.0.88.8", "10.0.99.9", b"routed")], to=mac)
        assert ear.heard(b"routed", least=1)
    assert node.dropped()["returned"] == 0


def test_a_node_whose_sandboxes_route_for_others_has_no_such_rule(make_world):
    """With VPC_IPAMD_EXTRA_SOURCE_CIDRS packets may come back on purpose, to be led to a sandbox by rules of others."""
    extra = (IPv4Network("192.0.2.0/24"),)
    world = make_world(extra_source_cidrs=extra)
    node = build(world)
    assert "returned" not in world.host.sh("nft list table ip vpc-ipamd-confine")
    assert udp_peer(node.vpc, VPC, node.secondary) == SECONDARY


def test_a_link_without_a_kind_is_not_left_out(world):
    """In these tests an ENI's link is a veth; a real one has no kind, like the loopback, and no comparison of kinds matches it."""
    world.host.sh("nft 'add table ip t; add chain ip t c { type filter hook prerouting priority -80; }'")
    for number, match in enumerate(("", 'meta iifkind != "veth"', 'meta iifkind "veth"')):
        world.host.sh(f"nft 'add counter ip t c{number}; add rule ip t c iifname lo {match} counter name c{number}'")
    with contextlib.closing(world.host.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        sock.sendto(b"x", ("127.0.0.1", 9))
    counted = [
        one["counter"]["packets"] for one in json.loads(world.host.sh("nft -j list counters"))["nftables"] if "counter" in one
    ]
    assert counted[0] > 0
    assert counted[1:] == [0, 0]
