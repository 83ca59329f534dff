"""Rules and routes on one node as Felix, Calico's node agent, makes them in policy-only mode: by iptables, or in a table of nftables.

This is a stand-in. Its objects were compared with those that a Felix of August 2026 made on a lab node. It makes those objects of the
real Felix that can conflict with the objects of our daemon:

- chains that decide about a workload by its host veth, and drop packets of an unknown link;
- mark bits that carry the verdict of a policy, cleared at raw prerouting;
- a reverse path check;
- one route to each workload, which replaces all other routes through its link;
- proxy ARP.

Source: projectcalico/calico felix/rules, felix/routetable. Left out: rules for hosts, address sets, tiers, NAT.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lab.node.node import Node
from lab.vpc.family import IPV4, Family
from lab.vpc.model import Address

PREFIX = "eni"
ACCEPTED, WORKLOAD = 0x10000, 0x80000
OWN = 0x1B0000
"""The mark bits that the stand-in clears. The real Felix has the mask 0xffff0000, and uses only these bits of it."""


@dataclass(frozen=True)
class Workload:
    """One pod. `passes`: whether its policies accept connections to it."""

    address: Address
    passes: bool = True


Workloads = Mapping[str, Workload]
"""Host veth -> its workload."""


def nft_rules(family: Family, workloads: Workloads) -> str:
    """Return the script for `nft -f`, which makes the table."""
    ip, accepted = family.nft, f"mark & {ACCEPTED:#x} == {ACCEPTED:#x}"
    lines = [f"table {ip} calico {{"]
    lines += [f" map {way} {{ type ifname : verdict; }}" for way in ("from", "to")]
    for link, workload in workloads.items():
        for way, passes in (("from", True), ("to", workload.passes)):
            verdict = f"mark set mark | {ACCEPTED:#x}; " if passes else ""
            lines.append(f" chain filter-cali-{way[0]}w-{link} {{ ct state established,related accept; ct state invalid drop;")
            lines.append(f"  mark set mark & {0xFFFFFFFF ^ ACCEPTED:#x}; {verdict}{accepted} return; drop; }}")
    lines += [
        " chain filter-cali-from-wl-dispatch { iifname vmap @from; drop; }",
        " chain filter-cali-to-wl-dispatch { oifname vmap @to; drop; }",
        f" chain filter-cali-FORWARD {{ mark set mark & {0xFFFFFFFF ^ OWN:#x};",
        f'  iifname "{PREFIX}*" jump filter-cali-from-wl-dispatch; oifname "{PREFIX}*" jump filter-cali-to-wl-dispatch; }}',
        " chain filter-FORWARD { type filter hook forward priority filter;",
        f"  jump filter-cali-FORWARD; {accepted} accept; mark set mark | {ACCEPTED:#x}; }}",
        " chain filter-INPUT { type filter hook input priority filter;",
        f'  iifname "{PREFIX}*" jump filter-cali-from-wl-dispatch; }}',
        " chain raw-PREROUTING { type filter hook prerouting priority raw;",
        f'  mark set mark & {0xFFFFFFFF ^ OWN:#x}; iifname "{PREFIX}*" mark set mark | {WORKLOAD:#x};',
        f"  mark & {WORKLOAD:#x} == {WORKLOAD:#x} fib saddr . mark . iif oif 0 drop; }}",
        "}",
    ]
    for link in workloads:
        for way in ("from", "to"):
            lines.append(f'add element {ip} calico {way} {{ "{link}" : goto filter-cali-{way[0]}w-{link} }}')
    return "\n".join(lines) + "\n"


def iptables_rules(workloads: Workloads) -> str:
    """Return the script for `iptables-restore --noflush` or `ip6tables-restore --noflush`."""
    return "\n".join([*_raw(), *_filter(workloads), ""])


def _raw() -> Iterator[str]:
    yield from ("*raw", ":cali-PREROUTING - [0:0]", "-A PREROUTING -j cali-PREROUTING")
    yield f"-A cali-PREROUTING -j MARK --set-xmark 0x0/{OWN:#x}"
    yield f"-A cali-PREROUTING -i {PREFIX}+ -j MARK --set-xmark {WORKLOAD:#x}/{WORKLOAD:#x}"
    yield f"-A cali-PREROUTING -m mark --mark {WORKLOAD:#x}/{WORKLOAD:#x} -m rpfilter --validmark --invert -j DROP"
    yield "COMMIT"


def _filter(workloads: Workloads) -> Iterator[str]:
    accepted = f"{ACCEPTED:#x}/{ACCEPTED:#x}"
    yield "*filter"
    for name in ("FORWARD", "INPUT", "from-wl-dispatch", "to-wl-dispatch"):
        yield f":cali-{name} - [0:0]"
    yield f"-A FORWARD -j cali-FORWARD\n-A FORWARD -m mark --mark {accepted} -j ACCEPT\n-A INPUT -j cali-INPUT"
    yield f"-A FORWARD -j MARK --set-xmark {accepted}"
    yield f"-A cali-FORWARD -j MARK --set-xmark 0x0/{OWN:#x}"
    yield f"-A cali-FORWARD -i {PREFIX}+ -j cali-from-wl-dispatch\n-A cali-FORWARD -o {PREFIX}+ -j cali-to-wl-dispatch"
    yield f"-A cali-INPUT -i {PREFIX}+ -j cali-from-wl-dispatch"
    for way, option in (("from", "-i"), ("to", "-o")):
        for link, workload in workloads.items():
            chain = f"cali-{way[0]}w-{link}"
            yield f":{chain} - [0:0]\n-A cali-{way}-wl-dispatch {option} {link} -g {chain}"
            yield f"-A {chain} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
            yield f"-A {chain} -m conntrack --ctstate INVALID -j DROP"
            yield f"-A {chain} -j MARK --set-xmark 0x0/{ACCEPTED:#x}"
            if way == "from" or workload.passes:
                yield f"-A {chain} -j MARK --set-xmark {accepted}"
            yield f"-A {chain} -m mark --mark {accepted} -j RETURN\n-A {chain} -j DROP"
        yield f"-A cali-{way}-wl-dispatch -j DROP"
    yield "COMMIT"


class Felix:
    """Felix on one node, for one family. `tool`: "nft", or an iptables of the family, such as `ip6tables-nft`."""

    def __init__(self, node: Node, *, family: Family, tool: str) -> None:
        self._node, self._family, self._tool = node, family, tool

    def sync(self, workloads: Workloads) -> None:
        """Replace all rules. For each workload, add Felix's route to it, and remove the daemon's routes through its link."""
        self.stop()
        if self._tool == "nft":
            self._node.netns.tool(["nft", "-f", "-"], script=nft_rules(self._family, workloads))
        else:
            self._node.netns.tool([f"{self._tool}-restore", "--noflush"], script=iptables_rules(workloads))
        for link, workload in workloads.items():
            ip, route = self._family.option, ["dev", link, "metric", "1024", "protocol", "boot"]
            self._node.netns.tool(["ip", ip, "route", "replace", str(workload.address), *route])
            self._node.netns.tool(["ip", ip, "route", "flush", "dev", link, "protocol", "static"])
            if self._family is IPV4:
                self._node.netns.sysctl({f"ipv4/conf/{link}/proxy_arp": "1"})

    def stop(self) -> None:
        """Remove Felix's table of nftables, or all rules of the iptables tables filter and raw, also those of other programs.

        Routes stay.

        Idempotent.
        """
        if self._tool == "nft":
            table = f"{self._family.nft} calico"
            self._node.netns.tool(["nft", "-f", "-"], script=f"add table {table}\ndelete table {table}\n")
            return
        for table in ("filter", "raw"):
            self._node.netns.tool([self._tool, "-t", table, "-F"])
            self._node.netns.tool([self._tool, "-t", table, "-X"])
