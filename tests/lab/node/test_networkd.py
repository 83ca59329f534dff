"""The networkd stand-in does to a node what networkd and amazon-ec2-net-utils do, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from lab.lab import Lab
from lab.node.networkd import Networkd
from lab.vpc.model import Eni

pytestmark = pytest.mark.privileged

RULES_OF_OTHERS = ("rule add to 10.0.0.99 lookup main priority 512", "rule add fwmark 0x80/0x80 lookup main priority 1024")
ROUTES_OF_OTHERS = (
    "route add default via 10.0.0.1 dev eth1 onlink table 2 proto static",
    "route add 10.0.0.99 dev lo proto static",
)


@pytest.fixture
def lab() -> Iterator[Lab]:
    """One node."""
    with Lab(name=f"networkd-{time.monotonic_ns()}", nodes=["node-a"], containerd=False) as made:
        yield made


def second_eni(lab: Lab) -> Eni:
    """Attach an ENI with two addresses, its link up and empty."""
    node = lab.node("node-a")
    eni = lab.vpc.hands.attach(node.instance_id, address_count=2)
    lab.settle()
    node.netns.ip(["link set eth1 up"])
    return lab.vpc.eni(eni.eni_id)


def state(lab: Lab, *words: str) -> str:
    """What `ip` shows in the node."""
    return lab.node("node-a").netns.tool(["ip", "-4", *words])


def test_a_link_that_appears_gets_all_addresses_a_table_and_rules(lab: Lab) -> None:
    """As amazon-ec2-net-utils does it: secondary addresses as /32 on the link, table and rule 10000 + device, main as it was."""
    eni = second_eni(lab)
    main = state(lab, "route", "show", "table", "main")
    Networkd(lab.node("node-a")).link_appeared(eni)
    shown = state(lab, "address", "show", "eth1")
    assert f"{eni.primary_address}/22" in shown
    assert all(f"{address}/32" in shown for address in eni.secondary_addresses)
    table = state(lab, "route", "show", "table", "10001")
    assert "default via 10.0.0.1 dev eth1 proto dhcp" in table
    assert "metric 522" in table
    assert state(lab, "route", "show", "table", "main") == main
    rules = state(lab, "rule")
    assert all(f"10001:\tfrom {address} lookup 10001 proto dhcp" in rules for address in eni.addresses)
    Networkd(lab.node("node-a")).link_appeared(eni)
    assert (state(lab, "rule"), state(lab, "address", "show", "eth1")) == (rules, shown)


def test_a_restart_removes_what_is_foreign(lab: Lab) -> None:
    """Rules of others everywhere, routes of others on its links only, nothing of the kernel's; EKS's image says no to both."""
    eni = second_eni(lab)
    netns = lab.node("node-a").netns
    networkd = Networkd(lab.node("node-a"))
    networkd.link_appeared(eni)
    clean = state(lab, "rule"), state(lab, "route", "show", "table", "all")
    netns.ip([*RULES_OF_OTHERS, *ROUTES_OF_OTHERS])
    dirty = state(lab, "rule"), state(lab, "route", "show", "table", "all")
    eks = Networkd(lab.node("node-a"), manages_foreign=False)
    eks.link_appeared(eni)
    eks.restarted()
    assert (state(lab, "rule"), state(lab, "route", "show", "table", "all")) == dirty
    networkd.restarted()
    assert state(lab, "rule") == clean[0]
    assert "10.0.0.99 dev lo" in state(lab, "route", "show", "table", "main")
    netns.ip(["route del 10.0.0.99 dev lo"])
    assert state(lab, "route", "show", "table", "all") == clean[1]


def test_a_refresh_follows_the_addresses(lab: Lab) -> None:
    """An address that came is added with its rule, and so is a prefix's rule, without its addresses."""
    eni = second_eni(lab)
    networkd = Networkd(lab.node("node-a"))
    networkd.link_appeared(eni)
    (prefix,) = lab.vpc.hands.assign(eni.eni_id, prefix_count=1).prefixes
    fuller = lab.vpc.hands.assign(eni.eni_id)
    networkd.refreshed(fuller)
    new = next(iter(set(fuller.secondary_addresses) - set(eni.secondary_addresses)))
    assert f"{new}/32" in state(lab, "address", "show", "eth1")
    assert f"10001:\tfrom {prefix} lookup 10001" in state(lab, "rule")
    assert str(prefix.network_address) not in state(lab, "address")


def test_the_primary_eni_gets_aliases_and_no_rules(lab: Lab) -> None:
    """Secondary addresses of the first ENI land on eth0 too: they are the node's then, and no sandbox's."""
    first = lab.vpc.enis_of(lab.node("node-a").instance_id)[0]
    eni = lab.vpc.hands.assign(first.eni_id)
    before = state(lab, "rule")
    Networkd(lab.node("node-a")).link_appeared(eni)
    assert f"{eni.secondary_addresses[0]}/32" in state(lab, "address", "show", "eth0")
    assert state(lab, "rule") == before
    assert f"{eni.secondary_addresses[0]} dev eth0" in state(lab, "route", "show", "table", "local")


def test_a_lost_carrier_empties_the_link(lab: Lab) -> None:
    """Addresses, routes and rules of the link go, also foreign ones; the link itself stays."""
    eni = second_eni(lab)
    networkd = Networkd(lab.node("node-a"))
    clean = state(lab, "rule"), state(lab, "route", "show", "table", "all")
    networkd.link_appeared(eni)
    lab.node("node-a").netns.ip([ROUTES_OF_OTHERS[0]])
    networkd.carrier_lost(eni)
    assert (state(lab, "rule"), state(lab, "route", "show", "table", "all")) == clean
    assert state(lab, "address", "show", "eth1") == ""
    networkd.link_appeared(replace(eni, secondary_addresses=(IPv4Address("10.0.3.3"),)))
    assert "10.0.3.3/32" in state(lab, "address", "show", "eth1")
