"""Rules from single addresses in buckets: the kernel decides as without, whatever becomes of the `goto` rules (docs/adr/0088)."""

from __future__ import annotations

import contextlib
import random
import threading
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from ipamd.kernel import answers, messages
from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.kernel.leftovers import clean_up
from ipamd.kernel.packet_path import KernelPacketPaths
from ipamd.model import source_rules
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.packet_path import RoutedPacket
from ipamd.model.repairs import NODE, RepairCode
from tests.netns.confined import PRIMARY, SECONDARY, VPC, WORLD, Node
from tests.netns.test_host_network import udp_peer
from tests.netns.test_own_table import Flow, go_over

pytestmark = pytest.mark.privileged

SUBNET = IPv4Network("10.0.1.0/24")
BUCKET = 1550
"""That of SECONDARY: 20 is in the first group of 32 addresses, and there in the sixth block of 4."""

TREE = range(source_rules.JUMP_PRIORITY, source_rules.END_PRIORITY + 1)


def rules(world):
    """Priority and source of each rule that looks up the table of the secondary ENI for a sandbox."""
    return {
        (rule["priority"], rule["src"]) for rule in world.host.ip("rule") if rule.get("table") == "2" and rule["priority"] < 2000
    }


def skips(world):
    """Each rule of the tree that looks up no table: priority, source and target."""
    found = set()
    for rule in world.host.ip("rule"):
        if rule["priority"] in TREE and "table" not in rule:
            length = rule.get("srclen", 32)
            source = "all" if rule["src"] == "all" else f"{rule['src']}/{length}"
            found.add((rule["priority"], source, rule.get("goto", 0)))
    return found


def wanted(*subnets):
    """What `skips` finds of a whole tree."""
    jumps = {(jump.priority, str(jump.source), jump.target) for jump in source_rules.jumps(subnets)}
    return jumps | {(priority, "all", 0) for priority in source_rules.NOP_PRIORITIES}


def reconcile(world, *enis):
    """A pass over the node. Returns: the changes to rules that it reports."""
    reports = world.hostnet.reconcile(identity=world.identity(), enis=enis or [world.eni()])
    return [report for report in reports if report.object.subject == NODE and "rule" in report.target]


@pytest.fixture
def node(world):
    """A node with a sandbox on each ENI; the rule from the one on the secondary ENI is in its bucket."""
    world.hostnet.choose_source_tree(True)
    made = Node(world)
    made.flat = list(made.specs)
    made.specs[1] = replace(made.specs[1], subnet=SUBNET)
    go_over(world, made.specs)
    assert rules(world) == {(BUCKET, SECONDARY)}
    assert skips(world) == wanted(SUBNET)
    return made


# The kernel decides alike.

SUBNETS = [IPv4Network(text) for text in ("10.1.0.0/16", "10.2.16.0/20", "10.3.7.0/24", "10.4.0.16/28")]
TABLES = {subnet: number for number, subnet in enumerate(SUBNETS, start=2)}
FAR = IPv4Address("198.51.100.1")


def host_with_tables(world):
    """Give each table a way out of its own, and a link by which packets of sandboxes come. Returns: the index of that link."""
    world.host.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.default.rp_filter=0 net.ipv4.conf.all.rp_filter=0")
    ways = [("out0", 254), *((f"out{table}", table) for table in TABLES.values())]
    for name in ("inside", *(name for name, _ in ways)):
        world.host.sh(f"ip link add {name} type veth peer name x{name}; ip link set {name} up; ip link set x{name} up")
    for name, table in ways:
        world.host.sh(f"ip route add default dev {name} table {table}")
    return world.host.ip("link show inside")[0]["ifindex"]


def decisions(sock, sources, index):
    """The table that decides for a packet from each source that comes by a link."""
    outcomes = sock.request([messages.look_up_route(FAR, source, index) for source in sources])
    return [answers.read_route(outcome.replies[0]).table for outcome in outcomes]


