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

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network, collapse_addresses
from typing import Any, NamedTuple

from ipamd.kernel.filters import Interface, Rule, Scope, Verdict
from ipamd.kernel.nft import Nftables
from ipamd.model.errors import WiringError
from ipamd.model.kernel import Followed
from ipamd.settings import NetworkConfig

TABLE = "vpc-ipamd"
FAMILY = "ip"


class NftTable(NamedTuple):
    """An nftables table of ours, as nft names it."""

    family: str
    name: str

    def __str__(self) -> str:
        return f"{self.family} {self.name}"

    def removal(self) -> str:
        """Return commands that remove it, whether it exists or not."""
        return f"add table {self}\ndelete table {self}\n"

    def replacement(self, body: str) -> str:
        """Return commands that make it anew, as one transaction."""
        return f"{self.removal()}add table {self}\ntable {self} {{\n{body}\n}}\n"


SNAT = NftTable(FAMILY, TABLE)

PORT_FLAGS = {"prng": " fully-random", "hashrandom": " random", "none": ""}
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


NONE_FORMER = FormerSettings()

BRANCH_LINKS = "vlan*"
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
        return SNAT.removal()
    body = _with_prefixes("\n".join(chains), config.veth_prefix, former.veth_prefixes)
    return SNAT.replacement(body)


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


# Read chains and rules out of nftables' JSON, as far as `filters` needs them. Pure.
#
# iptables-nft's rules are among them; what it keeps as an extension ("xt") is named there without its arguments. Source of the
# shapes: libnftables-json(5).


JsonObject = Mapping[str, Any]

_VERDICTS = {
    "accept": Verdict.ACCEPT,
    "drop": Verdict.DROP,
    "reject": Verdict.DROP,
    "return": Verdict.RETURN,
    "jump": Verdict.JUMP,
    "goto": Verdict.GOTO,
}
_HARMLESS = frozenset({"counter", "log", "comment", "mangle"})
"""Statements that neither choose packets nor end a rule."""


@dataclass(frozen=True, slots=True)
class Chain:
    """One chain; `hook` is empty for a chain that is not a base chain."""

    family: str
    table: str
    name: str
    hook: str = ""
    policy_drops: bool = False


def read_chains(answer: Iterable[JsonObject]) -> list[Chain]:
    """The chains of an answer to `list chains`; objects of another shape are left out."""
    found = []
    for item in answer:
        chain = item.get("chain")
        if isinstance(chain, dict):
            words = [word for name in ("family", "table", "name") if isinstance(word := chain.get(name), str)]
            if len(words) == 3:
                hook = str(chain.get("hook") or "")
                found.append(Chain(words[0], words[1], words[2], hook, chain.get("policy") == "drop"))
    return found


def read_rules(answer: Iterable[JsonObject]) -> list[Rule]:
    """The rules of an answer to `list chain`, in order."""
    rules = [item["rule"] for item in answer if isinstance(item.get("rule"), dict)]
    return [_rule(rule["expr"]) for rule in rules if isinstance(rule.get("expr"), list)]


def _rule(expressions: Iterable[object]) -> Rule:
    rule = Rule(Verdict.NONE)
    for expression in expressions:
        if not isinstance(expression, dict) or len(expression) != 1:
            return replace(rule, scope=Scope.PART)
        ((kind, body),) = expression.items()
        if kind == "match":
            rule = _with_match(rule, body)
        elif kind == "xt":
            rule = _with_extension(rule, body)
        elif kind in _VERDICTS:
            rule = replace(rule, verdict=_VERDICTS[kind], target=body.get("target", "") if isinstance(body, dict) else "")
        elif kind not in _HARMLESS:
            rule = replace(rule, scope=Scope.PART)
    return rule


