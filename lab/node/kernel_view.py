"""Read the host veths, routes and rules of a lab node's kernel, of both families, from outside the node with `ip`.

This is the only reader of a node's kernel in the lab; the demo, chaos runs and `tests/rig.py` check the daemon by it. It shares no
code and no constant with the daemon, so that a defect of the daemon cannot hide itself. A view comes from several dumps at different
times, so a caller that must be certain reads twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from lab.node.node import Node
from lab.vpc.family import FAMILIES, IPV4, Family, family_of

VETH_PREFIX = "eni"
"""Default prefix of the names of host veths. Source: amazon-vpc-cni-k8s README, AWS_VPC_K8S_CNI_VETHPREFIX."""

STRICT_PREFIX = "vlan"
"""Prefix of the host veths of sandboxes whose packets all pass their branch ENI. Source: amazon-vpc-cni-k8s pkg/sgpp/utils.go."""

ALIAS_TAGS = ("vpc-ipamd/1", "vpc-ipamd/1-imported")
"""First word of a host veth's alias: of a veth that the daemon wired, and of one that amazon-vpc-cni-k8s wired. Container ID,
interface name and address follow (docs/adr/0001-the-key-is-the-cri-sandbox-id.md)."""

EGRESS_TAG = "vpc-ipamd-egress/1"
"""First word of the alias of a sandbox's egress veth, which has the address for egress of the other family."""

BRANCH_TAG = "vpc-ipamd-branch/1"
"""First word of the alias of the host veth of a sandbox with a branch ENI. Its address belongs to no pool."""

VLAN_PREFIX = "vlan.eth."
"""Prefix of the name of a VLAN link; the VLAN ID follows. Source: amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/driver/driver.go."""

DYING_GROUP = "113213"
"""The link group of a host veth that waits for its deletion, 0x1BA3D (docs/performance.md)."""

TO_PRIORITY, FROM_PRIORITY = 512, 1536
"""Priorities of rules to and from a sandbox's address. Source: amazon-vpc-cni-k8s pkg/networkutils/network.go."""

FROM_PRIORITIES = frozenset({FROM_PRIORITY, *(1540 + 17 * group + 2 * block for group in range(8) for block in range(8))})
"""All priorities of rules from a sandbox's address: 1536, and those of the 64 buckets into which the daemon divides these rules on a
node with many sandboxes (docs/adr/0088)."""

OWN_PRIORITY, OWN_TABLE = 513, "113213"
"""Priority of the daemon's rule for all sandboxes, and the table with the routes to all sandboxes, which the rule looks up
(docs/adr/0044)."""

MAIN_TABLE = "main"
SNAT_TABLE = ("ip", "vpc-ipamd")
"""The table with the SNAT rules. Only a node with a pool of IPv4 has it, because addresses of an IPv6 pool are not translated."""

CONFINING_TABLES = (("ip", "vpc-ipamd-confine"), ("ip6", "vpc-ipamd-confine"), ("arp", "vpc-ipamd-confine"))
EGRESS_TABLE = "vpc-ipamd-egress"
"""Name of one more table, in the family of the egress, on a node whose sandboxes have egress of the other family."""


@dataclass(frozen=True)
class Veth:
    """A host veth with the daemon's alias.

    `is_dying`: whether it waits for its deletion.
    `is_egress`: whether it is the egress veth of a sandbox. Its address belongs to no pool.
    `has_uplink`: whether its sandbox has a branch ENI. Its address belongs to no pool either.
    """

    name: str
    container_id: str
    address: str
    is_up: bool
    is_dying: bool
    is_egress: bool = False
    has_uplink: bool = False

    @property
    def is_wired(self) -> bool:
        """Whether the veth is up and does not wait for its deletion."""
        return self.is_up and not self.is_dying


