"""Remove the chains that amazon-vpc-cni-k8s made with iptables-nft, and the nftables table that it made.

A rule of amazon-vpc-cni-k8s is recognised by the chain to which it jumps or by its comment. iptables-nft stores the comment as an
extension that libnftables does not show, so rules are read by netlink, and removed by their handles in one transaction. Rules of
iptables-legacy are neither read nor removed. Source of names and comments: amazon-vpc-cni-k8s
pkg/networkutils/network.go, pkg/networkutils/nftables_connmark.go. Source of the layout of messages: linux/netfilter/nf_tables.h,
linux/netfilter/nf_tables_compat.h, linux/netfilter/xt_comment.h; libnftnl udata.h.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence

from ipamd.kernel import uapi
from ipamd.kernel.legs.former_chains import SANDBOX_CHAIN_PURPOSE, SANDBOX_CHAINS
from ipamd.kernel.netlink import Message, NetlinkSocket, attributes, members, text_attribute
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.kernel.nft_chains import read_chains
from ipamd.kernel.nft_changes import NFGENMSG_BYTES
from ipamd.kernel.other_software import LEFT_CHAINS, LEFT_TABLE
from ipamd.model.family import IPV4, IPV6
from ipamd.model.words import counted

FAMILY_NUMBERS = {family.nft: family.number for family in (IPV4, IPV6)}

BASE_CHAINS = (("nat", "PREROUTING"), ("nat", "POSTROUTING"), ("mangle", "PREROUTING"), ("filter", "FORWARD"))
"""Chains in which amazon-vpc-cni-k8s has rules, in both families. These rules jump to its own chains, or mark or refuse packets."""

_NODE_LOCAL = (b"Block Node Local Pod access via IPv4", b"Block Node Local Pod access via IPv6")

COMMENTS = frozenset({b"AWS SNAT CHAIN", b"AWS, outbound connections", b"AWS, CONNMARK", b"AWS, primary ENI", *_NODE_LOCAL})


def remove_left_chains(host: HostNetns, nft: Nftables, names: Collection[str] | None) -> str:
    """Remove the rules, chains and table that amazon-vpc-cni-k8s left, in one transaction. Raises: WiringError.

    `names`: names of the chains of single sandboxes that are to be removed; None for all of them. Other chains are removed in any
        case.
    Returns: what was removed, "" if there was nothing.
    """
    beginnings = (*LEFT_CHAINS, *(SANDBOX_CHAINS if names is None else names))
    chains = read_chains(nft.query("list chains"))
    places = {(chain.family, chain.table, chain.name) for chain in chains}
    left_places = sorted(place for place in places if _is_left_chain(place, beginnings))
    rule_commands = _base_rule_removals(host, places, [name.encode() for name in beginnings])
    commands = [*rule_commands, *_chain_removals(left_places)]
    has_left_table = any((chain.family, chain.table) == LEFT_TABLE for chain in chains)
    if has_left_table:
        commands.append(f"delete table {' '.join(LEFT_TABLE)}")
    if commands:
        nft.run("\n".join(commands) + "\n")
    return _removed_text(len(rule_commands), [name for _, _, name in left_places], has_left_table=has_left_table)


def _is_left_chain(place: tuple[str, str, str], beginnings: tuple[str, ...]) -> bool:
    family, table, name = place
    return family in FAMILY_NUMBERS and table == "nat" and name.startswith(beginnings)


def _chain_removals(places: Iterable[tuple[str, str, str]]) -> list[str]:
    chains = [" ".join(place) for place in places]
    flushes = [f"flush chain {chain}" for chain in chains]  # before any deletion, because the chains may jump to one another
    return flushes + [f"delete chain {chain}" for chain in chains]


def _base_rule_removals(host: HostNetns, places: Container[tuple[str, str, str]], jumps: Sequence[bytes]) -> list[str]:
    """Return the commands that remove the rules of amazon-vpc-cni-k8s from the base chains that exist."""
    commands = list[str]()
    with host.netfilter() as sock:
        for family in FAMILY_NUMBERS:
            for table, chain in BASE_CHAINS:
                if (family, table, chain) in places:
                    commands += _rule_removals(sock, (family, table, chain), jumps)
    return commands


def _removed_text(rule_count: int, chains: Iterable[str], *, has_left_table: bool) -> str:
    """Return a text that names what was removed. The chains of single sandboxes are only counted."""
    other_names = list[str]()
    sandbox_chains = list[str]()
    for name in chains:
        (sandbox_chains if name.startswith(SANDBOX_CHAINS) else other_names).append(name)
    parts = [f"{counted(rule_count, 'rule')} of base chains"] if rule_count else []
    parts += other_names
    if sandbox_chains:
        parts.append(f"{counted(len(sandbox_chains), 'chain')} for {SANDBOX_CHAIN_PURPOSE}")
    if has_left_table:
        parts.append(f"table {' '.join(LEFT_TABLE)}")
    return ", ".join(parts)


def _rule_removals(sock: NetlinkSocket, place: tuple[str, str, str], jumps: Sequence[bytes]) -> Iterator[str]:
    """Return the commands that remove the rules of amazon-vpc-cni-k8s from a base chain. Raises: WiringError, KernelDumpError.

    `place`: family, table and name of the chain. `jumps`: beginnings of the names of the chains to which such rules jump.
    """
    family, table, chain = place
    selector = text_attribute(uapi.NFTA_RULE_TABLE, table) + text_attribute(uapi.NFTA_RULE_CHAIN, chain)
    step = f"look at nftables chain {' '.join(place)}"
    head = bytes((FAMILY_NUMBERS[family], 0, 0, 0))
    for body in sock.dump(Message(step, uapi.NFT_MSG_GETRULE, 0, head + selector)):
        parts = attributes(body, NFGENMSG_BYTES)
        if _is_left(parts, jumps):
            yield f"delete rule {' '.join(place)} handle {int.from_bytes(parts[uapi.NFTA_RULE_HANDLE], 'big')}"


def _is_left(rule: Mapping[int, bytes], jumps: Iterable[bytes]) -> bool:
    """Whether amazon-vpc-cni-k8s made a rule."""
    comments = set[bytes]()
    userdata = rule.get(uapi.NFTA_RULE_USERDATA, b"")
    # Newer iptables-nft may store the comment here: its type (0), its length, the text and a terminator.
    if len(userdata) >= 2 and userdata[0] == 0:
        comments.add(userdata[2 : 2 + userdata[1]].rstrip(b"\0"))
    for member in members(rule.get(uapi.NFTA_RULE_EXPRESSIONS, b"")):
        expression = attributes(member, 0)
        name = expression.get(uapi.NFTA_EXPR_NAME, b"").rstrip(b"\0")
        data = expression.get(uapi.NFTA_EXPR_DATA, b"")
        if name == b"immediate" and any(chain in data for chain in jumps):
            return True
        if name == b"match":
            match = attributes(data, 0)
            if match.get(uapi.NFTA_MATCH_NAME, b"").rstrip(b"\0") == b"comment":
                comments.add(match.get(uapi.NFTA_MATCH_INFO, b"").split(b"\0")[0])
    return bool(comments & COMMENTS)
