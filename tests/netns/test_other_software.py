"""What other software on the node does to forwarded traffic is found, named with a command, and that command mends it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tracemalloc
from collections import Counter
from ipaddress import ip_address

import pytest

from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.kernel.other_software import LegacyTables, OtherSoftware
from ipamd.model.family import IPV4, IPV6
from ipamd.model.kernel import NODE, NOT_REPAIRED
from ipamd.report.audit import _of_routing
from lab.node.felix import Workload, iptables_rules, nft_rules
from lab.vpc.family import FAMILIES
from tests.netns.conftest import EACH_FAMILY_HEAVY_IPV6
from tests.netns.test_host_network import udp_peer

pytestmark = pytest.mark.privileged

IPTABLES = ("iptables-nft", "iptables-legacy")
BOTH = (*IPTABLES, "ip6tables-nft", "ip6tables-legacy")
KUBE_PROXY = """
{t} -N KUBE-FORWARD; {t} -A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
{t} -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
{t} -A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
{t} -A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
"""
DOCKER = """
{t} -P FORWARD DROP
{t} -N DOCKER-USER; {t} -N DOCKER; {t} -A FORWARD -j DOCKER-USER; {t} -A DOCKER-USER -j RETURN
{t} -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
{t} -A FORWARD -o docker0 -j DOCKER
{t} -A FORWARD -i docker0 ! -o docker0 -j ACCEPT
{t} -A FORWARD -i docker0 -o docker0 -j ACCEPT
"""
FIREWALLD = """
table inet firewalld {
  chain filter_FORWARD {
    type filter hook forward priority filter + 10; policy drop;
    ct state { established, related } accept
    ct status dnat accept
    iifname "lo" accept
    jump filter_FORWARD_ZONES
    ct state invalid drop
    reject with icmpx admin-prohibited
  }
  chain filter_FORWARD_ZONES { iifname "eth0" goto filter_FWD_public; goto filter_FWD_public; }
  chain filter_FWD_public { jump filter_FWD_public_allow; meta l4proto icmp accept; }
  chain filter_FWD_public_allow { oifname "eth0" ct state new tcp dport 443 accept; }
}
"""
LEFTOVERS = """
{t} -t nat -N AWS-SNAT-CHAIN-0
{t} -t nat -A POSTROUTING -m comment --comment "AWS SNAT CHAIN" -j AWS-SNAT-CHAIN-0
{t} -t nat -A AWS-SNAT-CHAIN-0 -d 10.0.0.0/16 -m comment --comment "AWS SNAT CHAIN" -j RETURN
{t} -t nat -A AWS-SNAT-CHAIN-0 ! -o vlan+ -m comment --comment "AWS, SNAT" -m addrtype ! --dst-type LOCAL -j SNAT --to-source 10.0.0.10
{t} -t nat -N AWS-CONNMARK-CHAIN-0
{t} -t nat -A PREROUTING -i eni+ -m comment --comment "AWS, outbound connections" -j AWS-CONNMARK-CHAIN-0
{t} -t nat -A AWS-CONNMARK-CHAIN-0 -d 10.0.0.0/16 -j RETURN
{t} -t nat -A AWS-CONNMARK-CHAIN-0 -j CONNMARK --set-xmark 0x80/0x80
"""


def run(world, script, tool):
    """Run a script of iptables commands on the host, or skip where the tool or its kernel part is missing."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    if world.host.call(
        lambda: subprocess.run([tool, "-t", "nat", "-S"], capture_output=True, timeout=120, check=False)
    ).returncode:
        pytest.skip(f"{tool} does not work on this kernel")
    world.host.sh(f"set -e; {script.format(t=tool)}")


def found(world, prefix="eni", families=(IPV4, IPV6)):
    """What is found, as text; of a node whose sandboxes have egress, unless a test says otherwise."""
    looker = OtherSoftware(world.netns, world.nft, veth_prefix=prefix, families=lambda: families)
    return [str(one) for one in looker.find("eth0")]


