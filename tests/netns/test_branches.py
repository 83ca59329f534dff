"""Sandboxes with branch ENIs, in both modes: wiring, DEL, what is in the way, repair, and the ways of packets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ipamd.kernel.wiring import KernelWiring
from ipamd.model.attachment import decode_alias
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.errors import UplinkPendingError, WiringError
from ipamd.model.failures import FailureCode
from ipamd.model.family import IPV6
from ipamd.model.kernel_numbers import LINK_PREFIX, STRICT_VETH_PREFIX
from ipamd.model.repairs import RepairCode
from ipamd.model.wiring_comparison import wiring_differences
from tests.errors import failed
from tests.netns.branched import TRUNK_MAC, Node
from tests.netns.conftest import EACH_FAMILY_HEAVY_IPV6, VPC6
from tests.netns.test_wiring import talk

pytestmark = [pytest.mark.privileged, EACH_FAMILY_HEAVY_IPV6]

OF_A_TALK = 3
"""Packets that each side of one sends at least; of the talk before, that side has two left to send: an acknowledgement and its end."""

CUT_OFF_S = 3.0
"""How long a talk is tried that must not succeed."""

EACH_MODE = pytest.mark.parametrize("is_strict", [True, False], ids=["strict", "standard"])


@pytest.fixture
def node(make_world):
    """A node in strict mode."""
    return Node(make_world(pod_eni=True, early_demux_disabled=True))


@pytest.fixture
def vpc_address(family):
    """Something of the VPC that is not on this node."""
    return VPC6 if family is IPV6 else "10.0.77.7"


def rules_of(node):
    """Priority, selector and table of each rule."""
    return {
        (one["priority"], one.get("iif") or (one["src"] if one["src"] != "all" else ""), one["table"])
        for one in node.host.ip("rule")
    }


def lines(node):
    """What a wiring could leave behind, line by line, but for what eth0 has, and links' own addresses: the kernel takes its time
    with these, and a link that is left shows itself.
    """
    found = node.host.snapshot()
    return {
        what: [one for one in (text.splitlines() if what != "link" else text) if "eth0" not in one and "fe80::" not in one]
        for what, text in found.items()
    }


def received(space, link):
    """Packets that came by a link."""
    return space.ip(f"-s link show {link}")[0]["stats64"]["rx"]["packets"]


@EACH_MODE
def test_wired_as_upstream_wires_it(node, is_strict):
    """Links, tables, rules and names are those of amazon-vpc-cni-k8s (driver.go, SetupBranchENIPodNetwork): nodes change sides."""
    _, spec = node.add(vlan=57, is_strict=is_strict)
    link, veth, pod = "vlan.eth.57", spec.host_veth, str(spec.address)
    assert veth.startswith("vlan" if is_strict else "eni")
    shown = node.host.ip(f"link show {link}")[0]
    assert (shown["address"], shown["ifalias"]) == (spec.uplink.mac, node.wiring.survey().vlans[0].alias)
    shown = node.host.ip("route show table 157")
    table = {(route["dst"], route.get("gateway"), route["dev"]) for route in shown if route.get("type") == "unicast"}
    gateway = str(spec.uplink.gateway)
    assert table == {(gateway, None, link), ("default", gateway, link), *([(pod, None, veth)] if is_strict else [])}
    assert node.host.ip(f"neigh show dev {link} nud permanent") == [], "the gateway is asked for"
    (end,) = [route for route in shown if route.get("type") != "unicast"]
    assert (end["type"], end["dst"], end["metric"]) == ("unreachable", "default", 2**32 - 1), "ours"
    main = {(one["dst"], one["dev"]) for one in node.host.ip("route show table main")}
    assert ((pod, veth) in main) is not is_strict
    found = rules_of(node)
    of_branch = {(10, link, "157"), (10, veth, "157")} if is_strict else {(1536, pod, "157")}
    assert {one for one in found if one[0] in (10, 512, 1536)} == of_branch
    assert node.wiring.check(spec) == []


def test_the_node_in_strict_mode(node, family):
    """Its own table is asked behind the rules of branches; of IPv6 the router's neighbour discovery is still heard."""
    of_router = {(0, "fe80:ec2::1", "local")} if family is IPV6 else set()
    found = rules_of(node)
    assert {one for one in found if one[2] == "local"} == {(20, "", "local"), *of_router}
    assert (9, "lo", "113214") in found
    reconciled = node.world.hostnet.reconcile(identity=node.world.identity(), enis=[])
    assert reconciled == node.world.hostnet.reconcile(identity=node.world.identity(), enis=[], is_silent=True) == []


