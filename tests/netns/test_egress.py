"""Egress of the other family on real links: what a sandbox reaches and who reaches it, what goes with it, and what is repaired."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from ipaddress import IPv4Network, ip_network

import pytest

from ipamd.kernel import netlink
from ipamd.kernel.leftovers import clean_up
from ipamd.kernel.legs import local_range_ruleset
from ipamd.kernel.nft_table import NftTable
from ipamd.model.attachment import encode_alias
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.difference_messages import INSIDE_IS_LEFT
from ipamd.model.errors import WiringError
from ipamd.model.failures import FailureCode
from ipamd.model.family import IPV4, IPV6, family_of
from ipamd.model.ids import MacAddress
from ipamd.model.legs import legs_of
from ipamd.model.legs.egress import EGRESS_TAG
from ipamd.model.repairs import RepairCode, RepairedObject, RepairKind
from ipamd.model.wiring_comparison import wiring_differences
from ipamd.settings import NetworkConfig
from tests.errors import failed
from tests.netns import packets
from tests.netns.egress import DASH, NODE, OUTSIDE, Node, is_answered, is_in_order, listens, reaches, send, udp
from tests.netns.test_own_inside import KernelNode
from tests.task_pages import Runner, commands

FAMILIES = pytest.mark.parametrize("family", [IPV4, IPV6], ids=["v6if0", "v4if0"])
"""Of the pool: `make_world` goes by it."""


@FAMILIES
def test_it_reaches_the_outside(make_world, family):
    """A pod's datagram arrives from the node's own address, and the answer comes back to it."""
    node = Node(make_world)
    egress = node.family
    outside, own = OUTSIDE[egress], NODE[egress]
    # The kernel starts to send by a link whose other end has just been raised in a thread of its own (linkwatch).
    assert all(reaches(one, outside) for one in node.sandboxes)
    with contextlib.ExitStack() as stack:
        there = listens(stack, node.outside, egress, outside)
        here = listens(stack, node.sandboxes[0], egress, str(node.specs[0].other_address))
        here.sendto(b"asked", there.getsockname())
        text, sender = there.recvfrom(100)
        assert (text, sender[0]) == (b"asked", own)
        there.sendto(b"answered", sender)
        assert here.recvfrom(100)[0] == b"answered"


def ask_again(sock, *, tries=5):
    """Send and listen, a few times: a first datagram may be lost where a link or a neighbour is only just there."""
    for _ in range(tries):
        sock.send(b"hello")
        with contextlib.suppress(TimeoutError):
            sock.recv(100)
            return


@FAMILIES
def test_nobody_reaches_it(make_world, family):
    """Neither another pod of the node nor the outside begins anything with an address for egress; the refusal is said at once."""
    node = Node(make_world)
    egress = node.family
    node.outside.sh(f"ip route add {egress.local_range.network} via {NODE[egress]}")
    first, second = node.sandboxes
    target, outside = str(node.specs[1].other_address), OUTSIDE[egress]
    with contextlib.ExitStack() as stack:
        theirs = listens(stack, second, egress, target)
        for space, source in ((first, str(node.specs[0].other_address)), (node.outside, outside)):
            mine = listens(stack, space, egress, source)
            mine.connect(theirs.getsockname())
            with pytest.raises(ConnectionRefusedError):
                ask_again(mine)
        theirs.settimeout(0.2)
        with pytest.raises(TimeoutError):
            theirs.recv(100)


@FAMILIES
def test_nothing_forged_leaves(make_world, family):
    """By the second link nothing leaves with another source: another pod's, the node's, the pod's own of its pool, an outsider's."""
    node = Node(make_world)
    egress = node.family
    others = [node.specs[1].other_address, NODE[egress], OUTSIDE[egress]]
    pool = family_of(node.specs[0].address)
    beyond = OUTSIDE[pool]
    forged = [udp(egress, source, OUTSIDE[egress]) for source in others]
    forged += [udp(pool, source, beyond) for source in (node.specs[0].address, node.specs[1].address)]
    honest = udp(egress, node.specs[0].other_address, OUTSIDE[egress], text=b"honest")
    first, second = legs_of(node.specs[0])
    with contextlib.ExitStack() as stack:
        theirs = [(node.sandboxes[1], name) for name in ("eth0", second.ifname)]
        ear = packets.Ear(stack, links=[(node.outside, "p0"), *theirs], ports=[node.host])
        send(node, second, [*forged, honest])
        assert b"spoofed" not in b"".join(ear.heard(b"spoofed", until=b"honest"))
    # Nor is the pool's link a way for the address of the other one.
    with contextlib.ExitStack() as stack:
        ear = packets.Ear(stack, links=[(node.outside, "p0")], ports=[node.host])
        send(node, first, [udp(egress, second.address, OUTSIDE[egress])])
        send(node, second, [honest])
        assert b"spoofed" not in b"".join(ear.heard(b"spoofed", until=b"honest"))
    node.host.sh("nft flush ruleset; for each in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $each; done")
    with contextlib.ExitStack() as stack:  # without all this the same packets go where they want
        ear = packets.Ear(stack, links=[(node.outside, "p0")], ports=[node.host])
        send(node, second, [udp(egress, OUTSIDE[egress], NODE[egress]), udp(egress, others[0], OUTSIDE[egress]), honest])
        assert b"spoofed" in b"".join(ear.heard(b"spoofed", until=b"honest"))


@FAMILIES
def test_dropped_packets_of_both_families_are_counted(make_world, family):
    """The tables of IPv4 and IPv6 each have a counter for forged sources; the number of dropped packets is their sum."""
    node = Node(make_world)
    egress, pool = node.family, family_of(node.specs[0].address)
    assert node.hostnet.confine_sandboxes() == []
    before = node.hostnet.dropped_packets()["source"]
    first, second = legs_of(node.specs[0])
    with contextlib.ExitStack() as stack:
        ear = packets.Ear(stack, links=[(node.outside, "p0")], ports=[node.host])
        send(node, first, [udp(pool, node.specs[1].address, OUTSIDE[pool])] * 2)
        forged = udp(egress, node.specs[1].other_address, OUTSIDE[egress])
        honest = udp(egress, node.specs[0].other_address, OUTSIDE[egress], text=b"honest")
        send(node, second, [*[forged] * 3, honest])
        ear.heard(b"spoofed", until=b"honest")
    assert node.hostnet.confine_sandboxes() == []
    assert node.hostnet.dropped_packets()["source"] - before == 5


@FAMILIES
def test_it_asks_nobody(make_world, family):
    """Neighbours are fixed at both ends, and no address waits for the detection of duplicates."""
    node = Node(make_world)
    egress = node.family
    second, name = node.seconds[0], egress.local_range.ifname
    assert is_in_order(node, node.specs[0])
    inside = node.sandboxes[0].ip(f"addr show dev {name}")[0]["addr_info"]
    assert [(one["local"], one["prefixlen"]) for one in inside] == [(str(second.address), second.address.max_prefixlen)]
    assert not any("tentative" in one for one in inside)
    for space, link, address, mac in (
        (node.host, second.host_veth, second.address, second.mac("sandbox")),
        (node.sandboxes[0], name, second.gateway, second.mac("host")),
    ):
        (entry,) = json.loads(space.sh(f"ip -j {DASH[egress]} neigh show dev {link} {address}"))
        assert (entry["lladdr"], entry["state"]) == (mac, ["PERMANENT"])


@FAMILIES
def test_an_add_is_three_sends(make_world, monkeypatch, family):
    """With egress an ADD is as many sends as without."""
    node = Node(make_world, is_wired=False)
    sent, request = [], netlink.NetlinkSocket.request
    monkeypatch.setattr(netlink.NetlinkSocket, "request", lambda self, batch: sent.append(len(batch)) or request(self, batch))
    node.wiring.wire(replace(node.specs[0], other_address=None))
    without, sent[:] = list(sent), []
    node.wiring.wire(node.specs[1])
    assert (len(sent), len(without)) == (3, 3)
    assert sum(sent) <= 2.5 * sum(without)


@FAMILIES
@pytest.mark.parametrize("is_source_checked", [True, False])
def test_del_takes_both(make_world, family, is_source_checked):
    """At its end no route leads to either address, both links are in the dying group, and a sweep deletes both."""
    node = Node(make_world)
    egress = node.family
    spec, second = node.specs[0], node.seconds[0]
    node.wiring.mark_for_deletion(spec, is_source_checked=is_source_checked, owner=spec.key)
    routes = node.host.sh("ip route show table all; ip -6 route show table all")
    assert not any(f"{one.address} " in routes for one in (spec, second))
    assert {one.name for one in (*node.wiring.survey().veths, *node.wiring.survey().extra) if one.is_dying} == {
        spec.host_veth,
        second.host_veth,
    }
    assert not is_answered(node.sandboxes[0], OUTSIDE[egress])
    assert reaches(node.sandboxes[1], OUTSIDE[egress])
    node.wiring.sweep()
    assert node.host.link_names() == {"eth0", "eth1", node.specs[1].host_veth, node.seconds[1].host_veth}


@FAMILIES
def test_nothing_is_left_of_a_refused_add(make_world, family):
    """Whichever message of an ADD the kernel refuses, host and sandbox are as before."""
    node = Node(make_world, is_wired=False)
    egress = node.family
    steps = list[str]()
    probe = node.world.new_wiring(failpoint=lambda step: steps.append(step) or False)
    probe.wire(node.specs[0])
    probe.unwire(node.specs[0])
    node.host.sh("ip -6 addr flush dev eth0 scope link")  # whose detection of duplicates ends meanwhile
    before = [space.snapshot() for space in (node.host, node.sandboxes[0])]
    assert any(egress.local_range.ifname in step for step in steps)
    for refused in dict.fromkeys(steps):
        wiring = node.world.new_wiring(failpoint=lambda step, refused=refused: step == refused)
        with pytest.raises(WiringError):
            wiring.wire(node.specs[0])
        assert [space.snapshot() for space in (node.host, node.sandboxes[0])] == before, refused
        assert str(node.seconds[0].address) not in node.host.sh(f"ip {DASH[egress]} route show table all"), refused
    node.wiring.wire(node.specs[0])
    assert is_in_order(node, node.specs[0])


@FAMILIES
def test_a_taken_route_is_never_replaced(make_world, family):
    """An address for egress that leads to somebody refuses the ADD and stays where it is (I1)."""
    node = Node(make_world)
    egress = node.family
    thief = replace(node.spec(node.world.space(), 7), other_address=node.specs[0].other_address)
    with pytest.raises(WiringError, check=failed(FailureCode.STEP_REFUSED)):
        node.wiring.wire(thief)
    assert is_in_order(node, node.specs[0])
    assert reaches(node.sandboxes[0], OUTSIDE[egress])


@FAMILIES
def test_an_earlier_try_is_replaced(make_world, family):
    """Links that an ADD of the same sandbox left, with and without alias, make way for the next."""
    node = Node(make_world, is_wired=False)
    node.wiring.wire(node.specs[0])
    node.wiring.wire(node.specs[0])
    second = node.seconds[0]
    node.host.sh(f"ip link del {node.specs[0].host_veth}; ip link set {second.host_veth} alias ''")
    node.wiring.wire(node.specs[0])
    assert is_in_order(node, node.specs[0])


DAMAGE = {
    "the route": "ip {f} route del {address} dev {veth}",
    "the route of our table": "ip {f} route del {address} dev {veth} table 113213",
    "the link": "ip link del {veth}",
    "the link's state": "ip link set {veth} down",
    "the alias": "ip link set {veth} alias nothing",
    "the neighbour": "ip {f} neigh del {address} dev {veth}",
    "the rule": "ip {f} rule del prio 513",
    "the name": "ip link set {veth} down; ip link set {veth} name eni0 up",
}


@FAMILIES
@pytest.mark.parametrize("command", DAMAGE.values(), ids=DAMAGE.keys())
def test_what_others_change_is_put_back(make_world, family, command):
    """What is damaged of the second link is a difference, and is repaired."""
    node = Node(make_world)
    egress = node.family
    second = node.seconds[0]
    node.host.sh(command.format(f=DASH[egress], address=second.address, veth=second.host_veth))
    found = wiring_differences(node.specs[0], node.wiring.survey())
    ways = node.hostnet.reachability_problems(
        node.specs, enis=[replace(node.world.eni(device_index=0), mac=node.world.identity().primary_mac)]
    )
    assert found or DifferenceCode.NEIGHBOUR_NOT_FIXED in {way.code for way in ways}
    assert node.wiring.repair(node.specs)
    assert wiring_differences(node.specs[0], node.wiring.survey()) == []
    assert is_in_order(node, node.specs[0])
    assert reaches(node.sandboxes[0], OUTSIDE[egress])


@FAMILIES
def test_a_link_that_others_made_stays_and_a_gone_namespace_gets_none(make_world, family):
    """A second link that is gone is wired again in the sandbox that had it and nowhere else; why not is said."""
    node = Node(make_world)
    name, (first, other) = node.family.local_range.ifname, node.specs
    node.sandboxes[0].sh(f"ip link del {name}; ip link add {name} type veth peer name mine")
    (report,) = node.wiring.repair([first])
    assert report.code is RepairCode.NOT_WIRED_AGAIN
    assert name in report.cause
    assert "mine" in node.sandboxes[0].sh("ip link")
    node.host.sh(f"ip link del {node.seconds[1].host_veth}")
    moved = replace(other, netns=node.world.space().path)
    assert RepairCode.NOT_WIRED_AGAIN in [one.code for one in node.wiring.repair([moved])]
    gone = replace(other, netns="/run/netns/of-nobody")
    assert not any(one.is_repair for one in node.wiring.repair([gone]))
    thing = RepairedObject(RepairKind.LINK, str(node.seconds[1].address))
    assert node.wiring.repair([other], backed_off=[thing]) == [], "in a pause of a fight"
    imported = replace(other, others_mac=MacAddress("02:00:00:00:00:01"))
    assert thing in {one.object for one in node.wiring.repair([imported])}
    node.wiring.repair([other])
    assert is_in_order(node, other)


@FAMILIES
def test_an_export_and_the_commands_of_its_page_leave_nothing(make_world, family):
    """After them, and the last pod's end, the host has no table, route, rule or link that it did not have before us."""
    node = Node(make_world, is_wired=False, is_set_up=False)
    host, prefix = node.host, ip_network("2001:db8:1:2:abcd::/80")

    def left():
        """What there is, but for what the kernel makes by itself, and the mark rule and MTU, which amazon-vpc-cni-k8s sets too."""
        shown = host.sh("ip route show table all; ip -6 route show table all; ip rule; ip -6 rule; nft list ruleset").splitlines()
        return {one for one in shown if "fwmark 0x80/0x80" not in one and "table local" not in one} | host.link_names()

    before = {one for one in left() if "113213" not in one}  # the world has made the one rule already
    node.set_up()
    if family is IPV6:
        node.hostnet.reject_free_addresses([prefix])
    for spec in node.specs:
        node.wiring.wire(spec)
    node.wiring.write_former_rules(node.specs)
    said = node.hostnet.allow_neighbour_discovery()
    assert any(f"unreachable {prefix}" in one.target for one in said) == (family is IPV6)
    assert node.hostnet.allow_neighbour_discovery() == []
    assert all(reaches(one, OUTSIDE[node.family]) for one in node.sandboxes), "until the last pod's end"
    for spec in node.specs:
        node.world.mark_for_deletion(spec)
    node.wiring.sweep()
    assert "ipamd clean-up" in commands("migration.md", Runner.NODE)
    host.call(lambda: clean_up(veth_prefix="eni", is_dry_run=False))
    assert left() == before