def mend(world, sentence):
    """Run the command that a sentence tells."""
    command = sentence.partition("to mend it: ")[2]
    world.host.sh("set -e; " + re.sub(r"^remove the DaemonSet aws-node, then: ", "", command))


def test_nothing_is_found_on_a_plain_node(world):
    """No table, no finding; our own table is none either."""
    assert found(world) == []
    world.fabric()
    world.hostnet.setup_node(world.identity())
    assert found(world) == []


@pytest.mark.parametrize("tool", BOTH)
def test_docker_beside_kube_proxy(world, tool):
    """FORWARD with policy DROP: both directions are named, and the told command ends it."""
    run(world, KUBE_PROXY, tool)
    assert found(world) == []
    run(world, DOCKER, tool)
    (sentence,) = found(world)
    assert "FORWARD" in sentence
    assert "from sandboxes and to sandboxes" in sentence
    of, other = (IPV6, IPV4) if tool.startswith("ip6") else (IPV4, IPV6)
    assert (found(world, families=(of,)), found(world, families=(other,))) == ([sentence], []), "one that no sandbox speaks"
    mend(world, sentence)
    assert found(world) == []


@pytest.mark.parametrize("tool", BOTH)
def test_only_what_is_certain_is_told(world, tool):
    """A rule that may accept sandboxes' addresses, and one direction that is accepted, are not called dead (I11)."""
    pods = "2001:db8:1::/64" if tool.startswith("ip6") else "10.0.0.0/16"
    run(world, f"{{t}} -P FORWARD DROP; {{t}} -A FORWARD -s {pods} -j ACCEPT; {{t}} -A FORWARD -d {pods} -j ACCEPT", tool)
    assert found(world) == []
    run(world, "{t} -F FORWARD; {t} -A FORWARD -i eni+ -j ACCEPT; {t} -A FORWARD ! -i eni+ -p tcp --dport 80 -j ACCEPT", tool)
    (sentence,) = found(world)
    assert "drops what is forwarded to sandboxes" in sentence
    run(world, "{t} -F FORWARD; {t} -N ALL; {t} -A ALL -j ACCEPT; {t} -A FORWARD ! -i docker0 -g ALL", tool)
    assert found(world) == []
    run(world, "{t} -P FORWARD ACCEPT; {t} -F FORWARD; {t} -A FORWARD -m conntrack --ctstate INVALID -j DROP", tool)
    assert found(world) == []
    run(world, "{t} -A FORWARD -j REJECT", tool)
    assert len(found(world)) == 1


def test_firewalld(world):
    """Its forward chain ends in a reject for what no zone accepts."""
    world.host.call(lambda: subprocess.run(["nft", "-f", "-"], input=FIREWALLD, text=True, timeout=120, check=True))
    (sentence,) = found(world)
    assert "inet firewalld filter_FORWARD" in sentence
    assert "firewall-cmd" in sentence
    world.host.sh("nft insert rule inet firewalld filter_FORWARD_ZONES iifname '\"eni*\"' accept")
    (sentence,) = found(world)
    assert "forwarded to sandboxes" in sentence
    world.host.sh("nft insert rule inet firewalld filter_FWD_public oifname '\"eni*\"' accept")
    assert found(world) == []


WORKLOADS = {"eni0d7763386da": Workload(ip_address("10.0.0.5"))}


def by_calico(world, tool):
    """Have Calico's chains for one sandbox; "nft" for its own tables, of both families."""
    if tool == "nft":
        argv, script = ["nft", "-f", "-"], "".join(nft_rules(family, WORKLOADS) for family in FAMILIES)
    else:
        argv, script = [f"{tool}-restore", "--noflush"], iptables_rules(WORKLOADS)
    world.host.call(lambda: subprocess.run(argv, input=script, text=True, timeout=120, check=True))


@pytest.mark.parametrize("tool", BOTH)
def test_calico_by_iptables_is_no_obstacle(world, tool):
    """It decides about each sandbox, and drops links that it does not know: what drops besides is still named."""
    run(world, ":", tool)
    by_calico(world, tool)
    assert found(world) == []
    run(world, "{t} -I FORWARD -o eni+ -j DROP", tool)
    (sentence,) = found(world)
    assert "drops what is forwarded to sandboxes" in sentence