@EACH_MODE
def test_packets_take_the_way_of_the_mode(node, vpc_address, is_strict):
    """Both ways, with the pod's own address; in strict mode what the node itself sends passes the branch ENI too."""
    pod, spec = node.add(is_strict=is_strict)
    own = str(spec.address)
    assert talk(node.vpc, vpc_address, pod) == own
    talk(pod, own, node.vpc)
    before = received(node.host, spec.uplink.link)
    talk(pod, own, node.host)
    came = received(node.host, spec.uplink.link) - before
    assert (came >= OF_A_TALK) is is_strict, f"{came} packets, with the last ones of the talk before"


def test_a_pod_of_the_pool_reaches_one_in_strict_mode_through_the_vpc(node):
    """And back: neither is led past the groups of the branch ENI."""
    world = node.world
    pod, spec = node.add()
    other = world.space()
    pooled = world.spec(other, number=30)
    world.wiring.wire(pooled)
    node.vpc.sh(
        world.words(
            f"ip route replace {pooled.address}/32 dev p0; ip neigh replace {pooled.address} dev p0 lladdr 02:00:00:00:00:01"
        )
    )
    before = received(node.host, spec.uplink.link)
    assert talk(pod, str(spec.address), other) == str(pooled.address)
    assert talk(other, str(pooled.address), pod) == str(spec.address)
    assert received(node.host, spec.uplink.link) > before


@EACH_MODE
def test_del_leaves_nothing(node, is_strict):
    """Neither a link nor a route nor a rule, and the trunk's link stays."""
    node.host.sh("ip link set eth2 up mtu 1500")
    before = lines(node)
    _, spec = node.add(is_strict=is_strict)
    assert node.mark(spec).key == spec.key
    assert not [one for one in node.wiring.survey().vlans if not one.is_dying]
    node.wiring.sweep()
    assert lines(node) == before


def test_a_late_del_leaves_the_next_sandbox_alone(node, vpc_address):
    """amazon-vpc-cni-k8s issues 1644, 1375: by name it would take the new sandbox's link. The same pod, the same branch ENI."""
    _, old = node.add()
    pod = node.world.space()
    new = replace(old, key=node.world.key("successor"), netns=pod.path)
    node.mark(old)
    node.wiring.sweep()
    node.wiring.wire(new)
    node.world.hostnet.confine_sandboxes()
    node.mark(old)
    node.wiring.sweep()
    assert node.wiring.check(new) == []
    assert talk(node.vpc, vpc_address, pod) == str(new.address)


def test_a_late_del_leaves_another_pods_link_alone(node):
    """The ID went on to another pod meanwhile: the alias has that one's address."""
    _, old = node.add(vlan=5, number=200)
    node.mark(old)
    pod = node.world.space()
    new = node.spec(pod, vlan=5, number=201)
    node.wiring.wire(new)
    node.mark(old)
    node.wiring.sweep()
    assert node.wiring.check(new) == []


def test_what_is_in_the_way(node):
    """One ID, one link: a dying one, one without an owner and one of an earlier try go; that of a sandbox that is there refuses."""
    _, first = node.add(vlan=5, number=200)
    second = node.spec(node.world.space(), vlan=5, number=201)
    with pytest.raises(WiringError, check=failed(FailureCode.VLAN_TAKEN, vlan=5, link=first.host_veth)):
        node.wiring.wire(second)
    assert node.wiring.check(first) == []
    assert second.host_veth not in node.host.link_names()
    node.host.sh(f"ip link del {first.host_veth}")
    node.wiring.wire(second)
    assert node.wiring.check(second) == []
    node.wiring.wire(second)
    assert node.wiring.check(second) == []


