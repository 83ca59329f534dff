"""Sandboxes in strict mode are confined: what one sends in another's name goes nowhere; the rule to local moves unnoticed."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from datetime import UTC, datetime
from ipaddress import IPv4Network

import pytest

from ipamd.kernel import confinement_ruleset
from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.model.attachment import Attachment
from ipamd.model.cni_request import NetnsIdentity
from ipamd.model.family import IPV6
from ipamd.model.kernel_numbers import STRICT_MARK
from ipamd.model.repairs import RepairCode, RepairKind
from ipamd.settings import NetworkConfig
from ipamd.settings.parsers import MARKS_OF_OTHERS
from tests.netns import packets
from tests.netns.branched import Node
from tests.netns.conftest import EACH_FAMILY_HEAVY_IPV6, NODE6, VPC6
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.privileged, EACH_FAMILY_HEAVY_IPV6]

TRIES = 3
"""Of an honest packet."""


class Confined(Node):
    """Two sandboxes in strict mode and one of the pool; `names` of everybody that packets could be sent in the name of."""

    def __init__(self, world):
        super().__init__(world)
        is_ipv6 = world.family is IPV6
        self.pod, self.mine = self.add(vlan=5, number=200)
        self.other_pod, self.other = self.add(vlan=6, number=201)
        self.pool_pod = world.space()
        self.pooled = world.spec(self.pool_pod, number=30)
        self.wiring.wire(self.pooled)
        self.node_address, self.vpc_address, outside = (
            (str(NODE6), VPC6, "2001:db8:99::1") if is_ipv6 else ("10.0.0.10", "10.0.77.7", "192.0.2.9")
        )
        self.own = str(self.mine.address)
        self.foreign = [
            str(self.pooled.address),
            str(self.other.address),
            self.node_address,
            str(self.mine.uplink.gateway),
            outside,
        ]
        self.targets = [self.vpc_address, self.node_address, str(self.pooled.address), str(self.other.address), outside]
        self.udp = packets.udp6 if is_ipv6 else packets.udp

    def intrude(self, name="evil0"):
        """Have the pod of the pool make a link of its own on the host, as NET_ADMIN lets it; the MAC of the host's end."""
        self.pool_pod.sh(f"ip link add inner0 type veth peer name {name} netns {self.host.path}; ip link set inner0 up")
        self.host.sh(f"sysctl -qw net.ipv4.conf.{name}.rp_filter=0 net.ipv4.conf.all.rp_filter=0; ip link set {name} up")
        return self.host.ip(f"link show {name}")[0]["address"]

    def by_intruder(self, sources, *, to):
        """What arrives of what it sends by that link, and whether an honest packet does that it sends by its own."""
        return self.arrives(self.pool_pod, sources, str(self.pooled.address), inside="inner0", to=to)

    def arrives(self, sender, sources, own, *, targets=(), inside="eth0", to="", expected=True):
        """What arrives anywhere of what is sent from these sources; an honest packet to the VPC ends it, if that is to arrive."""
        listening = [(self.vpc, "p0"), (self.vpc, "b5"), (self.vpc, "b6")]
        listening += [(one, "eth0") for one in (self.pod, self.other_pod, self.pool_pod) if one is not sender]
        with contextlib.ExitStack() as stack:
            ear = packets.Ear(stack, links=listening, ports=[self.host, self.vpc])
            frames = [self.udp(one, target, b"spoofed") for one in sources for target in targets or self.targets]
            kind = packets.ETH_P_IPV6 if self.world.family is IPV6 else packets.ETH_P_IP
            packets.send(sender, inside, frames, kind=kind, to=to)
            heard = []
            for _ in range(TRIES if expected else 1):  # the first may be lost while a busy machine asks for a neighbour
                packets.send(sender, "eth0", [self.udp(own, self.vpc_address, b"honest")], kind=kind)
                heard += ear.heard(b"", until=b"honest" if expected else b"")
                if any(b"honest" in one for one in heard):
                    break
            spoofed = [one for one in heard if b"spoofed" in one]
            return spoofed, any(b"honest" in one for one in heard)


@pytest.fixture
def node(make_world):
    """A node in strict mode."""
    return Confined(make_world(pod_eni=True, early_demux_disabled=True))


def test_a_sandbox_speaks_in_its_own_name_only(node):
    """Not in that of one of the pool, of another branch, of the node, of the router or of anybody outside; and nobody in its name."""
    assert node.arrives(node.pod, node.foreign, node.own) == ([], True)
    assert node.arrives(node.pool_pod, [node.own], str(node.pooled.address)) == ([], True)
    assert node.arrives(node.other_pod, [node.own], str(node.other.address)) == ([], True)
    assert node.world.hostnet.confine_sandboxes() == []
    assert node.world.hostnet.dropped_packets()["source"] >= len(node.foreign) + 2