@pytest.mark.parametrize("family", ["ip", "ip6"])
def test_calico_by_nft_is_no_obstacle(world, family):
    """The same in its own tables."""
    by_calico(world, "nft")
    assert found(world) == []
    world.host.sh(f"nft insert rule {family} calico filter-FORWARD drop")
    (sentence,) = found(world)
    assert "from sandboxes and to sandboxes" in sentence


def test_another_table(world):
    """For a filter of an administrator the command is in nft's own words, and it works."""
    world.host.sh(
        "nft add table inet my; nft add chain inet my forwarded '{ type filter hook forward priority 0; policy drop; }'"
    )
    (sentence,) = found(world)
    mend(world, sentence)
    assert found(world) == []


@pytest.mark.parametrize("tool", IPTABLES)
def test_leftovers_of_the_incumbent(world, tool):
    """Its SNAT and connmark chains are named until they are flushed; an empty chain does no harm."""
    run(world, LEFTOVERS, tool)
    sentences = found(world)
    named = sorted(re.search(r"AWS-[A-Z]+-CHAIN-0", one).group() for one in sentences)
    assert named == ["AWS-CONNMARK-CHAIN-0", "AWS-SNAT-CHAIN-0"]
    assert all(tool in one for one in sentences)
    for sentence in sentences:
        mend(world, sentence)
    assert found(world) == []


def test_leftover_table_of_the_incumbent(world):
    """Where iptables is iptables-nft its connection marks are a table of its own."""
    world.host.sh("nft add table ip aws-cni; nft add chain ip aws-cni snat-mark")
    (sentence,) = found(world)
    mend(world, sentence)
    assert found(world) == []


def test_status_and_audit_name_it(world):
    """The reconciler's sentence becomes a condition, the audit's finding has the command; both end when it is mended."""
    world.fabric()
    world.hostnet.setup_node(world.identity())
    world.host.sh("iptables-nft -P FORWARD DROP")
    (said,) = world.hostnet.reconcile(identity=world.identity(), enis=[])
    assert NOT_REPAIRED in said
    assert world.hostnet.filtered() == {NODE}
    assert "iptables-nft -t filter -I FORWARD -i eni+ -j ACCEPT" in said
    (difference,) = world.hostnet.differences(identity=world.identity(), enis=[])
    assert (difference.is_repaired, difference.is_cut) == (False, True)
    finding = _of_routing(difference, Counter())
    assert finding.next == f"it is not ours; to mend it: {difference.mend}"
    mend(world, said)
    assert world.hostnet.reconcile(identity=world.identity(), enis=[]) == []
    assert world.hostnet.filtered() == frozenset()
    assert world.hostnet.differences(identity=world.identity(), enis=[]) == []


WHOSE = {
    "ip saddr 10.0.0.5 drop": "address",
    "oifname eni* ip daddr 10.0.0.5 drop": "address",
    "ip saddr { 10.0.0.5, 192.0.2.9 } drop": "address",
    "iifname VETH drop": "VETH",
    "iifname VETH ct state new drop": "VETH",
    "iif VETH drop": "VETH",
    "oif VETH drop": "VETH",
    "iifname eth0 ip daddr NETWORK drop": "",
    "oifname eth0 ip daddr NETWORK drop": "",
    "ip daddr { NETWORK, ELSEWHERE } drop": "",
    "ip saddr 192.0.2.9 accept; add rule inet mine out ip saddr NETWORK drop": "",
    "ct state new,invalid drop": NODE,
    "ip daddr ELSEWHERE drop": "",
    "ip daddr 10.0.0.5 tcp dport 22 drop": "",
    "ct state invalid ip saddr 10.0.0.5 drop": "",
    "ip saddr 192.0.2.9 ip daddr 10.0.0.5 drop": "",
    "ip saddr != NETWORK ip daddr 10.0.0.5 drop": "",
    "iifname docker0 ip daddr 10.0.0.5 drop": "",
    "iifname docker0 ip daddr NETWORK drop": "",
    "iifname VETH tcp dport 25 drop": "",
}
"""Rules, and whose packets they drop, all of them: a sandbox's by its address or veth, or nobody's."""


