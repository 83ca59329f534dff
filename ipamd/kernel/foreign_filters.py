"""Report filters of other software that may drop sandboxes' packets: their table and chain, and the handle of a single rule.

No packet is followed through chains, so a finding is a suspicion and never a proof that a sandbox has no network. A base chain is
suspected if it drops every packet that no rule accepts (by its policy, or by a rule without a condition) and no rule of its table
names our host veths. A rule of a base chain is suspected if it drops and names an address or a host veth of ours. We must not change
these rules, and no table of ours can undo them, because a drop is final (nft(8), "verdict statement"). Not examined: rules of
iptables-legacy, rules of chains that base chains jump to, and comparisons with sets and with prefixes of addresses.

Rejected: following a packet through all rules as the kernel does. Its code took a quarter of this package, and its result was right
only if it understood every condition. The kernel itself shows the way of a packet by `nft monitor trace` (docs/troubleshooting.md).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Sequence

from ipamd.kernel.foreign_rules import ForeignRule, compared_in_table, rules_of
from ipamd.kernel.netlink import NetlinkSocket
from ipamd.kernel.nft_chains import Chain
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.family import IpAddress, read_address, unpack_address
from ipamd.model.repairs import NODE
from ipamd.model.routing_difference import RoutingDifference, routing_difference

HOOKS = ("prerouting", "forward", "postrouting", "ingress", "egress")
"""Hooks at which a base chain sees packets that are forwarded from and to sandboxes."""

OURS = "vpc-ipamd"
"""The names of our own tables begin with this."""

EVERY_FAMILY = ("inet", "netdev")
"""nftables' families that see the packets of every protocol family."""


class ForeignFilters:
    """Reads the rules of other software's base chains, and reports the chains and rules that may drop sandboxes' packets."""

    def __init__(self, sock: NetlinkSocket, *, veth_prefix: str, families: Collection[str]) -> None:
        """`families`: nftables' names of the address families that sandboxes have."""
        self._sock = sock
        self._veth_prefix = veth_prefix
        self._families = {*EVERY_FAMILY, *families}

    def suspicions(self, chains: Sequence[Chain]) -> Iterator[RoutingDifference]:
        """Yield a difference for each suspected chain and rule. Its subject is NODE, a host veth, or an address as text.

        The address may be any address that a rule names. `concerns` selects the differences about addresses of sandboxes. Raises:
        WiringError, KernelDumpError.
        """
        places = {str(chain) for chain in chains}
        for chain in chains:
            if chain.hook in HOOKS and chain.family in self._families and not chain.table.startswith(OURS):
                rules = rules_of(self._sock, chain)
                yield from self._chain_suspicions(chain, rules, places)
                for rule in rules:
                    yield from self._rule_suspicions(chain, rule)

    def _chain_suspicions(
        self, chain: Chain, rules: Sequence[ForeignRule], places: Container[str]
    ) -> Iterator[RoutingDifference]:
        """Suspect a chain that drops every packet that none of its rules accepts, if no rule of its table names our host veths."""
        closing_rule = next((rule for rule in rules if rule.drops and not rule.has_condition), None)
        if closing_rule is None and not chain.policy_drops:
            return
        if any(self._is_our_link(value) for value in compared_in_table(self._sock, chain)):
            return
        command = self._accepting_command(chain, places)
        if closing_rule is None:
            yield routing_difference(DifferenceCode.FILTER_POLICY_DROPS, NODE, chain=chain, command=command)
        else:
            fields = {"chain": chain, "handle": closing_rule.handle, "command": command}
            yield routing_difference(DifferenceCode.FILTER_RULE_DROPS_REST, NODE, **fields)

    def _rule_suspicions(self, chain: Chain, rule: ForeignRule) -> Iterator[RoutingDifference]:
        """Suspect a rule that drops and names an address, or host veths."""
        if not rule.drops:
            return
        for value in sorted(rule.compared):
            subject = self._subject(value)
            if subject:
                names_all_veths = subject == f"{self._veth_prefix}*"
                fields = {"chain": chain, "handle": rule.handle, "names": subject}
                yield routing_difference(DifferenceCode.FILTER_RULE_DROPS, NODE if names_all_veths else subject, **fields)

    def _subject(self, value: bytes) -> str:
        """Return the host veth or the address that a rule compares with; "" if it is neither.

        If the rule compares only with the prefix of host veths, the result is the prefix and "*", for all of them.
        """
        if self._is_our_link(value):
            name = value.rstrip(b"\0").decode("ascii", "replace")
            if len(name) > len(self._veth_prefix):
                return name
            return f"{self._veth_prefix}*"
        if len(value) in (4, 16):
            return str(unpack_address(value))
        return ""

    def _is_our_link(self, value: bytes) -> bool:
        return value.startswith(self._veth_prefix.encode())

    def _accepting_command(self, chain: Chain, places: Container[str]) -> str:
        """Return the command that accepts sandboxes' packets in a chain; it uses the tool of the software that made the chain."""
        prefix = self._veth_prefix
        if chain.family in ("ip", "ip6") and chain.table == "filter":
            docker = f"{chain.family} filter DOCKER-USER"
            name = "DOCKER-USER" if docker in places else chain.name
            tool = f"{chain.family}tables-nft"
            return f"{tool} -I {name} -i {prefix}+ -j ACCEPT; {tool} -I {name} -o {prefix}+ -j ACCEPT"
        if chain.table == "firewalld":
            zone = f"firewall-cmd --permanent --zone=trusted --add-interface={prefix}+"
            policy = (
                "firewall-cmd --permanent --new-policy=vpc-ipamd; firewall-cmd --permanent --policy=vpc-ipamd"
                " --add-ingress-zone=ANY --add-egress-zone=trusted --set-target=ACCEPT"
            )
            return f"{zone}; {policy}; firewall-cmd --reload"
        insertion = f"nft insert rule {chain}"
        return f"{insertion} iifname '\"{prefix}*\"' accept; {insertion} oifname '\"{prefix}*\"' accept"


def concerns(difference: RoutingDifference, addresses: Container[IpAddress], *, veth_prefix: str) -> bool:
    """Whether a suspicion is about the node, a host veth, or one of the addresses."""
    subject = difference.subject
    return subject.startswith((NODE, veth_prefix)) or read_address(subject) in addresses
