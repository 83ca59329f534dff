"""Links of others that lead into a sandbox are noticed and named with it, and by them it can neither speak for others nor change the
node's routing; a second CNI's go on working. Ours, and those that lead elsewhere, are left alone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from dataclasses import replace
from ipaddress import IPv4Network

import pytest

from ipamd.model.kernel import Repaired
from tests.netns import packets
from tests.netns.confined import NODE, PRIMARY, SECONDARY, VPC, WORLD, Node
from tests.netns.test_own_inside import KernelNode
from tests.netns.test_repair_at_once import node as live_node  # noqa: F401  # a fixture
from tests.netns.test_repair_at_once import until
from tests.netns.test_would_arrive import refuses

pytestmark = pytest.mark.privileged


def lead(node, name, space, *, inside="net1"):
    """Make a veth of the host whose other end is in a namespace, as a second CNI does."""
    node.world.host.sh(f"ip link add '{name}' type veth peer name {inside} netns {space.path}; ip link set '{name}' up")
    space.sh(f"ip link set {inside} up")


KINDS = {
    "veth": "ip link add inner0 type veth peer name evil0 netns {host}; ip link set inner0 up",
    "macvlan": "ip link add inner0 type veth peer name inner1; ip link set inner0 up; ip link set inner1 up;"
    " ip link add evil0 link inner1 netns {host} type macvlan mode passthru",
    "vxlan": "ip link add evil0 netns {host} type vxlan id 5 dstport 4789",
}
"""Links that a sandbox makes on the host, of each kind that this kernel has and that tells where it leads."""


def intrude(sandbox, host, *, kind="veth"):
    """Have a sandbox make evil0 on the host, up and without rp_filter; its MAC."""
    sandbox.sh(KINDS[kind].format(host=host.path))
    host.sh("sysctl -qw net.ipv4.conf.evil0.rp_filter=0 net.ipv4.conf.all.rp_filter=0; ip link set evil0 up")
    return host.ip("link show evil0")[0]["address"]


def into_tunnel(space, frames, *, to):
    """Send packets into the tunnel of a namespace."""
    head = struct.pack("!II", 0x08000000, 5 << 8) + bytes.fromhex(to.replace(":", "")) + b"\2" * 6 + b"\x08\0"
    with contextlib.closing(space.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        for frame in frames:
            sock.sendto(head + frame, ("127.0.0.1", 4789))


def arrived(node, mac, sources, *, kind="veth", targets=(SECONDARY, VPC, NODE)):
    """What of the first sandbox's packets from these sources, by the link that it made, comes to anybody."""
    with contextlib.ExitStack() as stack:
        ear = packets.Ear(stack, links=[(node.vpc, "p0"), (node.vpc, "p1"), (node.secondary, "eth0")], ports=[node.host])
        frames = [packets.udp(source, target, b"spoofed") for source in sources for target in targets]
        if kind == "vxlan":
            into_tunnel(node.primary, frames, to=mac)
        else:
            packets.send(node.primary, "inner0", frames, to=mac)
        packets.send(node.primary, "eth0", [packets.udp(PRIMARY, target, b"honest") for target in targets])
        return [one for one in ear.heard(b"spoofed", until=b"honest") if one == b"spoofed" or one[9] == packets.UDP]


def wait_for_addresses(space):
    """Duplicate address detection is over for every link that is up: each has its link-local address."""
    until("link-local addresses", lambda: "fe80" in (shown := space.sh("ip -6 addr show up")) and "tentative" not in shown)


def condition(node):
    """What status says."""
    return node.health.conditions_by_subject().get("foreign links", "")


def test_a_link_into_a_sandbox_is_named(world, tmp_path):
    """Audit and status name link and sandbox until it is gone; one that leads elsewhere is nobody's business."""
    world.fabric()
    node = KernelNode(tmp_path, world)
    pod, made = node.attach()
    elsewhere = world.space()
    lead(node, "docker0a", elsewhere)
    node.host_reconciler.reconcile()
    assert (condition(node), node.audited()) == ("", ())
    lead(node, "secret0", pod, inside="net2")
    node.host_reconciler.reconcile()
    assert f"secret0 leads into {made.key}" in condition(node)
    (found,) = node.audited()
    assert (found.severity, found.subject) == ("difference", "secret0")
    assert str(made.key) in found.what
    node.world.host.sh("ip link del secret0")
    node.host_reconciler.reconcile()
    assert (condition(node), node.audited()) == ("", ())
    node.datastore.close()


