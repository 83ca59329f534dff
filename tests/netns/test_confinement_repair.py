"""What confines sandboxes is verified, named when others change it, and put back; and a kernel that refuses it is told."""

from __future__ import annotations

import pytest

from ipamd.kernel import confinement_ruleset, survey
from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.kernel.nft import OUTPUT_TERSE, Nftables
from ipamd.model.family import IPV6
from ipamd.model.repair_messages import difference_text
from ipamd.model.repairs import CONFINEMENT, RepairCode
from tests.netns.confined import EXTRA, OPEN, PRIMARY, RELEASE_BEFORE, SECONDARY, VPC, WORLD, Node
from tests.netns.conftest import EACH_FAMILY
from tests.netns.test_host_network import udp_peer

pytestmark = pytest.mark.privileged


@EACH_FAMILY
@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("nft flush ruleset", "nftables table vpc-ipamd-confine was missing"),
        ("nft delete table ip vpc-ipamd-confine", "nftables table vpc-ipamd-confine was missing"),
        ("nft delete table arp vpc-ipamd-confine", "nftables table vpc-ipamd-confine (arp) was missing"),
        ("nft flush chain arp vpc-ipamd-confine from_sandbox", "nftables table vpc-ipamd-confine (arp) had been changed"),
        ("nft delete table ip6 vpc-ipamd-confine", "nftables table vpc-ipamd-confine (ip6) was missing"),
        ("nft flush chain ip vpc-ipamd-confine from_sandbox", "nftables table vpc-ipamd-confine had been changed"),
        ("nft insert rule ip vpc-ipamd-confine from_veths accept", "nftables table vpc-ipamd-confine had been changed"),
        ("nft insert rule ip6 vpc-ipamd-confine from_sandbox accept", "nftables table vpc-ipamd-confine (ip6) had been changed"),
        ("nft add table ip vpc-ipamd-confine '{ flags dormant; }'", "nftables table vpc-ipamd-confine had been changed"),
        (
            "nft add chain ip vpc-ipamd-confine theirs '{ type filter hook forward priority 0; policy drop; }'",
            "nftables table vpc-ipamd-confine had been changed",
        ),
        ("nft add set ip6 vpc-ipamd-confine theirs '{ type mark; }'", "nftables table vpc-ipamd-confine (ip6) had been changed"),
        ("nft add counter arp vpc-ipamd-confine theirs", "nftables table vpc-ipamd-confine (arp) had been changed"),
        ("nft add element ip vpc-ipamd-confine elsewhere '{ lo }'", "nftables table vpc-ipamd-confine had been changed"),
        ("nft flush chain ip6 vpc-ipamd-confine from_sandbox", "nftables table vpc-ipamd-confine (ip6) had been changed"),
        ("nft insert rule ip6 vpc-ipamd-confine to_node accept", "nftables table vpc-ipamd-confine (ip6) had been changed"),
        ("nft add table ip6 vpc-ipamd-confine '{ flags dormant; }'", "nftables table vpc-ipamd-confine (ip6) had been changed"),
        (RELEASE_BEFORE["ip"], "nftables table vpc-ipamd-confine had been changed"),
        (RELEASE_BEFORE["ip6"], "nftables table vpc-ipamd-confine (ip6) had been changed"),
    ],
)
def test_a_drop_that_others_remove_or_change_is_named_and_put_back(world, command, sentence):
    """At once it does not count as verified; the audit names it and changes nothing; the repair puts it back and says so."""
    world.hostnet.confine_sandboxes()
    assert world.hostnet.is_source_checked()
    assert world.hostnet.confinement_differences() == []
    listed = "; ".join(f"nft list table {family} vpc-ipamd-confine" for family in ("ip", "ip6", "arp"))
    whole = world.host.sh(listed)
    world.host.sh(command)
    assert not world.hostnet.is_source_checked()
    damaged = world.host.sh("nft list ruleset")
    found = world.hostnet.confinement_differences()
    assert next(difference_text(one.report) for one in found if one.will_be_repaired) == sentence
    assert world.host.sh("nft list ruleset") == damaged
    assert sentence in [difference_text(one) for one in world.hostnet.confine_sandboxes() if one.object == CONFINEMENT]
    assert world.host.sh(listed) == whole
    assert world.hostnet.is_source_checked()
    assert world.hostnet.confine_sandboxes() == []


