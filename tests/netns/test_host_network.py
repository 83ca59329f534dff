"""The node's own routing: set up once, set up again, compared and repaired; packets take the right ENI."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from ipamd.kernel import eni_links, sysctls
from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.errors import WiringError
from ipamd.model.failures import FailureCode
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.repairs import NODE, RepairCode
from tests.errors import failed
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.privileged

TO_SECONDARY = "ip route add 10.0.1.20/32 dev p1; ip neigh add 10.0.1.20 dev p1 lladdr 02:00:00:00:00:02"
"""A VPC delivers to the ENI that has the address and asks no host for it."""


LOST_S = 2.0
"""How long a datagram is waited for that is to be lost: it takes a millisecond."""


AGAIN_S = 1.0


def udp_peer(server, server_address, client, client_address="", *, timeout_s=PATIENCE_S):
    """Send a datagram and its answer; what the server saw as the client's address. TimeoutError if it is lost.

    It is sent again each second: on a busy machine a link that was just made may get its carrier later than the first one.
    """
    with contextlib.ExitStack() as stack:
        bound = stack.enter_context(server.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM))
        bound.settimeout(AGAIN_S)
        bound.bind((server_address, 4000))
        sender = stack.enter_context(client.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM))
        sender.settimeout(timeout_s)
        if client_address:
            sender.bind((client_address, 0))
        sender.connect((server_address, 4000))
        ends_s = time.monotonic() + timeout_s
        while True:
            sender.send(b"out")
            try:
                data, peer = bound.recvfrom(16)
                break
            except TimeoutError:
                if time.monotonic() >= ends_s:
                    raise
        bound.sendto(b"back", peer)
        assert (data, sender.recv(16)) == (b"out", b"back")
        return peer[0]


def test_packets_take_the_eni_of_their_address(world):
    """I7: a sandbox on the secondary ENI reaches the VPC by that ENI as itself, and the world by the primary one as the node."""
    vpc = world.fabric()
    vpc.sh(f"ip route add 10.0.0.30/32 dev p0; {TO_SECONDARY}; ip neigh add 10.0.0.30 dev p0 lladdr 02:00:00:00:00:01")
    world.hostnet.setup_node(world.identity())
    world.hostnet.setup_eni(world.eni())
    on_secondary, on_primary = world.space(), world.space()
    secondary = replace(world.spec(on_secondary, number=20, table=2), address=IPv4Address("10.0.1.20"))
    world.wiring.wire(secondary)
    world.wiring.wire(world.spec(on_primary, number=30))
    assert udp_peer(vpc, "10.0.77.7", on_secondary) == "10.0.1.20"
    assert udp_peer(vpc, "10.0.77.7", on_primary) == "10.0.0.30"
    assert udp_peer(on_secondary, "10.0.1.20", vpc, "10.0.77.7") == "10.0.77.7"
    assert udp_peer(on_secondary, "10.0.1.20", on_primary) == "10.0.0.30"
    assert udp_peer(vpc, "203.0.113.9", on_secondary) == "10.0.0.10"
    assert udp_peer(vpc, "203.0.113.9", on_primary) == "10.0.0.10"
    assert udp_peer(vpc, "10.0.77.7", world.host, "10.0.1.10") == "10.0.1.10"
    counters = vpc.ip("-s link show p1")[0]["stats64"]
    assert counters["rx"]["packets"] > 0
    # without the from-rule the same packet leaves by the primary ENI and is lost: the fabric does tell
    world.host.sh("ip rule del prio 1536")
    with pytest.raises(TimeoutError):
        udp_peer(vpc, "10.0.77.7", on_secondary, timeout_s=LOST_S)
    assert world.wiring.repair([secondary])
    assert udp_peer(vpc, "10.0.77.7", on_secondary) == "10.0.1.20"


def test_nodeport_answers_leave_by_the_primary_eni(world):
    """Upstream 3.5: an answer to a connection that came to the node's address goes out where it came in."""
    vpc = world.fabric()
    vpc.sh(TO_SECONDARY)
    world.hostnet.setup_node(world.identity())
    world.hostnet.setup_eni(world.eni())
    pod = world.space()
    world.wiring.wire(replace(world.spec(pod, number=20, table=2), address=IPv4Address("10.0.1.20")))
    # what kube-proxy does for a NodePort service with externalTrafficPolicy: Local
    world.host.sh(
        "nft 'add table ip kube; add chain ip kube pre { type nat hook prerouting priority dstnat; };"
        " add rule ip kube pre ip daddr 10.0.0.10 udp dport 30000 dnat to 10.0.1.20:4000'"
    )
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(pod.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM))
        server.settimeout(PATIENCE_S)
        server.bind(("0.0.0.0", 4000))
        client = stack.enter_context(vpc.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM))
        client.settimeout(PATIENCE_S)
        client.bind(("10.0.77.7", 0))
        client.connect(("10.0.0.10", 30000))
        client.send(b"in")
        _, peer = server.recvfrom(16)
        assert peer[0] == "10.0.77.7"
        server.sendto(b"answer", peer)
        # strict reverse path in the fabric: an answer by eth1 with the node's address would be dropped
        assert client.recv(16) == b"answer"