@EACH_MODE
@pytest.mark.parametrize("is_looked_at", [False, True])
@pytest.mark.parametrize(
    "theirs",
    [
        "route add default dev eth1 table 220",
        "route add {there} dev eth1 table 220",
        "route add unreachable {there} table 220",
        "rule add prio 220 lookup 220",
        "rule add prio 99 from {there} lookup 220",
        "rule add prio 1000 iif eth1 lookup 220",
    ],
)
def test_another_program_has_the_table(node, vpc_address, theirs, is_looked_at, is_strict):
    """strongSwan's is 220, which VLAN 120 means, and its rule is there without a route: refused and undone, and theirs stays."""
    ip = f"ip {node.world.dash}"
    node.host.sh(f"ip link set eth1 up; ip link set eth2 up; {ip} {theirs.format(there=vpc_address)}")
    if is_looked_at:
        node.world.hostnet.reconcile(identity=node.world.identity(), enis=[])
    before = lines(node)
    with pytest.raises(WiringError, check=failed(FailureCode.TABLE_TAKEN, table=220)):
        node.wiring.wire(node.spec(node.world.space(), vlan=120, is_strict=is_strict))
    assert lines(node) == before
    node.add(vlan=7, is_strict=is_strict)


@EACH_MODE
def test_what_earlier_sandboxes_left_in_the_table_is_no_other_programs(node, is_strict):
    """The pod's next sandbox has the same ID, and may come before the other's routes are gone."""
    _, spec = node.add(vlan=120, is_strict=is_strict)
    node.world.hostnet.reconcile(identity=node.world.identity(), enis=[])
    node.wiring.mark_for_deletion(spec, owner=spec.key, is_source_checked=True)
    node.wiring.sweep()
    pod = node.world.space()
    again = node.spec(pod, vlan=120, is_strict=is_strict, container="again")
    node.wiring.wire(again)
    assert node.wiring.check(again) == []


def test_stale_rules_of_the_names_go(node):
    """The pod's earlier sandbox had another VLAN: its rule would lead the new one's packets by another pod's branch ENI."""
    spec = node.spec(node.world.space())
    node.host.sh(
        node.world.words(f"ip rule add prio 10 iif {spec.host_veth} lookup 109; ip rule add prio 10 iif vlan.eth.5 lookup 105")
    )
    node.wiring.wire(spec)
    assert {one for one in rules_of(node) if one[0] == 10} == {(10, spec.host_veth, "105"), (10, "vlan.eth.5", "105")}


def test_the_pass_turns_ipv6_off_for_vlan_links(node, family):
    """Where sandboxes have none. Not the ADD: it waits for the kernel's lock of all links, and no router is heard there anyway."""
    node.add()
    path, wanted = "/proc/sys/net/ipv6/conf/vlan.eth.5/disable_ipv6", "0" if family is IPV6 else "1"
    assert node.host.sh(f"cat {path}").strip() == wanted
    node.host.sh(f"echo 0 > {path}; ip link set vlan.eth.5 alias x")
    assert node.world.hostnet.confine_sandboxes() == []
    assert node.host.sh(f"cat {path}").strip() == wanted


def test_a_stale_rule_of_the_vlan_link_goes_in_standard_mode(node):
    """An earlier sandbox of the ID was in strict mode: by its rule what comes for the new one would go back to the router."""
    spec = node.spec(node.world.space(), is_strict=False)
    node.host.sh(node.world.words("ip rule add prio 10 iif vlan.eth.5 lookup 105"))
    node.wiring.wire(spec)
    assert not [one for one in rules_of(node) if one[0] == 10]