def test_nft_prints_no_table_while_none_has_changed(world, monkeypatch):
    """The kernel is asked whether they are as they were, also beside others' changes."""
    world.hostnet.confine_sandboxes()
    asked, run = [], world.hostnet._nft.run
    monkeypatch.setattr(world.hostnet._nft, "run", lambda commands, **form: asked.append(commands) or run(commands, **form))
    world.host.sh("nft add table ip kube")
    assert world.hostnet.confine_sandboxes() == []
    assert world.hostnet.confinement_differences() == []
    assert not asked
    world.host.sh("nft flush chain ip vpc-ipamd-confine from_sandbox")
    assert world.hostnet.confinement_differences()
    assert [one for one in asked if one.startswith("list table")]


def test_a_start_makes_one_transaction_and_has_links_read_for_nothing_else(make_world, monkeypatch):
    """nft reads all links of the node for the name or the number of one: 28 ms of CPU beside 1,400, once and not twelve times."""
    world = make_world()
    world.host.sh("ip link add other type bridge")
    world.hostnet.confine_sandboxes()
    asked, run = [], Nftables.run
    monkeypatch.setattr(Nftables, "run", lambda nft, text, **form: asked.append((text, form)) or run(nft, text, **form))
    world.hostnet._confinement._tables.forget()
    assert world.hostnet.confine_sandboxes() == []
    assert [form for text, form in asked if text.startswith("list table ")] == [{"form": OUTPUT_TERSE}] * 7
    (made,) = [text for text, _ in asked if not text.startswith("list ")]
    assert "elsewhere { " in made
    assert made.count("delete table") == 3
    assert world.hostnet.is_source_checked()


def test_sandboxes_routes_stay_unread_where_one_link_leads_elsewhere(world, monkeypatch):
    """Whether a route leads through it is asked of that link alone."""
    elsewhere = world.space()
    world.host.sh(f"ip link add other type veth peer name inside netns {elsewhere.path}")
    asked, read = [], survey.routes_of
    monkeypatch.setattr(survey, "routes_of", lambda sock, **of: asked.append(of) or read(sock, **of))
    world.hostnet.confine_sandboxes()
    assert asked
    assert all(one["index"] for one in asked)


def test_changes_of_other_software_keep_it_verified(world):
    """kube-proxy changes the ruleset all the time: our tables are compared again, and still count."""
    world.hostnet.confine_sandboxes()
    for number in range(3):
        world.host.sh(f"nft add table ip kube{number}; nft add chain ip kube{number} some")
        assert world.hostnet.is_source_checked()


def test_with_extra_sources_the_drop_is_known_to_be_in_place_too(make_world):
    """It does not count as a check of sources, but a change of other software asks for no dump of all veths."""
    world = make_world(extra_source_cidrs=EXTRA)
    world.hostnet.confine_sandboxes()
    world.host.sh("nft add table ip kube")
    assert world.hostnet.are_tables_in_place()
    assert not world.hostnet.is_source_checked()
    world.host.sh("nft flush chain ip vpc-ipamd-confine extra_source")
    assert not world.hostnet.are_tables_in_place()


@EACH_FAMILY
def test_a_kernel_that_refuses_is_said(world, monkeypatch):
    """Without nft_fib the table is refused as a whole: said with what is missing, not verified, and the rest is done."""
    world.wiring.wire(world.spec(world.space(), number=30))
    (veth,) = world.host.link_names()
    world.host.sh(f"sysctl -qw net.ipv4.conf.{veth}.rp_filter=0")
    monkeypatch.setattr(confinement_ruleset, "_drop", lambda reason: f"counter name missing_{reason} drop")
    said = world.hostnet.confine_sandboxes()
    causes = [one.cause for one in said if one.is_refusal]
    assert "nft_fib" in causes[0]
    assert any("CONFIG_NFT_FIB_IPV6" in cause for cause in causes) == (world.family is IPV6)
    assert not world.hostnet.is_source_checked()
    assert world.host.sh(f"cat /proc/sys/net/ipv4/conf/{veth}/rp_filter") == "1\n"
    monkeypatch.undo()
    world.hostnet.confine_sandboxes()
    assert world.hostnet.is_source_checked()