@pytest.mark.parametrize("family", [IPV6], ids=["v4if0"])
def test_a_second_link_that_is_gone_is_repaired_or_a_condition(make_world, family, tmp_path):
    """It is no address that two have (I1): audit says that it is repaired, a pass does so; what the sandbox made is a condition."""
    world = make_world(v6_egress=True)
    world.fabric()
    node = KernelNode(tmp_path, world)
    node.host_reconciler.run_due(is_by_clock=True)
    pod, _ = node.attach()
    name = IPV4.local_range.ifname
    pod.sh(f"ip link del {name}")
    assert {one.severity for one in node.audited()} == {"difference"}
    assert any("repairs it" in one.next for one in node.audited())
    assert not any("(I1)" in one.text for one in node.audited())
    node.host_reconciler.reconcile()  # the kernel announces it
    assert (node.audited(), node.check(), node.health.conditions()) == ((), "", [])
    pod.sh(f"ip link del {name}; ip link add {name} type veth peer name mine")
    for _ in range(2):
        node.host_reconciler.run_due(is_by_clock=True)
    condition = node.health.conditions_by_subject()["repair of sandboxes"]
    assert f"interface {name}" in condition
    assert INSIDE_IS_LEFT in condition
    assert {one.severity for one in node.audited()} == {"difference", "violation"}, "it has no network of that family"
    node.datastore.close()


