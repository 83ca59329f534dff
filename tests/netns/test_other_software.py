"""What other software on the node may do to forwarded traffic is named with a command, and that command mends it.

A suspicion is never told as a sandbox without network.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections import Counter
from ipaddress import ip_address

import pytest

from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.kernel.other_software import OtherSoftware
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.family import IPV4, IPV6
from ipamd.model.repairs import NODE
from ipamd.report.audit_host import _routing_finding
from lab.node.felix import Workload, iptables_rules, nft_rules
from lab.vpc.family import FAMILIES
from tests.netns.conftest import EACH_FAMILY_HEAVY_IPV6
from tests.netns.test_host_network import udp_peer

pytestmark = pytest.mark.privileged

BOTH = ("iptables-nft", "ip6tables-nft")
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
    """What is found; of a node whose sandboxes have egress, unless a test says otherwise."""
    looker = OtherSoftware(world.netns, world.nft, veth_prefix=prefix, families=lambda: families)
    return looker.find()


def mend(world, difference):
    """Run the command that ends a difference."""
    world.host.sh("set -e; " + re.sub(r"^remove the DaemonSet aws-node, then: ", "", difference.mend))


def test_nothing_is_found_on_a_plain_node(world):
    """No table, no finding; our own table is none either."""
    assert found(world) == []
    world.fabric()
    world.hostnet.setup_node(world.identity())
    assert found(world) == []


@pytest.mark.parametrize("tool", BOTH)
def test_docker_beside_kube_proxy(world, tool):
    """FORWARD with policy DROP: the chain is named, and the told command ends it. kube-proxy's rules are no obstacle."""
    run(world, KUBE_PROXY, tool)
    assert found(world) == []
    run(world, DOCKER, tool)
    (difference,) = found(world)
    assert difference.code is DifferenceCode.FILTER_POLICY_DROPS
    assert difference.fields["chain"].endswith("filter FORWARD")
    of, other = (IPV6, IPV4) if tool.startswith("ip6") else (IPV4, IPV6)
    assert (found(world, families=(of,)), found(world, families=(other,))) == ([difference], []), "one that no sandbox speaks"
    mend(world, difference)
    assert found(world) == []


def test_firewalld(world):
    """Its forward chain ends in a reject for what no zone accepts: that rule is named by its handle."""
    world.host.call(lambda: subprocess.run(["nft", "-f", "-"], input=FIREWALLD, text=True, timeout=120, check=True))
    (difference,) = found(world)
    assert (difference.code, difference.fields["chain"]) == (
        DifferenceCode.FILTER_RULE_DROPS_REST,
        "inet firewalld filter_FORWARD",
    )
    assert difference.mend.startswith("firewall-cmd ")
    handle = difference.fields["handle"]
    assert re.search(rf"reject.* # handle {handle}$", world.host.sh("nft -a list chain inet firewalld filter_FORWARD"), re.M)
    world.host.sh("nft insert rule inet firewalld filter_FORWARD_ZONES iifname '\"eni*\"' accept")
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
    (difference,) = found(world)
    assert (difference.code, difference.fields["names"]) == (DifferenceCode.FILTER_RULE_DROPS, "eni*")
    mend(world, difference)
    assert found(world) == []


def test_calico_by_nft_is_no_obstacle(world):
    """The same in its own tables."""
    by_calico(world, "nft")
    assert found(world) == []


def test_another_table(world):
    """For a filter of an administrator the command is in nft's own words, and it works."""
    world.host.sh(
        "nft add table inet my; nft add chain inet my forwarded '{ type filter hook forward priority 0; policy drop; }'"
    )
    (difference,) = found(world)
    mend(world, difference)
    assert found(world) == []


