"""EC2's source check as one nftables table for each family: a packet passes only if its source address is on the ENI it comes from.

A set of allowed (port, source) pairs decides. It changes in one transaction, so that no packet meets half of a change. Other packets
are counted by (port, source) and dropped without an answer, as by EC2. Packets to link-local addresses, such as instance metadata, are
always dropped, because these addresses are inside the node. The check comes before routing, so that packets to the router's own
addresses are checked too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from lab.fabric.errors import FabricError
from lab.fabric.netns import Netns
from lab.fabric.port import in_order
from lab.vpc.model import Address, Network

TABLES = {4: "ip vpc", 6: "ip6 vpc"}
RULESET = """
table ip vpc {
  set allowed { typeof iifname . ip saddr; flags interval; }
  set drops { type ifname . ipv4_addr; flags dynamic; counter; size 65536; }
  chain source_check {
    type filter hook prerouting priority raw; policy drop;
    iifname "lo" accept
    ip daddr 169.254.0.0/16 drop
    iifname . ip saddr @allowed accept
    update @drops { iifname . ip saddr } counter drop
  }
}
table ip6 vpc {
  set allowed { typeof iifname . ip6 saddr; flags interval; }
  set drops { type ifname . ipv6_addr; flags dynamic; counter; size 65536; }
  chain source_check {
    type filter hook prerouting priority raw; policy drop;
    iifname "lo" accept
    ip6 daddr { fe80::/10, ff02::/16 } icmpv6 type { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert } accept
    ip6 daddr { fe80::/10, ff00::/8 } drop
    iifname . ip6 saddr @allowed accept
    update @drops { iifname . ip6 saddr } counter drop
  }
}
"""
"""The tables with empty sets, for the router's namespace. With them no packet passes."""


@dataclass(frozen=True)
class Drop:
    """Packets with the source address `source` that arrived on the port of the ENI `eni_id` and were dropped."""

    eni_id: str
    source: Address
    packet_count: int


def change(netns: Netns, port: str, *, added: Iterable[Network], removed: Iterable[Network]) -> None:
    """Allow the sources `added` on a port and forbid `removed`, which must be allowed now, in one transaction."""
    script = _element("delete", port, removed) + _element("add", port, added)
    if script:
        netns.tool(["nft", "-f", "-"], script=script)


def drop_counts(netns: Netns) -> dict[tuple[str, Address], int]:
    """Read the number of packets dropped since the tables were installed, by (port name, source address)."""
    return {key: count for table in TABLES.values() for key, count in _drops_of(netns, table)}


def _drops_of(netns: Netns, table: str) -> list[tuple[tuple[str, Address], int]]:
    document: dict[str, Any] = json.loads(netns.tool(["nft", "-j", "list", "set", *table.split(), "drops"]))
    for item in document["nftables"]:
        if "set" in item:
            return [_count(element["elem"]) for element in item["set"].get("elem", [])]
    raise FabricError("the source check's set of drops is missing")


def _element(verb: str, port: str, networks: Iterable[Network]) -> str:
    script, sorted_networks = "", in_order(networks)
    for version, table in TABLES.items():
        elements = ", ".join(f'"{port}" . {_span(network)}' for network in sorted_networks if network.version == version)
        script += f"{verb} element {table} allowed {{ {elements} }}\n" if elements else ""
    return script


def _count(element: dict[str, Any]) -> tuple[tuple[str, Address], int]:
    port, source = element["val"]["concat"]
    return (port, ip_address(source)), int(element["counter"]["packets"])


def _span(network: Network) -> str:
    return str(network.network_address) if network.prefixlen == network.max_prefixlen else str(network)