def test_setup_is_idempotent(world):
    """Setting up twice leaves what setting up once made, and an audit of it finds nothing."""
    world.fabric()
    world.hostnet.setup_node(world.identity())
    world.hostnet.setup_eni(world.eni())
    once = world.host.snapshot(), world.host.sh("nft list ruleset")
    world.hostnet.setup_node(world.identity())
    world.hostnet.setup_eni(world.eni())
    assert (world.host.snapshot(), world.host.sh("nft list ruleset")) == once
    assert world.hostnet.reconcile(identity=world.identity(), enis=[world.eni()]) == []


def test_several_enis_are_set_up_beside_one_that_cannot_be(world):
    """An ENI without a link, and one with the kernel's table, have an error each; the third one is set up."""
    world.fabric()
    world.hostnet.setup_node(world.identity())
    ready = world.eni()
    without_link = replace(ready, eni_id=EniId("eni-3"), mac=MacAddress("02:00:00:00:00:99"), device_index=2)
    in_main_table = replace(ready, eni_id=EniId("eni-4"), device_index=252)  # would be table 253
    errors = world.hostnet.setup_enis([without_link, ready, in_main_table])
    codes = {eni_id: error.failure for eni_id, error in errors.items()}
    assert codes == {without_link.eni_id: FailureCode.NO_ENI_LINK, in_main_table.eni_id: FailureCode.ENI_WITHOUT_TABLE}
    assert world.hostnet.reconcile(identity=world.identity(), enis=[ready]) == []


def test_secondary_eni_is_set_up_as_vpc_cni_does(world):
    """Upstream 3.4: address, table and rule are there; foreign addresses and the connected route of main are not."""
    world.fabric()
    world.host.sh("ip link set eth1 up; ip addr add 10.0.1.99/24 dev eth1; ip rule add prio 32765 from 10.0.1.10 lookup 7")
    world.hostnet.setup_eni(world.eni())
    link = world.host.ip("addr show eth1")[0]
    assert (link["mtu"], "UP" in link["flags"]) == (9001, True)
    assert [(a["local"], a["prefixlen"]) for a in link["addr_info"] if a["family"] == "inet"] == [("10.0.1.10", 24)]
    table = {one["dst"]: one.get("gateway") for one in world.host.ip("route show table 2")}
    assert table == {"10.0.1.1": None, "default": "10.0.1.1"}
    assert "10.0.1." not in world.host.sh("ip route show table main")
    rules = [(one["priority"], one["src"], one["table"]) for one in world.host.ip("rule") if one["priority"] == 32765]
    assert rules == [(32765, "10.0.1.10", "2")]


def test_teardown_removes_table_and_rules(world):
    """After teardown nothing of the ENI's table or rules is left; a second teardown, and one without a link, succeed."""
    world.fabric()
    before = world.host.snapshot()
    world.hostnet.setup_eni(world.eni())
    world.hostnet.teardown_eni(world.eni())
    after = world.host.snapshot()
    assert after["rule"] == before["rule"]
    assert "table 2" not in after["route show table all"]
    world.host.sh("ip link del eth1")
    world.hostnet.teardown_eni(world.eni())


def test_teardown_leaves_the_successor_at_the_same_device(world):
    """The table is the device index + 1: the routing of the ENI that came after is as before, its sandbox's rule too (I2)."""
    world.fabric()
    successor = world.eni()
    gone = replace(successor, eni_id="eni-gone", mac=MacAddress("02:00:00:00:00:99"), primary_address=IPv4Address("10.0.1.99"))
    world.hostnet.setup_eni(successor)
    sandbox = replace(world.spec(world.space(), number=20, table=2), address=IPv4Address("10.0.1.20"))
    world.wiring.wire(sandbox)
    before = world.host.snapshot()
    world.host.sh("ip rule add prio 32765 from 10.0.1.99 lookup 2")
    world.hostnet.teardown_eni(gone, remaining=[gone, successor])
    assert world.host.snapshot() == before
    assert world.wiring.check(sandbox) == []
    world.hostnet.teardown_eni(replace(gone, primary_address=successor.primary_address), remaining=[successor])
    assert world.host.snapshot() == before
    world.hostnet.teardown_eni(gone)
    assert "table 2" not in world.host.snapshot()["route show table all"]