def _with_match(rule: Rule, body: JsonObject) -> Rule:
    left, right, operator = body.get("left"), body.get("right"), body.get("op")
    key = left.get("meta", {}).get("key") if isinstance(left, dict) and isinstance(left.get("meta"), dict) else None
    if key in ("iifname", "oifname") and isinstance(right, str) and operator in ("==", "!="):
        condition = Interface(right, is_negated=operator == "!=")
        if key == "iifname":
            return replace(rule, incoming=(*rule.incoming, condition))
        return replace(rule, outgoing=(*rule.outgoing, condition))
    payload = left.get("payload") if isinstance(left, dict) else None
    if isinstance(payload, dict) and payload.get("field") in ("saddr", "daddr"):
        return _narrowed(rule, Scope.BY_ADDRESS)
    return _narrowed(rule, Scope.PART)


def _with_extension(rule: Rule, body: object) -> Rule:
    """An iptables extension: of its arguments nothing is known, so a match but for a comment takes a part of the traffic."""
    name, kind = (body.get("name"), body.get("type")) if isinstance(body, dict) else (None, None)
    if kind == "match":
        return rule if name == "comment" else _narrowed(rule, Scope.PART)
    if name == "REJECT":
        return replace(rule, verdict=Verdict.DROP)
    return rule


def _narrowed(rule: Rule, scope: Scope) -> Rule:
    return rule if rule.scope is Scope.PART else replace(rule, scope=scope)


# A table of ours in nftables: compare it with what it must be, and replace it.
#
# What nft prints is not what it was given, so the comparison is with what it printed right after our own replacement: the first
# comparison of a process always replaces.


COUNTED = re.compile(r"packets \d+ bytes \d+")
"""How nft prints the present value of a counter."""


class OwnTable:
    """Remembers what was applied. Used under a lock of its owner.

    `listing`: how nft printed the table at the last look, with the values of its counters.
    """

    def __init__(self, nft: Nftables, table: NftTable = SNAT, *, follows: str = "the VPC's CIDRs or of a setting") -> None:
        """`follows` says what changes what the table must be."""
        self._nft = nft
        self._table = table
        self._follows = follows
        self._what = f"nftables table {table.name}" + ("" if table.family == SNAT.family else f" ({table.family})")
        self.listing = ""
        self._applied: tuple[str, str] | None = None  # the commands, and how nft lists the table that they made

    def forget(self) -> None:
        """Replace the table at the next repair, whatever it is like: it may be of an earlier release or configuration."""
        self._applied = None

    def difference(self, commands: str) -> str:
        """Say in one sentence how the table differs from what `commands` make; "" if it does not. Raises: WiringError.

        Before the first repair of this process only its absence is told: with what it should be like, nothing can be compared yet.
        """
        now = self._list()
        if self._applied == (commands, now):
            return ""
        if self._applied is None:
            return f"{self._what} was missing" if not now and commands != self._table.removal() else ""
        if self._applied[0] != commands:
            return f"{self._what} did not follow a change of {self._follows} yet"
        return f"{self._what} had been changed" if now else f"{self._what} was missing"

    def repair(self, commands: str) -> list[str]:
        """Replace the table if it differs; one sentence if that changed it, `Followed` if `commands` did. Raises: WiringError."""
        now = self._list()
        if self._applied == (commands, now):
            return []
        self._nft.run(commands)
        first_time = self._applied is None
        was_changed_by_us = self._applied is not None and self._applied[0] != commands
        self._applied = (commands, self._list())
        if now == self._applied[1]:
            return []
        if not now:
            return [f"{self._what} was missing: added"]
        if not self._applied[1]:
            return [f"{self._what} is not needed: removed"]
        if was_changed_by_us:
            return [Followed(f"{self._what} followed a change of {self._follows}: replaced")]
        return [f"{self._what} {'was of an earlier start' if first_time else 'had been changed'}: replaced"]

    def _list(self) -> str:
        self.listing = self._nft.list_table(self._table.family, self._table.name)
        return COUNTED.sub("", self.listing)
