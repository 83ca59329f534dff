"""Links of others that lead into a sandbox are noticed and named with it, and by them it can neither speak for others nor change the
node's routing; a second CNI's go on working. Ours, and those that lead elsewhere, are left alone.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import struct
import time
from dataclasses import replace
from ipaddress import IPv4Network

import pytest

from ipamd.kernel import answers, messages, uapi
from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.kernel.netlink import Message, NetlinkSocket, attribute, text_attribute
from ipamd.model.legs import first_leg
from ipamd.report.audit import audit
from tests.netns import packets
from tests.netns.confined import NODE, PRIMARY, SECONDARY, VPC, WORLD, Node
from tests.netns.test_own_inside import KernelNode
from tests.netns.test_repair_at_once import node as live_node  # noqa: F401  # a fixture
from tests.netns.test_would_arrive import refuses
from tests.rig import wait_until

pytestmark = pytest.mark.privileged

IFLA_TARGET_NETNSID = 46  # linux/if_link.h


def lead(node, name, space, *, inside="net1"):
    """Make a veth of the host whose other end is in a namespace, as a second CNI does."""
    node.world.host.sh(f"ip link add {name} type veth peer name {inside} netns {space.path}; ip link set {name} up")
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


def into_tunnel(space, frames, *, to, kind=packets.ETH_P_IP):
    """Send packets into the tunnel of a namespace."""
    head = struct.pack("!II", 0x08000000, 5 << 8) + bytes.fromhex(to.replace(":", "")) + b"\2" * 6 + struct.pack("!H", kind)
    with contextlib.closing(space.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        for frame in frames:
            sock.sendto(head + frame, ("127.0.0.1", 4789))


def arrived(node, mac, sources, *, kind="veth", inside="inner0", sender=None, targets=(SECONDARY, VPC, NODE)):
    """What of the first sandbox's packets from these sources, by the link that it made, comes to anybody."""
    with contextlib.ExitStack() as stack:
        ear = packets.Ear(stack, links=[(node.vpc, "p0"), (node.vpc, "p1"), (node.secondary, "eth0")], ports=[node.host])
        frames = [packets.udp(source, target, b"spoofed") for source in sources for target in targets]
        if kind == "vxlan":
            into_tunnel(node.primary, frames, to=mac)
        else:
            packets.send(sender or node.primary, inside, frames, to=mac)
        packets.send(node.primary, "eth0", [packets.udp(PRIMARY, target, b"honest") for target in targets])
        return [one for one in ear.heard(b"spoofed", until=b"honest") if one == b"spoofed" or one[9] == packets.UDP]


def wait_for_addresses(space):
    """Duplicate address detection is over for every link that is up: each has its link-local address."""
    wait_until(
        lambda: "fe80" in (shown := space.sh("ip -6 addr show up")) and "tentative" not in shown, what="link-local addresses"
    )


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
    assert str(made.key) in found.text
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
    wait_until(lambda: f"evil0 leads into {pod.key}" in condition(live_node), what="named")
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

    wait_until(advertise, what="nothing is shown by this test")
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
    node.world.hostnet.apply_settings(replace(node.world.config, foreign_links="drop"))
    node.world.hostnet.confine_sandboxes()
    mac = intrude(node.primary, node.host)
    assert arrived(node, mac, SPOOFED) == []


def test_by_a_namespace_of_its_own_it_speaks_for_no_sandbox(make_world):
    """Where the link leads tells nobody whose it is: what the node makes no use of is not taken for another's."""
    node = Node(make_world())
    nested = node.world.space()
    mac = intrude(nested, node.host)
    node.world.hostnet.confine_sandboxes()
    assert node.world.hostnet.foreign_links() == ()
    assert arrived(node, mac, [SECONDARY, PRIMARY], sender=nested) == []
    assert arrived(node, mac, ["8.8.8.8"], sender=nested), "as docs/host.md says"
    node.world.hostnet.apply_settings(replace(node.world.config, foreign_links="drop"))
    node.world.hostnet.confine_sandboxes()
    assert arrived(node, mac, ["8.8.8.8"], sender=nested) == []
    node.host.sh("ip route add 10.88.0.2 dev evil0")
    node.world.hostnet.confine_sandboxes()
    assert arrived(node, mac, ["10.88.0.2"], sender=nested), "one that the node makes use of is another's"


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


