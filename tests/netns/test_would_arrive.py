"""A sandbox that packets do not reach is found and named, whoever cut it off: the kernel says where it would send them.

Kernel, datastore and services are real; EC2, metadata and runtime are fakes. The passes are made by the test. That packets are lost
by what is done here, and flow again once it is undone, is tried with packets.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time

import pytest

from ipamd.host.network import SURVEY_TURNS
from ipamd.model.family import IPV4, IPV6
from ipamd.model.kernel_numbers import OWN_TABLE
from tests.netns.conftest import EACH_FAMILY_HEAVY_IPV6, ROUTER
from tests.netns.test_own_inside import KernelNode
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.privileged, pytest.mark.slow, EACH_FAMILY_HEAVY_IPV6]

ASTRAY = {
    "a rule ahead": ("ip rule add prio 100 lookup 77; ip route add blackhole default table 77", "ip rule del prio 100"),
    "a rule ahead, for the sandbox": ("ip rule add prio 9 to {ip} blackhole", "ip rule del prio 9"),
    "a rule for what comes in": ("ip rule add prio 9 iif eth0 prohibit", "ip rule del prio 9"),
    "a rule for what it sends": (
        "ip rule add prio 9 from {ip} lookup 77; ip route add default dev lo table 77",
        "ip rule del prio 9",
    ),
    "a rule by kube-proxy's mark": ("ip rule add prio 9 fwmark 0x4000/0x4000 unreachable", "ip rule del prio 9"),
    "a rule by our mark": ("ip rule add prio 9 fwmark 0x80/0x80 blackhole", "ip rule del prio 9"),
    "rule gone": ("ip rule del prio 32766", "ip rule add prio 32766 lookup main"),
    "rules gone": ("ip rule del prio 32766; ip rule add prio 32766 lookup 77", "ip rule add prio 32766 lookup main"),
    "no default route": ("ip route del default", f"ip route add default via {ROUTER} dev eth0"),
    "a longer default": ("ip route add blackhole 192.0.0.0/4", "ip route del blackhole 192.0.0.0/4"),
    "no forwarding": ("echo 0 > /proc/sys/net/ipv4/conf/{veth}/forwarding", ""),
    "a filter ahead": (
        "nft 'table ip x {{ chain y {{ type filter hook prerouting priority -500; drop; }}; }}'",
        "nft delete table ip x",
    ),
    "a filter behind": (
        "nft 'table inet x {{ chain y {{ type filter hook postrouting priority 500; oifname \"eni*\" drop; }}; }}'",
        "nft delete table inet x",
    ),
    "a filter for the sandbox": (
        "nft 'table ip x {{ chain y {{ type filter hook prerouting priority 0; ip daddr {ip} drop; }}; }}'",
        "nft delete table ip x",
    ),
    "an address of the host": ("ip addr add {ip}/32 dev lo", "ip addr del {ip}/32 dev lo"),
}
"""What others do on the host that is theirs: named with what shows it; and how it is undone."""

FOR_IPV4 = ("a rule by our mark", "no forwarding")
FOR_IPV6 = ("no default route",)

PARTS = {
    "a rule for a port": ("ip rule add prio 9 to {ip} ipproto udp dport 4000 blackhole", "ip rule del prio 9"),
    "a rule by a mark": (
        "ip rule add prio 9 fwmark 1/1 prohibit;"
        " nft 'table ip x {{ chain y {{ type route hook output priority 0; ip daddr {ip} meta mark set 1; }}; }}'",
        "ip rule del prio 9; nft delete table ip x",
    ),
    "a filter by the veth": (
        "nft 'table inet x {{ chain y {{ type filter hook postrouting priority 0; oifname \"{veth}\" drop; }}; }}'",
        "nft delete table inet x",
    ),
    "a filter of the veth": (
        "nft 'table netdev x {{ chain y {{ type filter hook ingress device {veth} priority 0; drop; }}; }}'",
        "nft delete table netdev x",
    ),
    "a filter of the veth, going out": (
        "nft 'table netdev x {{ chain y {{ type filter hook egress device {veth} priority 0; drop; }}; }}'",
        "nft delete table netdev x",
    ),
}
"""What takes a part of the packets, of which no lookup asks, or takes them at another place."""

OURS = {
    "in a bridge": "ip link add br0 type bridge; ip link set br0 up; ip link set {veth} master br0",
    "a wrong neighbour": "ip neigh replace {ip} lladdr 02:00:00:00:00:77 dev {veth} nud permanent",
    "a neighbour without ARP": "ip neigh replace {ip} lladdr 02:00:00:00:00:77 dev {veth} nud noarp",
    "another name": "ip link set {veth} down name veth99 up; ip route replace {ip} dev veth99",
    "no ARP": "ip link set {veth} arp off",
    "a blackhole in place of the route": f"ip route replace blackhole {{ip}} table {OWN_TABLE}",
}
"""What others do to what is ours: put back."""

PASSES = ("in a bridge", "another name")
"""With these the node still reaches it: a bridge hands on what is for its port's MAC, unconfined; a name is only a name."""