def test_a_sandbox_that_makes_one_on_the_host_is_noticed_at_once(live_node):  # noqa: F811  # the fixture
    """Made inside, its other end on the host; no pass by the clock finds it here."""
    pod = live_node.pods[0]
    space = next(one for one in live_node.world.spaces if one.path == pod.netns)
    host = f"/proc/{os.getpid()}/fd/{live_node.world.host.fd}"
    space.sh(f"ip link add name inner0 type veth peer name evil0 netns {host} && ip link set inner0 up")
    live_node.world.host.sh("ip link set evil0 up")
    until("named", lambda: f"evil0 leads into {pod.key}" in condition(live_node))
    space.sh("ip link del inner0")


def test_no_other_veth_changes_the_nodes_routing(world):
    """A router advertisement by a veth that is not ours gave the node a default route, and a redirect another next hop."""
    world.fabric()
    intruder = world.space()
    world.host.sh(
        f"ip link add evil0 type veth peer name inner0 netns /proc/{os.getpid()}/fd/{intruder.fd};"
        " sysctl -qw net.ipv6.conf.evil0.accept_ra=2 net.ipv4.conf.evil0.accept_redirects=1; ip link set evil0 up"
    )
    intruder.sh("ip link set inner0 up")
    mac = world.host.ip("link show evil0")[0]["address"]

    def advertise():
        wait_for_addresses(intruder)
        packets.send(intruder, "inner0", [packets.router_advertisement()] * 3, to=mac, kind=packets.ETH_P_IPV6)
        time.sleep(0.3)
        return "default" in world.host.sh("ip -6 route")

    assert advertise(), "nothing is shown by this test"
    world.host.sh("ip -6 route flush default; ip -6 route del default || true")
    world.hostnet.confine_sandboxes()
    assert not advertise()
    assert world.hostnet.confine_sandboxes() == []
    assert world.hostnet.dropped_packets()["ipv6"] >= 3
    packets.send(intruder, "inner0", [packets.redirect("10.9.0.1", "10.9.0.2", about="192.0.2.9", gateway="10.9.0.9")], to=mac)
    world.hostnet.confine_sandboxes()
    assert world.hostnet.dropped_packets()["redirect"] == 1


def test_a_second_cnis_veth_keeps_working(world):
    """Both families, both ways: what is for the address that it gave, ARP and neighbour messages included."""
    world.fabric()
    world.hostnet.confine_sandboxes()
    pod = world.space()
    spec = world.spec(pod)
    world.wiring.wire(spec)
    world.host.sh(
        f"ip link add multus0 type veth peer name net1 netns /proc/{os.getpid()}/fd/{pod.fd}; ip link set multus0 up;"
        " ip addr add 10.88.0.1/32 dev multus0; ip route add 10.88.0.2 dev multus0;"
        " ip -6 addr add fd00:88::1/64 dev multus0 nodad"
    )
    pod.sh("ip link set net1 up; ip addr add 10.88.0.2/24 dev net1; ip -6 addr add fd00:88::2/64 dev net1 nodad")
    world.hostnet.confine_sandboxes()
    for space in (world.host, pod):
        wait_for_addresses(space)
    ways = [(world.host, "10.88.0.2"), (pod, "10.88.0.1"), (world.host, "fd00:88::2"), (pod, "fd00:88::1")]
    assert [refuses(space, address) for space, address in ways] == [True] * 4


SPOOFED = (SECONDARY, "8.8.8.8", WORLD, PRIMARY)
"""Another sandbox, hosts outside, and the sandbox's own address, which is routed through its own veth."""


@pytest.mark.parametrize("kind", KINDS)
def test_by_a_link_that_it_made_a_sandbox_speaks_for_nobody(make_world, kind):
    """With rp_filter 0, of each kind: what arrived without our tables goes nowhere, is counted, and nothing is repaired."""
    node = Node(make_world())
    mac = intrude(node.primary, node.host, kind=kind)
    node.host.sh("nft flush ruleset")
    assert arrived(node, mac, SPOOFED, kind=kind), "nothing is shown by this test"
    node.world.hostnet.confine_sandboxes()
    (found,) = node.world.hostnet.foreign_links()
    assert (found.name, found.key, found.is_in_use) == ("evil0", node.specs[0].key, False)
    assert arrived(node, mac, SPOOFED, kind=kind) == []
    assert node.dropped()["foreign"] >= len(SPOOFED) * 3