@FAMILIES
def test_its_packets_have_a_way(make_world, family):
    """A rule of others that leads an address for egress elsewhere is named for its sandbox."""
    node = Node(make_world)
    egress = node.family
    enis = [replace(node.world.eni(device_index=0), mac=node.world.identity().primary_mac)]
    assert node.hostnet.reachability_problems(node.specs, enis=enis) == []
    node.host.sh(f"ip {DASH[egress]} rule add prio 100 to {node.specs[0].other_address} blackhole")
    (told,) = node.hostnet.reachability_problems(node.specs, enis=enis)
    assert told.subject == str(node.specs[0].address)
    assert told.fields["address"] == str(node.specs[0].other_address)


def test_a_kept_alias_tells_both(make_world):
    """The second link names its sandbox and address in a form of its own, which is no claim to a pool address."""
    node = Node(make_world)
    seen = node.wiring.survey()
    assert {veth.key for veth in seen.veths} == {spec.key for spec in node.specs}
    for spec in node.specs:
        (found,) = seen.extras_of(spec.key)
        assert (found.address, found.alias) == (spec.other_address, encode_alias(spec.key, spec.other_address, tag=EGRESS_TAG))


@pytest.mark.parametrize("table", ["main", "113213"])
def test_one_of_both_routes_is_evidence_enough(make_world, table):
    """Somebody deletes a route to an address for egress, and the datastore is lost: the sandbox is found with it all the same."""
    node = Node(make_world)
    spec = node.specs[0]
    node.host.sh(f"ip {DASH[node.family]} route del {spec.other_address} table {table}")
    (found,) = node.wiring.survey().extras_of(spec.key)
    assert found.address == spec.other_address


