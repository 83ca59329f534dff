"""A sandbox with a branch ENI sends by that ENI or not at all: also while its VLAN link is gone and no daemon puts it back, and at
each step of an ADD and of a DEL.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from ipaddress import IPv4Network

import pytest

from ipamd.kernel.netlink import NetlinkSocket
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.errors import WiringError
from ipamd.model.family import IPV4, IPV6
from ipamd.model.legs import first_leg
from tests.netns import packets
from tests.netns.branched import TRUNK_MAC, Node
from tests.netns.conftest import EACH_FAMILY, VPC6, World
from tests.netns.test_wiring import talk

pytestmark = pytest.mark.privileged

EACH_MODE = pytest.mark.parametrize("is_strict", [True, False], ids=["strict", "standard"])
EXTRA = (IPv4Network("10.0.0.0/8"),)
END_METRIC = 4294967295


class Watched(Node):
    """A node that counts what leaves by its own ENI with the address of a sandbox, and what reaches its own sockets."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        is_ipv6 = world.family is IPV6
        self.targets = [VPC6, "2001:db8:99::1"] if is_ipv6 else ["10.0.77.7", "192.0.2.9"]
        self.udp = packets.udp6 if is_ipv6 else packets.udp
        self.kind = packets.ETH_P_IPV6 if is_ipv6 else packets.ETH_P_IP

    def send(self, pod, spec) -> None:
        """Send a packet to each target from a sandbox, as a hostile one does: whatever its routes say.

        In standard mode SNAT leads what is for outside the VPC to the node's ENI, and means it.
        """
        targets = self.targets if spec.uplink.is_strict else self.targets[:1]
        frames = [self.udp(str(spec.address), target, b"stray") for target in targets]
        packets.send(pod, spec.key.ifname, frames, to=first_leg(spec).mac("host"), kind=self.kind)

    @contextlib.contextmanager
    def watch(self, spec):
        """Count what leaves by eth0 with the sandbox's address; a list that holds the count at the end."""
        family = self.world.family.nft
        self.host.sh(
            "nft add table inet watch; nft add chain inet watch out '{ type filter hook postrouting priority -300; }';"
            f"nft add rule inet watch out oifname eth0 {family} saddr {spec.address} counter"
        )
        count: list[int] = []
        try:
            yield count
        finally:
            text = self.host.sh("nft list chain inet watch out; nft delete table inet watch")
            count.append(int(text.split("packets ")[1].split()[0]))


@pytest.fixture
def extra_sources():
    """VPC_IPAMD_EXTRA_SOURCE_CIDRS; a test says otherwise."""
    return ()


WITH_EXTRA_SOURCES = pytest.mark.parametrize(
    ("family", "extra_sources"), [(IPV4, ()), (IPV4, EXTRA), (IPV6, ())], ids=["ipv4", "ipv4-extra-sources", "ipv6"]
)


@pytest.fixture
def node(make_world, extra_sources):
    """A node with branch ENIs, whose daemon does nothing unless a test calls it."""
    return Watched(make_world(pod_eni=True, early_demux_disabled=True, extra_source_cidrs=extra_sources))


def tables(node):
    """What the host has of routes to nowhere."""
    return node.host.ip("route show table all type unreachable")


@WITH_EXTRA_SOURCES
@EACH_MODE
@pytest.mark.parametrize("loss", ["ip link del {link}", "ip link set {link} down"])
def test_nothing_leaves_by_the_nodes_eni_while_the_link_is_gone(node, is_strict, loss):
    """The rule stays, and its table refuses what it cannot lead; the daemon is away all the time."""
    pod, spec = node.add(is_strict=is_strict)
    node.host.sh(loss.format(link=spec.uplink.link))
    with node.watch(spec) as count:
        node.send(pod, spec)
    assert count == [0]


@EACH_FAMILY
def test_the_nodes_own_sockets_are_out_of_reach_while_the_link_is_gone(node, family):
    """In strict mode what is for the node goes by the branch ENI too, so it goes nowhere."""
    pod, spec = node.add()
    node.host.sh(f"ip link del {spec.uplink.link}")
    own = "2001:db8:0:1::10" if family is IPV6 else "10.0.0.10"
    with contextlib.ExitStack() as stack:
        ear = packets.Ear(stack, ports=[node.host])
        packets.send(pod, "eth0", [node.udp(str(spec.address), own, b"stray")], kind=node.kind)
        assert ear.heard(b"stray") == []


@pytest.fixture
def step_by_step(monkeypatch):
    """Call a function after each single message that changes the host."""
    probes = []
    plain = NetlinkSocket.request

    def request(self, batch):
        outcomes = []
        for message in batch:
            outcomes += plain(self, [message])
            for probe in probes:
                probe()
        return outcomes

    monkeypatch.setattr(NetlinkSocket, "request", request)
    return probes