INSIDE = {
    "the address deleted": "ip addr del {ip}/32 dev eth0",
    "the link down": "ip link set eth0 down",
    "another MAC": "ip link set eth0 address 02:00:00:00:00:77",
    "a wrong neighbour": "ip neigh replace 169.254.1.1 lladdr 02:00:00:00:00:77 dev eth0 nud permanent",
}
"""What is done inside, and keeps packets away."""


@pytest.fixture(name="node")
def _node(world, tmp_path):
    world.fabric()
    made = KernelNode(tmp_path, world)
    yield made
    made.datastore.close()


def reaches(node, ip, *, expected=True):
    """Whether a packet of the node's arrives."""
    return refuses(node.world.host, str(ip), expected=expected)


def refuses(space, address, *, expected=True):
    """Whether a packet arrives, which is tried for a moment only if it must not: its target answers that nobody listens there."""
    give_up = time.monotonic() + (PATIENCE_S if expected else 0.0)
    while not (is_refused := _is_refused(space, address)) and time.monotonic() < give_up:
        pass
    return is_refused


def _is_refused(space, address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.closing(space.call(socket.socket, family, socket.SOCK_DGRAM)) as sock:
        sock.settimeout(1.0)
        try:
            sock.connect((address, 4000))
            sock.send(b"anybody")
            sock.recv(1)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    raise AssertionError("nobody listens there")


def condition(node):
    """What status says of sandboxes that packets do not reach."""
    return node.health.conditions_by_subject().get("repair of sandboxes", "")


@pytest.mark.parametrize("what", ASTRAY)
def test_what_leads_packets_away_is_named(node, what):
    """Audit, status, CHECK and the metric name the sandbox, and a command that shows why; undone, nothing is left of it."""
    _, made = node.attach()
    ip, veth = made.address, made.host_veth
    node.host_reconciler.run_due(is_by_clock=True)
    assert (node.audited(), node.check(), condition(node)) == ((), "", "")
    if what in FOR_IPV4 and node.world.family is IPV6:
        pytest.skip("no mark is ours in IPv6, and links do not forward by themselves")
    is_for_the_node = (
        what in FOR_IPV6 and node.world.family is IPV4
    )  # without a default route it has its subnet, as its sandboxes
    does, undoes = (node.world.words(one.format(ip=ip, veth=veth)) for one in ASTRAY[what])
    undoes = "ip route add default via 10.0.0.1 dev eth0" if is_for_the_node else undoes
    node.world.host.sh(does)
    found = node.audited()
    assert found
    node.host_reconciler.run_due(is_by_clock=True)
    if "filter" in what:
        assert "nft " in found[0].next
        assert "table ip" in found[0].text or "chain i" in found[0].text
        assert found[0].text in node.health.conditions_by_subject()["other software"]
    elif is_for_the_node:
        assert any(undoes in one.next for one in found), (undoes, found)
        assert condition(node) == ""
        assert undoes in node.health.conditions_by_subject()["node routing"]
    elif undoes:
        assert any(re.search(r"ip (-6 )?[ra]", one.next) for one in found), found
        assert str(ip) in condition(node)
        assert len(node.host_reconciler.failed_sandboxes.names) == 1
    if "gone" in what:
        assert f"to mend it: {undoes}" in node.health.conditions_by_subject()["node routing"]
    if undoes:
        node.world.host.sh(undoes)
    node.host_reconciler.run_due(is_by_clock=True)
    node.host_reconciler.run_due(is_by_clock=True)
    assert (node.audited(), node.check(), condition(node)) == ((), "", "")


@pytest.mark.parametrize("what", PARTS)
def test_what_takes_a_part_is_named(node, what):
    """Audit and status name it with a command, and nothing is left once it is undone."""
    _, made = node.attach()
    node.host_reconciler.run_due(is_by_clock=True)
    assert reaches(node, made.address)
    does, undoes = (node.world.words(one.format(ip=made.address, veth=made.host_veth)) for one in PARTS[what])
    node.world.host.sh(does)
    assert not reaches(node, made.address, expected=False)
    (found,) = node.audited()
    assert ("nft " if "filter" in what else "ip rule del prio 9") in found.next
    node.host_reconciler.run_due(is_by_clock=True)
    subject = "other software" if "filter" in what else "node routing"
    assert found.text in node.health.conditions_by_subject()[subject]
    node.world.host.sh(undoes)
    node.host_reconciler.reconcile()  # the kernel announces rules and nftables: the next pass reads them
    assert (reaches(node, made.address), node.audited(), node.health.conditions()) == (True, (), [])


@pytest.mark.parametrize("what", OURS)
def test_what_is_ours_is_put_back(node, what):
    """Found though nothing was announced, and packets flow again."""
    _, made = node.attach()
    for _ in range(2):
        node.host_reconciler.run_due(is_by_clock=True)
    assert reaches(node, made.address)
    node.world.host.sh(node.world.words(OURS[what].format(ip=made.address, veth=made.host_veth)))
    assert reaches(node, made.address, expected=what in PASSES) == (what in PASSES)
    found = node.audited()
    assert {one.subject for one in found} == {str(made.address)}, found
    assert all("repairs it" in one.next for one in found), found
    for _ in range(SURVEY_TURNS):
        node.host_reconciler.run_due(is_by_clock=True)
    assert (node.audited(), node.check(), condition(node)) == ((), "", "")
    assert reaches(node, made.address)


@pytest.mark.parametrize("what", INSIDE)
def test_what_is_wrong_inside_is_in_status(node, what):
    """What a sandbox did to itself is left as it is, and named."""
    pod, made = node.attach()
    node.host_reconciler.run_due(is_by_clock=True)
    pod.sh(node.world.words(INSIDE[what].format(ip=made.address)))
    node.host_reconciler.run_due(is_by_clock=True)
    assert str(made.key) in condition(node)
    assert {one.subject for one in node.audited()} == {"network", str(made.address)}


def test_a_host_veth_that_was_moved_away_is_in_status(node):
    """Into another namespace: the interface inside is as before, so nothing else shows that packets cannot come."""
    _, made = node.attach()
    node.host_reconciler.run_due(is_by_clock=True)
    thief = node.world.space()
    node.world.host.sh(f"ip link set {made.host_veth} netns {thief.path}")
    node.host_reconciler.run_due(is_by_clock=True)
    assert str(made.key) in condition(node)
    assert "network" in {one.subject for one in node.audited()}
    node.delete(made.key.container_id)
    node.host_reconciler.run_due(is_by_clock=True)
    assert condition(node) == ""


def test_own_routes_inside_are_no_condition(node):
    """A kill switch or a smaller MTU is the sandbox's own: audit names it, packets arrive, and status has nothing to say."""
    pod, made = node.attach()
    pod.sh(node.world.words("ip route del default; ip link set eth0 mtu 1400"))
    node.host_reconciler.run_due(is_by_clock=True)
    assert condition(node) == ""
    assert [one.subject for one in node.audited()] == [str(made.address)]