def test_a_forged_second_link_is_no_evidence(make_world):
    """A sandbox can make a link with any alias on the node, but no route: what it claims is not taken for an address of egress."""
    node = Node(make_world)
    alias = encode_alias(node.specs[1].key, IPV6.local_range.last, tag=EGRESS_TAG)
    node.host.sh(f"ip link add eni0forged type veth peer name x; ip link set eni0forged alias '{alias}' up")
    (found,) = node.wiring.survey().extras_of(node.specs[1].key)
    assert found.address == node.specs[1].other_address


def test_a_leftover_goes_with_its_sandbox(make_world):
    """What nobody was promised is removed with both links, by the first link's alias, or by the key where that one is gone."""
    node = Node(make_world)
    first, second = node.specs
    node.wiring.remove_leftover(host_veth=first.host_veth, address=None)
    node.host.sh(f"ip link del {second.host_veth}")
    node.wiring.remove_leftover(host_veth=second.host_veth, address=None, key=second.key)
    assert node.host.link_names() == {"eth0", "eth1"}


@FAMILIES
@pytest.mark.parametrize(("setting", "flag"), [("prng", "fully-random"), ("hashrandom", "random"), ("none", "")])
def test_how_ports_are_chosen(make_world, family, setting, flag):
    """AWS_VPC_K8S_CNI_RANDOMIZESNAT holds for egress too (amazon-vpc-cni-k8s issue 1893), and multicast keeps its source."""
    node = Node(make_world, randomize_snat=setting)
    word, multicast = ("ip6", "ff00::/8") if node.family is IPV6 else ("ip", "224.0.0.0/4")
    (rule,) = [one for one in node.host.sh(f"nft list table {word} vpc-ipamd-egress").splitlines() if "snat to" in one]
    assert rule.split("snat to ")[1].split() == [NODE[node.family], *flag.split()]
    assert f"{word} daddr != {multicast}" in rule
    assert reaches(node.sandboxes[0], OUTSIDE[node.family])


