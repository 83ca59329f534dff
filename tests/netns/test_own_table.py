"""Sandboxes are led to by one rule and a table of our own, whatever main has; the form of rules changes under running sandboxes."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from dataclasses import replace
from ipaddress import IPv4Network

import pytest

from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.errors import WiringError
from ipamd.model.kernel_numbers import OWN_RULE
from ipamd.model.repairs import SHARED_RULE, RepairCode, RepairReport
from tests.netns.confined import PRIMARY, SECONDARY, VPC, Node
from tests.netns.test_host_network import LOST_S, udp_peer
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.privileged

RESOLVER = "10.0.0.2"
PREFIX = IPv4Network("10.0.1.16/28")
SO_RCVBUFFORCE = 33  # asm-generic/socket.h
FORMS = ("ours", "of single sandboxes")


@pytest.fixture(params=FORMS)
def node(world, request):
    """A node with a sandbox on each ENI, wired in each form."""
    made = Node(world)
    if request.param != FORMS[0]:
        world.wiring.write_former_rules(made.specs)
    return made


def rules(world):
    """Priority, source, destination and table of each rule for sandboxes."""
    found = world.host.ip("rule")
    return {
        (one["priority"], one["src"] + (f"/{one['srclen']}" if "srclen" in one else ""), one.get("dst", "all"), one["table"])
        for one in found
        if one["priority"] in {512, 513, 1536}
    }


def items(reports):
    """What was done, and to which object."""
    return [(one.code, one.target) for one in reports]


def go_over(world, specs):
    """Two passes: what makes a rule needless is there before the rule goes. Neither has anything to repair."""
    for _ in range(2):
        assert not [one for one in world.wiring.repair(specs) if one.is_repair]


def test_main_may_have_anything(node):
    """A resolver's /32, a blackhole, an unreachable default and a stale route in main: sandboxes of each ENI ask the resolver, and
    those of the secondary one leave by it. The fabric loses what comes in by the wrong ENI.
    """
    node.vpc.sh(f"ip addr add {RESOLVER}/32 dev lo")
    node.host.sh(
        f"ip link add enistale type veth peer name x0; ip link set enistale up; ip route add 10.0.1.99 dev enistale;"
        f"ip route add {RESOLVER} dev eth0; ip route add 10.0.1.1 dev eth0;"
        "ip route add blackhole 10.0.77.0/24; ip route add unreachable default metric 4278198272"
    )
    assert udp_peer(node.vpc, RESOLVER, node.primary) == PRIMARY
    assert udp_peer(node.vpc, RESOLVER, node.secondary) == SECONDARY
    assert udp_peer(node.vpc, VPC, node.secondary) == SECONDARY
    node.host.sh("ip route del default via 10.0.0.1")
    assert udp_peer(node.vpc, VPC, node.secondary) == SECONDARY
    for pods in ((node.primary, PRIMARY, node.secondary, SECONDARY), (node.secondary, SECONDARY, node.primary, PRIMARY)):
        assert udp_peer(pods[0], pods[1], pods[2]) == pods[3]


def test_a_stale_route_in_main_takes_no_packet(world):
    """Another plugin's route to the same address, put over ours in main: packets arrive all the same, and it is repaired."""
    node = Node(world)
    node.host.sh(
        f"ip link add enistale type veth peer name x0; ip link set enistale up; ip route replace {SECONDARY} dev enistale"
    )
    assert udp_peer(node.secondary, SECONDARY, node.primary) == PRIMARY
    assert len(world.wiring.repair(node.specs)) == 1
    assert [world.wiring.check(spec) for spec in node.specs] == [[], []]


def test_a_former_form_is_sound_and_goes_over_without_a_word(world):
    """CHECK finds nothing in either form, and the change is no repair; afterwards nothing of the former one is left."""
    node = Node(world)
    ours = rules(world)
    assert ours == {(513, "all", "all", "113213"), (1536, SECONDARY, "all", "2")}
    world.wiring.write_former_rules(node.specs)
    assert rules(world) == {(512, "all", PRIMARY, "main"), (512, "all", SECONDARY, "main"), (1536, SECONDARY, "all", "2")}
    assert [world.wiring.check(spec) for spec in node.specs] == [[], []]
    world.wiring.write_former_rules(node.specs)
    assert world.hostnet.confine_sandboxes()[-1] == RepairReport(RepairCode.ADDED, SHARED_RULE, OWN_RULE)
    go_over(world, node.specs)
    assert rules(world) == ours
    world.wiring.write_former_rules(node.specs)
    assert items(world.wiring.repair(node.specs)) == [(RepairCode.ADDED, OWN_RULE)], "and not the rules that still serve"
    assert rules(world) == ours | {(512, "all", PRIMARY, "main"), (512, "all", SECONDARY, "main")}


def test_del_of_a_former_form_leaves_nothing(world):
    """I4: rules, routes and link of a sandbox of another daemon's form go as those of ours do."""
    node = Node(world)
    world.wiring.write_former_rules(node.specs)
    for spec in node.specs:
        world.mark_for_deletion(spec)
    assert rules(world) == set()
    assert not {PRIMARY, SECONDARY} & {one["dst"] for one in node.host.ip("route show table all")}


