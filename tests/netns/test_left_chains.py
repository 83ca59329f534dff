"""What amazon-vpc-cni-k8s made in nftables is removed whole, and nothing else; iptables-legacy is left alone."""

from __future__ import annotations

import pytest

from ipamd.model.errors import WiringError
from ipamd.model.failures import FailureCode
from ipamd.model.family import IPV4, IPV6
from ipamd.model.legs.aws_node_extra import egress_chain
from tests.errors import failed
from tests.netns.test_other_software import run

pytestmark = pytest.mark.privileged

LEFT = """
{t} -t nat -N AWS-SNAT-CHAIN-0; {t} -t nat -N AWS-SNAT-CHAIN-1
{t} -t nat -A POSTROUTING -m comment --comment "AWS SNAT CHAIN" -j AWS-SNAT-CHAIN-0
{t} -t nat -A AWS-SNAT-CHAIN-0 ! -d 10.0.0.0/16 -m comment --comment "AWS SNAT CHAIN" -j AWS-SNAT-CHAIN-1
{t} -t nat -A AWS-SNAT-CHAIN-1 ! -o vlan+ -m comment --comment "AWS, SNAT" -m addrtype ! --dst-type LOCAL -j SNAT --to-source 10.0.0.10
{t} -t nat -N AWS-CONNMARK-CHAIN-0
{t} -t nat -A PREROUTING -i eni+ -m comment --comment "AWS, outbound connections" -j AWS-CONNMARK-CHAIN-0
{t} -t nat -A PREROUTING -m comment --comment "AWS, CONNMARK" -j CONNMARK --restore-mark --mask 0x80
{t} -t mangle -A PREROUTING -i eni+ -m comment --comment "AWS, primary ENI" -j CONNMARK --restore-mark --mask 0x80
"""
OTHERS = """
{t} -t nat -A PREROUTING -m comment --comment "AWS, CONNMARK of somebody" -j RETURN
{t} -t nat -A POSTROUTING -s 192.0.2.0/24 -j MASQUERADE
{t} -t mangle -A PREROUTING -p tcp -j CONNMARK --restore-mark --mask 0x80
"""


def saved(world, tool):
    """The rules without their counters."""
    lines = world.host.sh(f"{tool}-save").splitlines()
    return [line.split(" [")[0] for line in lines if line.startswith(("-A", ":")) and "ACCEPT" not in line]


def test_its_rules_go_in_one_transaction_and_others_stay(world):
    """Rules are known by comment and by the chain that they call; the bytes of others' rules do not change."""
    run(world, OTHERS, "iptables-nft")
    before = saved(world, "iptables-nft")
    run(world, LEFT, "iptables-nft")
    world.host.sh("nft 'add table ip aws-cni; add chain ip aws-cni nat-prerouting { type nat hook prerouting priority -90; }'")
    removed = world.hostnet.remove_left_chains(None)
    assert removed == "4 rules of base chains, AWS-CONNMARK-CHAIN-0, AWS-SNAT-CHAIN-0, AWS-SNAT-CHAIN-1, table ip aws-cni"
    assert saved(world, "iptables-nft") == before
    assert "aws-cni" not in world.host.sh("nft list tables")
    assert world.hostnet.remove_left_chains(None) == ""


def test_a_chain_that_somebody_else_calls_keeps_everything(world):
    """The kernel refuses the deletion of a chain in use: nothing of the transaction is done."""
    run(world, LEFT + "{t} -t nat -A OUTPUT -j AWS-CONNMARK-CHAIN-0\n", "iptables-nft")
    before = saved(world, "iptables-nft")
    with pytest.raises(WiringError, check=failed(FailureCode.NFT_REFUSED)):
        world.hostnet.remove_left_chains(None)
    assert saved(world, "iptables-nft") == before


EGRESS = """
{t} -t nat -N {chain}
{t} -t nat -A {chain} -d {multicast} -j ACCEPT -m comment --comment 'name: "aws-cni" id: "{id}"'
{t} -t nat -A {chain} -j SNAT --to-source {node} -m comment --comment 'name: "aws-cni" id: "{id}"' --random-fully
{t} -t nat -A POSTROUTING -s {source} -j {chain} -m comment --comment 'name: "aws-cni" id: "{id}"'
"""
LOCAL = """
{t} -I FORWARD -d {range} -m conntrack --ctstate NEW -m comment --comment "Block Node Local Pod access via IPv{v}" -j REJECT
"""


@pytest.mark.parametrize(
    ("family", "tool", "node"), [(IPV4, "iptables-nft", "10.0.0.10"), (IPV6, "ip6tables-nft", "2001:db8::10")]
)
def test_chains_of_one_sandbox_each_go_with_it(world, family, tool, node):
    """Those of the sandboxes that are ours; the others with the last of them. What refused access to the range goes at once."""
    egress = family.local_range
    chains = [egress_chain("aws-cni", name, family=family) for name in ("a", "b")]
    run(world, "{t} -t nat -A POSTROUTING -p tcp --dport 7 -j MASQUERADE; {t} -A FORWARD -p tcp --dport 7 -j REJECT", tool)
    before = saved(world, tool)
    run(world, LOCAL.replace("{range}", str(egress.network)).replace("{v}", str(egress.network.version)), tool)
    for chain, name, source in zip(chains, "ab", egress.addresses(), strict=False):
        values = {"chain": chain, "id": name, "source": source, "multicast": egress.untranslated, "node": node}
        run(world, EGRESS.format(t="{t}", **values), tool)
    assert world.hostnet.remove_left_chains(chains[:1]) == "2 rules of base chains, 1 chain for egress"
    left = "\n".join(saved(world, tool))
    assert (chains[0] in left, chains[1] in left, "Node Local" in left) == (False, True, False)
    assert world.hostnet.remove_left_chains(()) == ""
    assert world.hostnet.remove_left_chains(None) == "1 rule of base chains, 1 chain for egress"
    assert saved(world, tool) == before


def test_legacy_tables_are_not_touched(world):
    """They are reported (test_other_software.py), and the tool of their owner removes them."""
    run(world, LEFT, "iptables-legacy")
    before = saved(world, "iptables-legacy")
    assert world.hostnet.remove_left_chains(None) == ""
    assert saved(world, "iptables-legacy") == before