def test_before_anybody_looked_it_speaks_for_no_sandbox(make_world):
    """A new veth is not in the sets yet: addresses of sandboxes go nowhere; with `drop` nothing does."""
    node = Node(make_world())
    mac = intrude(node.primary, node.host)
    assert arrived(node, mac, [SECONDARY, PRIMARY]) == []
    node.host.sh("ip link del evil0")
    node.world.hostnet.use(replace(node.world.config, foreign_links="drop"))
    node.world.hostnet.confine_sandboxes()
    mac = intrude(node.primary, node.host)
    assert arrived(node, mac, SPOOFED) == []


SECOND = IPv4Network("10.88.0.0/24")
"""Of another CNI; what the node sends there from its own address is not to be translated."""


def second_cni(node, name="multus0", address="10.88.0.2"):
    """A veth with an address inside and a route on the host, as the plugin ptp makes it."""
    lead(node, name, node.primary)
    node.host.sh(f"ip addr add 10.88.0.1/32 dev {name}; ip route add {address} dev {name}")
    node.primary.sh(f"ip addr add {address}/24 dev net1")


def bridge(node):
    """A bridge with an address and a port into each sandbox; what is bridged passes the filters of IP too."""
    node.host.sh("ip link add br0 type bridge; ip addr add 10.88.0.1/24 dev br0; ip link set br0 up")
    node.host.sh("sysctl -qw net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-arptables=1")
    for number, space in ((2, node.primary), (3, node.secondary)):
        lead(node, f"port{number}", space)
        node.host.sh(f"ip link set port{number} master br0")
        space.sh(f"ip addr add 10.88.0.{number}/24 dev net1")


def reaches(space, address):
    """Whether a packet arrives, in a few tries: a bridge's port learns for a moment."""
    return any(refuses(space, address) for _ in range(3))


def test_a_second_cni_works_until_the_setting_says_drop(make_world):
    """ptp in both directions, also across the node; named by the audit, no condition; with `drop` nothing passes, and back."""
    node = Node(make_world(exclude_snat_cidrs=(SECOND,)))
    second_cni(node)
    ways = [(node.host, "10.88.0.2"), (node.primary, "10.88.0.1")]
    for setting, works in (("confine", True), ("drop", False), ("confine", True)):
        node.world.hostnet.use(replace(node.world.config, foreign_links=setting))
        said = node.world.hostnet.confine_sandboxes()
        assert not any(isinstance(one, Repaired) and "bridge" not in one for one in said)
        assert node.world.hostnet.confine_sandboxes() == []
        assert [reaches(*way) for way in ways] == [works] * 2
        (found,) = node.world.hostnet.foreign_links()
        assert (found.name, found.is_in_use) == ("multus0", True)
    assert "bridge" not in node.host.sh("nft list tables")


def test_ports_of_a_bridge_work_until_the_setting_says_drop(make_world):
    """A second CNI's bridge: to its gateway, between two sandboxes, and what has no route on the host."""
    node = Node(make_world(exclude_snat_cidrs=(SECOND,)))
    bridge(node)
    ways = [(node.primary, "10.88.0.1"), (node.host, "10.88.0.3"), (node.primary, "10.88.0.3")]
    for setting, works in (("confine", True), ("drop", False), ("confine", True)):
        node.world.hostnet.use(replace(node.world.config, foreign_links=setting))
        node.world.hostnet.confine_sandboxes()
        assert [reaches(*way) for way in ways] == [works] * 3
        assert [one.is_in_use for one in node.world.hostnet.foreign_links()] == [True, True]
    node.host.sh("ip addr flush dev br0")
    node.world.hostnet.confine_sandboxes()
    assert reaches(node.primary, "10.88.0.3"), "bridged, and routed nowhere"


def test_the_egress_veth_of_the_incumbent_works(make_world):
    """v4if0 of amazon-vpc-cni-k8s: a veth with a host-local address, whose packets leave by the primary ENI."""
    node = Node(make_world())
    lead(node, "vethc8a1b2c3d4e", node.primary, inside="v4if0")
    node.host.sh(
        "ip addr add 169.254.172.1/32 dev vethc8a1b2c3d4e; ip route add 169.254.172.2/32 dev vethc8a1b2c3d4e;"
        " nft 'table ip egress { chain out { type nat hook postrouting priority 0;"
        " ip saddr 169.254.172.0/22 oifname eth0 masquerade; }; }'"
    )
    node.primary.sh(
        "ip addr add 169.254.172.2/22 dev v4if0; ip route add 169.254.172.1 dev v4if0 scope link;"
        f" ip route add {WORLD} via 169.254.172.1 dev v4if0"
    )
    node.world.hostnet.confine_sandboxes()
    assert reaches(node.primary, "169.254.172.1")
    assert reaches(node.primary, WORLD)
    assert node.world.hostnet.dropped_packets()["foreign"] == 0
