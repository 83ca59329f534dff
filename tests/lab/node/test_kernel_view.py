"""The outside reader of a node's kernel: what `ip` of iproute2 6.1 prints, and the values made of it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from lab.lab import Lab
from lab.node.kernel_view import KernelView, Route, Rule, Veth, read_kernel, read_route, read_rule, read_veth
from lab.vpc.family import IPV6

A, B, SIX = "10.0.0.10", "10.0.0.11", "2600:1f14:abc:de00:9::5"
LINK = {"ifname": "eni1", "flags": ["BROADCAST", "UP"], "group": "default", "ifalias": f"vpc-ipamd/1 c1 eth0 {A}"}


def test_a_veth_is_read_by_its_alias() -> None:
    """Our alias tells sandbox and address; the dying group and a link that is down are not wired; other links are not ours."""
    assert read_veth(LINK) == Veth("eni1", "c1", A, is_up=True, is_dying=False)
    dying = read_veth({**LINK, "flags": [], "group": "113213"})
    assert dying is not None
    assert (dying.is_dying, dying.is_wired) == (True, False)
    assert read_veth({"ifname": "veth0", "flags": []}) is None
    assert read_veth({**LINK, "ifalias": "vpc-ipamd/2 c1 eth0 10.0.0.10"}) is None


def test_routes_and_rules_are_read_as_ip_leaves_things_out() -> None:
    """No table means main, no scope global, no dst any destination."""
    assert read_route({"dst": A, "dev": "eni1", "scope": "link"}) == Route(A, "eni1", "main", "link")
    assert read_route({"dst": "10.9.0.0/24", "dev": "eth1", "table": "5"}) == Route("10.9.0.0/24", "eth1", "5", "global")
    assert read_rule({"priority": 512, "src": "all", "dst": A, "table": "main"}) == Rule(512, "all", A)
    assert read_rule({"priority": 1536, "src": B, "table": "2"}) == Rule(1536, B, "all")
    assert read_route({"dst": SIX, "dev": "eni1"}) == Route(SIX, "eni1", "main", "link"), "IPv6 has no scope"
    assert read_route({"dst": "default", "gateway": "fe80::1", "dev": "eth0"}).scope == "global"
    assert read_rule({"priority": 513, "src": "all", "table": "113213"}, IPV6) == Rule(513, "all", "all", IPV6)
    of_prefix = read_rule({"priority": 1536, "src": B, "srclen": 28, "table": "2"})
    assert of_prefix == Rule(1536, f"{B}/28", "all")
    assert not KernelView(rules=(of_prefix,)).from_rules, "the first address of a prefix has no rule of its own"


def test_what_belongs_to_sandboxes_is_told_from_the_rest() -> None:
    """Host routes are of the main table and on a link; rules count by priority; links count by name."""
    view = KernelView(
        routes=(Route(A, "eni1"), Route("10.0.0.0/22", "eth0"), Route(B, "eth1", "2"), Route(B, "eth0", scope="global")),
        rules=(Rule(0, "all", "all"), Rule(512, "all", A), Rule(1536, B, "all")),
        link_names=("eni1", "veth0"),
    )
    assert view.host_routes == {A: "eni1"}
    assert (view.to_rules, view.from_rules) == ({A}, {B})
    assert view.sandbox_links == ["eni1"]
    assert view.routes_of([B]) == [Route(A, "eni1"), Route(B, "eth1", "2"), Route(B, "eth0", scope="global")]
    assert [rule.is_sandbox for rule in view.rules] == [False, True, True]


def test_our_own_table_leads_a_family_only_if_a_rule_of_that_family_asks_it() -> None:
    """A route in it that no rule leads to leads nobody; and the rest of a prefix is no sandbox."""
    own = (Route(A, "eni1", "113213"), Route(SIX, "eni2", "113213"), Route("2600:1f14:abc:de00:9::/80", "lo", "113213"))
    assert KernelView(routes=own, rules=(Rule(513, "all", "all"),)).to_rules == {A}
    assert KernelView(routes=own, rules=(Rule(513, "all", "all", IPV6),)).to_rules == {SIX}
    assert KernelView(routes=own, rules=()).to_rules == frozenset()


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A node without containerd."""
    with Lab(name=f"view-{time.monotonic_ns()}", nodes=["node-a"], containerd=False) as lab:
        yield lab


@pytest.mark.privileged
def test_a_real_kernel_is_read(lab: Lab) -> None:
    """Wired by hand as the daemon wires, and unwired again."""
    node = lab.node("node-a")
    node.netns.ip(
        [
            "link add eni7 type veth peer name peer7",
            f'link set eni7 up alias "vpc-ipamd/1 c7 eth0 {A}"',
            f"route add {A} dev eni7 scope link",
            f"route add {B} dev eni7 table 7",
            f"rule add to {A} lookup main pref 512",
            f"rule add from {A} lookup 7 pref 1536",
            f"route add {SIX} dev eni7",
            f"route add {SIX} dev eni7 table 113213",
        ]
    )
    node.netns.tool(["ip", "-6", "rule", "add", "lookup", "113213", "pref", "513"])
    seen = read_kernel(node)
    assert {key: veth.address for key, veth in seen.wired.items()} == {"c7": A}
    assert seen.host_routes == {A: "eni7", SIX: "eni7"}
    assert (seen.to_rules, seen.from_rules) == ({A, SIX}, {A})
    assert Route(B, "eni7", "7") in seen.routes_of([])
    node.netns.ip(["link del eni7", f"rule del to {A} pref 512", f"rule del from {A} pref 1536"])
    node.netns.tool(["ip", "-6", "rule", "del", "pref", "513"])
    seen = read_kernel(node)
    assert (seen.veths, seen.host_routes, seen.to_rules, seen.from_rules, seen.sandbox_links) == ((), {}, set(), set(), [])
