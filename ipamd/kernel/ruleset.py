"""The text of our nftables table: which traffic is SNATed, and which connections stay on the primary ENI. Pure.

    mark_in   prerouting  mangle (-150)    before kube-proxy's DNAT: NodePort connections that arrive on the primary ENI get
                                           the bit in their conntrack mark; packets of sandboxes get it from there
    mark_out  prerouting  dstnat+10 (-90)  after DNAT: a sandbox's new connections to outside the VPC get the bit
    snat_out  postrouting srcnat+10 (110)  after kube-proxy and portmap: SNAT to the node's primary address

The bit selects table main (rule 1024), so the packet leaves through the primary ENI, where the SNAT address is valid.
Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, updateHostIptablesRules; pkg/networkutils/nftables_connmark.go. Different
on purpose: bits of other agents in the mark are kept (v1.23.0 overwrites the whole mark: its
docs/nftables-connmark-restore-contract.md); CIDRs are one interval set instead of one rule each; the table is replaced in one
transaction instead of rule by rule (docs/adr/0005).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, collapse_addresses
from typing import Final, NamedTuple

from ipamd.model.errors import WiringError
from ipamd.settings import NetworkConfig

TABLE: Final = "vpc-ipamd"
FAMILY: Final = "ip"


class NftTable(NamedTuple):
    """An nftables table of ours, as nft names it."""

    family: str
    name: str

    def __str__(self) -> str:
        return f"{self.family} {self.name}"

    def removal(self) -> str:
        """Return commands that remove it, whether it exists or not."""
        return f"add table {self}\ndelete table {self}\n"


SNAT: Final = NftTable(FAMILY, TABLE)

PORT_FLAGS: Final = {"prng": " fully-random", "hashrandom": " random", "none": ""}
"""AWS_VPC_K8S_CNI_RANDOMIZESNAT -> how SNAT chooses ports.

Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, typeOfSNAT (--random-fully, --random).
"""


@dataclass(frozen=True, slots=True)
class FormerSettings:
    """What is in use although the settings say otherwise now.

    `veth_prefixes`: of sandboxes that live. `marks`: bits that connections may carry; each is known by its rule 1024, which stays
    until the node reboots or somebody removes it.
    """

    veth_prefixes: tuple[str, ...] = ()
    marks: tuple[int, ...] = ()


NONE_FORMER: Final = FormerSettings()

BRANCH_LINKS: Final = "vlan*"
"""Links of branch ENIs, whose packets keep their address. Source: amazon-vpc-cni-k8s pkg/networkutils/network.go (`! -o vlan+`)."""


def replace_table(
    config: NetworkConfig,
    *,
    vpc_cidrs: Collection[IPv4Network],
    primary_address: IPv4Address,
    primary_link: str,
    former: FormerSettings = NONE_FORMER,
) -> str:
    """Return commands that replace our table, to be run as one transaction.

    Args:
        vpc_cidrs: 1 or more (0 with external SNAT); these and `config.exclude_snat_cidrs` are reached without SNAT.
        primary_link: the primary ENI's interface name.
        former: what sandboxes and connections from before a change of settings still need.
    Returns: only the removal if neither SNAT nor marks are configured.
    Raises: WiringError if `vpc_cidrs` is empty and SNAT is ours: all traffic would be SNATed (I11).
    Concurrency: pure.
    """
    if not vpc_cidrs and not config.external_snat:
        raise WiringError(
            "the nftables table was not made",
            details="no CIDR of the VPC is known, and without one traffic within the VPC would be SNATed",
        )
    chains: list[str] = []
    if needs_mark(config) or former.marks:
        chains.append(_mark_in(config, primary_link, former.marks))
    if not config.external_snat:
        chains.append(_exempt_set(collapse_addresses([*vpc_cidrs, *config.exclude_snat_cidrs])))
        chains.append(_mark_out(config))
        chains.append(_snat(config, primary_address))
    if not chains:
        return remove_table()
    body = _with_prefixes("\n".join(chains), config.veth_prefix, former.veth_prefixes)
    # `add` makes `delete` safe when there is none; all three are one transaction
    return f"{remove_table()}add table {FAMILY} {TABLE}\ntable {FAMILY} {TABLE} {{\n{body}\n}}\n"


def remove_table() -> str:
    """Return commands that remove our table, whether it exists or not."""
    return SNAT.removal()


def needs_mark(config: NetworkConfig) -> bool:
    """Whether rule 1024 and the restoring of marks are needed.

    Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, SetupHostNetwork.
    """
    return config.node_port_support or not config.external_snat


def _exempt_set(networks: Iterable[IPv4Network]) -> str:
    elements = ", ".join(str(network) for network in networks)
    return f"  set exempt {{\n    type ipv4_addr; flags interval;\n    elements = {{ {elements} }}\n  }}"


def _with_prefixes(body: str, prefix: str, former: Collection[str]) -> str:
    """Repeat every rule that names sandboxes' links for the former prefixes.

    Not one rule with a set of names: the usual case, no former prefix, keeps the text that amazon-vpc-cni-k8s' rules have.
    """
    lines = []
    for line in body.splitlines():
        names = [prefix, *sorted(former)] if f'"{prefix}*"' in line else [prefix]
        lines += [line.replace(f'"{prefix}*"', f'"{name}*"') for name in names]
    return "\n".join(lines)


def _mark_in(config: NetworkConfig, primary_link: str, former_marks: Collection[int] = ()) -> str:
    mark = f"{config.connmark:#x}"
    rules = []
    if config.node_port_support:
        rules.append(f'iifname "{primary_link}" fib daddr . iif type local ct mark set ct mark or {mark}')
    for one in [mark, *(f"{former:#x}" for former in sorted(former_marks))]:
        rules.append(f'iifname "{config.veth_prefix}*" ct mark and {one} == {one} meta mark set meta mark or {one}')
    return chain("mark_in", "type filter hook prerouting priority mangle; policy accept;", rules)


def _mark_out(config: NetworkConfig) -> str:
    mark = f"{config.connmark:#x}"
    selector = f'iifname "{config.veth_prefix}*" ct state new fib daddr type != local ip daddr != @exempt'
    rule = f"{selector} ct mark set ct mark or {mark} meta mark set meta mark or {mark}"
    return chain("mark_out", "type filter hook prerouting priority dstnat + 10; policy accept;", [rule])


def _snat(config: NetworkConfig, primary_address: IPv4Address) -> str:
    rules = [
        'oifname "lo" return',
        f'oifname "{BRANCH_LINKS}" return',
        "ip daddr @exempt return",
        f"fib daddr type != local snat to {primary_address}{PORT_FLAGS[config.randomize_snat]}",
    ]
    return chain("snat_out", "type nat hook postrouting priority srcnat + 10; policy accept;", rules)


def chain(name: str, head: str, rules: Iterable[str]) -> str:
    """Return the text of a chain within its table; `head` is empty for one that is only jumped to."""
    body = "".join(f"    {rule}\n" for rule in rules)
    first = f"    {head}\n" if head else ""
    return f"  chain {name} {{\n{first}{body}  }}"