def test_main_table_is_never_an_enis(world):
    """The primary ENI has no table to be filled or cleared: refused, and main is as before."""
    world.fabric()
    before = world.host.snapshot()
    for step in (world.hostnet.setup_eni, world.hostnet.teardown_eni):
        with pytest.raises(WiringError, check=failed(FailureCode.ENI_WITHOUT_TABLE)):
            step(world.eni(device_index=0))
        with pytest.raises(WiringError, check=failed(FailureCode.ENI_WITHOUT_TABLE)):
            step(world.eni(device_index=252))  # would be table 253
    assert world.host.snapshot() == before


def test_link_that_appears_late_is_waited_for(world):
    """An ENI's link is used the moment that it appears; one that never does is an error within the bound."""
    world.fabric()
    late = MacAddress("02:00:00:00:00:03")
    found = []
    waiter = threading.Thread(
        target=lambda: found.append(eni_links.wait_for_link(world.netns, late, veth_prefix="eni", timeout_s=10))
    )
    waiter.start()
    world.host.sh("ip link add noise type bridge; ip link add late type veth peer name etal")
    world.host.sh(f"ip link set late address {late}")
    waiter.join(timeout=10)
    assert [link.name for link in found] == ["late"]
    with pytest.raises(WiringError, check=failed(FailureCode.NO_ENI_LINK, mac="02:00:00:00:00:04")):
        eni_links.wait_for_link(world.netns, MacAddress("02:00:00:00:00:04"), veth_prefix="eni", timeout_s=0.05)


ENI = "eni-2"

DAMAGES = pytest.mark.parametrize(
    ("command", "code", "item", "subject"),
    [
        ("ip rule del prio 1024", RepairCode.ADDED, "rule 1024 fwmark 0x80/0x80 lookup main", NODE),
        ("ip rule del prio 32765", RepairCode.ADDED, "rule 32765 from 10.0.1.10 lookup 2", ENI),
        ("ip rule add prio 32765 from 10.0.1.10 lookup 9", RepairCode.REMOVED, "rule 32765 from 10.0.1.10 lookup 9", ENI),
        ("ip route flush table 2", RepairCode.ADDED, "default route via 10.0.1.1 dev eth1 table 2 of eni-2", ENI),
        ("ip route flush table 2", RepairCode.ADDED, "route 10.0.1.1 dev eth1 table 2 of eni-2", ENI),
        ("ip link set eth1 down", RepairCode.VALUE_SET, "state of eth1 (eni-2)", ENI),
        ("ip link set eth1 mtu 1500", RepairCode.VALUE_SET, "MTU of eth1 (eni-2)", ENI),
        ("ip link set eth0 mtu 1500", RepairCode.VALUE_SET, "MTU of eth0 (primary)", NODE),
        ("ip addr flush dev eth1", RepairCode.ADDED, "address 10.0.1.10/24 of eth1 (eni-2)", ENI),
        ("ip addr add 10.0.1.99/32 dev eth1", RepairCode.FOREIGN_REMOVED, "address 10.0.1.99/32 of eth1 (eni-2)", ENI),
        (
            "ip route add 10.0.1.0/24 dev eth1",
            RepairCode.REMOVED,
            "connected route 10.0.1.0/24 dev eth1 (eni-2) table main",
            ENI,
        ),
        ("sysctl -qw net.ipv4.ip_forward=0", RepairCode.VALUE_SET, "sysctl net/ipv4/ip_forward", NODE),
        ("sysctl -qw net.ipv4.conf.eth0.rp_filter=1", RepairCode.VALUE_SET, "sysctl net/ipv4/conf/eth0/rp_filter", NODE),
        ("sysctl -qw net.ipv4.conf.eth0.forwarding=0", RepairCode.VALUE_SET, "sysctl net/ipv4/conf/eth0/forwarding", NODE),
        ("sysctl -qw net.ipv4.conf.eth1.forwarding=0", RepairCode.VALUE_SET, "sysctl net/ipv4/conf/eth1/forwarding", ENI),
        ("nft flush ruleset", RepairCode.ADDED, "nftables table vpc-ipamd", NODE),
        ("nft flush chain ip vpc-ipamd snat_out", RepairCode.TABLE_RESTORED, "nftables table vpc-ipamd", NODE),
        ("nft add rule ip vpc-ipamd snat_out accept", RepairCode.TABLE_RESTORED, "nftables table vpc-ipamd", NODE),
        ("ip link del eth1", RepairCode.ENI_LINK_MISSING, "02:00:00:00:00:02", ENI),
    ],
)
"""What other software on a node does to its routing, with the repair: its code, its item, and the ENI or the node."""


