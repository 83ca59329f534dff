"""One look at one node from outside: the kernel as `ip` shows it, the inside of sandboxes, the daemon's rows by its socket.

No code of the daemon reads the kernel here, so that a defect there cannot hide itself. Three dumps are not one
moment: whoever checks an observation must see a thing twice.
"""

from __future__ import annotations

import fcntl
import json
import re
import socket
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lab.chaos.expected_state import PodRecord
from lab.fabric.errors import FabricError
from lab.fabric.netns import enter_netns
from lab.node.node import Node

ALIAS_TAG = "vpc-ipamd/1"
DYING_GROUP = "113213"
"""0x1BA3D; design 5: a retired host veth is put into the dying group."""

SIOCGIFADDR = 0x8915  # linux/sockios.h
_RULE = re.compile(r"^(512|1536):\s+from (all to )?(\d+\.\d+\.\d+\.\d+) lookup")


@dataclass(frozen=True)
class Veth:
    """A host veth that carries our identity."""

    name: str
    container_id: str
    address: str
    is_up: bool
    is_dying: bool

    @property
    def is_wired(self) -> bool:
        """Up, and not on its way out."""
        return self.is_up and not self.is_dying


@dataclass(frozen=True)
class NodeObservation:
    """What one node looked like. `rows`: container ID -> address, None when the daemon did not answer."""

    veths: tuple[Veth, ...] = ()
    routes: Mapping[str, str] = field(default_factory=dict)
    to_rules: frozenset[str] = frozenset()
    from_rules: frozenset[str] = frozenset()
    rows: Mapping[str, str] | None = None
    inside: Mapping[str, str] = field(default_factory=dict)


def observe(node: Node, records: Iterable[PodRecord], rows: Mapping[str, str] | None) -> NodeObservation:
    """Look at a node now; `records` are the sandboxes whose inside is looked at.

    Raises: FabricError if the node's namespace cannot be looked at.
    """
    links = json.loads(node.netns.tool(["ip", "-j", "-d", "link", "show", "type", "veth"]) or "[]")
    routes = json.loads(node.netns.tool(["ip", "-j", "route", "show", "table", "main", "scope", "link"]) or "[]")
    to_rules, from_rules = read_rules(node.netns.tool(["ip", "rule", "show"]))
    return NodeObservation(
        veths=tuple(veth for link in links if (veth := read_veth(link)) is not None),
        routes={route["dst"]: route.get("dev", "") for route in routes if "/" not in route["dst"]},
        to_rules=to_rules,
        from_rules=from_rules,
        rows=rows,
        inside=_inside(node, records),
    )


def read_veth(link: Mapping[str, Any]) -> Veth | None:
    """Read one link of `ip -j -d link`; None if it does not carry our identity."""
    words = str(link.get("ifalias", "")).split(" ")
    if len(words) != 4 or words[0] != ALIAS_TAG:
        return None
    return Veth(link["ifname"], words[1], words[3], "UP" in link["flags"], str(link.get("group", "")) == DYING_GROUP)


def read_rules(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Read `ip rule show`: addresses with a rule 512 (to), and with a rule 1536 (from)."""
    found: dict[str, set[str]] = {"512": set(), "1536": set()}
    for line in text.splitlines():
        match = _RULE.match(line)
        if match:
            found[match[1]].add(match[3])
    return frozenset(found["512"]), frozenset(found["1536"])


def _inside(node: Node, records: Iterable[PodRecord]) -> dict[str, str]:
    """Container ID -> the address that eth0 has in the sandbox's own namespace; left out if that cannot be told.

    One thread per look: a thread that entered a foreign namespace is not used for anything else.
    """
    found: dict[str, str] = {}

    def ask() -> None:
        for record in records:
            try:
                enter_netns(node.root + record.netns_path)
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                    answer = fcntl.ioctl(sock, SIOCGIFADDR, b"eth0".ljust(40, b"\0"))
            except (OSError, FabricError):
                continue  # it is just being removed
            found[record.sandbox_id] = socket.inet_ntoa(answer[20:24])

    thread = threading.Thread(target=ask, name="inside", daemon=True)
    thread.start()
    thread.join(10)
    return dict(found)
