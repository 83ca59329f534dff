"""Find what other software on the node does to sandboxes' traffic that we cannot repair: name it, with the command that mends it.

Two things: rules that amazon-vpc-cni-k8s left, which SNAT or mark traffic whatever our settings say; and filters (Docker, firewalld,
an administrator's) that drop all that sandboxes send or are sent. Neither is ours to change, and no table of ours can undo them: a
drop is final, and the first source translation stands. Source of the names: amazon-vpc-cni-k8s pkg/networkutils/network.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

from ipamd.kernel import filters
from ipamd.kernel import ruleset as nft_rules
from ipamd.kernel.filters import Packet, Rule, Verdict
from ipamd.kernel.legacy_tables import LegacyTable, LegacyTables
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.kernel.nft_state import generation
from ipamd.model.errors import WiringError
from ipamd.model.kernel import NODE, RoutingDifference

LEFT_CHAINS = ("AWS-SNAT-CHAIN-", "AWS-CONNMARK-CHAIN-")
LEFT_TABLE = ("ip", "aws-cni")
"""Its connection marks, where iptables is iptables-nft. Source: amazon-vpc-cni-k8s pkg/networkutils/nftables_connmark.go."""

FORWARD_FAMILIES = ("ip", "inet")

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_UNKNOWN = (Rule(Verdict.ACCEPT),)
"""A chain that cannot be read may accept everything (I11)."""


class OtherSoftware:
    """Looks, and changes nothing. Used under the lock of `KernelHostNetwork`."""

    def __init__(self, host: HostNetns, nft: Nftables, *, veth_prefix: str) -> None:
        self._host = host
        self._nft = nft
        self._veth_prefix = veth_prefix
        self._legacy = LegacyTables(host)
        self._known: tuple[bytes, str, list[RoutingDifference]] | None = None  # generation, primary link, what was found

    def find(self, primary_link: str) -> list[RoutingDifference]:
        """Everything found, each with the command that mends it. Raises: WiringError if nftables cannot be asked.

        Cost: less than a millisecond while no rule changes.
        """
        now = generation(self._host)
        if self._known is None or now is None or self._known[:2] != (now, primary_link):
            chains = nft_rules.read_chains(self._nft.query("list chains"))
            found = [*self._left_in_nft(chains), *self._filtered_in_nft(chains, primary_link)]
            # What changed while we read is read again the next time: the number is the one from before.
            self._known = None if now is None else (now, primary_link, found)
        else:
            found = self._known[2]
        return found + self._in_legacy(primary_link)

    def _left_in_nft(self, chains: Iterable[nft_rules.Chain]) -> Iterator[RoutingDifference]:
        has_table = False
        for chain in chains:
            has_table |= (chain.family, chain.table) == LEFT_TABLE
            is_left = chain.family == "ip" and chain.table == "nat" and chain.name.startswith(LEFT_CHAINS)
            if is_left and self._rules(chain.family, chain.table)(chain.name):
                yield _left(chain.name, "iptables-nft")
        if has_table:
            what = f"nftables table {' '.join(LEFT_TABLE)} of amazon-vpc-cni-k8s marks connections besides ours"
            mend = f"remove the DaemonSet aws-node, then: nft delete table {' '.join(LEFT_TABLE)}"
            yield RoutingDifference(NODE, what, is_repaired=False, mend=mend, is_cut=False)

    def _filtered_in_nft(self, chains: Sequence[nft_rules.Chain], primary_link: str) -> Iterator[RoutingDifference]:
        names = {(chain.family, chain.table, chain.name) for chain in chains}
        for chain in chains:
            if chain.hook != "forward" or chain.family not in FORWARD_FAMILIES:
                continue
            directions = self._dropped(self._rules(chain.family, chain.table), chain.name, chain.policy_drops, primary_link)
            if directions:
                what = f"chain {chain.family} {chain.table} {chain.name} drops what is forwarded {' and '.join(directions)}"
                yield _obstacle(what, self._mend(chain, names))

    def _in_legacy(self, primary_link: str) -> list[RoutingDifference]:
        found: list[RoutingDifference] = []
        try:
            tables = self._legacy.read()
        except WiringError as exc:
            return [RoutingDifference(NODE, str(exc), is_repaired=False, mend="iptables-legacy-save", is_cut=False)]
        for table in tables:
            for name, rules in table.chains.items():
                if table.name == "nat" and name.startswith(LEFT_CHAINS) and _does_anything(rules):
                    found.append(_left(name, "iptables-legacy"))
            if "FORWARD" in table.chains:
                directions = self._dropped(_rules_of(table), "FORWARD", table.forward_drops, primary_link)
                if directions:
                    what = f"chain FORWARD of iptables-legacy, table {table.name}, drops what is forwarded {' and '.join(directions)}"
                    found.append(_obstacle(what, _accepts("iptables-legacy", table.name, "FORWARD", self._veth_prefix)))
        return found

    def _dropped(self, rules: Callable[[str], Sequence[Rule]], chain: str, policy_drops: bool, primary_link: str) -> list[str]:
        veth = f"{self._veth_prefix}00000000000"
        ways = {"from sandboxes": Packet(veth, primary_link), "to sandboxes": Packet(primary_link, veth)}
        return [way for way, packet in ways.items() if filters.is_dropped(rules, chain, packet, policy_drops=policy_drops)]

    def _rules(self, family: str, table: str) -> Callable[[str], Sequence[Rule]]:
        """Read a chain's rules when they are asked for: listing everything would cost seconds beside kube-proxy's rules."""

        @cache
        def read(chain: str) -> tuple[Rule, ...]:
            if not all(_PLAIN_NAME.fullmatch(name) for name in (table, chain)):
                return _UNKNOWN
            try:
                return tuple(nft_rules.read_rules(self._nft.query(f"list chain {family} {table} {chain}")))
            except WiringError:
                return _UNKNOWN  # its name is a word of nft's language, or it has gone

        return read

    def _mend(self, chain: nft_rules.Chain, names: set[tuple[str, str, str]]) -> str:
        prefix = self._veth_prefix
        if (chain.family, chain.table) == ("ip", "filter"):
            is_docker = ("ip", "filter", "DOCKER-USER") in names
            return _accepts("iptables-nft", "filter", "DOCKER-USER" if is_docker else chain.name, prefix)
        if chain.table == "firewalld":
            zone = f"firewall-cmd --permanent --zone=trusted --add-interface={prefix}+"
            policy = (
                "firewall-cmd --permanent --new-policy=vpc-ipamd; firewall-cmd --permanent --policy=vpc-ipamd"
                " --add-ingress-zone=ANY --add-egress-zone=trusted --set-target=ACCEPT"
            )
            return f"{zone}; {policy}; firewall-cmd --reload"
        where = f"nft insert rule {chain.family} {chain.table} {chain.name}"
        return f"{where} iifname '\"{prefix}*\"' accept; {where} oifname '\"{prefix}*\"' accept"


def _left(chain: str, tool: str) -> RoutingDifference:
    effect = "SNATs" if "SNAT" in chain else "marks"
    what = f"chain {chain} ({tool}, table nat) of amazon-vpc-cni-k8s {effect} traffic whatever our settings say"
    mend = f"remove the DaemonSet aws-node, then: {tool} -t nat -F {chain}"
    return RoutingDifference(NODE, what, is_repaired=False, mend=mend, is_cut=False)


def _accepts(tool: str, table: str, chain: str, prefix: str) -> str:
    return f"{tool} -t {table} -I {chain} -i {prefix}+ -j ACCEPT; {tool} -t {table} -I {chain} -o {prefix}+ -j ACCEPT"


def _obstacle(what: str, mend: str) -> RoutingDifference:
    return RoutingDifference(NODE, what, is_repaired=False, mend=mend)


def _does_anything(rules: Iterable[Rule]) -> bool:
    """Whether a chain of iptables-legacy is more than the return that ends each."""
    return any(rule != Rule(Verdict.RETURN) for rule in rules)


def _rules_of(table: LegacyTable) -> Callable[[str], Sequence[Rule]]:
    return lambda chain: table.chains.get(chain, ())
