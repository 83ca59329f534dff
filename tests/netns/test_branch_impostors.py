"""A sandbox with NET_ADMIN deletes another's links on the node and puts its own in their place, by name, MAC and alias.

It does so from its own namespace, by the number that its eth0 shows for the node's. It gets no packet of the other's and sends none in
its name; the other one is cut off and named until the link is deleted.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace

import pytest

from ipamd.kernel import messages, uapi
from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.kernel.netlink import NetlinkSocket, attribute
from ipamd.model.family import IPV6
from ipamd.model.repairs import RepairCode, RepairKind
from ipamd.model.wiring_comparison import wiring_differences
from tests.netns import packets
from tests.netns.branched import TRUNK_MAC, Node
from tests.netns.conftest import EACH_FAMILY_HEAVY_IPV6, VPC6
from tests.netns.test_wiring import talk

pytestmark = [pytest.mark.privileged, EACH_FAMILY_HEAVY_IPV6]

EACH_MODE = pytest.mark.parametrize("is_strict", [True, False], ids=["strict", "standard"])


class Attacked(Node):
    """A victim with a branch ENI, and a sandbox of the pool that attacks it."""

    def __init__(self, world, *, is_strict=True):
        super().__init__(world)
        self.pod, spec = self.add(is_strict=is_strict)
        self.spec_of_victim = replace(spec, trunk_mac=TRUNK_MAC)
        self.attacker = world.space()
        self.world.wiring.wire(world.spec(self.attacker, number=30))
        is_ipv6 = world.family is IPV6
        self.far, self.forged = (VPC6, "2001:db8:99::1") if is_ipv6 else ("10.0.77.7", "192.0.2.9")
        self.udp = packets.udp6 if is_ipv6 else packets.udp
        self.kind = packets.ETH_P_IPV6 if is_ipv6 else packets.ETH_P_IP

    def link(self, name):
        """What the host has of a link."""
        (shown,) = self.host.ip(f"link show {name}")
        return shown["ifindex"], shown["address"], shown.get("ifalias", ""), "UP" in shown["flags"]

    def delete_from_inside(self, name):
        """Have the attacker delete a link of the node, as it can without a way into the node's namespace."""
        index = self.link(name)[0]
        number = struct.pack("=i", int(self.attacker.ip("link show eth0")[0]["link_netnsid"]))

        def delete():
            with contextlib.closing(NetlinkSocket()) as sock:
                message = messages.delete_link(index, step="delete another's link")
                body = message.body + attribute(uapi.IFLA_TARGET_NETNSID, number)
                sock.carry_out([replace(message, body=body)], operation="attack")

        self.attacker.call(delete)
        assert name not in self.host.link_names()

    def put(self, form, name, *, alias="", mac=""):
        """Have the attacker put a link of its own on the node."""
        address = f"address {mac}" if mac else ""
        into = f"name {name} netns {self.host.path}"
        if form == "made on the node":
            self.attacker.sh(f"ip link add inner0 type veth peer {into} {address}")
        elif form == "a bridge":
            self.attacker.sh(f"ip link add {into} {address} type bridge")
            self.host.sh(f"ip link set {name} alias '{alias}'")
        else:
            self.attacker.sh(f"ip link add outer0 {address} type veth peer name inner0; ip link set outer0 alias '{alias}'")
            self.attacker.sh(f"ip link set outer0 {into}")
        if form != "a bridge":
            self.attacker.sh("ip link set inner0 up")
        self.host.sh(f"ip link set {name} up; echo 0 > /proc/sys/net/ipv4/conf/{name}/rp_filter")

    def repair(self):
        """A pass: what was repaired, and what was refused."""
        self.world.hostnet.confine_sandboxes()
        said = self.wiring.repair([self.spec_of_victim])
        self.world.hostnet.confine_sandboxes()
        return [one for one in said if one.is_repair], [one for one in said if not one.is_repair]

    def led_by(self, name):
        """Routes of the node that lead through a link."""
        return self.host.ip(f"route show table all dev {name} type unicast scope link") + [
            route
            for route in self.host.ip("route show table all type unicast")
            if route.get("dev") == name and "gateway" in route
        ]

    def heard_by_attacker(self):
        """What the attacker hears of packets that the victim sends, and of those that the VPC and the node send to it."""
        with contextlib.ExitStack() as stack:
            ear = packets.Ear(stack, links=[(self.attacker, "inner0")])
            own = str(self.spec_of_victim.address)
            packets.send(self.pod, "eth0", [self.udp(own, self.far, b"secret")], to="02:00:00:00:66:66", kind=self.kind)
            for space in (self.host, self.vpc):
                space.sh(f"ping {self.world.dash} -c 1 -W 1 -p 736563726574 {own} >/dev/null; true")
            return ear.heard(b"secret")


@pytest.fixture
def is_strict():
    """The mode of the victim."""
    return True


@pytest.fixture
def node(make_world, is_strict):
    """A node whose daemon does what a test calls."""
    return Attacked(make_world(pod_eni=True, early_demux_disabled=True), is_strict=is_strict)


@EACH_MODE
@pytest.mark.parametrize("form", ["made on the node", "moved to the node", "a bridge"])
def test_a_link_in_the_place_of_the_vlan_link_gets_nothing(node, form):
    """It keeps its own MAC and alias, no route leads to it, the victim is cut off and named; then the right link is made again."""
    spec = node.spec_of_victim
    name = spec.uplink.link
    _, mac, alias, _ = node.link(name)
    node.delete_from_inside(name)
    node.put(form, name, alias=alias, mac=mac)
    before = node.link(name)
    for _ in range(2):
        repaired, refused = node.repair()
        assert not [one for one in repaired if name in one.target and one.code is not RepairCode.MISLEADING_REMOVED]
        assert [one.target for one in refused if one.code is RepairCode.VLAN_LINK_NOT_OURS] == [name]
    assert node.link(name) == before
    assert node.led_by(name) == []
    assert [one for one in wiring_differences(spec, node.wiring.survey()) if one.kind is None]
    assert node.wiring.check(spec) != []
    if form != "a bridge":
        assert node.heard_by_attacker() == []
    node.host.sh(f"ip link del {name}")
    assert node.repair()[0] != []
    assert node.wiring.check(spec) == []
    assert talk(node.vpc, node.far, node.pod) == str(spec.address)