@dataclass(frozen=True)
class Route:
    """One route; `destination` is a bare address for a single host."""

    destination: str
    device: str
    table: str = MAIN_TABLE
    scope: str = "link"

    @property
    def is_to_host(self) -> bool:
        """Whether the destination is a single address."""
        return "/" not in self.destination and self.destination != "default"


@dataclass(frozen=True)
class Rule:
    """One routing rule of a family; `source` or `destination` is "all" where the rule does not match on it."""

    priority: int
    source: str
    destination: str
    family: Family = IPV4

    @property
    def is_sandbox(self) -> bool:
        """Whether the rule is for one sandbox, by its priority and source. The rule of a prefix is for all sandboxes of the prefix."""
        return self.priority in {TO_PRIORITY, *FROM_PRIORITIES} and "/" not in self.source


@dataclass(frozen=True)
class VlanLink:
    """A link to a branch ENI, by its name. `is_dying`: it waits for its deletion."""

    name: str
    mac: str
    alias: str
    is_up: bool
    is_dying: bool

    @property
    def vlan(self) -> int:
        """The VLAN ID that the link's frames carry, read from the link's name."""
        return int(self.name.removeprefix(VLAN_PREFIX))


@dataclass(frozen=True)
class KernelView:
    """One read of a node's kernel.

    `veths`: host veths with addresses of the pool.
    `link_names`: names of all veths, also of those without the daemon's alias.
    `egress_veths`: egress veths of sandboxes.
    `branch_veths`: host veths of sandboxes with branch ENIs.
    `vlans`: links to branch ENIs.
    """

    veths: tuple[Veth, ...] = ()
    routes: tuple[Route, ...] = ()
    rules: tuple[Rule, ...] = ()
    link_names: tuple[str, ...] = ()
    egress_veths: tuple[Veth, ...] = ()
    branch_veths: tuple[Veth, ...] = ()
    vlans: tuple[VlanLink, ...] = ()

    @property
    def wired(self) -> dict[str, Veth]:
        """Container ID -> its host veth of `veths`, if that is wired (`Veth.is_wired`)."""
        return {veth.container_id: veth for veth in self.veths if veth.is_wired}

    @property
    def wired_for_egress(self) -> dict[str, Veth]:
        """Container ID -> its egress veth, if that is wired."""
        return {veth.container_id: veth for veth in self.egress_veths if veth.is_wired}

    @property
    def wired_to_branches(self) -> dict[str, Veth]:
        """Container ID -> its host veth of `branch_veths`, if that is wired."""
        return {veth.container_id: veth for veth in self.branch_veths if veth.is_wired}

    @property
    def host_routes(self) -> Mapping[str, str]:
        """Address -> device, for the main table's routes of scope link to a single address."""
        return {
            route.destination: route.device
            for route in self.routes
            if route.table == MAIN_TABLE and route.scope == "link" and route.is_to_host
        }

    @property
    def to_rules(self) -> frozenset[str]:
        """Addresses to which a rule of priority 512 leads, or a route in the daemon's own table.

        Such a route counts only if the family of the address has the daemon's rule (OWN_PRIORITY), which looks up that table.
        """
        with_rule = {rule.destination for rule in self.rules if rule.priority == TO_PRIORITY}
        families = {rule.family for rule in self.rules if rule.priority == OWN_PRIORITY}
        with_route = {route.destination for route in self.routes if route.table == OWN_TABLE and route.is_to_host}
        return frozenset(with_rule | {address for address in with_route if family_of(ip_address(address)) in families})

    @property
    def from_rules(self) -> frozenset[str]:
        """Addresses with a rule for packets from this address only, at one of FROM_PRIORITIES."""
        return frozenset(rule.source for rule in self.rules if rule.priority in FROM_PRIORITIES and rule.is_sandbox)

    @property
    def sandbox_links(self) -> list[str]:
        """Names of links that have the daemon's prefix."""
        return [name for name in self.link_names if name.startswith(VETH_PREFIX)]

    def routes_of(self, addresses: Iterable[str]) -> list[Route]:
        """Routes in any table into a sandbox's link, or to one of the addresses."""
        wanted = set(addresses)
        return [route for route in self.routes if route.device.startswith(VETH_PREFIX) or route.destination in wanted]


