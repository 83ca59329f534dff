"""A stand-in for systemd-networkd and amazon-ec2-net-utils on one node: their changes to links, addresses, routes and rules.

Nodes have no systemd. Each method is an event on a real node. It makes with `ip` the changes that the two make in the kernel then:

    link_appeared   udev sets the link's sysctls; net-utils writes a configuration; networkd raises the link, takes the primary
                    address by DHCP, adds every secondary address as /32, and for a secondary ENI a table and rules of its own
    refreshed       net-utils' timer sets addresses and rules by the present metadata
    restarted       networkd removes objects that it did not configure: routing rules, and routes on its links
                    (ManageForeignRoutingPolicyRules=, ManageForeignRoutes=: networkd.conf(5); amazon-vpc-cni-k8s issues 1600 and 3309)
    carrier_lost    networkd removes its configuration of the link, and foreign addresses and routes there as well

Sources: amazon-ec2-net-utils lib/lib.sh (rules and table 10000 + device, metric 512 + 10 * device, aliases on the primary ENI too);
networkd.conf(5), systemd.network(5). With EKS's image of AL2023 networkd changes neither new links nor foreign rules (amazon-eks-ami
pull request 1539). Other images have no such settings, so this stand-in exists.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from lab.fabric.port import gateway, interface_name
from lab.node import amazon_linux
from lab.node.node import Node
from lab.vpc.model import Eni

RULE_BASE, METRIC_BASE = 10000, 512
"""Source: amazon-ec2-net-utils lib/lib.sh, rule_base and metric_base."""

PROTOCOL = "dhcp"
"""The protocol of networkd's routes. Routes of any other protocol are foreign, except the kernel's."""


class Networkd:
    """networkd and net-utils on one node. Concurrency: one thread at a time."""

    def __init__(self, node: Node, *, manages_foreign: bool = True) -> None:
        """Make the object; nothing is changed on the node yet.

        Args:
            manages_foreign: whether rules and routes of others are removed. This is networkd's default; EKS's image turns it off.
        """
        self._node = node
        self._manages_foreign = manages_foreign
        self._managed: dict[str, Eni] = {}

    def link_appeared(self, eni: Eni) -> None:
        """Take over an ENI's link, as if it had just appeared."""
        link = interface_name(eni)
        amazon_linux.follow(self._node.netns, [link])
        self._managed[link] = eni
        self._configure(eni)

    def refreshed(self, eni: Eni) -> None:
        """Configure the addresses that the ENI has now, and reload networkd, which removes foreign objects (`restarted`)."""
        self._managed[interface_name(eni)] = eni
        self._configure(eni)
        self.restarted()

    def restarted(self) -> None:
        """Remove rules and, on managed links, routes that networkd did not make."""
        if not self._manages_foreign:
            return
        lines = [*self._foreign_rules(), *(line for link in self._managed for line in self._foreign_routes(link))]
        self._ip(lines)

    def carrier_lost(self, eni: Eni) -> None:
        """Empty the link, as when it loses its carrier and KeepConfiguration= is no; `link_appeared` configures it again."""
        link = interface_name(eni)
        self._managed.pop(link, None)
        self._ip([f"addr flush dev {link}", f"route flush table all dev {link}", *self._own_rules(eni)])

    def _configure(self, eni: Eni) -> None:
        link, device = interface_name(eni), eni.attachment.device_index if eni.attachment else 0
        router, metric = gateway(eni.subnet_cidr), METRIC_BASE + 10 * device
        table = f"table {RULE_BASE + device}" if device else "table main"
        lines = [f"link set {link} up"]
        if eni.primary_address is not None:
            lines.append(f"addr replace {eni.primary_address}/{eni.subnet_cidr.prefixlen} brd + dev {link} noprefixroute")
        lines += [f"addr replace {address}/32 dev {link} noprefixroute" for address in eni.secondary_addresses]
        source = f"src {eni.primary_address} metric {metric} proto {PROTOCOL} {table}"
        lines += [
            f"route replace {eni.subnet_cidr} dev {link} scope link {source}",
            f"route replace default via {router} dev {link} {source}",
        ]
        if device:
            lines += [*self._own_rules(eni), *(f"rule add {rule}" for rule in _rules(eni, device))]
        self._ip(lines)

    def _own_rules(self, eni: Eni) -> Iterator[str]:
        """Yield commands that remove the rules of net-utils for an ENI, whatever addresses they are for."""
        device = eni.attachment.device_index if eni.attachment else 0
        for rule in self._rules():
            if device and rule["priority"] == RULE_BASE + device:
                yield f"rule del {_words(rule)}"

    def _foreign_rules(self) -> Iterator[str]:
        own = {RULE_BASE + eni.attachment.device_index for eni in self._managed.values() if eni.attachment}
        for rule in self._rules():
            if rule.get("protocol") != "kernel" and rule["priority"] not in own:
                yield f"rule del {_words(rule)}"

    def _foreign_routes(self, link: str) -> Iterator[str]:
        for route in self._read("-details", "-4", "route", "show", "table", "all", "dev", link):
            if route.get("protocol") in ("kernel", PROTOCOL) or route.get("table") == "local":
                continue
            via = f" via {route['gateway']}" if "gateway" in route else ""
            metric = f" metric {route['metric']}" if "metric" in route else ""
            yield f"route del {route['dst']}{via} dev {link} table {route.get('table', 'main')}{metric}"

    def _rules(self) -> list[dict[str, Any]]:
        return self._read("-details", "-4", "rule", "show")

    def _read(self, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self._node.netns.tool(["ip", "-json", *words]) or "[]")
        return found

    def _ip(self, lines: Iterable[str]) -> None:
        self._node.netns.ip(list(lines))


def _rules(eni: Eni, device: int) -> Iterator[str]:
    sources: tuple[IPv4Address | IPv4Network, ...] = (*eni.addresses, *eni.prefixes)
    for source in sources:
        yield f"from {source} lookup {RULE_BASE + device} priority {RULE_BASE + device} protocol {PROTOCOL}"


def _words(rule: dict[str, Any]) -> str:
    """Write one rule of `ip -json rule` as arguments by which `ip rule del` finds only this rule."""
    words = [f"priority {rule['priority']}"]
    for key, option in (("src", "from"), ("dst", "to")):
        if rule.get(key, "all") != "all":
            length = f"/{rule[f'{key}len']}" if f"{key}len" in rule else ""
            words.append(f"{option} {rule[key]}{length}")
    if "fwmark" in rule:
        words.append(f"fwmark {rule['fwmark']}/{rule.get('fwmask', '0xffffffff')}")
    if "table" in rule:
        words.append(f"lookup {rule['table']}")
    return " ".join(words)