def test_a_vlan_link_on_another_link_than_the_trunks(node):
    """It has the right kind and ID."""
    spec = node.spec_of_victim
    name, (_, mac, alias, _) = spec.uplink.link, node.link(spec.uplink.link)
    node.delete_from_inside(name)
    other = node.host.ip("link show eth1")[0]["ifindex"]
    assert node.links.make(name, vlan=spec.uplink.vlan, parent=other, mac=mac)
    node.host.sh(f"ip link set {name} group 0 alias '{alias}' up")
    repaired, refused = node.repair()
    assert not [one for one in repaired if one.object.kind is RepairKind.LINK]
    assert [one.target for one in refused if one.code is RepairCode.VLAN_LINK_NOT_OURS] == [name]
    assert node.led_by(name) == []
    assert [one for one in wiring_differences(spec, node.wiring.survey()) if one.kind is None]


def test_nothing_is_led_from_it_to_the_victim(node):
    """The rule of the name would lead what comes by it to the victim, past its groups."""
    spec = node.spec_of_victim
    mac = node.link(spec.uplink.link)[1]
    node.delete_from_inside(spec.uplink.link)
    node.put("made on the node", spec.uplink.link, mac=mac)

    def arrives():
        with contextlib.ExitStack() as stack:
            ear = packets.Ear(stack, links=[(node.pod, "eth0")])
            frame = node.udp(node.forged, str(spec.address), b"injected")
            packets.send(node.attacker, "inner0", [frame], to=mac, kind=node.kind)
            return ear.heard(b"injected")

    node.repair()
    assert arrives() == []


def test_before_anybody_looks_the_kind_of_the_link_is_enough(node):
    """The node's filter takes a packet by such a name only from a link of the kind; that of a lab is a veth, as the impostor is."""
    spec = node.spec_of_victim
    hostnet = KernelHostNetwork(node.world.netns, config=node.world.config, nft=node.world.nft)
    hostnet.confine_sandboxes()
    mac = node.link(spec.uplink.link)[1]
    node.delete_from_inside(spec.uplink.link)
    node.put("made on the node", spec.uplink.link, mac=mac)
    with contextlib.ExitStack() as stack:
        ear = packets.Ear(stack, links=[(node.pod, "eth0")])
        frame = node.udp(node.forged, str(spec.address), b"injected")
        packets.send(node.attacker, "inner0", [frame], to=mac, kind=node.kind)
        assert ear.heard(b"injected") == []
    hostnet.confine_sandboxes()
    assert hostnet.dropped_packets()["foreign"] >= 1


@EACH_MODE
@pytest.mark.parametrize("name", ["its name", "evil0"])
def test_a_link_in_the_place_of_the_host_veth_gets_nothing(node, name):
    """By name, MAC and alias: no route leads to it, it is not renamed, and the way to the branch ENI is closed to it."""
    spec = node.spec_of_victim
    _, mac, alias, _ = node.link(spec.host_veth)
    name = spec.host_veth if name == "its name" else name
    node.delete_from_inside(spec.host_veth)
    node.put("moved to the node", name, alias=alias, mac=mac)
    before = node.link(name)
    for _ in range(2):
        repaired, refused = node.repair()
        assert refused
        assert not [one for one in repaired if one.code is RepairCode.LINK_RENAMED]
    assert node.link(name) == before
    assert node.led_by(name) == []
    assert not node.link(spec.uplink.link)[3], "the VLAN link is down"
    own = str(spec.address)
    with contextlib.ExitStack() as stack:
        ear = packets.Ear(stack, links=[(node.vpc, "p0"), (node.vpc, "b5")])
        packets.send(node.attacker, "inner0", [node.udp(own, node.far, b"secret")], to=mac, kind=node.kind)
        assert ear.heard(b"secret") == []
        ear = packets.Ear(stack, links=[(node.attacker, "inner0")])
        node.vpc.sh(f"ping {node.world.dash} -c 1 -W 1 -p 736563726574 {own} >/dev/null; true")
        assert ear.heard(b"secret") == []
    node.mark(spec)
    node.wiring.sweep()
    assert node.host.ip("route show table all type unreachable") == []


@EACH_MODE
def test_a_del_leaves_no_rule_to_an_impostors_name(node):
    """The impostor has another alias: it is left alone, and nothing of the sandbox stays (I4)."""
    spec = node.spec_of_victim
    node.delete_from_inside(spec.uplink.link)
    node.put("made on the node", spec.uplink.link)
    node.host.sh(f"ip link set {spec.uplink.link} alias 'vpc-ipamd-vlan/1 10.0.9.9 eni-0abc 10.0.9.1 strict'")
    node.mark(spec)
    node.wiring.sweep()
    left = node.host.sh(f"ip {node.world.dash} rule")
    assert f"lookup {spec.route_table}" not in left
    assert node.host.ip("route show table all type unreachable") == []


def test_an_add_replaces_an_impostor(node):
    """It was there before: the new sandbox gets a link of its own."""
    node.put("made on the node", "vlan.eth.6")
    pod, spec = node.add(vlan=6, number=201)
    assert node.wiring.check(spec) == []
    assert talk(node.vpc, node.far, pod) == str(spec.address)
