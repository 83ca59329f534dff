"""What other software does to the host is repaired when the kernel announces it, not on the clock, which stands still here.

Kernel, datastore, services and their threads are real; EC2, metadata and runtime are fakes.
"""

from __future__ import annotations

import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest

from ipamd.core.backoffs import REPAIR
from ipamd.core.deadline import Deadline, StepTimer, SystemClock
from ipamd.host import network as host_network
from ipamd.host import repair_backoff
from ipamd.host import triggers as triggers_module
from ipamd.host.repair_backoff import CONFLICT_REPAIRS
from ipamd.kernel.netlink import NetlinkSocket
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import KernelDumpError
from ipamd.model.family import IPV4, IPV6
from ipamd.model.repairs import RepairKind
from ipamd.report.audit import audit
from tests.fakes.cloud import FakeEc2
from tests.fakes.node import FakeNode
from tests.loops import running
from tests.netns.conftest import EACH_FAMILY_HEAVY_IPV6, SECONDARY_MAC
from tests.rig import wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.slow]


MEANWHILE = 100
"""Changes of other software at most until a repair: of six hundred, if it waited for their end. At load 35 they were 22."""


class LiveNode(FakeNode):
    """A node on a kernel, with eth0 and eth1, whose reconciler follows the kernel in threads."""

    def __init__(self, run_dir, world):
        ec2 = FakeEc2(limits=InstanceLimits("m5.large", 2, 4), family=world.family)
        super().__init__(run_dir, network=world.config, ec2=ec2)
        self.datastore.close()
        world.prefixes = lambda: {row.prefix: row.eni_id for row in self.datastore.addresses() if row.is_rest}
        self.world, self.wiring, self.hostnet, self.clock = world, world.wiring, world.hostnet, SystemClock()
        self.passes = []
        self.start()
        self.host_reconciler.confine()  # as the daemon does, before anything else
        self.bring_up()
        self.host_reconciler.reconcile()
        real = self.host_reconciler.reconcile
        self.host_reconciler.reconcile = lambda **named: (real(**named), self.passes.append(1))[0]
        self.threads = ExitStack()
        self.threads.enter_context(running(self.host_reconciler.loop, self.cloud_reconciler.links.loop))

    def attach(self, name):
        """ADD into a namespace of its own; its attachment."""
        self.pool.cycle()  # in life a thread: it makes the second ENI when the first is full
        path = self.world.space().path
        request = self.request.__func__(_Anywhere(self), name, netns=path)
        return self.attacher.attach_sandbox(request, deadline=Deadline.after(self.clock, 60), steps=StepTimer(self.clock))

    def stop(self):
        """End the threads."""
        self.threads.close()
        self.datastore.close()


class _Anywhere:
    """What `FakeNode.request` needs of a node, but for the fake's list of namespaces."""

    def __init__(self, node):
        self.wiring = type("Namespaces", (), {"netns": {}, "make_netns": lambda _, path: path})()
        self.key, self._names = node.key, node._names


def dumps_from_now_on(monkeypatch):
    """The steps of the dumps that this thread asks the kernel for: those that follow the host may ask at any moment."""
    real, made, asker = NetlinkSocket._dump_once, [], threading.get_ident()

    def dump(sock, message):
        if threading.get_ident() == asker:
            made.append(message.step)
        return real(sock, message)

    monkeypatch.setattr(NetlinkSocket, "_dump_once", dump)
    return made


def state(host):
    """Everything that repairs restore; rules and tables in no order: what is put back comes last."""
    found = host.snapshot()
    found["rule"] = sorted(found["rule"].splitlines())
    return found, sorted(map(str.strip, host.sh("nft -s list ruleset").split("table ")))