def test_a_node_without_ipv6(make_world):
    """ENABLE_V6_EGRESS where the node has no IPv6 is off, and says so; once it has, pods get it."""
    node = Node(make_world, is_wired=False)
    assert node.hostnet.extra_family() == (IPV6, "")
    node.host.sh("ip -6 addr flush dev eth0 scope global")
    node.hostnet.setup_node(node.world.identity())
    family, why = node.hostnet.extra_family()
    assert family is None
    assert "eth0 has no global address of ip6" in why
    node.host.sh(f"ip -6 addr add {NODE[IPV6]}/64 dev eth0 nodad")
    node.hostnet.reconcile(identity=node.world.identity(), enis=[])
    assert node.hostnet.extra_family() == (IPV6, "")


@FAMILIES
def test_the_table_is_put_back(make_world, family):
    """The table of egress is repaired like ours, and goes when the setting is off and no sandbox has it."""
    node = Node(make_world)
    identity = node.world.identity()
    word, told = ("ip6", " (ip6)") if node.family is IPV6 else ("ip", "")
    node.host.sh(f"nft delete table {word} vpc-ipamd-egress")
    added = [one.target for one in node.hostnet.reconcile(identity=identity, enis=[]) if one.code is RepairCode.ADDED]
    assert added == [f"nftables table vpc-ipamd-egress{told}"]
    assert node.hostnet.reconcile(identity=identity, enis=[]) == []
    node.hostnet.apply_settings(replace(node.world.config, v4_egress=False, v6_egress=False), identity)
    assert "vpc-ipamd-egress" not in node.host.sh("nft list tables")