@EACH_FAMILY_HEAVY_IPV6
@pytest.mark.parametrize("rule", WHOSE)
def test_whose_packets_are_dropped(world, rule):
    """One sandbox is told for itself, and is cut off; a prefix may be meant, so nobody is. What takes a part blames nobody."""
    world.fabric()
    spec = world.spec(world.space())
    world.wiring.wire(spec)
    hostnet = KernelHostNetwork(world.netns, config=world.config, nft=world.nft, attachments=lambda: [spec])
    hostnet.setup_node(world.identity())
    network, elsewhere = (
        ("10.0.0.0/24", "192.0.2.0/24") if world.family is IPV4 else (f"{world.address(0)}/80", "2001:db8:9::/64")
    )
    names = {"10.0.0.5": str(spec.address), "VETH": spec.host_veth, "NETWORK": network, "ELSEWHERE": elsewhere}
    rule, expected = world.words(rule), WHOSE[rule].replace("address", "10.0.0.5")
    for word, name in names.items():
        rule, expected = rule.replace(word, name), expected.replace(word, name)
    script = "add table inet mine; add chain inet mine out { type filter hook forward priority 10; }; add rule inet mine out "
    world.host.call(lambda: subprocess.run(["nft", script + rule], timeout=120, check=True))
    hostnet.reconcile(identity=world.identity(), enis=[], addresses=[spec.address])
    found = [
        one for one in hostnet.differences(identity=world.identity(), enis=[], addresses=[spec.address]) if "mine" in one.what
    ]
    assert [(one.subject, one.is_cut) for one in found] == ([(expected, True)] if expected else [])
    assert hostnet.filtered() == {one.subject for one in found}


def test_faults_of_the_host_are_differences(world):
    """What CHECK names: forwarding off, our table gone, a rule and an ENI's table gone."""
    world.fabric()
    world.hostnet.setup_node(world.identity())
    world.hostnet.setup_eni(world.eni())
    assert world.hostnet.differences(identity=world.identity(), enis=[world.eni()]) == []
    world.host.sh(
        "sysctl -qw net.ipv4.ip_forward=0; nft delete table ip vpc-ipamd; ip rule del prio 1024; ip route flush table 2"
    )
    found = "; ".join(one.what for one in world.hostnet.differences(identity=world.identity(), enis=[world.eni()]) if one.is_cut)
    for part in (
        "ip_forward was 0",
        "nftables table vpc-ipamd was missing",
        "rule 1024 fwmark 0x80/0x80 lookup main was missing",
        "table 2 of eni-2",
    ):
        assert part in found


def test_packets_of_branch_enis_keep_their_address(world):
    """What leaves by a link vlan* is not SNATed, as amazon-vpc-cni-k8s exempts it; by any other link it is."""
    world.fabric()
    world.hostnet.setup_node(world.identity())
    outside, sandbox = world.space(), world.space()
    world.wiring.wire(world.spec(sandbox, number=30))
    for link, address in (("vlan.eth.1", "203.0.113.50"), ("other0", "203.0.113.51")):
        outside.sh(
            f"ip link add p-{link} type veth peer name q0;"
            f"ip link set q0 address 02:00:00:00:00:77 name {link} netns /proc/{os.getpid()}/fd/{world.host.fd};"
            f"ip addr add {address}/32 dev p-{link}; ip link set p-{link} up;"
        )
        world.host.sh(
            f"ip link set {link} up; ip rule add prio 100 to {address} lookup 77; ip route add {address} dev {link} table 77"
        )
        for peer in ("10.0.0.10", "10.0.0.30"):  # a VPC delivers without asking
            outside.sh(f"ip route replace {peer}/32 dev p-{link}; ip neigh replace {peer} dev p-{link} lladdr 02:00:00:00:00:77")
        assert udp_peer(outside, address, sandbox) == ("10.0.0.30" if link.startswith("vlan") else "10.0.0.10")