def test_a_kernel_that_refuses_the_table_of_arp_only(world, monkeypatch):
    """It is said; what checks the source of packets is in place and counts."""
    monkeypatch.setattr(confinement_ruleset, "arp_table", lambda *_, **__: "add table arp vpc-ipamd-confine { no such thing; }")
    world.hostnet.confine_sandboxes()
    (said,) = world.hostnet.confine_sandboxes()
    assert said.is_refusal
    assert "CONFIG_NF_TABLES_ARP" in said.cause
    assert world.hostnet.is_source_checked()


def test_a_veth_that_does_not_forward_is_repaired(world):
    """net.ipv4.ip_forward=0 stops every link: host veths are set again, by netlink, with a report."""
    node = Node(world)
    node.host.sh("sysctl -qw net.ipv4.ip_forward=0")
    (said,) = world.hostnet.confine_sandboxes()
    assert (said.code, said.before, said.after) == (RepairCode.VALUE_SET, "off", "on")
    assert all(veth in said.target for veth in node.veths)
    assert udp_peer(node.primary, PRIMARY, node.secondary) == SECONDARY


def test_sandboxes_of_an_earlier_release_are_confined(make_world):
    """Repair at the first look of a new daemon: spoofing ends, rp_filter is strict, IPv6 is off; also under another veth prefix."""
    world = make_world(veth_prefix="pod")  # the adapter of the tests names veths eni..., as if the prefix had been changed
    node = Node(world)
    veth = node.veths[0]
    node.host.sh(OPEN)
    node.host.sh(f"ip link set {veth} down; ip link set {veth} addrgenmode eui64; ip link set {veth} up")
    node.host.sh(f"sysctl -qw net.ipv4.conf.{veth}.accept_redirects=1; ip route add {PRIMARY}/32 dev {veth} scope link")
    assert node.host.ip(f"-6 addr show dev {veth}")
    assert node.spoof(node.primary, PRIMARY, (WORLD,), targets=(SECONDARY,))
    restarted = KernelHostNetwork(world.netns, config=world.config, nft=Nftables(world.netns))
    assert not restarted.is_source_checked()
    restarted.confine_sandboxes()
    assert restarted.is_source_checked()
    assert node.spoof(node.primary, PRIMARY, (WORLD,), targets=(SECONDARY, VPC)) == []
    conf = f"cd /proc/sys/net; cat ipv4/conf/{veth}/rp_filter ipv4/conf/{veth}/accept_redirects ipv6/conf/{veth}/disable_ipv6"
    assert node.host.sh(conf).split() == ["1", "0", "1"]
    assert not any(one.get("addr_info") for one in node.host.ip(f"-6 addr show dev {veth}"))


def test_a_former_prefix_that_goes_is_no_repair(make_world):
    """Its sandboxes leave one by one and the table follows: nothing was undone, so it is neither counted nor taken for a fight."""
    world = make_world(veth_prefix="pod")
    node = Node(world)
    for veth in node.veths:
        node.host.sh(f"ip link del {veth}")
        (said,) = world.hostnet.confine_sandboxes()[:1]
        assert said.code is RepairCode.TABLE_FOLLOWED
        assert not said.is_repair
    node.host.sh("nft delete table ip vpc-ipamd-confine")
    assert any(one.is_repair for one in world.hostnet.confine_sandboxes())


@pytest.mark.parametrize("value", [1, 2])
def test_a_sysctl_that_overrules_extra_sources_is_named(make_world, value):
    """all.rp_filter above 0 takes effect from the setting: a sentence says so and what to do, until it is changed."""
    world = make_world(extra_source_cidrs=EXTRA)
    node = Node(world, all_rp_filter=value)
    assert node.spoof(node.primary, PRIMARY, ("192.0.2.1",), targets=(SECONDARY, VPC)) == []
    (said,) = world.hostnet.confine_sandboxes()
    assert "sysctl -w net.ipv4.conf.all.rp_filter=0" in said.cause
    assert [one.will_be_repaired for one in world.hostnet.confinement_differences()] == [False]
    node.host.sh("sysctl -qw net.ipv4.conf.all.rp_filter=0")
    assert world.hostnet.confine_sandboxes() == []
    assert world.hostnet.confinement_differences() == []
