"""What a sandbox sends and goes nowhere: packets with a false source, and what would change the routing of the node or of others.

Node and fabric are looked at together: most false sources never leave the node; the others are dropped at the ENI's port.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address

import pytest

from lab.fabric import forge
from lab.fabric.netns import run_inside
from lab.node.kernel_view import read_kernel
from lab.vpc.family import IPV6
from lab.vpc.model import Address
from tests.lab.packets.ground import NODES, PODS, Ground, ground

pytestmark = pytest.mark.privileged

SILENT_S = 0.3
SENDERS = ("pod-a", "pod-a-eth1")
TARGETS = ("pod-a-too", "pod-b", "pod-b-eth1", "node-a", "node-b", "host-a", "outside")
BEHIND = [(), (forge.HOP_BY_HOP, forge.DESTINATION_OPTIONS), (forge.FRAGMENT, forge.DESTINATION_OPTIONS)]
"""Extension headers of IPv6. The other way round connection tracking alone, without anything of ours, makes the kernel drop what is
for the node itself (6.18, Ip6InHdrErrors)."""

FALSE_SOURCES = (*PODS, *NODES, "host-a", "outside", "nobody", "metadata", "loopback")
"""Of sandboxes on the same ENI, another ENI and another node; of nodes, the VPC and the world; of nobody."""


THEIR_MARK = """
table ip theirs {
  chain before_routing {
    type filter hook prerouting priority -140;
    iifname "eni*" meta mark set meta mark | 0x80
  }
}
"""
"""Another agent that takes the bit for its own."""


@pytest.fixture(scope="module", params=["secondary", "ipv6"])
def small(request: pytest.FixtureRequest) -> Iterator[Ground]:
    """A ground with few sandboxes; wiring does not differ between pool modes of one family."""
    with ground(request.param) as found:
        yield found


@pytest.fixture
def of_ipv4(small: Ground) -> Ground:
    """The one of IPv4."""
    if small.family is IPV6:
        pytest.skip("of IPv4 alone")
    return small


@pytest.fixture
def of_ipv6(small: Ground) -> Ground:
    """The one of IPv6."""
    if small.family is not IPV6:
        pytest.skip("of IPv6 alone")
    return small


def set_on_host_veths(small: Ground, rp_filter: str) -> None:
    """Write rp_filter of every host veth of node-a."""
    node = small.rigs["node-a"].node
    node.netns.sysctl({f"ipv4/conf/{veth.name}/rp_filter": rp_filter for veth in read_kernel(node).veths})


def source_of(small: Ground, name: str) -> Address:
    """The address that a name of FALSE_SOURCES stands for."""
    known = ("fd00:ec2::254", "::1") if small.family is IPV6 else ("169.254.169.254", "127.0.0.1")
    special = {"nobody": small.unassigned(), "metadata": ip_address(known[0]), "loopback": ip_address(known[1])}
    return special.get(name) or small.addresses[name]


@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("way", range(3))
def test_a_false_source_goes_nowhere(small: Ground, sender: str, way: int) -> None:
    """Of all packets that a sandbox sends as somebody else none arrives, on its node, across nodes or outside; its own do.

    Whatever systemd or an administrator set on the host veths since: 2 is what udev leaves on Amazon Linux. Of IPv6 also behind
    extension headers.
    """
    rp_filter, behind = ("1", BEHIND[way]) if small.family is IPV6 else ("120"[way], ())
    set_on_host_veths(small, rp_filter)
    numbers = {}
    for source in FALSE_SOURCES:
        for target in TARGETS:
            numbers[source, target] = question = f"{sender} as {source} to {target}, {rp_filter} {behind}".encode()
            ends = {"source": source_of(small, source), "target": small.addresses[target]}
            forge.udp(small.paths[sender], **ends, payload=question, behind=behind)
    # What a sandbox sends later arrives later: when these have been heard, the false ones have had their time.
    for target in TARGETS:
        assert small.ask(sender, target) is not None
    heard = {pair: small.servers.who_heard(question) for pair, question in numbers.items()}
    own = {(sender, target): [target] for target in TARGETS}
    assert {pair: names for pair, names in heard.items() if names} == own


PARTS = ((0, 16), (16, 32), (32, 48))
FORGED_PARTS = (*PARTS, (8, 24), (24, 48))
"""Of a datagram of 48 bytes, header included; the last two overlap honest fragments."""

FORGERIES = [(part, step, place) for part in FORGED_PARTS for step in (1, -1) for place in range(len(PARTS) + 1)]
"""What is forged; in which order the honest fragments come; how many of them before the forged one."""


@pytest.mark.parametrize(
    ("victim", "target", "attacker"),
    [
        ("pod-a", "pod-a-eth1", "pod-a-too"),
        ("pod-a", "node-a", "pod-a-eth1"),
        ("pod-a", "pod-b", "pod-a-too"),
        ("pod-a", "pod-b", "pod-b-eth1"),
        ("pod-a-eth1", "pod-b-eth1", "pod-a"),
        ("pod-a-eth1", "node-b", "pod-b"),
        ("pod-a", "outside", "pod-a-eth1"),
    ],
)
def test_a_forged_fragment_joins_no_datagram(small: Ground, victim: str, target: str, attacker: str) -> None:
    """I16: another sandbox's datagram arrives as it was sent, on a node and across; the attacker's own node drops each forged one."""
    assert small.ask(victim, target) is not None  # neighbours are known
    ends = {"source": small.addresses[victim], "target": small.addresses[target]}
    before = dropped_sources(small, small.node_of(attacker))
    sent = {}
    for number, (part, step, place) in enumerate(FORGERIES, 1):
        # The number tells datagrams apart, and the words what came of which sandbox.
        honest, forged = (f"{word} {victim} {target} {attacker}, {number}".encode()[-40:].rjust(40) for word in ("true", "false"))
        sent[number] = honest
        pieces = [(victim, honest, each) for each in PARTS[::step]]
        for sender, payload, each in (*pieces[:place], (attacker, forged, part), *pieces[place:]):
            forge.udp_fragment(small.paths[sender], **ends, payload=payload, part=each, number=number)
    assert small.ask(victim, target) is not None
    heard = {number: small.servers.who_heard(honest) for number, honest in sent.items()}
    assert {number: names for number, names in heard.items() if names != [target]} == {}
    assert dropped_sources(small, small.node_of(attacker)) - before == len(FORGERIES)


def dropped_sources(small: Ground, node: str) -> int:
    """How many packets a node dropped for their source."""
    command = f"nft -j list counter {small.family.nft} vpc-ipamd-confine dropped_source"
    listed = json.loads(inside(small.paths[node], command))["nftables"]
    return next(int(one["counter"]["packets"]) for one in listed if "counter" in one)


@pytest.mark.parametrize("sender", SENDERS)
def test_a_router_advertisement_changes_nothing(small: Ground, sender: str) -> None:
    """CVE-2020-10749: the node takes neither a route nor an address from a sandbox that says it is a router."""
    path = small.paths["node-a"]
    before = inside(path, "ip -6 route show default")
    assert bool(before) == (small.family is IPV6)
    forge.router_advertisement(small.paths[sender], link="eth0", prefix=IPv6Address("2001:db8::"))
    time.sleep(SILENT_S)  # the kernel takes one at once, and tells nobody that it did not
    assert inside(path, "ip -6 route show default") == before
    assert "2001:db8" not in inside(path, "ip -6 address")


@pytest.mark.parametrize("sender", SENDERS)
def test_a_claim_of_an_address_changes_nothing(of_ipv6: Ground, sender: str) -> None:
    """A sandbox that says it has the address of another one, of a node or of the router: nobody believes it."""
    small = of_ipv6
    path, router = small.paths["node-a"], IPv6Address("fe80:ec2::1")
    for target in TARGETS:
        assert small.ask("node-a", target) is not None
    macs = "ip -6 -o neigh show nud all"
    before = sorted(re.findall(r"(\S+ dev \S+ lladdr \S+)", inside(path, macs)))
    assert any(str(router) in line for line in before), before
    names = [name for name in (*PODS, *NODES, "host-a") if name != sender]
    for of in (router, *(IPv6Address(str(small.addresses[name])) for name in names)):
        for target in ("node-a", "pod-a-too", "pod-b"):
            forge.neighbour_claim(small.paths[sender], link="eth0", target=IPv6Address(str(small.addresses[target])), of=of)
    for target in TARGETS:
        assert small.ask(sender, target) is not None
        assert small.ask("node-a", target) is not None
    assert sorted(re.findall(r"(\S+ dev \S+ lladdr \S+)", inside(path, macs))) == before


@pytest.mark.parametrize("sender", SENDERS)
def test_a_redirect_changes_nothing(small: Ground, sender: str) -> None:
    """A sandbox that says it is the node's router leads none of the node's traffic to another host.

    On a node that would follow: the kernel turns accept_redirects off when it begins to forward, and others turn it on again.
    """
    set_on_host_veths(small, "0")
    version = small.family.version
    small.rigs["node-a"].node.netns.sysctl({f"ipv{version}/conf/{name}/accept_redirects": "1" for name in ("all", "eth0")})
    router: Address = small.lab.vpc.enis_of(small.rigs["node-a"].node.instance_id)[0].subnet_cidr.network_address + 1
    router = IPv6Address("fe80:ec2::1") if small.family is IPV6 else router
    victim, target, other = (small.addresses[name] for name in ("node-a", "host-a", "node-b"))
    assert small.ask("node-a", "node-b") is not None  # only a known neighbour is accepted as the new way
    way = f"ip -{version} route get {target}"
    before = inside(small.paths["node-a"], way)
    forge.redirect(small.paths[sender], source=router, target=victim, of=target, to=other)
    assert small.ask(sender, "node-a") is not None
    assert inside(small.paths["node-a"], way) == before


def test_others_who_use_our_mark_lead_packets_to_the_wrong_eni(of_ipv4: Ground) -> None:
    """Bit 0x80 means the primary ENI, whoever sets it: EC2 drops what a sandbox of the other one sends then, and nothing else."""
    small = of_ipv4
    netns, address = small.rigs["node-a"].node.netns, small.addresses["pod-a-eth1"]
    assert small.ask("pod-a-eth1", "host-a") is not None
    netns.tool(["nft", "-f", "-"], script=THEIR_MARK)
    try:
        assert small.ask("pod-a-eth1", "host-a", timeout_s=SILENT_S) is None
        assert small.lab.fabric.dropped(address) > 0
        assert small.ask("pod-a", "host-a") is not None
    finally:
        netns.tool(["nft", "delete", "table", "ip", "theirs"])
    assert small.ask("pod-a-eth1", "host-a") is not None


def inside(path: str, command: str) -> str:
    """What a command prints in a namespace, but for how long it holds yet."""
    done = run_inside(path, lambda: subprocess.run(command.split(), capture_output=True, text=True, check=True, timeout=120))
    return re.sub(r" expires \d+sec", "", done.stdout)