@pytest.fixture
def node(world, tmp_path, monkeypatch):
    """A node with two pods, of IPv4 one of each ENI: `pods`, the primary one's first."""
    monkeypatch.setattr(host_network, "RECONCILE_INTERVAL_S", 1e6)
    monkeypatch.setattr(host_network, "FIRST_RECONCILE_S", 1e6)
    # Nobody else has the links' own addresses, and looking for another one would take a second of each test.
    world.host.sh("sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0")
    world.fabric()
    world.host.sh("sysctl -qw net.ipv4.conf.all.promote_secondaries=0 net.ipv4.conf.eth0.promote_secondaries=0")
    made = LiveNode(tmp_path, world)
    try:
        every = [made.attach(f"pod{number}") for number in range(4)]
        pods = {one.eni_id: one for one in reversed(every)}
        wait_until(lambda: "tentative" not in world.host.sh("ip -6 addr"), what="addresses are the links' own")
        made.pods = every[:2] if len(pods) == 1 else [pods[eni.eni_id] for eni in made.datastore.enis()]
        made.host_reconciler.mark(triggers_module.PassScope.EVERYTHING)
        # Here ENIs are veths: our tables follow the links of others.
        last = "eth1" if world.family is IPV4 else "eth0"
        wait_until(
            lambda: made.passes and last in world.host.sh("nft list set ip vpc-ipamd-confine elsewhere"), what="links known"
        )
        wait_until(lambda: made.host_reconciler._triggers.wait_s() is None, what="quiet")
        made.passes.clear()
        yield made
    finally:
        made.stop()


@contextmanager
def other_software(host):
    """Another process that changes tables of its own in nftables ten times a second, for a minute at most."""
    change = "nft add table ip theirs; nft 'add chain ip theirs one; delete table ip theirs'; sleep 0.1"
    command = ["nsenter", f"--net={host.path}", "timeout", "60", "sh", "-c", f"while :; do {change}; done"]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


BREAKAGES = {
    "pod route removed": ("ip route del {pod}", RepairKind.ROUTE),
    "pod route led elsewhere": ("ip route replace {pod} dev eth0", RepairKind.ROUTE),
    "rule to the sandboxes removed": ("ip rule del prio 513", RepairKind.RULE),
    "pod route in our own table removed": ("ip route del {pod} table 113213", RepairKind.ROUTE),
    "our own table flushed": ("ip route flush table 113213", RepairKind.ROUTE),
    "from-rule removed": ("ip rule del prio 1536 from {pod1}", RepairKind.RULE),
    "from-rule to another table": ("ip rule add prio 1536 from {pod1} lookup 99", RepairKind.RULE),
    "veth down": ("ip link set {veth} down", RepairKind.LINK),
    "veth MTU": ("ip link set {veth} mtu 1400", RepairKind.LINK),
    "veth MAC": ("ip link set {veth} address 02:00:00:00:00:77", RepairKind.LINK),
    "veth alias wiped": ("ip link set {veth} alias ''", RepairKind.LINK),
    "pod address on the primary link": ("ip addr add {pod}/20 dev eth0", RepairKind.ADDRESS),
    "pod address on the secondary link": ("ip addr add {pod1}/32 dev eth1", RepairKind.ADDRESS),
    "eth1 down": ("ip link set eth1 down", RepairKind.LINK),
    "eth1 MTU": ("ip link set eth1 mtu 1500", RepairKind.LINK),
    "eth1 without its address": ("ip addr flush dev eth1", RepairKind.ADDRESS),
    "table of eth1 flushed": ("ip route flush table 2", RepairKind.ROUTE),
    "default route of eth1's table replaced": ("ip route replace default dev eth0 table 2", RepairKind.ROUTE),
    "rule of eth1's address removed": ("ip rule del prio 32765", RepairKind.RULE),
    "mark rule removed": ("ip rule del prio 1024", RepairKind.RULE),
    "networkd flushes foreign rules": (
        "ip rule flush; ip rule add prio 32766 lookup main; ip rule add prio 32767 lookup default",
        RepairKind.RULE,
    ),
    "forwarding turned off": ("sysctl -qw net.ipv4.ip_forward=0", RepairKind.SYSCTL),
    "nftables flushed": ("nft flush ruleset", RepairKind.NFT),
    "a chain of our table flushed": ("nft flush chain ip vpc-ipamd snat_out", RepairKind.NFT),
    "a CIDR of our table removed": ("nft flush set ip vpc-ipamd exempt", RepairKind.NFT),
    "a chain of our table that drops": ("nft 'chain ip vpc-ipamd snat_out {{ policy drop; }}'", RepairKind.NFT),
}