def reaches(space, address, *, expected=True):
    """Whether a packet arrives, that is sent a few times only if none is expected to: a bridge's port learns for a moment."""
    return any(refuses(space, address, expected=expected) for _ in range(3))


def test_a_second_cni_works_until_the_setting_says_drop(make_world):
    """ptp in both directions, also across the node; named by the audit, no condition; with `drop` nothing passes, and back."""
    node = Node(make_world(exclude_snat_cidrs=(SECOND,)))
    second_cni(node)
    ways = [(node.host, "10.88.0.2"), (node.primary, "10.88.0.1")]
    for setting, works in (("confine", True), ("drop", False), ("confine", True)):
        node.world.hostnet.apply_settings(replace(node.world.config, foreign_links=setting))
        said = node.world.hostnet.confine_sandboxes()
        assert not any(one.is_repair and "bridge" not in one.target for one in said)
        assert node.world.hostnet.confine_sandboxes() == []
        assert [reaches(*way, expected=works) for way in ways] == [works] * 2
        (found,) = node.world.hostnet.foreign_links()
        assert (found.name, found.is_in_use) == ("multus0", True)
    assert "bridge" not in node.host.sh("nft list tables")


def test_ports_of_a_bridge_work_until_the_setting_says_drop(make_world):
    """A second CNI's bridge: to its gateway, between two sandboxes, and what has no route on the host."""
    node = Node(make_world(exclude_snat_cidrs=(SECOND,)))
    bridge(node)
    ways = [(node.primary, "10.88.0.1"), (node.host, "10.88.0.3"), (node.primary, "10.88.0.3")]
    for setting, works in (("confine", True), ("drop", False), ("confine", True)):
        node.world.hostnet.apply_settings(replace(node.world.config, foreign_links=setting))
        node.world.hostnet.confine_sandboxes()
        assert [reaches(*way, expected=works) for way in ways] == [works] * 3
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


def test_it_changes_no_neighbour_of_another_link(make_world):
    """The kernel's table is one for each link: what it claims there stays there, of the gateway, the node and another sandbox."""
    node = Node(make_world())
    intrude(node.primary, node.host)
    node.world.hostnet.confine_sandboxes()
    assert [reaches(node.host, address) for address in ("10.0.0.1", SECONDARY)] == [True, True]
    node.primary.sh("ip -6 addr add fd00:99::bad/64 dev inner0 nodad")

    def entries():
        lines = node.host.sh("ip -o neigh show").splitlines()
        return {tuple(one.split()[:5]) for one in lines if "evil0" not in one}

    before = entries()
    assert any("10.0.0.1" in one and "eth0" in one for one in before)
    assert any(SECONDARY in one for one in before)
    claims = [
        packets.arp(kind, address, address, mac="02:00:00:00:66:66")
        for kind in (1, 2)
        for address in ("10.0.0.1", SECONDARY, NODE)
    ]
    packets.send(node.primary, "inner0", claims, to="ff:ff:ff:ff:ff:ff", kind=packets.ETH_P_ARP)
    claims = [packets.neighbour_advertisement(address) for address in ("fe80::1", "fd00:99::1")]
    packets.send(node.primary, "inner0", claims, to="33:33:00:00:00:01", kind=packets.ETH_P_IPV6)
    time.sleep(0.2)
    assert entries() == before
    assert reaches(node.host, SECONDARY)