def test_a_second_look_lists_nothing(world, monkeypatch):
    """While no rule changes, nothing is listed; any change of any table makes it look again."""
    world.host.sh("iptables-nft -P FORWARD DROP")
    looker = OtherSoftware(world.netns, world.nft, veth_prefix="eni")
    first = looker.find("eth0")
    assert len(first) == 1
    asked = []
    real = world.nft.query
    monkeypatch.setattr(world.nft, "query", lambda command: (asked.append(command), real(command))[1])
    assert looker.find("eth0") == first
    assert asked == []
    world.host.sh("nft add table ip another")
    assert looker.find("eth0") == first
    assert asked
    world.host.sh("iptables-nft -P FORWARD ACCEPT")
    assert looker.find("eth0") == []


def test_a_large_table_of_others_costs_no_memory(world):
    """kube-proxy's nat table may have 25 MB: it is searched where the kernel put it, and nothing of it is copied or kept."""
    run(world, "{t} -t nat -N KUBE-SVC", "iptables-legacy")
    rules = [f'-A KUBE-SVC -d 10.1.{n >> 8}.{n & 255}/32 -m comment --comment "ns/svc:{n}" -j RETURN' for n in range(5000)]
    world.host.call(
        lambda: subprocess.run(
            ["iptables-legacy-restore", "--noflush"],
            input="\n".join(["*nat", *rules, "COMMIT", ""]).encode(),
            timeout=120,
            check=True,
        )
    )
    tables = LegacyTables(world.netns)
    tracemalloc.start()
    try:
        assert [table.name for table in tables.read() if table.name == "nat"] == []
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200_000 < len(rules) * 300, "less than its rules take"
    assert kept < 50_000
    run(world, "{t} -t nat -N AWS-SNAT-CHAIN-0; {t} -t nat -A AWS-SNAT-CHAIN-0 -j RETURN", "iptables-legacy")
    (table,) = [table for table in tables.read() if table.name == "nat"]
    assert (len(table.chains["AWS-SNAT-CHAIN-0"]), len(table.chains["KUBE-SVC"])) == (2, 5001)


SERVICES = """
{t} -N KUBE-EXTERNAL-SERVICES; {t} -A FORWARD -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
{t} -A KUBE-EXTERNAL-SERVICES -d 172.20.0.10/32 -p udp -m comment --comment "has no endpoints" -m udp --dport 53 -j REJECT
"""


@pytest.mark.parametrize("tool", IPTABLES)
@pytest.mark.parametrize(
    ("rule", "ways"),
    [
        ("-p udp --dport 53 -j DROP", "from sandboxes and to sandboxes"),
        ("-i eni+ -p udp --dport 50:60 -j REJECT", "from sandboxes"),
        ("-o eni+ -p udp -j DROP", "to sandboxes"),
    ],
)
def test_a_filter_that_drops_dns_alone_is_named(world, tool, rule, ways):
    """Beside kube-proxy's and Calico's rules, of which none is blamed; it does not count as one that cuts sandboxes off."""
    run(world, KUBE_PROXY + SERVICES, tool)
    by_calico(world, tool)
    assert found(world) == []
    run(world, f"{{t}} -I FORWARD {rule}", tool)
    (sentence,) = found(world)
    assert f"drops DNS queries (UDP port 53) {ways}" in sentence
    listed = re.search(r"to mend it: (.*), and delete", sentence).group(1)
    assert "udp" in world.host.sh(listed)
    looker = OtherSoftware(world.netns, world.nft, veth_prefix="eni")
    assert [one.is_cut for one in looker.find("eth0")] == [False]
    run(world, f"{{t}} -D FORWARD {rule}", tool)
    assert found(world) == []