OF_IPV6 = {
    "the rest of the prefix removed": ("ip -6 route flush type unreachable table 113213", RepairKind.ROUTE),
    "networkd flushes foreign rules": ("ip -6 rule flush; ip -6 rule add prio 32766 lookup main", RepairKind.RULE),
    "IPv6 of a veth turned off": ("sysctl -qw net.ipv6.conf.{veth}.disable_ipv6=1", RepairKind.LINK),
    "forwarding of IPv6 turned off": ("sysctl -qw net.ipv6.conf.all.forwarding=0", RepairKind.SYSCTL),
    "the chain of IPv6 flushed": ("nft flush chain ip6 vpc-ipamd-confine from_sandbox", RepairKind.NFT),
}
FOR_BOTH = (
    "pod route removed",
    "pod route led elsewhere",
    "rule to the sandboxes removed",
    "pod route in our own table removed",
    "our own table flushed",
    "veth down",
    "veth MTU",
    "veth MAC",
    "veth alias wiped",
    "pod address on the primary link",
    "nftables flushed",
)
"""What is repaired on a node of either family; the rest is of secondary ENIs, of marks and of SNAT."""

CASES = [
    *(pytest.param(IPV4, *BREAKAGES[what], id=f"{what}-ipv4") for what in BREAKAGES),
    *(pytest.param(IPV6, *BREAKAGES[what], id=f"{what}-ipv6") for what in FOR_BOTH),
    *(pytest.param(IPV6, *OF_IPV6[what], id=f"{what}-ipv6") for what in OF_IPV6),
]


@pytest.mark.parametrize(("family", "command", "kind"), CASES)
def test_is_repaired_without_the_clock(node, family, command, kind):
    """Rows 6 and 8: each breakage is announced, repaired, counted, and leaves the host as it was."""
    host, first, second = node.world.host, node.pods[0], node.pods[-1]
    before = state(host)
    count = node.host_reconciler.repair_backoff.counts().get(kind, 0)
    host.sh(node.world.words(command.format(pod=first.address, pod1=second.address, veth=first.host_veth)))
    wait_until(lambda: node.host_reconciler.repair_backoff.counts().get(kind, 0) > count, what="repaired")
    wait_until(lambda: state(host) == before, what="as before")
    assert node.health.conditions() == []


def test_the_nodes_own_address_survives_the_removal_of_a_pods(node):
    """A pod's address that is the first of its subnet on eth0 goes without the node's own one, which is a secondary address then."""
    host, pod = node.world.host, node.pods[0].address
    host.sh(f"ip addr flush dev eth0; ip addr add {pod}/24 dev eth0; ip addr add 10.0.0.10/24 dev eth0")
    wait_until(lambda: str(pod) not in host.sh("ip -o addr show dev eth0"), what="removed")
    assert "10.0.0.10/24" in host.sh("ip -o addr show dev eth0")


def test_what_is_not_ours_is_named_with_the_command(node):
    """Row 6: a pod's address on a link of no ENI, and a default route through eth1, are left, and named in status and audit."""
    host, pod = node.world.host, node.pods[0].address
    host.sh(f"ip addr add {pod}/32 dev lo; ip link set eth1 up; ip route replace default via 10.0.0.1 dev eth1 onlink")
    commands = [f"ip address del {pod}/32 dev lo", "ip route del default dev eth1"]
    wait_until(lambda: all(one in "; ".join(node.health.conditions()) for one in commands), what="named")
    remedies = "; ".join(finding.next for finding in audit(node.app.introspection.sources).findings)
    assert all(one in remedies for one in commands), remedies
    host.sh(f"ip addr del {pod}/32 dev lo; ip route replace default via 10.0.0.1 dev eth0")
    wait_until(lambda: node.health.conditions() == [], what="over")