def test_anybodys_rule_of_the_vlan_link_goes_by_the_pass_in_strict_mode(node, vpc_address):
    """None of ours has another table, whichever sandbox it was for, so an ADD spends no message on it: CHECK tells of it, and the pass
    that follows each new link takes it away.
    """
    pod = node.world.space()
    spec = node.spec(pod)
    node.know(spec)
    node.host.sh(node.world.words("ip rule add prio 10 iif vlan.eth.5 lookup 109"))
    node.wiring.wire(spec)
    node.world.hostnet.confine_sandboxes()
    assert DifferenceCode.UPLINK_RULE_ELSEWHERE in {one.code for one in node.wiring.check(spec)}
    assert node.wiring.repair([replace(spec, trunk_mac=TRUNK_MAC)]) != []
    assert node.wiring.check(spec) == []
    assert {one for one in rules_of(node) if one[0] == 10} == {(10, spec.host_veth, "105"), (10, "vlan.eth.5", "105")}
    assert talk(node.vpc, vpc_address, pod) == str(spec.address)


def test_without_the_trunks_link(node):
    """It is on its way: the runtime comes again."""
    spec = replace(node.spec(node.world.space()), trunk_mac="02:00:00:00:99:99")
    with pytest.raises(UplinkPendingError):
        node.wiring.wire(spec)
    assert node.host.link_names() == {"eth0", "eth1", "eth2"}


@EACH_MODE
def test_every_refusal_is_undone(node, is_strict):
    """Whatever step the kernel refuses: nothing is left (I5)."""
    pod = node.world.space()
    spec = node.spec(pod, is_strict=is_strict)
    steps = []
    KernelWiring(
        node.world.netns, veth_prefix="eni", families=lambda: (node.world.family,), vlan_links=node.links,
        failpoint=lambda step: bool(steps.append(step)),
    ).wire(spec)  # fmt: skip
    node.wiring.unwire(spec)
    assert [step for step in steps if spec.uplink.link in step]
    before = lines(node)
    for failing in dict.fromkeys(one for one in steps if not one.startswith(("look at", "delete"))):
        wiring = node.new_wiring(failpoint=failing.__eq__)
        with pytest.raises(WiringError):
            wiring.wire(spec)
        left = {what: set(found) - set(before[what]) for what, found in lines(node).items()}
        assert not any(left.values()), (failing, left)


@EACH_MODE
@pytest.mark.parametrize(
    "damage",
    [
        "ip link del {link}",
        "ip link set {link} down",
        "ip link set {link} address 02:00:00:00:66:66",
        "ip link set {link} alias somebody",
        "ip route flush table 105",
        "ip route add 128.0.0.0/1 via {gateway} dev {link} table 105",
        "ip rule del prio 10 iif {link}; ip rule del prio 1536; true",
        "ip rule add prio 10 iif {link} lookup 109",
        "ip link set eth2 down; ip link set {link} down",
        "ip route flush table 113214; ip route del {pod} table 113213; true",
        "ip link set {veth} down; ip link set {veth} up",
    ],
)
def test_put_back(node, vpc_address, damage, is_strict):
    """What others did to the way is found by one survey and made good, and packets go again."""
    pod, spec = node.add(is_strict=is_strict)
    words = {"link": spec.uplink.link, "gateway": spec.uplink.gateway, "pod": spec.address, "veth": spec.host_veth}
    node.host.sh(node.world.words(damage.format(**words)))
    known = replace(spec, trunk_mac=TRUNK_MAC)
    if "route flush table 113214" in damage or wiring_differences(spec, node.wiring.survey()):
        assert node.wiring.check(spec) != [], damage
        assert node.wiring.repair([known]) != []
    node.world.hostnet.confine_sandboxes()
    assert node.wiring.check(spec) == []
    assert node.wiring.repair([known]) == []
    assert talk(node.vpc, vpc_address, pod) == str(spec.address)