def test_the_bit_is_gone_when_others_look(node):
    """The mark is for one lookup: neither Calico nor kube-proxy nor a rule for marks ever sees it; theirs stay."""
    family = node.world.family.nft
    node.host.sh(
        f"nft 'add table {family} t; add chain {family} t before {{ type filter hook prerouting priority -460; }};"
        f"add rule {family} t before meta mark set 0x4080;"
        f"add chain {family} t c {{ type filter hook prerouting priority -449; }};"
        f"add rule {family} t c meta mark and {STRICT_MARK:#x} != 0 counter; add rule {family} t c meta mark 0x4080 counter'"
    )
    assert node.arrives(node.pod, [], node.own)[1]
    listed = json.loads(node.host.sh(f"nft -j list chain {family} t c"))["nftables"]
    counts = [each["counter"]["packets"] for one in listed if "rule" in one for each in one["rule"]["expr"] if "counter" in each]
    assert counts[0] == 0
    assert counts[1] > 0


@pytest.mark.parametrize("mark", [bits for bits, _ in MARKS_OF_OTHERS], ids=hex)
def test_what_others_mark_passes_the_groups(node, mark):
    """portmap marks what the node sends to a hostPort of its own: that goes to the VPC too, as all that is for the sandbox."""
    (taken,) = node.host.ip(f"route get {node.mine.address} mark {mark:#x}")
    assert taken["dev"] != node.mine.host_veth


def test_after_a_flush(node, family):
    """Of IPv4 the links' own check of sources is left; of IPv6 nothing is, until the next look, which a flush calls for at once."""
    node.host.sh("nft flush ruleset")
    spoofed, is_heard = node.arrives(node.pod, node.foreign, node.own, targets=[node.vpc_address])
    assert is_heard
    assert bool(spoofed) is (family is IPV6)
    assert node.world.hostnet.are_tables_in_place() is False
    assert node.world.hostnet.confine_sandboxes() != []
    assert node.arrives(node.pod, node.foreign, node.own) == ([], True)


def test_without_the_reverse_route_nothing_passes(node):
    """The permission is the route: what lost it is cut off, not let through; and the audit says what is missing."""
    node.host.sh(node.world.words("ip rule del prio 9"))
    assert node.arrives(node.pod, node.foreign, node.own, expected=False) == ([], False)
    found = node.world.hostnet.differences(identity=node.world.identity(), enis=[])
    assert [one.report.target.startswith("rule 9 ") for one in found] == [True]
    (report,) = node.world.hostnet.reconcile(identity=node.world.identity(), enis=[])
    assert (report.code, report.target.startswith("rule 9 ")) == (RepairCode.ADDED, True)
    assert node.arrives(node.pod, node.foreign, node.own) == ([], True)


def test_a_reverse_rule_for_another_mark_is_not_ours(node):
    """It looks like the rule that is due, and no packet of a sandbox in strict mode has its mark: all of them would be dropped."""
    node.host.sh(node.world.words("ip rule del prio 9; ip rule add prio 9 fwmark 0x2000/0x2000 iif lo lookup 113214"))
    assert node.arrives(node.pod, [], node.own, expected=False) == ([], False)
    (report,) = node.world.hostnet.reconcile(identity=node.world.identity(), enis=[])
    assert (report.code, report.target.startswith("rule 9 ")) == (RepairCode.ADDED, True)
    assert node.world.hostnet.reconcile(identity=node.world.identity(), enis=[]) == []
    assert node.arrives(node.pod, node.foreign, node.own) == ([], True)


def test_the_rule_to_local_moves_without_a_lost_packet(make_world, family):
    """There and back again, while the node talks to itself; the last state is the kernel's own."""
    world = make_world()
    world.fabric()
    world.hostnet.setup_node(world.identity())
    before = world.host.sh(f"ip {world.dash} rule")
    kind, own = (socket.AF_INET6, str(NODE6)) if family is IPV6 else (socket.AF_INET, "10.0.0.10")
    settings = [world.config, NetworkConfig(ipv4=family is not IPV6, ipv6=family is IPV6, pod_eni=True)]
    with contextlib.ExitStack() as stack:
        hears, speaks = (stack.enter_context(world.host.call(socket.socket, kind, socket.SOCK_DGRAM)) for _ in range(2))
        hears.bind((own, 4000))
        hears.settimeout(PATIENCE_S)
        until, heard_count, moved_count = time.monotonic() + 2.0, 0, 0

        def is_enough():
            return time.monotonic() > until and (min(heard_count, 100), min(moved_count, 5)) == (100, 5)

        def speak():
            nonlocal heard_count
            while not is_enough() and time.monotonic() < until + PATIENCE_S:
                speaks.sendto(b"to myself", (own, 4000))
                assert hears.recv(16) == b"to myself"
                heard_count += 1

        speaking = world.host.submit(speak)
        while not speaking.done() and moved_count < 500:
            moved_count += 1
            world.hostnet.apply_settings(settings[moved_count % 2], world.identity())
        speaking.result(timeout=2 * PATIENCE_S)
    assert is_enough()
    world.hostnet.apply_settings(settings[1], world.identity())
    assert "from all lookup local" in next(
        one for one in world.host.sh(f"ip {world.dash} rule").splitlines() if one.startswith("20:")
    )
    world.hostnet.apply_settings(settings[0], world.identity())
    assert world.host.sh(f"ip {world.dash} rule") == before