@EACH_FAMILY_HEAVY_IPV6
@pytest.mark.parametrize(
    "rule", ["to {pod} blackhole", "from {pod} prohibit", "iif eth0 blackhole", "fwmark 0x4000/0x4000 blackhole"]
)
def test_a_rule_ahead_of_ours_is_named_at_once(node, rule):
    """Row 3: whether it names a sandbox or leads all of them away; undone, nothing is left of it."""
    pod, ip = node.pods[0], f"ip {node.world.dash}"
    node.world.host.sh(f"{ip} rule add prio 100 {rule.format(pod=pod.address)}")
    wait_until(lambda: str(pod.key) in "; ".join(node.health.conditions()), what="named")
    node.world.host.sh(f"{ip} rule del prio 100")
    wait_until(lambda: node.health.conditions() == [], what="over")


@EACH_FAMILY_HEAVY_IPV6
@pytest.mark.parametrize("what", ["set {veth} master br0", "set {veth} down name veth99 up"])
def test_a_veth_that_was_taken_is_taken_back_at_once(node, what):
    """Row 3: out of a bridge, or under another name."""
    pod, host = node.pods[0], node.world.host
    host.sh("ip link add br0 address 02:00:00:00:00:99 type bridge")
    before = host.snapshot()
    host.sh(f"ip link {what.format(veth=pod.host_veth)}")
    wait_until(
        lambda: RepairKind.LINK in node.host_reconciler.repair_backoff.counts() and host.snapshot() == before, what="repaired"
    )


@EACH_FAMILY_HEAVY_IPV6
def test_our_own_changes_make_no_pass(node):
    """Our repair, ADD, DEL and the sweep of their links are announced too: none of them makes the reconciler look at the host."""

    def is_quiet() -> bool:
        before = len(node.passes)
        time.sleep(0.5)
        return len(node.passes) == before and node.host_reconciler._triggers.wait_s() is None

    wait_until(is_quiet, what="no pass for what the test itself made")
    node.passes.clear()
    node.world.host.sh(node.world.words("ip rule del prio 513"))
    wait_until(lambda: node.host_reconciler.repair_backoff.counts().get(RepairKind.RULE), what="repaired")
    time.sleep(0.5)
    assert len(node.passes) == 1
    for number in range(10, 12):
        node.attach(f"pod{number}")
        node.delete(f"pod{number}")
        node.cooldown.sweep()
    time.sleep(0.5)
    assert len(node.passes) == 1


def test_our_own_change_of_nftables_makes_no_listing(node, monkeypatch):
    """A repair of one table is announced like what others do: it costs no look by libnftables, at any table."""
    listed, run = [], node.world.nft.run
    monkeypatch.setattr(node.world.nft, "run", lambda *args, **named: (listed.append(args), run(*args, **named))[1])
    node.world.host.sh("nft delete table ip vpc-ipamd")
    wait_until(lambda: node.host_reconciler.repair_backoff.counts().get(RepairKind.NFT), what="repaired")
    listed.clear()
    time.sleep(0.5)
    assert listed == []


def test_a_veth_that_somebody_deletes_is_heard(node):
    """It cannot be put back; the next pass by the clock looks at the sandboxes and names it."""
    reconciler = node.host_reconciler

    def is_silent() -> bool:
        before = reconciler._last_announced
        time.sleep(0.3)
        return reconciler._last_announced is before

    wait_until(is_silent, what="silent")
    before = reconciler._last_announced
    node.world.host.sh(f"ip link del {node.pods[0].host_veth}")
    wait_until(lambda: reconciler._last_announced is not before, what="heard")


@pytest.mark.parametrize("table", ["ip vpc-ipamd", "ip vpc-ipamd-confine"])
def test_a_table_is_back_at_once_beside_software_that_changes_nftables_without_pause(node, monkeypatch, table):
    """However long that goes on: counted in announcements, of which there are ten a second at most."""
    announced, listed = [], []
    real, run = node.host_reconciler.on_change, node.world.nft.run
    monkeypatch.setattr(node.host_reconciler, "on_change", lambda change: (announced.append(change), real(change)))
    node.cloud_reconciler.links._on_change = node.host_reconciler.on_change
    monkeypatch.setattr(node.world.nft, "run", lambda *args, **named: (listed.append(args), run(*args, **named))[1])
    before = node.world.host.sh(f"nft -s list table {table}")
    with other_software(node.world.host):
        wait_until(lambda: len(announced) > 10, what="the start is over")
        listed.clear()
        wait_until(lambda: len(announced) > 50, what="a while of changes")
        assert not listed, "what others change costs no listing"
        count, since = node.host_reconciler.repair_backoff.counts().get(RepairKind.NFT, 0), len(announced)
        node.world.host.sh(f"nft flush table {table}")
        wait_until(lambda: node.host_reconciler.repair_backoff.counts().get(RepairKind.NFT, 0) > count, what="repaired")
        assert len(announced) - since < MEANWHILE
    assert node.world.host.sh(f"nft -s list table {table}") == before