def add_jumps(sock, jumps):
    """Add `goto` rules."""
    batch = [messages.add_skip(jump.priority, source=jump.source, target=jump.target) for jump in jumps]
    sock.carry_out(batch, operation="jumps")


def delete_jumps(sock, jumps):
    """Remove `goto` rules."""
    batch = [messages.delete_skip(jump.priority, source=jump.source, target=jump.target) for jump in jumps]
    sock.carry_out(batch, operation="jumps")


@pytest.mark.parametrize("seed", range(6))
def test_no_jump_decides(world, seed):
    """Random sandboxes of subnets from /16 to /28, and random parts of the tree, also with rules of subnets that nobody has any more:
    each packet, of a sandbox or of none, is decided by the table that decides without a tree.
    """
    dice = random.Random(seed)
    index = host_with_tables(world)
    owners = {}
    for subnet in SUBNETS:
        for _ in range(min(12, subnet.num_addresses)):
            owners[subnet[dice.randrange(subnet.num_addresses)]] = subnet
    sources = [*owners, IPv4Address("10.1.0.1"), IPv4Address("10.3.7.255"), IPv4Address("192.0.2.77"), IPv4Address("10.9.1.1")]
    with world.netns.netlink() as sock:
        flat = [messages.add_rule(1536, table=TABLES[subnet], source=address) for address, subnet in owners.items()]
        sock.carry_out(flat, operation="rules")
        expected = decisions(sock, sources, index)
        assert {*TABLES.values(), 254} == set(expected)
        places = [
            messages.add_rule(source_rules.single_priority(address, subnet), table=TABLES[subnet], source=address)
            for address, subnet in owners.items()
        ]
        sock.carry_out(places, operation="rules")
        sock.carry_out([messages.delete_rule(1536, table=TABLES[s], source=a) for a, s in owners.items()], operation="rules")
        jumps = source_rules.jumps([*SUBNETS, IPv4Network("10.9.0.0/20")])
        nops = list(source_rules.NOP_PRIORITIES)
        for number in range(24):
            share = (0.0, 1.0)[number] if number < 2 else dice.random()
            present = [jump for jump in jumps if dice.random() < share]
            dice.shuffle(present)
            present_nops = [priority for priority in nops if dice.random() < share]
            add_jumps(sock, present[: len(present) // 2])
            sock.carry_out([messages.add_skip(priority) for priority in present_nops], operation="nops")
            add_jumps(sock, present[len(present) // 2 :])
            assert decisions(sock, sources, index) == expected
            dice.shuffle(present)
            delete_jumps(sock, present[: len(present) // 2])
            assert decisions(sock, sources, index) == expected
            sock.carry_out([messages.delete_skip(priority) for priority in present_nops], operation="nops")
            delete_jumps(sock, present[len(present) // 2 :])
    assert not skips(world)


def test_a_whole_tree_leads_past_the_other_buckets(world):
    """The kernel resolves each jump: it flags none as one that it ignores."""
    with world.netns.netlink() as sock:
        sock.carry_out([messages.add_skip(priority) for priority in source_rules.NOP_PRIORITIES], operation="nops")
        add_jumps(sock, source_rules.jumps(SUBNETS))
    assert skips(world) == wanted(*SUBNETS)
    assert "unresolved" not in world.host.sh("ip rule")
    world.host.sh(f"ip rule del pref {source_rules.END_PRIORITY}")
    assert "unresolved" in world.host.sh("ip rule"), "this test can tell"


# The daemon's side.


def test_packets_pass(node):
    """Each way of a sandbox whose rule is in a bucket, to both ENIs' sandboxes, the VPC and the world."""
    assert udp_peer(node.vpc, VPC, node.secondary) == SECONDARY
    assert udp_peer(node.vpc, WORLD, node.secondary) == "10.0.0.10"
    assert udp_peer(node.secondary, SECONDARY, node.vpc, VPC) == VPC
    assert udp_peer(node.secondary, SECONDARY, node.primary) == PRIMARY
    assert udp_peer(node.primary, PRIMARY, node.secondary) == SECONDARY
    assert node.spoof(node.secondary, SECONDARY, ["10.0.1.21", PRIMARY, VPC], targets=[VPC, PRIMARY]) == []


def test_a_former_rule_goes_over_without_a_word(world):
    """First there are both, then that in the bucket alone; neither step is a repair, and CHECK finds nothing at any time."""
    made = Node(world)
    assert reconcile(world) == []
    world.hostnet.choose_source_tree(True)
    assert reconcile(world) == [], "to write the tree is no repair"
    specs = [made.specs[0], replace(made.specs[1], subnet=SUBNET)]
    seen = []
    for _ in range(3):
        seen.append(rules(world))
        assert [world.wiring.check(spec) for spec in made.specs] == [[], []]
        assert [one for one in world.wiring.repair(specs) if one.is_repair] == []
    assert seen == [{(1536, SECONDARY)}, {(1536, SECONDARY), (BUCKET, SECONDARY)}, {(BUCKET, SECONDARY)}]
    assert skips(world) == wanted(SUBNET)


def test_add_puts_the_rule_into_its_bucket(node):
    """A rollback takes it out again."""
    world = node.world
    spec = replace(world.spec(world.space(), number=21, table=2), address=IPv4Address("10.0.1.200"), subnet=SUBNET)
    world.wiring.wire(spec)
    assert rules(world) == {(BUCKET, SECONDARY), (1646, "10.0.1.200")}
    assert world.wiring.check(spec) == []
    world.mark_for_deletion(spec)
    with pytest.raises(Exception, match="add address"):
        world.new_wiring(failpoint=lambda step: "add address" in step).wire(replace(spec, netns=world.space().path))
    assert rules(world) == {(BUCKET, SECONDARY)}


@pytest.mark.parametrize("places", [(1536,), (BUCKET,), (1536, BUCKET)])
@pytest.mark.parametrize("has_subnet", [True, False])
def test_del_leaves_nothing(node, places, has_subnet):
    """I4: wherever the rule is, and whether or not the row of the ENI is there to say so. The `goto` rules are the node's."""
    node.host.sh(
        f"ip rule del pref {BUCKET}; " + "; ".join(f"ip rule add pref {one} from {SECONDARY} lookup 2" for one in places)
    )
    node.world.wiring.survey()  # the kernel announces what others add, and a pass looks at it
    node.world.mark_for_deletion(node.specs[1] if has_subnet else node.flat[1])
    assert rules(node.world) == set()
    assert skips(node.world) == wanted(SUBNET)


@pytest.mark.parametrize("is_restarted", [True, False])
def test_del_while_a_rule_moves_leaves_nothing(node, is_restarted):
    """There are two then; the next process does not know whether there are before its first survey."""
    node.host.sh(f"ip rule del from {SECONDARY}; ip rule add pref 1536 from {SECONDARY} lookup 2")
    node.world.wiring.repair(node.specs)
    assert rules(node.world) == {(1536, SECONDARY), (BUCKET, SECONDARY)}
    if is_restarted:
        node.world.wiring = node.world.new_wiring()
    node.world.mark_for_deletion(node.specs[1])
    assert rules(node.world) == set()


def test_a_leftover_goes_from_its_bucket(node):
    """Without a row only the kernel says where the rule is."""
    node.world.wiring.remove_leftover(host_veth=None, address=IPv4Address(SECONDARY))
    assert rules(node.world) == set()


def test_rules_of_another_table_are_removed_in_both_places(node):
    """They are reported; the sandbox's own stays."""
    node.host.sh(f"ip rule add pref 1536 from {SECONDARY} lookup 9; ip rule add pref {BUCKET} from {SECONDARY} lookup 8")
    codes = {difference.code for difference in node.world.wiring.check(node.specs[1])}
    assert codes == {DifferenceCode.RULE_ELSEWHERE}
    reports = node.world.wiring.repair(node.specs)
    assert {(one.code, one.target) for one in reports} == {
        (RepairCode.MISLEADING_REMOVED, f"rule 1536 from {SECONDARY} lookup 9"),
        (RepairCode.MISLEADING_REMOVED, f"rule {BUCKET} from {SECONDARY} lookup 8"),
    }
    assert rules(node.world) == {(BUCKET, SECONDARY)}


def test_a_lost_rule_is_put_back_into_its_bucket(node):
    """With the report of every lost rule; without the subnet at 1536, from where a later pass moves it."""
    node.host.sh(f"ip rule del from {SECONDARY}")
    assert [one.code for one in node.world.wiring.check(node.specs[1])] == [DifferenceCode.RULE_MISSING]
    reports = node.world.wiring.repair(node.specs)
    assert [(one.code, one.target) for one in reports] == [(RepairCode.ADDED, f"rule {BUCKET} from {SECONDARY} lookup 2")]
    node.host.sh(f"ip rule del from {SECONDARY}")
    assert len(node.world.wiring.repair(node.flat)) == 1
    assert rules(node.world) == {(1536, SECONDARY)}
    go_over(node.world, node.specs)
    assert rules(node.world) == {(BUCKET, SECONDARY)}


def test_without_the_subnet_a_rule_stays_in_its_bucket(node):
    """An export's repair, or one of a sandbox whose ENI is not recorded, takes it as it is."""
    go_over(node.world, node.flat)
    assert rules(node.world) == {(BUCKET, SECONDARY)}


def test_a_moved_table_moves_the_rule(node):
    """The ENI came back at another device index."""
    node.world.wiring.repair([replace(node.specs[1], route_table=3)])
    found = {(rule["priority"], rule["table"]) for rule in node.host.ip("rule") if rule["src"] == SECONDARY and "table" in rule}
    assert found == {(BUCKET, "3")}


def test_a_change_of_place_loses_no_packet(node):
    """While sandboxes of both ENIs and the VPC talk, the rule goes to and fro, with the tree and without: every datagram arrives."""
    world = node.world
    flows = [
        (node.primary, node.secondary, SECONDARY),
        (node.secondary, node.primary, PRIMARY),
        (node.secondary, node.vpc, VPC),
        (node.vpc, node.secondary, SECONDARY),
    ]
    with contextlib.ExitStack() as stack:
        ways = [Flow(stack, *flow, port=4100 + number) for number, flow in enumerate(flows)]
        stop = threading.Event()
        threads = [threading.Thread(target=way.send, args=(stop,)) for way in ways]
        for thread in threads:
            thread.start()
        try:
            for number in range(240):
                if number >= 12 and all(way.sent > 20 for way in ways):
                    break
                world.wiring.write_former_rules(node.flat)
                assert skips(world) == set()
                world.hostnet.confine_sandboxes()
                reconcile(world)
                go_over(world, node.specs)
                assert rules(world) == {(BUCKET, SECONDARY)}
        finally:
            stop.set()
            for thread in threads:
                thread.join(timeout=120)
        assert all(way.sent > 20 for way in ways)
        assert [way.received() for way in ways] == [list(range(way.sent)) for way in ways]


def test_an_export_writes_the_former_form(node):
    """Rules 512 and 1536 of each sandbox, and nothing at the numbers of the tree."""
    world = node.world
    world.wiring.write_former_rules(node.flat)
    assert rules(world) == {(1536, SECONDARY)}
    assert not [rule for rule in node.host.ip("rule") if rule["priority"] in TREE]
    assert udp_peer(node.vpc, VPC, node.secondary) == SECONDARY
    left = world.host.call(lambda: clean_up(veth_prefix="eni", is_dry_run=True))
    assert {leftover.kept_reason for leftover in left} == {""}


def test_clean_up_keeps_what_a_pod_needs(node):
    """Without an export the rule in the bucket is all that the pod has; the `goto` rules are needed by nobody."""
    found = node.host.call(lambda: clean_up(veth_prefix="eni", is_dry_run=False))
    kept = {leftover.name for leftover in found if leftover.kept_reason}
    assert f"ip rule {BUCKET} from {SECONDARY} lookup 2" in kept
    assert (rules(node.world), skips(node.world)) == ({(BUCKET, SECONDARY)}, set())
    node.host.sh(f"ip rule add pref 1536 from {SECONDARY} lookup 2")
    node.host.call(lambda: clean_up(veth_prefix="eni", is_dry_run=False))
    assert rules(node.world) == {(1536, SECONDARY)}


DAMAGES = {
    "one jump": "ip rule del pref 1537",
    "all jumps to groups": "while ip rule del pref 1537; do :; done",
    "all jumps to blocks": "while ip rule del pref 1538; do :; done",
    "the end": "ip rule del pref 1674",
    "a landing": "ip rule del pref 1549 from 10.0.1.16/30",
    "a wrong target": "ip rule del pref 1538 from 10.0.1.20/30; ip rule add pref 1538 from 10.0.1.20/30 goto 1555",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_lost_jumps_are_put_back(node, damage):
    """Packets pass meanwhile; the audit names the rule, the pass reports it as one of the node's, and the next finds nothing."""
    node.host.sh(DAMAGES[damage])
    assert skips(node.world) != wanted(SUBNET)
    assert damage == "a wrong target" or udp_peer(node.vpc, VPC, node.secondary) == SECONDARY
    differences = node.world.hostnet.differences(identity=node.world.identity(), enis=[node.world.eni()])
    reports = reconcile(node.world)
    assert {RepairCode.ADDED} <= {report.code for report in reports}
    assert len(differences) == len(reports)
    assert skips(node.world) == wanted(SUBNET)
    assert reconcile(node.world) == []
    assert udp_peer(node.vpc, VPC, node.secondary) == SECONDARY


def test_a_flush_of_all_rules_is_repaired(node):
    """`ip rule flush`: the node's rules and the sandbox's are all there again after one pass."""
    before = node.host.sh("ip rule")
    node.host.sh("ip rule flush; ip rule add pref 32766 lookup main; ip rule add pref 32767 lookup default")
    node.world.hostnet.confine_sandboxes()
    reconcile(node.world)
    node.world.wiring.repair(node.specs)
    assert node.host.sh("ip rule | sort -n") == node.host.sh(f"sort -n <<'END'\n{before}END")


def test_a_stranger_among_our_rules_ends_all_jumps(node):
    """A rule that a jump would pass decides as without: the jumps go, without a report, until it is gone. One outside is not asked."""
    node.host.sh("ip rule add pref 1545 to 203.0.113.0/24 lookup main; ip rule add pref 1700 to 203.0.113.0/24 lookup main")
    assert reconcile(node.world) == []
    assert {skip for skip in skips(node.world) if skip[2]} == set()
    assert udp_peer(node.vpc, VPC, node.secondary) == SECONDARY
    node.host.sh("ip rule del pref 1545")
    reconcile(node.world)
    assert skips(node.world) == wanted(SUBNET)


def second_eni(world, **fields):
    """Another secondary ENI, whose link is not there."""
    return replace(world.eni(), eni_id=EniId("eni-3"), mac=MacAddress("02:00:00:00:00:03"), device_index=2, **fields)


def test_the_jumps_of_a_subnet_go_with_its_last_eni(node):
    """Those of another subnet stay; an ENI in the same subnet keeps them. What is left in buckets is walked."""
    other = second_eni(node.world, subnet_cidr=IPv4Network("10.0.2.0/24"), primary_address=IPv4Address("10.0.2.10"))
    twin = second_eni(node.world, primary_address=IPv4Address("10.0.1.11"))
    reconcile(node.world, node.world.eni(), other)
    assert skips(node.world) == wanted(SUBNET, other.subnet_cidr)
    node.world.hostnet.teardown_eni(other, remaining=[node.world.eni()])
    assert skips(node.world) == wanted(SUBNET)
    node.world.hostnet.teardown_eni(twin, remaining=[node.world.eni()])
    assert skips(node.world) == wanted(SUBNET)
    assert rules(node.world) == {(BUCKET, SECONDARY)}
    node.world.hostnet.teardown_eni(node.world.eni(), remaining=[other])
    assert {skip for skip in skips(node.world) if skip[2]} == set()
    assert rules(node.world) == set()


def restarted(world):
    """The adapter of the next process."""
    return KernelHostNetwork(world.netns, config=world.config, nft=world.nft, link_wait_s=2.0)


def test_a_restart_changes_nothing(node):
    """Before the limits of the instance are known, and after; what is missing then is added without a report."""
    world = node.world
    world.hostnet = restarted(world)
    assert reconcile(world) == []
    assert (rules(world), skips(world)) == ({(BUCKET, SECONDARY)}, wanted(SUBNET))
    node.host.sh("ip rule del pref 1537")
    world.hostnet.setup_eni(world.eni())
    reconcile(world)
    assert skips(world) == wanted(SUBNET)
    assert world.hostnet.choose_source_tree(True)
    assert not world.hostnet.choose_source_tree(True)
    assert reconcile(world) == []


def test_a_setting_that_turns_buckets_off_acts_with_the_last_sandbox(node):
    """Rules in buckets stay, and the jumps with them; then all goes without a report."""
    world = node.world
    assert world.hostnet.choose_source_tree(False)
    assert reconcile(world) == []
    assert skips(world) == wanted(SUBNET)
    world.mark_for_deletion(node.specs[1])
    assert reconcile(world) == []
    assert skips(world) == set()


def test_nothing_is_written_on_a_node_without_buckets(world):
    """The usual small node."""
    Node(world)
    reconcile(world)
    world.hostnet.choose_source_tree(False)
    reconcile(world)
    assert skips(world) == set()
    assert rules(world) == {(1536, SECONDARY)}


def test_a_subnet_that_was_divided_otherwise_has_no_old_jumps(node):
    """A subnet was deleted, and a larger one made in its place: before the first sandbox of its ENI is wired the old jumps are gone,
    and the pass adds the new ones.
    """
    world = node.world
    world.wiring.unwire(node.specs[1])
    larger = replace(world.eni(), subnet_cidr=IPv4Network("10.0.0.0/20"))
    world.hostnet.setup_eni(larger)
    assert {skip for skip in skips(world) if skip[2]} == set()
    reconcile(world, larger)
    assert skips(world) == wanted(larger.subnet_cidr)


def test_the_path_names_the_rule_in_the_bucket(node):
    """`ipamctl path` prints rules by number; the jumps are not taken for rules that decide."""
    paths = KernelPacketPaths(node.world.netns, node.world.hostnet)
    packet = RoutedPacket(IPv4Address(VPC), IPv4Address(SECONDARY), incoming=node.specs[1].host_veth)
    answer = paths.on_node(packet)
    assert (answer.rule, answer.table) == (BUCKET, 2)
    node.host.sh("ip route flush table 2; ip route del default")
    assert paths.on_node(packet).rule is None


def test_the_command_of_the_upgrade_page(node):
    """An earlier release has added its rules 1536; then this removes all that it does not know, and packets pass."""
    node.host.sh(f"ip rule add pref 1536 from {SECONDARY} lookup 2")
    node.host.sh("for n in $(seq 1537 1674); do while ip rule del pref $n 2>/dev/null; do :; done; done")
    assert (rules(node.world), skips(node.world)) == ({(1536, SECONDARY)}, set())
    assert udp_peer(node.vpc, VPC, node.secondary) == SECONDARY
