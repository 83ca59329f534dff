"""EC2's source check as one nftables table: a packet passes only if its source address is on the ENI it comes from.

The set of (port, source) pairs decides alone; it changes in one transaction, so that no packet sees half of
a change. What does not match is counted by (port, source) and dropped without an answer, as EC2 does. Link-local
destinations (instance metadata among them) are never carried: they belong to the node. Checked before routing, so
that the router's own addresses do not bypass it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from lab.fabric.errors import FabricError
from lab.fabric.netns import Netns

TABLE = "ip vpc"
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
"""


@dataclass(frozen=True)
class Drop:
    """Packets that came from `source` through the port of `eni_id` and were not carried."""

    eni_id: str
    source: IPv4Address
    packet_count: int


def install(netns: Netns) -> None:
    """Put the empty table into the router's namespace: from now on nothing passes."""
    netns.tool(["nft", "-f", "-"], script=RULESET)


def change(netns: Netns, port: str, *, added: Iterable[IPv4Network], removed: Iterable[IPv4Network]) -> None:
    """Allow and forbid sources on one port, in one transaction; `removed` must be allowed now."""
    script = _element("delete", port, removed) + _element("add", port, added)
    if script:
        netns.tool(["nft", "-f", "-"], script=script)


def drop_counts(netns: Netns) -> dict[tuple[str, IPv4Address], int]:
    """Read dropped packets by (port name, source address), since the table was installed."""
    document: dict[str, Any] = json.loads(netns.tool(["nft", "-j", "list", "set", *TABLE.split(), "drops"]))
    for item in document["nftables"]:
        if "set" in item:
            return dict(_count(element["elem"]) for element in item["set"].get("elem", []))
    raise FabricError("the source check's set of drops is missing")


def _element(verb: str, port: str, networks: Iterable[IPv4Network]) -> str:
    elements = ", ".join(f'"{port}" . {_span(network)}' for network in sorted(networks))
    return f"{verb} element {TABLE} allowed {{ {elements} }}\n" if elements else ""


def _count(element: dict[str, Any]) -> tuple[tuple[str, IPv4Address], int]:
    port, source = element["val"]["concat"]
    return (port, IPv4Address(source)), int(element["counter"]["packets"])


def _span(network: IPv4Network) -> str:
    return str(network.network_address) if network.prefixlen == 32 else str(network)
