"""CHECK, survey and repair: the kernel's state is read correctly, or the read fails."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from ipamd.kernel import answers, messages, uapi
from ipamd.kernel import survey as surveys
from ipamd.kernel.host_state import HostStateReader
from ipamd.kernel.netlink import BATCH_MAX, Message, NetlinkSocket
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.errors import KernelDumpError
from ipamd.model.failures import FailureCode
from ipamd.model.family import IPV4
from tests.errors import failed
from tests.netns.conftest import EACH_FAMILY_HEAVY_IPV6

pytestmark = pytest.mark.privileged


@EACH_FAMILY_HEAVY_IPV6
@pytest.mark.parametrize(
    ("side", "command", "code"),
    [
        ("host", "ip link set {veth} down", DifferenceCode.VETH_DOWN),
        ("host", "ip link set {veth} alias x", DifferenceCode.VETH_ALIAS),
        ("host", "ip link set {veth} mtu 1400", DifferenceCode.VETH_MTU),
        ("host", "ip link set {veth} address 02:00:00:00:00:77", DifferenceCode.VETH_MAC),
        ("host", "ip route del {ip}", DifferenceCode.ROUTE_MISSING),
        ("host", "ip route replace {ip} dev lo", DifferenceCode.ROUTE_ELSEWHERE),
        ("host", "ip rule del prio 513", DifferenceCode.RULE_MISSING),
        ("host", "ip route del {ip} table 113213", DifferenceCode.ROUTE_MISSING),
        ("host", "ip route replace {ip} dev lo table 113213", DifferenceCode.ROUTE_ELSEWHERE),
        ("host", "ip rule del prio 1536", DifferenceCode.RULE_MISSING),
        ("host", "ip rule add prio 1536 from {ip} lookup 9", DifferenceCode.RULE_ELSEWHERE),
        ("host", "ip link del {veth}", DifferenceCode.VETH_MISSING),
        ("host", "ip link set {veth} group 113213", DifferenceCode.VETH_DYING),
        ("pod", "ip link set eth0 name eth9", DifferenceCode.INTERFACE_MISSING),
        ("pod", "ip link set eth0 down", DifferenceCode.INTERFACE_DOWN),
        ("pod", "ip link set eth0 mtu 1400", DifferenceCode.INTERFACE_MTU),
        ("pod", "ip addr del {ip}/32 dev eth0", DifferenceCode.INTERFACE_ADDRESS_UNUSED),
        ("pod", "ip route del default", DifferenceCode.DEFAULT_ROUTE_UNUSED),
        ("pod", "ip route del default; ip route del 169.254.1.1", DifferenceCode.GATEWAY_ROUTE_UNUSED),
        ("pod", "ip neigh del 169.254.1.1 dev eth0", DifferenceCode.GATEWAY_NEIGHBOUR),
        ("pod", "ip neigh replace 169.254.1.1 dev eth0 lladdr 02:00:00:00:00:77", DifferenceCode.GATEWAY_NEIGHBOUR),
        ("pod", "ip link del eth0; ip link add eth0 type bridge", DifferenceCode.INTERFACE_KIND),
    ],
)
def test_check_names_each_difference(world, side, command, code):
    """CHECK finds what differs, on either side."""
    pod = world.space()
    spec = world.spec(pod, table=2)
    world.wiring.wire(spec)
    assert world.wiring.check(spec) == []
    command = world.words(command.format(veth=spec.host_veth, ip=spec.address))
    (world.host if side == "host" else pod).sh(command)
    codes = {difference.code for difference in world.wiring.check(spec)}
    # With IPv6 the route of the wiring outlives the address, which is asked for besides.
    alternatives = {DifferenceCode.INTERFACE_ADDRESS_UNUSED: DifferenceCode.INTERFACE_ADDRESS_MISSING}
    assert codes & {code, alternatives.get(code, code)}, codes


def test_check_of_a_gone_namespace_is_a_difference(world):
    """CHECK of a sandbox whose namespace has gone reports it rather than failing."""
    found = world.wiring.check(world.spec("/gone"))
    assert DifferenceCode.SANDBOX_GONE in {difference.code for difference in found}


def test_survey_sees_ours_and_only_ours(world):
    """I2: the survey recognises veths by alias, by prefix and by the dying group, and reads routes and rules back."""
    world.host.sh("ip link add other type veth peer name rehto; ip link add enibridge type bridge")
    live, dead = world.spec(world.space(), number=5, table=2), world.spec(world.space(), number=6)
    renamed = world.spec(world.space(), number=7, table=10203)
    for spec in (live, dead, renamed):
        world.wiring.wire(spec)
    world.mark_for_deletion(dead)
    world.host.sh(f"ip link set {renamed.host_veth} down; ip link set {renamed.host_veth} name old7")
    world.host.sh("ip link add eninaked type veth peer name zzz")
    seen = world.wiring.survey()
    veths = {veth.name: veth for veth in seen.veths}
    assert set(veths) == {live.host_veth, dead.host_veth, "old7", "eninaked"}
    assert (veths[live.host_veth].key, veths[live.host_veth].address) == (live.key, live.address)
    assert (veths[live.host_veth].is_up, veths[live.host_veth].is_dying) == (True, False)
    assert (veths[dead.host_veth].is_up, veths[dead.host_veth].is_dying) == (False, True)
    assert veths["old7"].key == renamed.key
    assert veths["eninaked"].key is None
    assert seen.routes == seen.own_routes == {live.address: live.host_veth}
    assert (seen.to_rules, seen.has_own_rule) == (frozenset(), True)
    assert seen.from_rules == {live.address: (2,), renamed.address: (10203,)}


def test_a_look_at_the_host_leaves_the_routes_of_sandboxes_out(world):
    """Of which there may be hundreds, and every ENI looks through what there is; all that an ENI or the node compares is there."""
    spec = world.spec(world.space(), number=5, table=2)
    world.wiring.wire(spec)
    world.host.sh(
        "ip link add uplink type veth peer name other; ip addr add 10.9.0.2/24 dev uplink; ip link set other up; ip link set uplink up"
    )
    world.host.sh("ip route add 10.9.0.1 dev uplink table 2; ip route replace default via 10.9.0.1 dev uplink")
    with world.netns.netlink() as sock:
        seen = {
            (one.table, one.destination, one.length)
            for one in HostStateReader(veth_prefix="eni", family=IPV4).read(sock, []).routes
        }
        assert len(sock.request([messages.get_link("lo")] * (2 * BATCH_MAX + 1))) == 2 * BATCH_MAX + 1
    assert spec.address not in {destination for _, destination, _ in seen}
    main, router = uapi.RT_TABLE_MAIN, IPv4Address("10.9.0.1")
    assert {(2, router, 32), (main, None, 0), (main, IPv4Address("10.9.0.0"), 24)} <= seen


def test_survey_under_churn_is_whole_or_refused(world):
    """I11: while links of fifty names come and go, a survey either has every live sandbox or says that it was interrupted."""
    specs = [world.spec(world.space(), number=20 + i) for i in range(40)]
    for spec in specs:
        world.wiring.wire(spec)
    expected = {spec.host_veth for spec in specs}
    elsewhere = world.space()
    stop = threading.Event()

    def churn():
        number = 0
        while not stop.is_set():
            number += 1
            name = f"churn{number % 50}"
            create = messages.create_veth(
                name, mac="02:00:00:00:01:01", peer_name="c", peer_mac="02:00:00:00:01:02", peer_netns=elsewhere.fd, mtu=1500
            )
            with world.netns.netlink() as sock:
                _, looked = sock.request([create, messages.get_link(name)])
                sock.request([messages.delete_link(answers.read_link(looked.replies[0]).index, step="churn")])

    thread = threading.Thread(target=churn)
    thread.start()
    whole = refused = 0
    try:
        for _ in range(300):
            try:
                seen = world.wiring.survey()
            except KernelDumpError:
                refused += 1
                continue
            whole += 1
            assert expected <= {veth.name for veth in seen.veths}
            assert len(seen.routes) == 40
    finally:
        stop.set()
        thread.join(timeout=120)
    assert whole > 0
    assert whole + refused == 300


@EACH_FAMILY_HEAVY_IPV6
def test_routes_under_churn_never_lack_one_that_stays(world):
    """I11: of IPv6 routes, too, the kernel marks no dump as interrupted, and skips some that were there all the time."""
    world.host.sh("ip link add v0 type veth peer name v1; ip link set v0 up; ip link set v1 up")
    stay = {world.address(3 * number) for number in range(1, 1001)}
    batch = "\n".join(f"route add {address} dev v0 table 113213" for address in sorted(stay))
    world.host.sh(f"ip {world.dash} -batch - <<END\n{batch}\nEND")
    ones = [
        f"route {verb} {world.address(3 * number + 1)} dev v0 table 113213" for number in range(300) for verb in ("add", "del")
    ]
    churn = world.host.call(_batch_of, ones * 300, world.dash)
    reads = 0
    try:
        while churn.poll() is None and reads < 60:
            assert stay <= world.wiring.survey(may_be_torn=True).own_routes.keys()
            reads += 1
    finally:
        churn.kill()
        churn.wait(timeout=120)
    assert reads > 0


def test_rules_under_churn_never_lack_one_that_stays(world):
    """I11, row 9: the kernel marks no dump of rules as interrupted, yet one that is read while rules go skips others."""
    stay = {IPv4Address("10.1.0.0") + number for number in range(1, 1401)}
    batch = "\n".join(f"rule add prio 512 to {address} lookup main" for address in sorted(stay))
    world.host.sh(f"ip -batch - <<END\n{batch}\nEND")
    # Rules before the others that come and go: each that goes moves the others forward under a reader who counts.
    ones = [f"rule {verb} prio 506 to 10.2.0.{number} lookup main" for verb in ("add", "del") for number in range(1, 21)]
    churn = world.host.call(_batch_of, ones * 1500)
    reads = 0
    try:
        while churn.poll() is None and reads < 150:
            assert stay <= world.wiring.survey().to_rules
            reads += 1
    finally:
        churn.kill()
        churn.wait(timeout=120)
    assert reads > 0


def _batch_of(lines, dash="-4"):
    """Start `ip -batch` over lines in the calling thread's namespace."""
    with tempfile.TemporaryFile() as batch:
        batch.write(("\n".join(lines) + "\n").encode())
        batch.seek(0)
        return subprocess.Popen(["ip", dash, "-batch", "-"], stdin=batch, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class _Reads:
    """A socket whose dumps of rules show what a test says, one after the other."""

    shorter = None

    def __init__(self, *reads):
        self.reads = list(reads)

    def dump(self, _message):
        return list(self.reads.pop(0))


def test_rules_are_read_until_two_reads_agree():
    """I11, row 9: a rule that one read skipped is not missing; after as many as are made without agreeing, none of them has it."""
    bodies = [messages.add_rule(512, table=254, destination=IPv4Address("10.0.0.0") + number).body for number in range(4)]
    a, b, c, d = bodies

    def read(*reads):
        sock = _Reads(*reads)
        found = {int(rule.destination) - int(IPv4Address("10.0.0.0")) for rule in surveys.rules_of(sock, IPV4)}
        return found, len(sock.reads)

    assert read([a, b], [a, b]) == ({0, 1}, 0)
    assert read([a], [a, b], [a, b]) == ({0, 1}, 0)
    assert read([a, b, d], [a, b], [a, b]) == ({0, 1}, 0), "a rule that went is not there"
    never = [[a, one] for one in (b, c)] * (surveys.RULE_READS // 2)
    assert read(*never, [d]) == ({0, 1, 2}, 1)


def test_a_torn_survey_shows_what_was_there_and_says_so(world):
    """I11: when every attempt of a dump is interrupted, what any of them showed is given, marked as not whole, if asked for."""
    spec = world.spec(world.space(), table=2)
    world.wiring.wire(spec)
    sock = world.host.call(_Interrupted, 99)
    with pytest.raises(KernelDumpError):
        surveys.survey(sock, veth_prefix="eni")
    torn = surveys.survey(sock, veth_prefix="eni", may_be_torn=True)
    sock.close()
    whole = world.wiring.survey(may_be_torn=True)
    assert (torn.is_whole, whole.is_whole) == (False, True)
    assert replace(torn, is_whole=True) == whole


class _Interrupted(NetlinkSocket):
    """A socket whose kernel interrupts the first `times` dumps."""

    def __init__(self, times):
        super().__init__()
        self.times = times
        self.dumps = 0

    def _send(self, data, step):
        self.dumps += 1
        super()._send(data, step)

    def _receive(self, step):
        data = super()._receive(step)
        if self.dumps <= self.times:
            flags = int.from_bytes(data[6:8], "little") | uapi.NLM_F_DUMP_INTR
            data = data[:6] + flags.to_bytes(2, "little") + data[8:]
        return data


def test_interrupted_dump_is_repeated_and_then_refused(world):
    """I11: an interrupted dump is read again at most five times, and is never taken for an answer."""
    sock = world.host.call(_Interrupted, 4)
    assert len(sock.dump(messages.dump_links())) == 1
    assert sock.dumps == 5
    sock.close()
    sock = world.host.call(_Interrupted, 5)
    with pytest.raises(KernelDumpError, check=failed(FailureCode.DUMP_INTERRUPTED, tries=5)):
        sock.dump(messages.dump_links())
    sock.close()


def test_kernel_words_reach_the_error(world):
    """I14: the kernel's extended text is part of the outcome, beside the errno."""
    with world.netns.netlink() as sock:
        (outcome,) = sock.request([messages.add_route(IPv4Address("10.9.9.9"), index=4711, step="x")])
        assert outcome.is_refused
        assert "ENODEV" in outcome.cause
        (outcome,) = sock.request([messages.add_route(None, index=1, via=IPv4Address("10.9.9.9"), step="x")])
        assert "invalid gateway" in outcome.cause


def test_namespace_identity_is_that_of_the_file(world):
    """An identity is device and inode of the nsfs file, the same by every path."""
    pod = world.space()
    identity = world.wiring.identify_netns(pod.path)
    assert (identity.device, identity.inode) == (os.fstat(pod.fd).st_dev, os.fstat(pod.fd).st_ino)
    assert identity != world.wiring.identify_netns(world.space().path)


@pytest.mark.parametrize("ends_with", ["change", "refused change", "question", "refused question"])
def test_each_message_of_a_batch_has_its_own_answer(world, ends_with, monkeypatch):
    """What succeeds says nothing, so the kernel is heard once for each refusal and question, and once at the end."""
    lo, absent = 1, 4242
    up = messages.change_link(lo, step="raise lo", is_up=True)
    last = {
        "change": up,
        "refused change": messages.change_link(absent, step="raise nothing", is_up=True),
        "question": messages.get_link("lo"),
        "refused question": messages.get_link("absent"),
    }[ends_with]
    refused, heard = messages.delete_link(absent, step="delete nothing"), []
    plain = NetlinkSocket._receive

    def receive(self, step):
        heard.append(plain(self, step))
        return heard[-1]

    with world.netns.netlink() as sock:
        monkeypatch.setattr(NetlinkSocket, "_receive", receive)
        found = sock.request([up, refused, messages.get_link("lo"), up, refused, up, last])
        again = sock.request([up])
    is_refused = ends_with.startswith("refused")
    assert [bool(one.errno) for one in found] == [False, True, False, False, True, False, is_refused]
    assert [bool(one.read(answers.read_link)) for one in found] == [
        number == 2 or (ends_with == "question" and number == 6) for number in range(7)
    ]
    assert [one.errno for one in again] == [0]
    assert len(heard) == 4 + 1


def test_a_question_without_an_answer_is_no_success(world, monkeypatch):
    """Should the kernel ever leave one out: silence does not mean that a link is absent (I11)."""
    silent = Message("says nothing", uapi.NLMSG_NOOP, 0, b"")
    with world.netns.netlink() as sock:
        monkeypatch.setattr(uapi, "QUESTIONS", frozenset({*uapi.QUESTIONS, uapi.NLMSG_NOOP}))
        found = sock.request([silent, messages.get_link("lo")])
    assert [one.is_refused for one in found] == [True, False]