def read_kernel(node: Node) -> KernelView:
    """Read a node's links, routes and rules now. Raises: FabricError if the node's namespace cannot be read."""
    links = _ip(node, "-details", "link", "show", "type", "veth")
    ours = [veth for link in links if (veth := read_veth(link)) is not None]
    return KernelView(
        veths=tuple(veth for veth in ours if not veth.is_egress and not veth.has_uplink),
        egress_veths=tuple(veth for veth in ours if veth.is_egress),
        branch_veths=tuple(veth for veth in ours if veth.has_uplink),
        vlans=tuple(read_vlan(link) for link in links if str(link["ifname"]).startswith(VLAN_PREFIX)),
        routes=tuple(read_route(route) for route in _ip(node, "route", "show", "table", "all")),
        rules=tuple(read_rule(rule, each) for each in FAMILIES for rule in _ip(node, each.option, "rule", "show")),
        link_names=tuple(str(link["ifname"]) for link in links),
    )


def nft_tables(family: Family, egress: Family | None) -> tuple[tuple[str, str], ...]:
    """Return family and name of each nftables table of the daemon.

    `family`: the address family of the node's pool. `egress`: the other family, if sandboxes have egress in it.
    """
    own = [SNAT_TABLE] if family is IPV4 else []
    return (*own, *CONFINING_TABLES, *([(egress.nft, EGRESS_TABLE)] if egress is not None else []))


def has_nft_tables(node: Node, family: Family = IPV4, egress: Family | None = None) -> bool:
    """Whether the node has all tables of `nft_tables`."""
    tables = nft_tables(family, egress)
    return all(node.run(["nft", "list", "table", *table], check=False).returncode == 0 for table in tables)


def read_veth(link: Mapping[str, Any]) -> Veth | None:
    """Read one link of `ip -json -details link`; None if it does not carry the daemon's alias."""
    words = str(link.get("ifalias", "")).split(" ")
    if len(words) != 4 or words[0] not in (*ALIAS_TAGS, EGRESS_TAG, BRANCH_TAG):
        return None
    is_dying = str(link.get("group", "")) == DYING_GROUP
    return Veth(
        link["ifname"], words[1], words[3], "UP" in link["flags"], is_dying, words[0] == EGRESS_TAG, words[0] == BRANCH_TAG
    )


def read_vlan(link: Mapping[str, Any]) -> VlanLink:
    """Read a link whose name is a VLAN link's. In a lab it is a veth (lab/fabric/vlan.py)."""
    is_dying = str(link.get("group", "")) == DYING_GROUP
    return VlanLink(link["ifname"], link["address"], str(link.get("ifalias", "")), "UP" in link["flags"], is_dying)


def read_route(route: Mapping[str, Any]) -> Route:
    """Read one route of `ip -json route`, which leaves out the main table and the global scope, and in IPv6 any scope."""
    scope = "link" if ":" in route["dst"] and "gateway" not in route else "global"
    return Route(route["dst"], route.get("dev", ""), str(route.get("table", MAIN_TABLE)), str(route.get("scope", scope)))


def read_rule(rule: Mapping[str, Any], family: Family = IPV4) -> Rule:
    """Read one rule of `ip -json rule`, which has the length of a prefix in a field of its own, and none for a single address."""
    source, destination = (
        f"{rule.get(name, 'all')}" + (f"/{rule[f'{name}len']}" if f"{name}len" in rule else "") for name in ("src", "dst")
    )
    return Rule(int(rule["priority"]), source, destination, family)


def _ip(node: Node, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(node.netns.tool(["ip", "-json", *words]) or "[]")
    return found
