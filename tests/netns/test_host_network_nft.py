"""The node's nftables table: what it holds, and that it is replaced as a whole or not at all."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from ipamd.kernel import ruleset
from ipamd.kernel.nft import Nftables
from ipamd.model import kernel_numbers
from ipamd.model.errors import WiringError
from ipamd.model.failures import FailureCode
from ipamd.model.repairs import RepairCode
from tests.errors import failed

pytestmark = pytest.mark.privileged


def test_nft_table_restates_the_rules_of_vpc_cni(world):
    """Upstream 3.5: exempt CIDRs, SNAT to the node, marks by veth prefix and primary ENI; others' tables stay."""
    world.fabric()
    world.host.sh("nft add table ip theirs")
    world.hostnet.setup_node(world.identity())
    text = " ".join(world.host.sh("nft list table ip vpc-ipamd").split())
    assert "elements = { 10.0.0.0/16 }" in text
    assert "type nat hook postrouting priority srcnat + 10; policy accept;" in text
    assert "fib daddr type != local snat to 10.0.0.10 fully-random" in text
    assert 'iifname "eth0" fib daddr . iif type local ct mark set ct mark | 0x00000080' in text
    assert 'iifname "eni*" ct mark & 0x00000080 == 0x00000080 meta mark set meta mark | 0x00000080' in text
    assert 'iifname "eni*" ct state new fib daddr type != local ip daddr != @exempt ct mark set ct mark | 0x00000080' in text
    assert "table ip theirs" in world.host.sh("nft list tables")


@pytest.mark.parametrize(
    ("config", "present", "absent"),
    [
        ({"randomize_snat": "hashrandom"}, ["snat to 10.0.0.10 random"], ["fully-random"]),
        ({"randomize_snat": "none"}, ["snat to 10.0.0.10"], ["random"]),
        ({"external_snat": True}, ["chain mark_in"], ["snat", "exempt", "mark_out"]),
        ({"node_port_support": False}, ["snat to", "mark_out", "mark_in"], ["type local ct mark set"]),
        ({"external_snat": True, "node_port_support": False}, [], ["vpc-ipamd"]),
        ({"connmark": 0x200, "veth_prefix": "cali"}, ['iifname "cali*"', "0x00000200"], ["0x00000080", "eni*"]),
        (
            {"exclude_snat_cidrs": (IPv4Network("10.0.5.0/24"), IPv4Network("192.168.0.0/16"))},
            ["10.0.0.0/16, 192.168.0.0/16"],
            [],
        ),
    ],
)
def test_settings_shape_table_and_rule(make_world, config, present, absent):
    """Upstream 1.2: each setting has its effect on the table, and rule 1024 is there exactly when marks are wanted."""
    world = make_world(**config)
    world.fabric()
    world.hostnet.setup_node(world.identity())
    text = " ".join(world.host.sh("nft list ruleset").split())
    assert all(part in text for part in present), text
    assert not any(part in text for part in absent), text
    wants = ruleset.needs_mark(world.config)
    assert any(one["priority"] == kernel_numbers.MARK_PRIORITY for one in world.host.ip("rule")) == wants
    assert world.hostnet.reconcile(identity=world.identity(), enis=[]) == []


def test_nft_transaction_is_all_or_nothing(world):
    """A transaction that nftables refuses changes nothing, and its own words reach the error."""
    world.fabric()
    world.hostnet.setup_node(world.identity())
    before = world.host.sh("nft list ruleset")
    with pytest.raises(WiringError, check=failed(FailureCode.NFT_REFUSED)):
        world.nft.run(ruleset.SNAT.removal() + "add rule ip vpc-ipamd snat_out nonsense\n")
    assert world.host.sh("nft list ruleset") == before


def test_changed_vpc_cidrs_replace_the_table(world):
    """A further CIDR of the VPC is exempt after the next audit, which says so."""
    world.fabric()
    world.hostnet.setup_node(world.identity())
    world.vpc_cidrs = (*world.vpc_cidrs, IPv4Network("100.64.0.0/16"))
    found = world.hostnet.reconcile(identity=world.identity(), enis=[])
    assert [(one.code, one.target) for one in found] == [(RepairCode.TABLE_FOLLOWED, "nftables table vpc-ipamd")]
    assert "100.64.0.0/16" in world.host.sh("nft list table ip vpc-ipamd")


def test_no_vpc_cidr_is_refused(world):
    """I11: without a CIDR of the VPC no SNAT is made, rather than SNAT of everything."""
    world.fabric()
    world.vpc_cidrs = ()
    with pytest.raises(WiringError, check=failed(FailureCode.NO_VPC_CIDR)):
        world.hostnet.setup_node(world.identity())
    assert world.host.sh("nft list ruleset") == ""


def test_missing_library_names_its_package(world):
    """I14: without libnftables the error says which package to install."""
    nft = Nftables(world.netns, library="libnftables-that-is-not.so")
    with pytest.raises(WiringError, check=failed(FailureCode.NFT_MISSING)):
        nft.run("list tables\n")
