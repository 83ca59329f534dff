"""A node of IPv6 on the host's side: its way out stays, what is too big is answered, and what no sandbox has."""

from __future__ import annotations

import contextlib
import errno
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.kernel import static_default_route, sysctls
from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.model.family import IPV6
from ipamd.model.ids import MacAddress
from ipamd.model.repairs import RepairCode, RepairKind
from tests.errors import refused_by_kernel
from tests.netns import packets
from tests.netns.conftest import FIRST, NODE6, ROUTER, SUBNET6, VPC6
from tests.patience import PATIENCE_S
from tests.rig import wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.parametrize("family", [IPV6], ids=["ipv6"])]

PREFIX = IPV6.network((FIRST[IPV6], 80))
NODE_INIT = Path(__file__).parents[2] / "manifests" / "node-init"


class Node:
    """A node that has its default route from the router's advertisement, set up, with a sandbox."""

    def __init__(self, world):
        self.world, self.host = world, world.host
        self.vpc = world.fabric()
        self.host.sh("ip -6 route del default; sysctl -qw net.ipv6.conf.eth0.accept_ra=1")
        self.advertise()
        world.hostnet = KernelHostNetwork(world.netns, config=world.config, nft=world.nft, prefixes=lambda: {PREFIX: "eni-1"})

    def advertise(self):
        """Let the router advertise itself, and wait for the route."""
        with contextlib.ExitStack() as stack:
            watch = stack.enter_context(self.host.call(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW))
            watch.bind((0, 0x400))  # RTMGRP_IPV6_ROUTE
            watch.settimeout(PATIENCE_S)
            packets.send(self.vpc, "p0", [packets.router_advertisement(ROUTER)], to="33:33:00:00:00:01", kind=packets.ETH_P_IPV6)
            while not self.default():
                watch.recv(65536)

    def default(self):
        """The default routes but the one that we keep, by what made them."""
        routes = self.host.ip("route show default")
        return [(route["gateway"], route["protocol"]) for route in routes if route["metric"] != static_default_route.METRIC]

    def sandbox(self, number=5):
        """One, wired; with its specification."""
        space = self.world.space()
        spec = self.world.spec(space, number=number)
        self.world.wiring.wire(spec)
        return space, spec


@pytest.fixture
def node(world):
    """Not set up yet."""
    return Node(world)


def test_the_way_out_from_advertisements_stays(node):
    """The node forwards, and keeps the default route that it has from its router's advertisement."""
    assert node.default() == [(ROUTER, "ra")]
    with node.world.netns.entered():
        (sysctls.SYSCTL_ROOT / "net/ipv6/conf/default/disable_ipv6").write_text("1")
    node.world.hostnet.setup_node(node.world.identity())
    assert node.default() == [(ROUTER, "ra")]
    settings = [f"/proc/sys/net/ipv6/conf/{one}" for one in ("all/forwarding", "eth0/accept_ra", "default/disable_ipv6")]
    assert node.host.sh(f"cat {' '.join(settings)}").split() == ["1", "2", "0"]
    assert node.world.hostnet.differences(identity=node.world.identity(), enis=[]) == []


@pytest.mark.parametrize("is_reversed", [False, True])
def test_the_init_container_keeps_the_way_out_too(node, tmp_path, is_reversed):
    """It is the first to let the node forward; with its two lines the other way round the default route is gone."""
    script, plugin, target = NODE_INIT.read_text(), tmp_path / "vpc-cni", tmp_path / "bin"
    accept, forward = (
        next(line for line in script.splitlines() if end in line) for end in ("/accept_ra", "1 >$ipv6/all/forwarding")
    )
    if is_reversed:
        script = script.replace(accept, "").replace(forward, f"{forward}\n{accept}")
    plugin.write_text("#!/bin/sh\n")
    plugin.chmod(0o755)
    target.mkdir()
    (tmp_path / "node-init").write_text(script)
    assert node.default() == [(ROUTER, "ra")]
    for _ in range(2):
        node.host.sh(f"ENABLE_IPv6=true sh {tmp_path}/node-init {plugin} {target}")
        assert node.default() == ([] if is_reversed else [(ROUTER, "ra")])
    settings = [f"/proc/sys/net/ipv6/conf/{one}" for one in ("all/forwarding", "eth0/accept_ra")]
    assert node.host.sh(f"cat {' '.join(settings)}").split() == ["1", "2"]
    node.advertise()
    assert node.default() == [(ROUTER, "ra")], "the next advertisement brings it back"