def test_it_stays_while_a_sandbox_in_strict_mode_lives(make_world, family):
    """The setting is off; what lives keeps what it was wired with, its confinement too. Its last DEL puts the kernel's rule back."""
    node = Node(make_world(pod_eni=True))
    _, spec = node.add()
    rows = [
        Attachment(
            spec.key, spec.address, spec.eni_id, spec.route_table, spec.host_veth, spec.netns, NetnsIdentity(0, 0), "", b"{}",
            datetime.now(UTC), uplink=spec.uplink,
        )
    ]  # fmt: skip
    off = NetworkConfig(ipv4=family is not IPV6, ipv6=family is IPV6)
    hostnet = KernelHostNetwork(node.world.netns, config=off, nft=node.world.nft, attachments=lambda: rows, vlan_links=node.links)
    hostnet.confine_sandboxes()
    said = hostnet.reconcile(identity=node.world.identity(), enis=[])
    assert not [one for one in said if one.object.kind is RepairKind.RULE]
    assert "from_strict" in node.host.sh(f"nft list table {family.nft} {confinement_ruleset.IPV4.name}")
    rows.clear()
    node.mark(spec)
    node.wiring.sweep()
    hostnet.confine_sandboxes()
    said = hostnet.reconcile(identity=node.world.identity(), enis=[])
    assert "rule 20 lookup 255" in [one.target for one in said if one.code is RepairCode.REMOVED]
    assert hostnet.reconcile(identity=node.world.identity(), enis=[]) == []
    assert "20:" not in node.host.sh(f"ip {node.world.dash} rule")


@pytest.mark.parametrize("mode", ["standard", "off"])
def test_the_kernel_says_who_is_in_strict_mode(make_world, family, mode):
    """Rows lost and settings changed: who is wired so stays confined, and goes by the branch ENI, until its DEL."""
    node = Confined(make_world(pod_eni=True, early_demux_disabled=True))
    config = NetworkConfig(ipv4=family is not IPV6, ipv6=family is IPV6, pod_eni=mode != "off", pod_groups_mode="standard")
    hostnet = node.world.hostnet = KernelHostNetwork(node.world.netns, config=config, nft=node.world.nft, vlan_links=node.links)
    hostnet.confine_sandboxes()
    assert node.arrives(node.pod, node.foreign, node.own) == ([], True)
    assert node.arrives(node.pool_pod, [node.own], str(node.pooled.address)) == ([], True)
    said = hostnet.reconcile(identity=node.world.identity(), enis=[])
    assert not [one for one in said if one.object.kind is RepairKind.RULE]
    assert node.arrives(node.pod, node.foreign, node.own) == ([], True)
    (taken,) = node.host.ip(f"route get {node.node_address} from {node.own} iif {node.mine.host_veth}")
    assert taken["dev"] == node.mine.uplink.link, "its groups judge what it sends to its own node"
    for spec in (node.mine, node.other):
        node.mark(spec)
    node.wiring.sweep()
    hostnet.confine_sandboxes()
    said = hostnet.reconcile(identity=node.world.identity(), enis=[])
    assert "rule 20 lookup 255" in [one.target for one in said if one.code is RepairCode.REMOVED]
    assert "from_strict" not in node.host.sh(f"nft list table {family.nft} {confinement_ruleset.IPV4.name}")
    assert hostnet.reconcile(identity=node.world.identity(), enis=[]) == []


def test_a_name_alone_makes_nobody_strict(make_world, family):
    """A sandbox with NET_ADMIN makes links of any name on the host, and no route: the node's rules stay as they are."""
    node = Node(make_world())
    node.host.sh("ip link add vlan0123456789a type veth peer name x; ip link set vlan0123456789a up")
    node.world.hostnet.confine_sandboxes()
    assert node.world.hostnet.reconcile(identity=node.world.identity(), enis=[]) == []
    assert "from_strict" not in node.host.sh(f"nft list table {family.nft} {confinement_ruleset.IPV4.name}")


@pytest.mark.parametrize("name", ["evil0", "vlan0123456789a", "vlan.eth.77"])
def test_a_new_veth_of_others_speaks_for_nobody_in_strict_mode(node, name):
    """Nobody has looked at the link yet: neither a pod in strict mode nor one of the pool is spoken for; nor after that look."""
    mac = node.intrude(name)
    sources = [node.own, str(node.other.address), str(node.pooled.address)]
    assert node.by_intruder(sources, to=mac) == ([], True)
    node.world.hostnet.confine_sandboxes()
    assert node.by_intruder([*sources, *node.foreign], to=mac) == ([], True)
    assert node.arrives(node.pod, [], node.own) == ([], True)


def test_extra_sources_are_nobodys_in_strict_mode(make_world, family):
    """Whatever the CIDRs: no other sandbox is spoken for. Extra sources are of IPv4."""
    if family is not IPV6:
        node = Confined(make_world(pod_eni=True, early_demux_disabled=True, extra_source_cidrs=(IPv4Network("10.0.0.0/8"),)))
        assert node.arrives(node.pool_pod, [node.own], str(node.pooled.address)) == ([], True)
        assert node.arrives(node.pod, node.foreign, node.own) == ([], True)