@DAMAGES
def test_audit_names_what_others_took_and_changes_nothing(world, command, code, item, subject):
    """A read-only look says what differs, on which ENI or on the node, and whether it is repaired; the damage stays as it is."""
    world.fabric()
    world.hostnet.setup_node(world.identity())
    world.hostnet.setup_eni(world.eni())
    assert world.hostnet.differences(identity=world.identity(), enis=[world.eni()]) == []
    world.host.sh(command)
    damaged = world.host.snapshot(), world.host.sh("nft list ruleset")
    found = world.hostnet.differences(identity=world.identity(), enis=[world.eni()])
    is_missing = code is RepairCode.ENI_LINK_MISSING
    (difference,) = [each for each in found if item in (each.fields.get("mac"), each.report and each.report.target)]
    assert (difference.subject, difference.will_be_repaired) == (subject, not is_missing)
    assert (world.host.snapshot(), world.host.sh("nft list ruleset")) == damaged
    world.hostnet.reconcile(identity=world.identity(), enis=[world.eni()])
    left = world.hostnet.differences(identity=world.identity(), enis=[world.eni()])
    assert [each.will_be_repaired for each in left] == [False] * is_missing


def test_audit_of_the_primary_eni_and_of_a_table_that_was_never_made(world):
    """Beyond repair: the primary ENI's link down or gone. Our table before the first `setup_node`: only its absence is told."""
    world.fabric()
    found = world.hostnet.differences(identity=world.identity(), enis=[])
    assert "nftables table vpc-ipamd" in [each.report.target for each in found if each.report]
    world.hostnet.setup_node(world.identity())
    restarted = KernelHostNetwork(world.netns, config=world.config, nft=world.nft)
    assert restarted.differences(identity=world.identity(), enis=[]) == []
    assert world.hostnet.differences(identity=world.identity(), enis=[]) == []
    assert world.hostnet.differences(identity=None, enis=[]) == []
    world.host.sh("ip link set eth0 down")
    found = world.hostnet.differences(identity=world.identity(), enis=[])
    assert [each.subject for each in found if each.code is DifferenceCode.ENI_LINK_DOWN] == ["eni-1"]
    world.host.sh("ip link del eth0")
    found = world.hostnet.differences(identity=world.identity(), enis=[])
    assert [(each.subject, each.code) for each in found] == [("eni-1", DifferenceCode.ENI_LINK_MISSING)]


@DAMAGES
def test_audit_repairs_what_others_took(world, command, code, item, subject):
    """Whatever something else deletes or changes is restored with one report, and the next look finds no difference."""
    world.fabric()
    world.hostnet.setup_node(world.identity())
    world.hostnet.setup_eni(world.eni())
    whole = world.host.snapshot(), world.host.sh("nft list ruleset")
    world.host.sh(command)
    reports = world.hostnet.reconcile(identity=world.identity(), enis=[world.eni()])
    assert (code, item, subject) in [(one.code, one.target, one.object.subject) for one in reports]
    if code is RepairCode.ENI_LINK_MISSING:
        return
    assert (world.host.snapshot(), world.host.sh("nft list ruleset")) == whole
    assert world.hostnet.reconcile(identity=world.identity(), enis=[world.eni()]) == []


def test_primary_link_that_is_missing_is_an_error(world):
    """I14: a daemon outside the host's network namespace is told so."""
    with pytest.raises(WiringError, check=failed(FailureCode.NO_PRIMARY_LINK)):
        world.hostnet.setup_node(world.identity())


def test_a_sysctl_that_cannot_be_set_costs_nothing_else(world, monkeypatch, tmp_path):
    """A read-only /proc/sys is said; SNAT, marks and rules are set up all the same, and packets of sandboxes are forwarded."""

    vpc = world.fabric()
    vpc.sh(f"{TO_SECONDARY}; ip route add 10.0.0.30/32 dev p0; ip neigh add 10.0.0.30 dev p0 lladdr 02:00:00:00:00:01")
    world.host.sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv4.conf.eth0.rp_filter=1")
    monkeypatch.setattr(sysctls, "SYSCTL_ROOT", tmp_path)
    with pytest.raises(WiringError, check=failed(FailureCode.SYSCTL_REFUSED)):
        world.hostnet.setup_node(world.identity())
    assert "fwmark 0x80" in world.host.sh("ip rule")
    assert "snat" in world.host.sh("nft list ruleset")
    said = world.hostnet.reconcile(identity=world.identity(), enis=[world.eni()])
    assert [one for one in said if one.is_refusal and "sysctl" in one.cause]
    assert world.host.sh("cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/conf/eth0/rp_filter").split() == ["0", "2"]
    on_primary, on_secondary = world.space(), world.space()
    world.wiring.wire(world.spec(on_primary, number=30))
    world.wiring.wire(replace(world.spec(on_secondary, number=20, table=2), address=IPv4Address("10.0.1.20")))
    assert udp_peer(vpc, "10.0.77.7", on_secondary) == "10.0.1.20"
    assert udp_peer(vpc, "203.0.113.9", on_primary) == "10.0.0.10"
    assert udp_peer(on_primary, "10.0.0.30", on_secondary) == "10.0.1.20"
