"""A sandbox that speaks in the router's name while nftables is empty does not cost the node its way out of IPv6."""

from __future__ import annotations

import contextlib
import struct
from ipaddress import IPv6Address

import pytest

from ipamd.kernel import static_default_route
from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.model.family import IPV4, IPV6
from tests.netns import packets
from tests.netns.conftest import NODE6, ROUTER, VPC6
from tests.netns.test_ipv6_node import Node
from tests.rig import wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.parametrize("family", [IPV6], ids=["ipv6"])]

OTHER_ROUTER, NEW_MAC, FORGED_MAC = "fe80:ec2::2", "02:00:00:00:99:99", "02:00:00:00:66:66"
OUTSIDE = "2001:db8:113::9"


def link_option(kind, mac):
    """The option with a link-layer address: kind 1 of its sender, 2 of its target (RFC 4861, 4.6.1)."""
    return bytes([kind, 1]) + bytes.fromhex(mac.replace(":", ""))


def advertisement(router, mac):
    """Of a router, with its link-layer address."""
    return packets.icmpv6(router, "ff02::1", 134, struct.pack("!BBHII", 64, 0, 1800, 0, 0) + link_option(1, mac))


def forged(router):
    """What makes the kernel take a neighbour for a router, and then for one that is none any more."""
    body = struct.pack("!I", 0x60000000) + IPv6Address(router).packed + link_option(2, FORGED_MAC)
    return [advertisement(router, FORGED_MAC), packets.icmpv6(router, str(NODE6), 136, body)]


def gateways(node):
    """Of the default routes: by the metric."""
    return {route["metric"]: route["gateway"] for route in node.host.ip("route show default")}


def announced(node):
    """Routers of the routes that are not ours."""
    return [gateway for metric, gateway in gateways(node).items() if metric != static_default_route.METRIC]


@pytest.fixture
def node(world):
    """Set up and confined, with a sandbox."""
    made = Node(world)
    world.hostnet.confine_sandboxes()
    world.hostnet.setup_node(world.identity())
    made.pod, made.spec = made.sandbox()
    made.mac = made.host.ip(f"link show {made.spec.host_veth}")[0]["address"]
    return made


def attack(node):
    """Send the forged frames from the sandbox, and be sure that the kernel has handled them: it has answered what came after."""
    with contextlib.ExitStack() as stack:
        answers = packets.Ear(stack, links=[(node.pod, "eth0")])
        packets.send(node.pod, "eth0", forged(ROUTER), to=node.mac, kind=packets.ETH_P_IPV6)
        echo = packets.icmpv6(str(node.spec.address), str(NODE6), 128, struct.pack("!HH", 1, 1) + b"the end")
        packets.send(node.pod, "eth0", [echo], to=node.mac, kind=packets.ETH_P_IPV6)
        assert answers.heard(b"the end", least=1)


def leaves(node, text):
    """Whether a packet of the sandbox leaves the node towards the VPC."""
    with contextlib.ExitStack() as stack:
        ear = packets.Ear(stack, links=[(node.vpc, "p0")])
        packets.send(node.pod, "eth0", [packets.udp6(str(node.spec.address), VPC6, text)], to=node.mac, kind=packets.ETH_P_IPV6)
        return bool(ear.heard(text, least=1))


def test_two_forged_frames_while_the_tables_are_away_leave_a_way_out(node):
    """The kernel drops the route that was announced; the one that we keep leads on, and the router's next word makes both again."""
    assert gateways(node) == {1024: ROUTER, static_default_route.METRIC: ROUTER}
    attack(node)
    assert gateways(node) == {1024: ROUTER, static_default_route.METRIC: ROUTER}, "the tables drop them"
    node.host.sh("nft flush ruleset")
    attack(node)
    assert gateways(node) == {static_default_route.METRIC: ROUTER}
    assert leaves(node, b"on its way")
    node.world.hostnet.confine_sandboxes()
    packets.send(node.vpc, "p0", [packets.router_advertisement(ROUTER)], to="33:33:00:00:00:01", kind=packets.ETH_P_IPV6)
    wait_until(lambda: announced(node) == [ROUTER], what="the announced route, by a virtual link too")