def test_without_the_trunk_a_link_is_not_repaired(node):
    """What is missing is said, and nothing of the rest is guessed."""
    _, spec = node.add()
    node.host.sh(f"ip link del {spec.uplink.link}")
    (report,) = node.wiring.repair([replace(spec, trunk_mac="")])
    assert (report.code, report.target, report.owner) == (RepairCode.VLAN_LINK_MISSING, "vlan.eth.5", str(spec.key))


@EACH_MODE
def test_what_nobody_owns_is_removed(node, is_strict):
    """Without a row: by what the survey shows of veth and VLAN link."""
    _, spec = node.add(is_strict=is_strict)
    seen = node.wiring.survey()
    (veth,), (link,) = seen.uplinked, seen.vlans
    assert (veth.key, link.address, link.eni_id, link.uplink) == (spec.key, spec.address, spec.eni_id, spec.uplink)
    assert decode_alias(veth.alias) is None, "earlier releases leave it alone"
    node.wiring.remove_leftover(host_veth=veth.name, address=link.address, key=veth.key, uplink=link.uplink)
    left = node.wiring.survey()
    assert (left.uplinked, left.vlans, left.uplink_routes, left.incoming_rules) == ((), (), frozenset(), frozenset())


def test_the_rules_of_a_veth_that_has_gone_go_with_its_vlan_link(node):
    """The veth went with its namespace, and no row has its name: a rule that names no link any more is found by its table."""
    _, spec = node.add(vlan=5, number=200)
    _, other = node.add(vlan=6, number=201)
    node.host.sh(f"ip link del {spec.host_veth}")
    node.wiring.remove_leftover(host_veth=None, address=spec.address, uplink=spec.uplink)
    assert {one.table for one in node.wiring.survey().incoming_rules} == {other.route_table}
    assert node.wiring.check(other) == []


@EACH_MODE
def test_what_is_left_of_a_predecessor_goes_alone(node, vpc_address, is_strict):
    """A veth without its routes, as after a DEL: the pod's next sandbox has the branch ENI by now, and keeps it (I2)."""
    _, old = node.add(is_strict=is_strict)
    node.wiring.mark_for_deletion(old, is_source_checked=True)
    pod = node.world.space()
    new = replace(old, key=node.world.key("successor"), netns=pod.path, host_veth=old.host_veth[:-3] + "abc")
    node.wiring.wire(new)
    node.wiring.remove_leftover(host_veth=old.host_veth, address=None, key=old.key)
    assert node.wiring.veth(old.host_veth) is None
    assert node.wiring.check(new) == []
    assert talk(node.vpc, vpc_address, pod) == str(new.address)


@EACH_MODE
def test_renamed_with_its_rules(node, vpc_address, is_strict):
    """A successor needs the name: what leads the living one's packets follows."""
    pod, spec = node.add(is_strict=is_strict)
    to = f"{STRICT_VETH_PREFIX if is_strict else 'eni'}0123456789a"
    node.wiring.rename_veth(spec, to=to)
    renamed = replace(spec, host_veth=to)
    assert node.wiring.check(renamed) == []
    assert talk(node.vpc, vpc_address, pod) == str(spec.address)


@EACH_MODE
@pytest.mark.parametrize("is_sent", [True, False], ids=["sent", "received"])
def test_a_rule_of_others_in_the_way_of_packets_is_reported(node, is_strict, is_sent):
    """A rule ahead of ours may concern only what the sandbox sends, or only what it receives. No comparison of objects shows it."""
    _, spec = node.add(is_strict=is_strict)
    problems = node.world.hostnet.reachability_problems
    assert problems([spec], enis=[]) == []
    link = spec.host_veth if is_sent else spec.uplink.link
    node.host.sh(node.world.words(f"ip rule add prio 5 iif {link} blackhole"))
    assert [problem.subject for problem in problems([spec], enis=[])] == [str(spec.address)]