def test_it_does_not_fill_the_nodes_table_of_neighbours(make_world):
    """A thousand who ask would keep the node from resolving anybody; a second CNI's sandboxes that ask as often as they must pass."""
    node = Node(make_world())
    mac = intrude(node.primary, node.host)
    asking = [packets.arp(1, f"10.77.{number // 250}.{number % 250}", NODE, mac="02:00:00:00:66:66") for number in range(1000)]

    def remembered():
        packets.send(node.primary, "inner0", asking, to=mac, kind=packets.ETH_P_ARP)
        time.sleep(0.2)
        return len(node.host.sh("ip neigh show dev evil0").splitlines())

    assert remembered() < 300
    node.host.sh("ip neigh flush dev evil0; nft flush ruleset")
    wait_until(lambda: remembered() > 600, what="nothing is shown by this test")


@pytest.mark.parametrize("kind", ["a bridge", "a tunnel"])
def test_no_other_link_that_it_makes_tells_the_node_a_router(world, kind):
    """A bridge with a port into the sandbox, and a tunnel in the node's own namespace, which tells nobody where it leads."""
    world.fabric()
    intruder = world.space()
    if kind == "a bridge":
        intruder.sh(KINDS["veth"].format(host=world.host.path))
        world.host.sh("ip link add to0 type bridge; ip link set evil0 master to0 up")
    else:
        world.host.sh("ip link add to0 type vxlan id 5 dstport 4789")
    world.host.sh("sysctl -qw net.ipv6.conf.to0.accept_ra=2; ip link set to0 up")
    mac = world.host.ip("link show to0")[0]["address"]

    def advertise():
        wait_until(
            lambda: "fe80" in (shown := world.host.sh("ip -6 addr show to0")) and "tentative" not in shown,
            what="link-local address",
        )
        if kind == "a bridge":
            packets.send(intruder, "inner0", [packets.router_advertisement()] * 3, to=mac, kind=packets.ETH_P_IPV6)
        else:
            into_tunnel(world.host, [packets.router_advertisement()] * 3, to=mac, kind=packets.ETH_P_IPV6)
        time.sleep(0.3)
        return "default" in world.host.sh("ip -6 route")

    wait_until(advertise, what="nothing is shown by this test")
    world.host.sh("ip -6 route flush default; ip -6 route del default || true")
    world.hostnet.confine_sandboxes()
    assert not advertise()


NAMES = ('a"b', "a}{b", "*", "a\\", "eni*", "#x;drop", "$(x)", "'")


def test_any_name_is_confined(make_world):
    """Also one that no rule can hold, with an alias of ours, in the group of dying links; and two hundred links at once."""
    node = Node(make_world())
    alias = first_leg(node.specs[0]).alias
    for number, name in enumerate(map(shlex.quote, NAMES)):
        lead(node, name, node.primary, inside=f"inner{number}")
        node.host.sh(f"ip link set {name} alias '{alias}' group {uapi.DYING_GROUP}")
    for number in range(200):
        lead(node, f"many{number}", node.primary, inside=f"more{number}")
    said = node.world.hostnet.confine_sandboxes()
    assert not any(one.is_repair or one.is_refusal for one in said)
    assert node.world.hostnet.confine_sandboxes() == []
    assert node.world.hostnet.is_source_checked()
    ours = {name for name in NAMES if name.startswith("eni")}
    assert {one.name for one in node.world.hostnet.foreign_links()} == {*NAMES, *(f"many{one}" for one in range(200))} - ours
    macs = {one["ifname"]: one["address"] for one in node.host.ip("link")}
    for number, name in enumerate(NAMES):
        assert arrived(node, macs[name], ["8.8.8.8", SECONDARY], inside=f"inner{number}") == [], name
    node.host.sh("nft flush ruleset")
    node.world.hostnet.confine_sandboxes()
    assert arrived(node, macs["many7"], ["8.8.8.8", SECONDARY], inside="more7") == [], "filled at once"


