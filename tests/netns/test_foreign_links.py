"""Links of others that lead into a sandbox are noticed and named with it; ours, and those that lead elsewhere, are not."""

from __future__ import annotations

import os
import time

import pytest

from tests.netns import packets
from tests.netns.test_own_inside import KernelNode
from tests.netns.test_repair_at_once import node as live_node  # noqa: F401  # a fixture
from tests.netns.test_repair_at_once import until
from tests.netns.test_would_arrive import refuses

pytestmark = pytest.mark.privileged


def lead(node, name, space, *, inside="net1"):
    """Make a veth of the host whose other end is in a namespace, as a second CNI does."""
    node.world.host.sh(f"ip link add {name} type veth peer name {inside} netns /proc/{os.getpid()}/fd/{space.fd}")


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
    lead(node, "secret0", pod)
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