def test_the_links_are_nobodys_second_way(node):
    """A VLAN link is neither an ENI's, nor a host veth, nor a link of others into a sandbox."""
    _, spec = node.add()
    node.world.hostnet.confine_sandboxes()
    assert node.world.hostnet.foreign_links() == ()
    assert TRUNK_MAC in node.world.hostnet.links()
    seen = node.wiring.survey()
    assert [one.name for one in (*seen.veths, *seen.extra, *seen.uplinked)] == [spec.host_veth]
    assert spec.uplink.link.startswith(LINK_PREFIX)


def test_cut_off_and_back(node, vpc_address):
    """Both links are down, so nothing of it goes by another way either, and DEL works; repair alone brings it back whole."""
    pod, spec = node.add()
    _, other = node.add(vlan=6, number=201)
    assert talk(node.vpc, vpc_address, pod) == str(spec.address)
    node.host.sh(
        "nft add table inet watch; nft add chain inet watch out '{ type filter hook postrouting priority -300; }';"
        f"nft add rule inet watch out oifname eth0 {node.world.family.nft} saddr {spec.address} counter"
    )
    assert node.wiring.cut_off(spec).after == f"{spec.host_veth}, {spec.uplink.link}"
    with pytest.raises(OSError):  # noqa: PT011  # no route, or no answer
        talk(node.vpc, vpc_address, pod, patience_s=CUT_OFF_S)
    with pytest.raises(OSError):  # noqa: PT011
        talk(pod, str(spec.address), node.vpc, patience_s=CUT_OFF_S)
    assert "packets 0 " in node.host.sh("nft list chain inet watch out"), "nothing goes by the node's ENI"
    assert not any(one.is_up for one in (*node.wiring.survey().uplinked, *node.wiring.survey().vlans) if "5" in one.name[-1:])
    assert node.wiring.check(other) == [], "the other sandbox keeps its links"
    node.wiring.cut_off(spec)
    assert node.wiring.repair([spec]) != []
    node.world.hostnet.confine_sandboxes()
    assert node.wiring.check(spec) == []
    assert talk(node.vpc, vpc_address, pod) == str(spec.address)
    node.wiring.cut_off(spec)
    assert node.mark(spec) is not None
    node.wiring.sweep()
    assert node.wiring.survey().vlan_of(spec.address) is None


def test_held_in_standard_mode(node, vpc_address):
    """The pod's link has no carrier, and no route or rule of the node names the address that it claims, until a repair."""
    pod = node.world.space()
    spec = node.spec(pod, is_strict=False)
    node.know(spec)
    node.wiring.wire(replace(spec, is_kept_down=True))
    node.world.hostnet.confine_sandboxes()
    assert str(spec.address) not in node.host.sh(f"ip {node.world.dash} route show table all; ip {node.world.dash} rule")
    (inside,) = pod.ip("link show eth0")
    assert "NO-CARRIER" in inside["flags"]
    assert node.wiring.repair([spec]) != []
    node.world.hostnet.confine_sandboxes()
    assert node.wiring.check(spec) == []
    assert talk(node.vpc, vpc_address, pod) == str(spec.address)


def test_cutting_off_leaves_a_successors_links(node):
    """What has another sandbox's alias is not taken down."""
    _, spec = node.add()
    with pytest.raises(WiringError):
        node.wiring.cut_off(replace(spec, key=node.world.key("another")))
    strange = replace(spec, address=spec.address + 1)
    node.wiring.cut_off(replace(strange, host_veth="vlan00000000000"))
    assert node.wiring.check(spec) == []


def test_a_repair_is_not_made_twice(node):
    """The kernel tells nobody of our own changes: a look that may be of before them is not used again."""
    identity = node.world.identity()
    node.host.sh(node.world.words("ip rule del prio 9; ip rule add prio 0 lookup local"))
    said = node.world.hostnet.reconcile(identity=identity, enis=[])
    assert any(one.target.startswith("rule 9 ") for one in said)
    assert node.world.hostnet.reconcile(identity=identity, enis=[], is_silent=True) == []