def test_leftovers_of_the_incumbent(world):
    """Its SNAT and connmark chains are named until they are flushed; an empty chain does no harm."""
    run(world, LEFTOVERS, "iptables-nft")
    differences = {difference.code: difference for difference in found(world)}
    assert set(differences) == {DifferenceCode.CHAIN_LEFT_SNAT, DifferenceCode.CHAIN_LEFT_MARKS}
    assert differences[DifferenceCode.CHAIN_LEFT_SNAT].fields["chain"].endswith(" AWS-SNAT-CHAIN-0")
    for difference in differences.values():
        mend(world, difference)
    assert found(world) == []


def test_leftover_table_of_the_incumbent(world):
    """Where iptables is iptables-nft its connection marks are a table of its own."""
    world.host.sh("nft add table ip aws-cni; nft add chain ip aws-cni snat-mark")
    (difference,) = found(world)
    mend(world, difference)
    assert found(world) == []


def test_status_and_audit_name_it(world):
    """What the reconciler keeps becomes a condition of its own, the audit's finding has the command; both end when it is mended. No
    repair is refused for it, and no sandbox counts as cut off: nobody has followed its packets."""
    world.fabric()
    world.hostnet.setup_node(world.identity())
    world.host.sh("iptables-nft -P FORWARD DROP")
    assert world.hostnet.reconcile(identity=world.identity(), enis=[]) == []
    (seen,) = world.hostnet.other_software()
    assert "iptables-nft -I FORWARD -i eni+ -j ACCEPT" in seen.mend
    (difference,) = world.hostnet.differences(identity=world.identity(), enis=[])
    assert difference == seen
    assert (difference.will_be_repaired, difference.loses_packets) == (False, False)
    finding = _routing_finding(difference, Counter())
    assert finding.next == f"it is not ours; to mend it: {difference.mend}"
    mend(world, seen)
    assert world.hostnet.reconcile(identity=world.identity(), enis=[]) == []
    assert world.hostnet.other_software() == ()
    assert world.hostnet.differences(identity=world.identity(), enis=[]) == []


WHOSE = {
    "ip saddr 10.0.0.5 drop": "address",
    "oifname eni* ip daddr 10.0.0.5 drop": "address NODE",
    "ip daddr 10.0.0.5 tcp dport 22 drop": "address",
    "iifname VETH drop": "VETH",
    "iifname VETH tcp dport 25 reject": "VETH",
    "oifname eni* reject": "NODE",
    "ct state new,invalid drop": "",
    "udp dport 53 drop": "",
    "ip daddr ELSEWHERE drop": "",
    "iifname eth0 ip daddr NETWORK drop": "",
    "ip saddr 10.0.0.5 accept": "",
    "iifname docker0 drop": "",
    "ip saddr != 10.0.0.5 ip daddr 192.0.2.9 drop": "",
    "drop": "NODE",
    "iifname VETH accept; add rule inet mine out drop": "",
}
"""Rules, and whom they are suspected for: a sandbox by its address or veth, all of them, or nobody."""


@EACH_FAMILY_HEAVY_IPV6
@pytest.mark.parametrize("rule", WHOSE)
def test_whom_a_rule_is_suspected_for(world, rule):
    """A rule that drops and names a sandbox, whatever else it asks for, with the handle that deletes it; no sandbox is cut off."""
    world.fabric()
    spec = world.spec(world.space())
    world.wiring.wire(spec)
    hostnet = KernelHostNetwork(world.netns, config=world.config, nft=world.nft, attachments=lambda: [spec])
    hostnet.setup_node(world.identity())
    network, elsewhere = (
        ("10.0.0.0/24", "192.0.2.0/24") if world.family is IPV4 else (f"{world.address(0)}/80", "2001:db8:9::/64")
    )
    words = {"10.0.0.5": str(spec.address), "VETH": spec.host_veth, "NETWORK": network, "ELSEWHERE": elsewhere}
    expected = {{"NODE": NODE, "VETH": spec.host_veth, "address": str(spec.address)}[word] for word in WHOSE[rule].split()}
    text = world.words(rule)
    for word, name in words.items():
        text = text.replace(word, name)
    script = "add table inet mine; add chain inet mine out { type filter hook forward priority 10; }; add rule inet mine out "
    world.host.call(lambda: subprocess.run(["nft", script + text], timeout=120, check=True))
    hostnet.reconcile(identity=world.identity(), enis=[], addresses=[spec.address])
    differences = hostnet.differences(identity=world.identity(), enis=[], addresses=[spec.address])
    suspicions = [difference for difference in differences if "mine" in difference.fields.get("chain", "")]
    assert {suspicion.subject for suspicion in suspicions} == expected
    assert not any(suspicion.loses_packets or suspicion.will_be_repaired for suspicion in suspicions)
    if expected and text != "drop":
        world.host.sh(suspicions[0].mend.partition("; ")[2])  # deletes the rule by its handle
        again = hostnet.differences(identity=world.identity(), enis=[], addresses=[spec.address])
        assert not [difference for difference in again if "mine" in difference.fields.get("chain", "")]