CONFINE = "ip vpc-ipamd-confine"
SPOILT = [
    *((table, "flush table {table}") for table in ("ip6 vpc-ipamd-confine", "arp vpc-ipamd-confine")),
    *((table, "add table {table} {{ flags dormant; }}") for table in ("ip vpc-ipamd", CONFINE, "ip6 vpc-ipamd-confine")),
    (CONFINE, "delete table {table}; add table {table}"),
    (CONFINE, "flush chain {table} from_veths"),
    (CONFINE, "insert rule {table} from_sandbox accept"),
    (CONFINE, "flush set {table} elsewhere"),
    (CONFINE, "add element {table} elsewhere {{ lo }}"),
    ("ip vpc-ipamd", "delete element {table} exempt {{ 10.0.0.0/16 }}"),
]


@pytest.mark.parametrize(("table", "spoils"), SPOILT)
def test_whatever_of_a_table_is_spoilt_is_back_at_once(node, table, spoils):
    """Beside such software, too: one rule, a set's element, the whole table asleep or empty."""
    announced, real = [], node.host_reconciler.on_change
    node.cloud_reconciler.links._on_change = lambda change: (announced.append(change), real(change))
    before = node.world.host.sh(f"nft -s list table {table}")
    with other_software(node.world.host):
        wait_until(lambda: len(announced) > 10, what="the start is over")
        since = len(announced)
        node.world.host.sh(f"nft '{spoils.format(table=table)}'")
        wait_until(lambda: node.world.host.sh(f"nft -s list table {table}") == before, what="as before")
        assert len(announced) - since < MEANWHILE


def test_lost_notifications_make_one_pass(node, monkeypatch):
    """I11: after an overrun of the kernel's queue everything is compared once."""
    before = len(node.passes)
    triggers, resume = node.host_reconciler._triggers, threading.Event()
    real = triggers.mark
    monkeypatch.setattr(triggers, "mark", lambda scope: (resume.wait(60), real(scope)))  # the thread that listens waits here
    flood = "".join(f"link set lo mtu {1400 + number % 50}\n" for number in range(2000)).encode("unicode_escape").decode()
    for _ in range(6):
        node.world.host.sh(f"printf '{flood}' | ip -batch -; ip rule del prio 513 || true")
    resume.set()
    wait_until(lambda: len(node.passes) > before, what="a pass")
    wait_until(lambda: "lookup 113213" in node.world.host.sh("ip rule"), what="repaired")


def test_a_fight_is_named_and_backs_off(node):
    """Something that undoes every repair of one object: after three repairs it is left for a while, and status says so."""
    host, pod = node.world.host, node.pods[0]
    for count in range(1, 4):
        host.sh(f"ip route del {pod.address}")
        wait_until(
            lambda count=count: node.host_reconciler.repair_backoff.counts().get(RepairKind.ROUTE, 0) == count, what="repaired"
        )
    wait_until(node.health.conditions, what="told")
    (fight,) = node.health.conditions()
    assert f"route of {pod.address} was repaired 3 times" in fight
    host.sh(f"ip route del {pod.address}")
    host.sh(f"ip link set {pod.host_veth} mtu 1400")  # another object of the same pod: not held back
    wait_until(lambda: node.host_reconciler.repair_backoff.counts().get(RepairKind.LINK), what="MTU")
    assert str(pod.address) not in host.sh("ip route")
    wait_until(lambda: str(pod.address) in host.sh("ip route"), what="after the pause")