def test_the_way_out_leads_to_the_routers_present_address_on_the_wire(node):
    """Its MAC has changed since: the kernel asks anew, because no neighbour is fixed."""
    assert leaves(node, b"before")
    node.host.sh("nft flush ruleset")
    attack(node)
    node.vpc.sh(f"ip link set p0 address {NEW_MAC}")
    packets.send(node.vpc, "p0", [advertisement(ROUTER, NEW_MAC)], to="33:33:00:00:00:01", kind=packets.ETH_P_IPV6)
    wait_until(lambda: announced(node) == [ROUTER], what="the announced route")
    (neighbour,) = node.host.ip(f"neigh show {ROUTER} dev eth0")
    assert neighbour["lladdr"] == NEW_MAC
    assert leaves(node, b"after")


def test_it_follows_the_router_that_is_announced(node):
    """Another router takes over: the kept route leads to that, in one step; audit names it before."""
    node.host.sh(f"ip -6 route del default via {ROUTER} dev eth0 metric 1024")
    assert node.world.hostnet.differences(identity=node.world.identity(), enis=[]) == [], "without a word nothing changes"
    packets.send(node.vpc, "p0", [advertisement(OTHER_ROUTER, NEW_MAC)], to="33:33:00:00:00:01", kind=packets.ETH_P_IPV6)
    wait_until(lambda: announced(node) == [OTHER_ROUTER], what="the other router's route")
    assert len(node.world.hostnet.differences(identity=node.world.identity(), enis=[])) == 1
    assert len(node.world.hostnet.reconcile(identity=node.world.identity(), enis=[])) == 1
    assert gateways(node)[static_default_route.METRIC] == OTHER_ROUTER
    assert node.world.hostnet.reconcile(identity=node.world.identity(), enis=[]) == []


def test_it_goes_when_the_node_does(node):
    """An export leaves no route of ours in main."""
    node.world.hostnet.allow_neighbour_discovery()
    assert gateways(node) == {1024: ROUTER}


def test_a_route_that_somebody_configured_needs_no_second(world):
    """The kernel does not remove it."""
    world.fabric()
    world.hostnet.setup_node(world.identity())
    assert [route["metric"] for route in world.host.ip("route show default")] == [1024]


@pytest.mark.parametrize("is_on", [True, False], ids=["with egress", "without"])
def test_a_node_of_ipv4_has_it_where_its_sandboxes_speak_ipv6(make_world, family, is_on):
    """For egress; where they do not, their links have no IPv6."""
    world = make_world()
    node = Node(world)
    config = world.config.__class__(v6_egress=is_on)
    world.hostnet = KernelHostNetwork(world.netns, config=config, nft=world.nft)
    assert config.extra_family is (IPV6 if is_on else None)
    assert config.family is IPV4
    world.hostnet.setup_node(world.identity())
    assert (static_default_route.METRIC in gateways(node)) is is_on


@pytest.mark.parametrize("forwarding", [1, 0])
def test_no_host_veth_heeds_a_router(node, forwarding):
    """Where new links would: the first pass after an ADD turns that off, so it holds without nftables too."""
    node.host.sh(f"sysctl -qw net.ipv6.conf.default.accept_ra=2 net.ipv6.conf.default.forwarding={forwarding}")
    pod, spec = node.sandbox(6)
    conf = f"/proc/sys/net/ipv6/conf/{spec.host_veth}"
    assert node.host.sh(f"cat {conf}/accept_ra").strip() == "2"
    node.world.hostnet.confine_sandboxes()
    assert node.host.sh(f"cat {conf}/accept_ra {conf}/accept_redirects").split() == ["0", "0"]
    node.host.sh("nft flush ruleset")
    packets.send(pod, "eth0", [advertisement(OTHER_ROUTER, FORGED_MAC)], to="33:33:00:00:00:01", kind=packets.ETH_P_IPV6)
    attack(node)
    assert gateways(node) == {static_default_route.METRIC: ROUTER}