def raised_inside(pod):
    """Raise the sandbox's end as soon as it is there, as a process in it with NET_ADMIN does."""
    pod.sh("ip link set eth0 up 2>/dev/null; true")
    return "state" in pod.sh("ip link show eth0 2>/dev/null; true")


@WITH_EXTRA_SOURCES
@EACH_MODE
def test_at_no_step_of_an_add_and_a_del_anything_leaves_by_the_nodes_eni(node, is_strict, step_by_step, extra_sources):
    """The way by the node's ENI is closed before the first packet may pass, and until the last one may."""
    pod = node.world.space()
    spec = node.spec(pod, is_strict=is_strict)
    node.know(spec)

    def probe():
        if raised_inside(pod):
            with contextlib.suppress(OSError):  # down
                node.send(pod, spec)

    with node.watch(spec) as count:
        step_by_step.append(probe)
        node.wiring.wire(spec)
        step_by_step.clear()
        node.world.hostnet.confine_sandboxes()
        step_by_step.append(probe)
        node.wiring.mark_for_deletion(spec, owner=spec.key, is_source_checked=not extra_sources)
        step_by_step.clear()
    assert count == [0]


@EACH_FAMILY
@EACH_MODE
@pytest.mark.parametrize("how", ["unwire", "leftover", "rollback"])
def test_every_other_way_of_removal_is_closed_until_its_end(node, is_strict, step_by_step, how):
    """What an ADD undoes, what a failed ADD left, and what nobody owns."""
    pod = node.world.space()
    spec = node.spec(pod, is_strict=is_strict)
    node.know(spec)

    def probe():
        if raised_inside(pod):
            with contextlib.suppress(OSError):
                node.send(pod, spec)

    with node.watch(spec) as count:
        if how == "rollback":
            step_by_step.append(probe)
            with pytest.raises(WiringError):
                node.new_wiring(failpoint="add default route via 169.254.1.1".__eq__ if node.world.dash == "-4" else
                                "add default route via fe80::1".__eq__).wire(spec)  # fmt: skip
        else:
            node.wiring.wire(spec)
            node.world.hostnet.confine_sandboxes()
            step_by_step.append(probe)
            if how == "unwire":
                node.wiring.unwire(spec)
            else:
                node.wiring.remove_leftover(host_veth=spec.host_veth, address=spec.address, key=spec.key, uplink=spec.uplink)
        step_by_step.clear()
    assert count == [0]
    assert tables(node) == []


@EACH_FAMILY
@EACH_MODE
def test_the_route_to_nowhere_is_part_of_the_wiring(node, is_strict):
    """CHECK names it, the repair puts it back, as on a node that an earlier daemon wired; a DEL takes it along."""
    pod, spec = node.add(is_strict=is_strict)
    known = replace(spec, trunk_mac=TRUNK_MAC)
    (end,) = tables(node)
    assert (end["dst"], end["metric"], end["table"]) == ("default", END_METRIC, "105")
    node.host.sh(f"ip {node.world.dash} route del unreachable default metric {END_METRIC} table 105")
    missing = [one for one in node.wiring.check(spec) if one.code is DifferenceCode.UPLINK_ROUTE_MISSING]
    assert [one.fields["route"].startswith("unreachable") for one in missing] == [True]
    assert node.wiring.repair([known]) != []
    assert node.wiring.check(spec) == []
    assert node.wiring.repair([known]) == []
    assert tables(node) == [end]
    assert talk(node.vpc, node.targets[0], pod) == str(spec.address)
    node.mark(spec)
    assert tables(node) == []


@EACH_FAMILY
def test_it_is_put_back_while_the_link_cannot_be(node):
    """The trunk is not known: at least nothing leaves by another way."""
    _, spec = node.add()
    node.host.sh(f"ip link del {spec.uplink.link}; ip {node.world.dash} route flush table 105")
    node.wiring.repair([replace(spec, trunk_mac="")])
    assert len(tables(node)) == 1


@EACH_FAMILY
def test_a_late_del_leaves_the_successors_table_closed(node):
    """The ID went on to another pod meanwhile."""
    _, old = node.add(vlan=5, number=200)
    node.mark(old)
    new = node.spec(node.world.space(), vlan=5, number=201)
    node.wiring.wire(new)
    node.mark(old)
    assert len(tables(node)) == 1


@EACH_FAMILY
def test_a_node_that_goes_back_has_none(node):
    """Nobody would remove it there."""
    _, spec = node.add()
    node.wiring.write_former_rules([spec])
    assert tables(node) == []