def test_a_change_of_form_loses_no_packet(world):
    """While sandboxes of both ENIs and the VPC talk, the form changes to and fro: every datagram arrives, once."""
    node = Node(world)
    prefix = replace(node.specs[1], prefix=PREFIX)
    flows = [
        (node.primary, node.secondary, SECONDARY),
        (node.secondary, node.primary, PRIMARY),
        (node.secondary, node.vpc, VPC),
        (node.vpc, node.secondary, SECONDARY),
    ]
    with contextlib.ExitStack() as stack:
        ways = [way for number, flow in enumerate(flows) if (way := Flow(stack, *flow, port=4100 + number))]
        stop = threading.Event()
        threads = [threading.Thread(target=way.send, args=(stop,)) for way in ways]
        for thread in threads:
            thread.start()
        try:
            forms = itertools.cycle([node.specs, [node.specs[0], prefix]])
            for number, specs in enumerate(itertools.islice(forms, 240)):
                if number >= 12 and all(way.sent > 20 for way in ways):  # on a busy machine the senders get little time
                    break
                world.wiring.write_former_rules(node.specs)
                world.hostnet.confine_sandboxes()
                go_over(world, specs)
        finally:
            stop.set()
            for thread in threads:
                thread.join(timeout=120)
        assert all(way.sent > 20 for way in ways)
        assert [way.received() for way in ways] == [list(range(way.sent)) for way in ways]


class Flow:
    """Numbered datagrams from one space to another, with pauses so short that a gap of a millisecond would show."""

    def __init__(self, stack, sender, receiver, address, *, port):
        self._ear = stack.enter_context(receiver.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM))
        self._ear.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
        self._ear.bind((address, port))
        self._mouth = stack.enter_context(sender.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM))
        self._mouth.connect((address, port))
        # The first one asks for neighbours: until they answer, which takes long on a busy machine, the kernel keeps some, and drops
        # the oldest.
        self._ear.settimeout(PATIENCE_S)
        self._mouth.send(b"first")
        assert self._ear.recv(64) == b"first"
        self.sent = 0

    def send(self, stop):
        """Send until it is stopped, 20,000 at most."""
        while not stop.is_set() and self.sent < 20_000:
            self._mouth.send(str(self.sent).encode())
            self.sent += 1
            time.sleep(0.0005)

    def received(self):
        """The numbers that arrived, until all did, or none for long."""
        self._ear.settimeout(PATIENCE_S)
        found = []
        with contextlib.suppress(TimeoutError):
            while len(found) < self.sent:
                found.append(int(self._ear.recv(64)))
        return found


def in_prefix(world, node, number):
    """A second sandbox of the prefix."""
    space = world.space()
    spec = world.spec(space, number=number, table=2, container=f"more{number}")
    return replace(spec, address=PREFIX.network_address + number - 16, prefix=PREFIX)


def test_a_prefix_has_one_rule(world):
    """Its sandboxes share the rule; neither a rollback nor a DEL of one takes it from the others, and CHECK knows it."""
    node = Node(world)
    first = replace(node.specs[1], prefix=PREFIX)
    go_over(world, [first])
    assert rules(world) == {(513, "all", "all", "113213"), (1536, "10.0.1.16/28", "all", "2")}
    assert udp_peer(node.vpc, VPC, node.secondary) == SECONDARY
    second = in_prefix(world, node, 25)
    with pytest.raises(WiringError):
        world.new_wiring(failpoint=lambda step: "add address" in step).wire(second)
    world.wiring.wire(second)
    assert world.wiring.check(second) == world.wiring.check(first) == []
    world.mark_for_deletion(second)
    assert rules(world) == {(513, "all", "all", "113213"), (1536, "10.0.1.16/28", "all", "2")}
    node.host.sh("ip rule del prio 1536")
    (missing,) = world.wiring.check(first)
    assert (missing.code, missing.fields) == (DifferenceCode.RULE_MISSING, {"rule": "rule from 10.0.1.20 lookup 2"})
    assert items(world.wiring.repair([first])) == [(RepairCode.ADDED, "rule 1536 from 10.0.1.16/28 lookup 2")]
    node.host.sh("ip rule add prio 1536 from 10.0.1.16/28 lookup 7")
    (elsewhere,) = world.wiring.check(first)
    assert (elsewhere.code, elsewhere.fields["actual"]) == (DifferenceCode.RULE_ELSEWHERE, "7")
    assert items(world.wiring.repair([first])) == [(RepairCode.MISLEADING_REMOVED, "rule 1536 from 10.0.1.16/28 lookup 7")]


def test_the_rule_of_a_prefix_is_removed_if_needless(world):
    """Those that are said to be, by prefix and table, and all with the table of an ENI that goes; nothing else at any priority."""
    node = Node(world)
    go_over(world, [replace(node.specs[1], prefix=PREFIX)])
    before = rules(world)
    node.host.sh("ip rule add prio 1536 from 10.0.1.16/28 lookup 7; ip rule add prio 1536 from 10.0.1.32/28 lookup 2")
    asked = []
    world.hostnet.remove_prefix_rules(lambda *one: bool(asked.append(one)) or one[1] == 7)
    assert asked == [(PREFIX, 2), (PREFIX, 7), (IPv4Network("10.0.1.32/28"), 2)]
    assert rules(world) == before | {(1536, "10.0.1.32/28", "all", "2")}
    world.hostnet.teardown_eni(world.eni())
    assert {one for one in rules(world) if one[0] == 1536} == set()


def test_the_one_rule_is_put_back(world):
    """Somebody flushes the rules: the next pass puts it back before anything else, with its report, each time."""
    node = Node(world)
    for _ in range(3):
        node.host.sh("ip rule del prio 513")
        with pytest.raises(TimeoutError):
            udp_peer(node.primary, PRIMARY, node.secondary, timeout_s=LOST_S)
        assert world.hostnet.confine_sandboxes() == [RepairReport(RepairCode.ADDED, SHARED_RULE, OWN_RULE)]
        assert udp_peer(node.primary, PRIMARY, node.secondary) == SECONDARY
    assert world.hostnet.confine_sandboxes() == []