def test_the_route_of_router_advertisements_stays(make_world):
    """The primary ENI accepts them before the node forwards, so the default route that they made is not lost for a moment."""
    node = Node(make_world, is_wired=False)
    names = ("all/forwarding", "eth0/accept_ra")
    assert node.host.sh("cat " + " ".join(f"/proc/sys/net/ipv6/conf/{name}" for name in names)).split() == ["1", "2"]


def test_ipv6_turned_off_in_the_namespace(make_world):
    """A namespace whose links begin without IPv6 gets it for v6if0."""
    node = Node(make_world, is_wired=False)
    node.sandboxes[0].sh("sysctl -qw net.ipv6.conf.default.disable_ipv6=1 net.ipv6.conf.all.disable_ipv6=1")
    node.wiring.wire(node.specs[0])
    assert reaches(node.sandboxes[0], OUTSIDE[IPV6])


def test_a_kernel_without_ipv6_has_no_egress(make_world, monkeypatch):
    """Where the kernel knows no IPv6, ENABLE_V6_EGRESS is off like on any node without it: nothing of IPv4 is kept from its work."""
    unknown = replace(IPV6, number=27)  # AF_IB, for which the kernel has neither addresses nor rules
    world = make_world(v6_egress=True)
    world.fabric()
    monkeypatch.setattr(NetworkConfig, "extra_family", property(lambda self: unknown))
    tables = {IPV4: local_range_ruleset.TABLES[IPV4], unknown: NftTable("ib", "vpc-ipamd-egress")}
    monkeypatch.setattr(local_range_ruleset, "TABLES", tables)
    world.hostnet.confine_sandboxes()
    world.hostnet.setup_node(world.identity())
    assert world.hostnet.extra_family()[0] is None
    assert world.hostnet.reconcile(identity=world.identity(), enis=[]) == []


@pytest.mark.parametrize("family", [IPV6], ids=["ipv6"])
def test_extra_sources_do_not_open_the_way_out_for_ipv4(make_world, family):
    """They are of pods of IPv4: on v4if0 sources are checked as without them, by table and by veth."""
    node = Node(make_world, extra_source_cidrs=(IPv4Network("192.0.2.0/24"),))
    node.hostnet.confine_sandboxes()
    assert "extra_source" not in node.host.sh("nft list table ip vpc-ipamd-confine")
    assert node.hostnet.is_source_checked()
    for veth in (node.specs[0].host_veth, node.seconds[0].host_veth):
        assert node.host.sh(f"cat /proc/sys/net/ipv4/conf/{veth}/rp_filter") == "1\n"