def test_routes_that_are_emptied_now_and_then_are_back_at_once_each_time(node, monkeypatch):
    """An agent empties a route table on its clock: it is named, and no pause of ours lengthens the outage. Its clock, and with it what
    counts as at once, is fifty times faster here."""
    monkeypatch.setattr(repair_backoff, "UNDONE_SOON_S", 0.1)
    host, missing_s = node.world.host, []
    before = host.sh("ip route show table 2")
    for _ in range(CONFLICT_REPAIRS + 3):
        wait_until(lambda: node.host_reconciler._triggers.wait_s() is None, what="quiet")
        time.sleep(0.2)  # the agent's clock
        host.sh("ip route flush table 2")
        began_s = time.monotonic()
        wait_until(lambda: host.sh("ip route show table 2") == before, what="the routes are back")
        missing_s.append(time.monotonic() - began_s)
    assert max(missing_s) < REPAIR.first_s, missing_s
    (fight,) = node.health.conditions()
    assert "put back each time" in fight


def test_who_changed_nftables_is_told(node):
    """The kernel names the process that ended a transaction of nftables; a fight over our table repeats it."""
    for count in range(1, 4):
        node.world.host.sh("nft delete table ip vpc-ipamd")
        wait_until(
            lambda count=count: node.host_reconciler.repair_backoff.counts().get(RepairKind.NFT, 0) == count, what="repaired"
        )
    wait_until(node.health.conditions, what="told")
    (fight,) = node.health.conditions()
    assert "nftables was changed before, probably by nft (process " in fight
    assert fight.count("(process ") == 1, "not us, whose repairs change it too"


def test_number_of_dumps_does_not_depend_on_enis(node, monkeypatch):
    """Row 11: a pass makes as many dumps with one secondary ENI as with none: all ENIs share one look."""
    made = dumps_from_now_on(monkeypatch)
    reconcile = node.hostnet.reconcile
    identity, enis = node.node_info.identity(), node.datastore.enis()
    assert SECONDARY_MAC in {eni.mac for eni in enis}
    assert reconcile(identity=identity, enis=enis) == []
    made.clear()
    assert reconcile(identity=identity, enis=[]) == []
    alone, _ = sorted(made), made.clear()
    assert reconcile(identity=identity, enis=enis) == []
    assert sorted(made) == alone == ["dump of addresses", "dump of routes", "dump of rules", "dump of rules"]


def test_a_silent_pass_dumps_nothing_and_compares_what_is_not_announced(node, monkeypatch):
    """Links are asked for by name, whose settings change without a word; a dump of everything is the dear part."""
    identity, enis = node.node_info.identity(), node.datastore.enis()
    for _ in range(2):  # the first may put a setting of a veth right, the second finds all in order
        node.host_reconciler.confine()
    assert node.hostnet.reconcile(identity=identity, enis=enis) == []
    node.world.host.sh("sysctl -qw net.ipv4.conf.eth0.rp_filter=1")
    made = dumps_from_now_on(monkeypatch)
    assert node.host_reconciler.confine(is_silent=True) == []
    (said,) = node.hostnet.reconcile(identity=identity, enis=enis, is_silent=True)
    assert (said.target, said.before, said.after) == ("sysctl net/ipv4/conf/eth0/rp_filter", "1", "2")
    assert {one.partition(" vpc-ipamd")[0] for one in made} <= {
        f"look at nftables table {family}" for family in ("ip", "ip6", "arp", "bridge")
    }


def test_after_a_look_that_failed_a_silent_pass_reads_everything(node, monkeypatch):
    """What was announced before the failed look is in no look that could be used again."""
    identity, enis = node.node_info.identity(), node.datastore.enis()
    assert node.hostnet.reconcile(identity=identity, enis=enis) == []
    with monkeypatch.context() as broken:
        broken.setattr(NetlinkSocket, "dump", lambda *_, **__: (_ for _ in ()).throw(KernelDumpError("interrupted")))
        with pytest.raises(KernelDumpError):
            node.hostnet.reconcile(identity=identity, enis=enis)
    made = dumps_from_now_on(monkeypatch)
    assert node.hostnet.reconcile(identity=identity, enis=enis, is_silent=True) == []
    assert "dump of rules" in made
