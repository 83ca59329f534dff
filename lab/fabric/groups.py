"""Security groups as one nftables table for each family.

A *guarded* ENI has groups that limit who may send to it. Packets to it are checked when they leave the router towards its port, so
only the groups of the destination decide. A packet passes if its source is admitted, or if it belongs to a connection that was
admitted or that the ENI began, because groups are stateful. Other packets are counted by (port, source) and dropped without an answer.
All packets to an ENI that is not guarded pass.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from lab.fabric.netns import Netns
from lab.fabric.port import in_order
from lab.vpc.model import Address, Network

TABLES = {4: "ip groups", 6: "ip6 groups"}
TRACKED = 0x1
"""Mark of packets from and to guarded ENIs, inside the router only. Their connections are tracked also within the VPC, where other
connections are not (internet.py)."""

_TABLE = """
table WORD groups {
  set members { type TYPE; flags interval; }
  set guarded { type ifname; }
  set admitted { typeof oifname . WORD saddr; flags interval; }
  set refused { type ifname . TYPE; flags dynamic; counter; size 65536; }
  chain of_members {
    type filter hook prerouting priority raw - 10; policy accept;
    WORD saddr @members meta mark set TRACKED
    WORD daddr @members meta mark set TRACKED
  }
  chain arriving {
    type filter hook forward priority filter; policy accept;
    oifname != @guarded accept
    ct state established,related accept
    oifname . WORD saddr @admitted accept
    update @refused { oifname . WORD saddr } counter drop
  }
}
""".replace("TRACKED", str(TRACKED))

RULESET = "".join(_TABLE.replace("WORD", word).replace("TYPE", of) for word, of in (("ip", "ipv4_addr"), ("ip6", "ipv6_addr")))
"""The tables with empty sets, for the router's namespace. With them no ENI is guarded."""


@dataclass(frozen=True)
class Refusal:
    """Packets from `source` that the groups of the ENI `eni_id` dropped."""

    eni_id: str
    source: Address
    packet_count: int


def change(netns: Netns, port: str, *, before: frozenset[Network] | None, after: frozenset[Network] | None) -> None:
    """Replace the networks that may send to a port, `before` by `after`, in one transaction. None: everybody may."""
    had, has = before or frozenset(), after or frozenset()
    script = ""
    for version, table in TABLES.items():
        if (before is None) != (after is None):
            script += f'{"add" if before is None else "delete"} element {table} guarded {{ "{port}" }}\n'
        for verb, networks in (("delete", had - has), ("add", has - had)):
            spans = ", ".join(f'"{port}" . {span}' for span in _spans(networks, version))
            script += f"{verb} element {table} admitted {{ {spans} }}\n" if spans else ""
    if script:
        netns.tool(["nft", "-f", "-"], script=script)


def name_members(netns: Netns, members: Iterable[Network]) -> None:
    """Replace the set of the addresses of all guarded ENIs. Packets from and to these addresses are marked TRACKED."""
    script, networks = "", frozenset(members)
    for version, table in TABLES.items():
        spans = ", ".join(_spans(networks, version))
        script += f"flush set {table} members\n" + (f"add element {table} members {{ {spans} }}\n" if spans else "")
    netns.tool(["nft", "-f", "-"], script=script)


def refusal_counts(netns: Netns) -> dict[tuple[str, Address], int]:
    """Read the number of dropped packets by (port name, source address)."""
    return {key: count for table in TABLES.values() for key, count in _refused_of(netns, table)}


def _refused_of(netns: Netns, table: str) -> list[tuple[tuple[str, Address], int]]:
    document: dict[str, Any] = json.loads(netns.tool(["nft", "-j", "list", "set", *table.split(), "refused"]))
    (found,) = (item["set"] for item in document["nftables"] if "set" in item)
    counted = [element["elem"] for element in found.get("elem", [])]
    return [((one["val"]["concat"][0], ip_address(one["val"]["concat"][1])), int(one["counter"]["packets"])) for one in counted]


def _spans(networks: Iterable[Network], version: int) -> list[str]:
    return [str(network) for network in in_order(networks) if network.version == version]
