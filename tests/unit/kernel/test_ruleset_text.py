"""The text of the nftables table: as it was where no pod may differ from the node's SNAT, and what its sets add (docs/adr/0082)."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest

from ipamd.kernel import ruleset
from ipamd.model.family import read_address
from ipamd.model.pod_snat import PodSnat
from ipamd.settings import NetworkConfig

HEAD = "add table ip vpc-ipamd\ndelete table ip vpc-ipamd\n"
MARK = "ct mark set ct mark or 0x80 meta mark set meta mark or 0x80"
WITHOUT_SETTING = f"""{HEAD}add table ip vpc-ipamd
table ip vpc-ipamd {{
  chain mark_in {{
    type filter hook prerouting priority mangle; policy accept;
    iifname "eth0" fib daddr . iif type local ct mark set ct mark or 0x80
    iifname "eni*" ct mark and 0x80 == 0x80 meta mark set meta mark or 0x80
  }}
  set exempt {{
    type ipv4_addr; flags interval;
    elements = {{ 10.0.0.0/16 }}
  }}
  chain mark_out {{
    type filter hook prerouting priority dstnat + 10; policy accept;
    iifname "eni*" ct state new fib daddr type != local ip daddr != @exempt {MARK}
  }}
  chain snat_out {{
    type nat hook postrouting priority srcnat + 10; policy accept;
    oifname "lo" return
    oifname "vlan*" return
    ip daddr @exempt return
    fib daddr type != local snat to 10.0.0.4 fully-random
  }}
}}
"""
CHOICES = {
    read_address("10.0.0.9"): PodSnat.NONE,
    read_address("10.0.0.8"): PodSnat.FORCE,
    read_address("10.0.0.7"): PodSnat.NONE,
}


def text(choices: ruleset.Choices | None, **settings: object) -> str:
    """The commands under settings."""
    return ruleset.replace_table(
        NetworkConfig(**settings),  # type: ignore[arg-type]
        vpc_cidrs=(IPv4Network("10.0.0.0/16"),),
        primary_address=IPv4Address("10.0.0.4"),
        primary_link="eth0",
        choices=choices,
    )


def test_without_the_setting_the_text_is_as_before() -> None:
    """Every byte: the comparison with the kernel's table, and with amazon-vpc-cni-k8s, depends on it."""
    assert text(None) == WITHOUT_SETTING


def test_sets_are_filled_apart_from_the_table() -> None:
    """Elements come behind the body, sorted, so that a changed element does not replace the table."""
    body, _, elements = text(CHOICES).partition("flush set ")
    assert body == text({}).partition("flush set ")[0]
    assert "10.0.0.9" not in body
    assert elements == (
        "ip vpc-ipamd snat_none\nadd element ip vpc-ipamd snat_none { 10.0.0.7, 10.0.0.9 }\n"
        "flush set ip vpc-ipamd snat_force\nadd element ip vpc-ipamd snat_force { 10.0.0.8 }\n"
    )


@pytest.mark.parametrize("chain", ["mark_out", "snat_out"])
def test_both_chains_match_both_sets_ahead_of_the_other_rules(chain: str) -> None:
    """Otherwise a pod of a secondary ENI would send by the wrong ENI, where EC2 drops it."""
    rules = text({}).partition(f"chain {chain} {{")[2].partition("}")[0]
    positions = [rules.index(part) for part in ("@snat_none return", "@snat_force ip daddr != @vpc", "@exempt")]
    assert positions == sorted(positions)


def test_external_snat_leaves_the_rules_of_the_sets_alone() -> None:
    """The node translates for forced pods, and for no others; their mark leads by the primary ENI."""
    made = text({}, external_snat=True, node_port_support=False, snat_forced_pods=("web",))
    assert "@exempt" not in made
    assert made.count("snat to 10.0.0.4") == 1
    assert "chain mark_in" in made


def test_ipv6_has_no_sets() -> None:
    """Pods of IPv6 are never translated, whatever rows of another family say."""
    assert text(CHOICES, ipv4=False, ipv6=True) == HEAD