@pytest.mark.parametrize("key", ["all/forwarding", "eth0/accept_ra", "all/disable_ipv6", "default/disable_ipv6"])
def test_a_sysctl_that_others_change_is_put_back(world, key):
    """An administrator's or another agent's sysctl is a difference until the next pass, which sets it and is silent then."""
    world.fabric()
    world.hostnet.setup_node(world.identity())
    (wanted,) = world.host.sh(f"cat /proc/sys/net/ipv6/conf/{key}").split()
    world.host.sh(f"echo {1 if wanted == '0' else 0} > /proc/sys/net/ipv6/conf/{key}")
    differences = world.hostnet.differences(identity=world.identity(), enis=[])
    assert f"sysctl net/ipv6/conf/{key}" in [one.report.target for one in differences if one.report]
    said = world.hostnet.reconcile(identity=world.identity(), enis=[])
    assert (RepairCode.VALUE_SET, f"sysctl net/ipv6/conf/{key}", wanted) in [(one.code, one.target, one.after) for one in said]
    assert world.host.sh(f"cat /proc/sys/net/ipv6/conf/{key}").split() == [wanted]
    said = world.hostnet.reconcile(identity=world.identity(), enis=[])
    assert not any(one.object.kind is RepairKind.SYSCTL for one in said)


def test_in_the_other_order_the_way_out_is_lost(node, monkeypatch):
    """Why the order: to forward first costs the default route until the next advertisement."""
    in_order = sysctls.wanted_sysctls
    monkeypatch.setattr(sysctls, "wanted_sysctls", lambda *given, **more: dict(reversed(in_order(*given, **more).items())))
    node.world.hostnet.setup_node(node.world.identity())
    assert node.default() == []


@pytest.mark.parametrize("where", ["eth0", "lo"])
def test_what_is_too_big_for_a_hop_is_told_to_the_sandbox(node, where):
    """The host's end has no address at all: Packet Too Big reaches the sandbox all the same, from whatever address the node has."""
    if where == "lo":
        own = f"ip -6 addr del {NODE6}/64 dev eth0; ip -6 addr add {NODE6}/128 dev lo; ip -6 route add {SUBNET6}/64 dev eth0"
        node.host.sh(own)
    node.world.hostnet.setup_node(node.world.identity())
    node.world.hostnet.confine_sandboxes()
    pod, spec = node.sandbox()
    node.host.sh(f"ip -6 route add {VPC6} via {ROUTER} dev eth0 mtu 1400")
    assert node.host.sh(f"ip -6 addr show dev {spec.host_veth}") == ""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(node.vpc.call(socket.socket, socket.AF_INET6, socket.SOCK_DGRAM))
        server.bind((VPC6, 4000))
        server.settimeout(0.5)
        client = stack.enter_context(pod.call(socket.socket, socket.AF_INET6, socket.SOCK_DGRAM))
        client.settimeout(PATIENCE_S)
        client.setsockopt(socket.IPPROTO_IPV6, 25, 1)  # IPV6_RECVERR
        client.connect((VPC6, 4000))
        client.send(bytes(3000))
        with pytest.raises(OSError, check=refused_by_kernel(errno.EMSGSIZE)):
            client.recv(16)

        def arrives() -> bool:
            """The node may still look whether its link-local address is another's, and ask for no neighbour meanwhile."""
            with contextlib.suppress(OSError):
                client.send(bytes(3000))
                return len(server.recv(4096)) == 3000
            return False

        wait_until(arrives, what="in fragments that fit")
    assert "mtu 1400" in pod.sh(f"ip -6 route get {VPC6}")