def test_what_it_does_to_a_link_does_not_free_it(make_world):
    """Renamed, moved away and back, renamed to a name of ours, its own eth0 deleted: it stays confined, and nothing is repaired."""
    node = Node(make_world())
    hostnet = KernelHostNetwork(node.world.netns, config=node.world.config, nft=node.world.nft, attachments=lambda: node.specs)
    hostnet.confine_sandboxes()
    mac = intrude(node.primary, node.host)
    away = node.world.space()
    for command in (
        "true",
        "ip link set evil0 name evil1",
        f"ip link set evil1 netns {away.path}; nsenter --net={away.path} ip link set evil1 netns {node.host.path};"
        " ip link set evil1 up",
        "ip link set evil1 down name eni0123456789a up",
        "ip link set eni0123456789a down name evil1 up",
    ):
        node.host.sh(command)
        assert hostnet.confine_sandboxes() == []
        assert arrived(node, mac, SPOOFED) == [], command
    node.primary.sh("ip link del eth0")
    again = KernelHostNetwork(node.world.netns, config=node.world.config, nft=node.world.nft, attachments=lambda: node.specs)
    again.confine_sandboxes()
    (found,) = again.foreign_links()
    assert (found.name, found.key) == ("evil1", node.specs[0].key)
    with contextlib.ExitStack() as stack:
        ear = packets.Ear(stack, links=[(node.vpc, "p0"), (node.secondary, "eth0")])
        packets.send(node.primary, "inner0", [packets.udp("8.8.8.8", target, b"spoofed") for target in (SECONDARY, VPC)], to=mac)
        assert ear.heard(b"spoofed") == []


def numbers_of(host, set_name="foreign"):
    """The links in a set of our table of IPv4."""
    return host.sh(f"nft -n list set ip vpc-ipamd-confine {set_name}")


def test_links_that_come_and_go_make_no_pass(live_node):  # noqa: F811  # the fixture
    """The sets follow in place: no pass over the host, nothing recorded as a repair, and the counters go on."""
    host = live_node.world.host
    space = next(one for one in live_node.world.spaces if one.path == live_node.pods[0].netns)
    for number in range(5):
        if number == 1:  # what the start announced is over
            live_node.passes.clear()
        space.sh(f"ip link add inner0 type veth peer name evil{number} netns {host.path} && ip link set inner0 up")
        wait_until(lambda name=f'"evil{number}"': name in numbers_of(host), what="in the set")
        wait_until(lambda name=f"evil{number}": name in condition(live_node), what="named")
        space.sh("ip link del inner0")
        wait_until(lambda: not condition(live_node), what="not named")
        wait_until(lambda: "elements" not in numbers_of(host), what="out of the set")
    assert live_node.passes == []
    wait_until(live_node.hostnet.is_source_checked, what="verified")


def delete_on_the_host(sandbox, name):
    """Have a sandbox delete a link of the node, by the number of the node's namespace that its own eth0 shows."""

    def delete():
        sock = NetlinkSocket()
        (outcome,) = sock.request([messages.get_link("eth0")])
        (reply,) = outcome.replies
        number = attribute(IFLA_TARGET_NETNSID, answers.read_link(reply).netnsid)
        body = messages.LINK.pack(0, 0, 0, 0, 0) + text_attribute(uapi.IFLA_IFNAME, name) + number
        (outcome,) = sock.request([Message("delete a link of the node", uapi.RTM_DELLINK, 0, body)])
        sock.close()
        return outcome.errno

    return sandbox.call(delete)


def test_a_sandbox_that_loses_its_veth_to_another_is_named(live_node):  # noqa: F811  # the fixture
    """Nothing can put it back, the pod must be made anew: status and audit name it at the next pass by the clock, within 30 s."""
    thief, victim = (next(one for one in live_node.world.spaces if one.path == pod.netns) for pod in live_node.pods)
    lost = live_node.pods[1]
    assert delete_on_the_host(thief, lost.host_veth) == 0
    assert lost.host_veth not in live_node.world.host.link_names()
    assert "eth0" not in victim.link_names()

    def is_named():
        live_node.host_reconciler.reconcile(is_by_clock=True)
        return str(lost.key) in live_node.health.conditions_by_subject().get("repair of sandboxes", "")

    wait_until(is_named, what="named")
    findings = audit(live_node.app.introspection.sources, ask_ec2=False).findings
    assert any(one.subject == str(lost.address) and "is gone" in one.text for one in findings)
    assert live_node.datastore.attachment(lost.key) == lost, "its address is given to nobody"