def test_faults_of_the_host_are_differences(world):
    """What CHECK names: forwarding off, our table gone, a rule and an ENI's table gone."""
    world.fabric()
    world.hostnet.setup_node(world.identity())
    world.hostnet.setup_eni(world.eni())
    assert world.hostnet.differences(identity=world.identity(), enis=[world.eni()]) == []
    world.host.sh(
        "sysctl -qw net.ipv4.ip_forward=0; nft delete table ip vpc-ipamd; ip rule del prio 1024; ip route flush table 2"
    )
    differences = world.hostnet.differences(identity=world.identity(), enis=[world.eni()])
    items = "; ".join(one.report.target for one in differences if one.loses_packets and one.report)
    for item in (
        "sysctl net/ipv4/ip_forward",
        "nftables table vpc-ipamd",
        "rule 1024 fwmark 0x80/0x80 lookup main",
        "table 2 of eni-2",
    ):
        assert item in items


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
    first = looker.find()
    assert len(first) == 1
    asked = []
    real = world.nft.query
    monkeypatch.setattr(world.nft, "query", lambda command: (asked.append(command), real(command))[1])
    assert looker.find() == first
    assert asked == []
    world.host.sh("nft add table ip another")
    assert looker.find() == first
    assert asked
    world.host.sh("iptables-nft -P FORWARD ACCEPT")
    assert looker.find() == []


@pytest.mark.parametrize("hooked", ["netdev", "inet"])
def test_a_drop_on_a_device_is_named(world, hooked):
    """Whatever device it is on: it is named, and no sandbox is called cut off for it."""
    world.fabric()
    world.hostnet.setup_node(world.identity())
    chain = "chain y { type filter hook ingress device eth0 priority 0; drop; }"
    world.host.call(lambda: subprocess.run(["nft", f"table {hooked} x {{ {chain}; }}"], timeout=120, check=True))
    differences = world.hostnet.differences(identity=world.identity(), enis=[])
    suspicions = [difference for difference in differences if difference.fields.get("chain", "").endswith(" x y")]
    assert [(suspicion.subject, suspicion.loses_packets) for suspicion in suspicions] == [(NODE, False)]


def test_many_rules_of_others_are_looked_at_once(world):
    """A table with 5,000 rules behind a policy of drop is read within a second, and not again while nothing changes."""
    rules = "\n".join(f"add rule inet big out ip daddr 10.{n >> 8}.{n & 255}.1 accept" for n in range(5000))
    script = f"add table inet big\nadd chain inet big out {{ type filter hook forward priority 0; policy drop; }}\n{rules}\n"
    world.host.call(lambda: subprocess.run(["nft", "-f", "-"], input=script, text=True, timeout=120, check=True))
    looker = OtherSoftware(world.netns, world.nft, veth_prefix="eni")
    began = time.process_time()
    assert len(looker.find()) == 1
    first_s = time.process_time() - began
    began = time.process_time()
    assert len(looker.find()) == 1
    assert (first_s, time.process_time() - began) < (1.0, 0.01)