def test_the_rest_of_the_prefix_is_answered(node):
    """What is sent to an address that no sandbox has is refused, not sent back to the router; those that have one still get theirs."""
    identity = node.world.identity()
    node.world.hostnet.setup_node(identity)
    node.world.hostnet.confine_sandboxes()
    pod, spec = node.sandbox()
    free = str(spec.address + 77)
    shown = node.host.ip("route show table 113213 type unreachable")
    assert [(one["dst"], one["type"]) for one in shown] == [(str(PREFIX), "unreachable")]
    for sender in (node.vpc, pod, node.host):
        with contextlib.ExitStack() as stack:
            client = stack.enter_context(sender.call(socket.socket, socket.AF_INET6, socket.SOCK_DGRAM))
            client.settimeout(PATIENCE_S)
            client.setsockopt(socket.IPPROTO_IPV6, 25, 1)
            with pytest.raises(OSError, check=refused_by_kernel(errno.EHOSTUNREACH, errno.ENETUNREACH)):  # noqa: PT012  # at once, or as the answer
                client.connect((free, 4000))
                client.send(b"anybody?")
                client.recv(16)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(pod.call(socket.socket, socket.AF_INET6, socket.SOCK_DGRAM))
        server.bind((str(spec.address), 4000))
        server.settimeout(PATIENCE_S)
        stack.enter_context(node.vpc.call(socket.socket, socket.AF_INET6, socket.SOCK_DGRAM)).sendto(
            b"in", (str(spec.address), 4000)
        )
        assert server.recv(16) == b"in"
    node.host.sh(f"ip -6 route del unreachable {PREFIX} table 113213; ip -6 route add unreachable 2001:db8:9::/80 table 113213")
    said = node.world.hostnet.reconcile(identity=identity, enis=[])
    assert [(one.code, one.target) for one in said] == [
        (RepairCode.ADDED, f"unreachable {PREFIX} table 113213"),
        (RepairCode.REMOVED, "unreachable 2001:db8:9::/80 table 113213"),
    ]
    assert node.world.hostnet.reconcile(identity=identity, enis=[]) == []
    node.host.sh(f"ip -6 route del unreachable {PREFIX} table 113213")
    for _ in range(2):  # as when the pool takes a prefix; it may be there already
        node.world.hostnet.reject_free_addresses([PREFIX])
    assert node.world.hostnet.reconcile(identity=identity, enis=[]) == []


def test_an_eni_that_has_the_prefix_is_routed_and_no_other_one(world):
    """Where the primary one is excluded another has the /80: what its sandboxes send leaves by it. Of the rest of the node's ENIs
    nothing is asked, not even a link.
    """
    world.fabric()
    prefixes = {}
    hostnet = KernelHostNetwork(world.netns, config=world.config, nft=world.nft, prefixes=lambda: prefixes, link_wait_s=0.1)
    hostnet.setup_node(world.identity())
    wait_until(lambda: "tentative" not in world.host.sh("ip -6 addr show dev eth0"), what="its link-local address is its own")
    before = world.host.snapshot()
    other, absent = world.eni(), replace(world.eni(), mac=MacAddress("02:00:00:00:00:99"))
    for eni in (other, absent):
        hostnet.setup_eni(eni)
        assert hostnet.reconcile(identity=world.identity(), enis=[eni]) == []
    assert world.host.snapshot() == before
    for serving in ({}, {PREFIX: other.eni_id}):
        eni = replace(other, created_by_us=not serving)  # before it has its /80, and one that somebody else made
        prefixes.update(serving)
        hostnet.setup_eni(eni)
        shown = [(one["dst"], one.get("gateway"), one["dev"]) for one in world.host.ip("route show table 2")]
        assert sorted(shown) == [("default", ROUTER, "eth1"), (ROUTER, None, "eth1")]
        assert "UP" in world.host.ip("link show eth1")[0]["flags"]
        spec = replace(world.spec(world.space(), number=5, table=2), prefix=PREFIX)
        world.wiring.wire(spec)
        assert "dev eth1 table 2" in world.host.sh(f"ip -6 route get {VPC6} from {spec.address} iif {spec.host_veth}")
        enis = [replace(world.eni(device_index=0), mac=world.identity().primary_mac), eni]
        assert hostnet.reachability_problems([spec], enis=enis) == []
        world.host.sh("ip -6 route flush table 2; ip -6 rule add prio 1536 from 2001:db8:0:1:abce::/80 lookup 2")
        differences = hostnet.differences(identity=world.identity(), enis=[eni])
        assert any("table 2" in one.report.target for one in differences if one.report)
        assert hostnet.reachability_problems([spec], enis=enis) != []
        said = hostnet.reconcile(identity=world.identity(), enis=[eni])
        assert [one.target for one in said if one.object == (RepairKind.ROUTE, eni.eni_id)] == [
            f"route {ROUTER} dev eth1 table 2 of {eni.eni_id}",
            f"default route via {ROUTER} dev eth1 table 2 of {eni.eni_id}",
        ]
        assert hostnet.reconcile(identity=world.identity(), enis=[eni]) == []
        hostnet.remove_prefix_rules(lambda prefix, table: prefix != PREFIX)
        assert [one["src"] for one in world.host.ip("rule") if one["priority"] == 1536] == [str(PREFIX.network_address)]
        world.wiring.unwire(spec)
        hostnet.teardown_eni(eni)
        assert (world.host.ip("route show table 2"), "lookup 2" in world.host.sh("ip -6 rule")) == ([], False)