@pytest.mark.parametrize("tool", IPTABLES)
@pytest.mark.parametrize(
    "rule",
    [
        "-p tcp --dport 25 -j DROP",
        "-p udp --dport 54 -j DROP",
        "-p udp ! --dport 53 -j DROP",
        "-p udp --sport 53 -j DROP",
        "! -p udp -j DROP",
        "-d 10.1.0.0/16 -p udp --dport 53 -j DROP",
        "-p udp --dport 53 -m mark --mark 0x9 -j DROP",
        "-i docker0 -p udp --dport 53 -j DROP",
    ],
)
def test_what_drops_no_or_some_dns_queries_is_not_blamed(world, tool, rule):
    """Other ports and single addresses may be meant; what a mark chooses is not known."""
    run(world, f"{{t}} -I FORWARD {rule}", tool)
    assert found(world) == []
    run(world, "{t} -I FORWARD -d 169.254.20.10 -p udp --dport 53 -j ACCEPT; {t} -A FORWARD -p udp --dport 53 -j DROP", tool)
    assert found(world) == [], "what leads all queries to a cache on the node means it"


@pytest.mark.parametrize(
    ("rule", "is_blamed"),
    [
        ("udp dport 53 drop", True),
        ("udp dport { 53, 5353 } drop", True),
        ("udp dport 50-60 drop", True),
        ("meta l4proto { tcp, udp } th dport 53 drop", True),
        ("meta l4proto udp reject", True),
        ("ct state established accept; add rule inet my out udp dport 53 drop", True),
        ("ct state new accept; add rule inet my out udp dport 53 drop", False),
        ("tcp dport 53 drop", False),
        ("udp dport != 53 drop", False),
        ("udp dport @ports drop", False),
        ("udp dport { 54, 5353 } drop", False),
        ("ip daddr 10.0.0.2 udp dport 53 drop", False),
        ("udp dport 53 limit rate over 10/second drop", False),
        ("meta mark 1 return; add rule inet my out udp dport 53 drop", False),
        ("tcp dport 80 accept; add rule inet my out udp dport 53 drop", True),
    ],
)
@pytest.mark.parametrize("hook", ["prerouting", "forward"])
def test_dns_in_nftables_words(world, rule, is_blamed, hook):
    """Sets, ranges and negations are read; what is not known is not blamed."""
    script = (
        f"add table inet my\nadd set inet my ports {{ type inet_service; }}\n"
        f"add chain inet my out {{ type filter hook {hook} priority 0; }}\nadd rule inet my out {rule}\n"
    ).replace("; add rule", "\nadd rule")
    world.host.call(lambda: subprocess.run(["nft", "-f", "-"], input=script, text=True, timeout=120, check=True))
    assert [("drops DNS queries" in one) for one in found(world)] == [True] * is_blamed


@pytest.mark.parametrize("hooked", ["netdev", "inet"])
@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ("device eth0", [(NODE, "eth0", True)]),
        ("device docker0", [(NODE, "docker0", False)]),
        ("device VETH", [("VETH", "VETH", True)]),
        ("devices = { docker0, VETH }", [(NODE, "docker0", False), ("VETH", "VETH", True)]),
    ],
)
def test_whom_a_drop_on_a_device_cuts_off(world, hooked, devices, expected):
    """All by the node's own link, one by its veth; by another device nobody: it is named, and no pod is called cut off for it."""
    world.fabric()
    spec = world.spec(world.space())
    world.wiring.wire(spec)
    world.hostnet.setup_node(world.identity())
    world.host.sh("ip link add docker0 type bridge")
    devices = devices.replace("VETH", spec.host_veth)
    chain = f"chain y {{ type filter hook ingress {devices} priority 0; drop; }}"
    world.host.call(lambda: subprocess.run(["nft", f"table {hooked} x {{ {chain}; }}"], timeout=120, check=True))
    world.hostnet.reconcile(identity=world.identity(), enis=[])
    found = [one for one in world.hostnet.differences(identity=world.identity(), enis=[]) if " x y " in one.what]
    told = sorted((one.subject, one.what.split()[-1], one.is_cut) for one in found)
    assert told == sorted(tuple(spec.host_veth if part == "VETH" else part for part in one) for one in expected)
    cut = {subject for subject, _, is_cut in told if is_cut}
    assert world.hostnet.filtered() == cut
