"""Read rules of other software's nftables chains from the kernel, as far as `foreign_filters` needs them.

They are read by netlink, which returns every rule with its handle. libnftables is not used, because its JSON lacks the extensions of
iptables-nft, and because it needs seconds to list a large table.
Only three facts of a rule are read: whether it drops, whether it has a condition, and the values that it compares with. Source of the
layout: linux/netfilter/nf_tables.h, linux/netfilter/nf_tables_compat.h.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ipamd.kernel import uapi
from ipamd.kernel.netlink import Message, NetlinkSocket, attributes, members, text_attribute
from ipamd.kernel.nft_chains import Chain
from ipamd.kernel.nft_changes import NFGENMSG_BYTES
from ipamd.model.record import dataclass

FAMILY_NUMBERS = {"inet": 1, "ip": 2, "netdev": 5, "ip6": 10}
"""nftables' families of tables that see sandboxes' packets, by name. Source: linux/netfilter.h, NFPROTO_*."""

_NO_CONDITION = frozenset({"counter", "log", "immediate", "reject", "target", "meta", "payload", "ct", "bitwise"})
"""Expressions that are not conditions: actions, and loads of a value that a later expression compares."""


@dataclass(frozen=True, slots=True)
class ForeignRule:
    """One rule of a chain.

    `handle`: nftables' number of the rule in its table.
    `drops`: the rule's own action is drop or reject. A jump to a chain that drops does not count.
    `has_condition`: the rule has a condition, so it possibly selects only some packets.
    `compared`: the values that a field of the packet, or the name of its link, must equal.
    """

    handle: int
    drops: bool
    has_condition: bool
    compared: frozenset[bytes]


def rules_of(sock: NetlinkSocket, chain: Chain) -> list[ForeignRule]:
    """Return the rules of one chain in order. Raises: WiringError, KernelDumpError if the dump stays interrupted (I11)."""
    chain_selector = text_attribute(uapi.NFTA_RULE_CHAIN, chain.name)
    return list(map(_rule, _dump(sock, chain, chain_selector)))


def compared_in_table(sock: NetlinkSocket, chain: Chain) -> frozenset[bytes]:
    """Return the values with which the rules of the chain's table compare. Raises: WiringError, KernelDumpError."""
    compared = set[bytes]()
    for body in _dump(sock, chain, b""):
        compared |= _rule(body).compared
    return frozenset(compared)


def _dump(sock: NetlinkSocket, chain: Chain, chain_selector: bytes) -> list[bytes]:
    head = bytes((FAMILY_NUMBERS[chain.family], 0, 0, 0))
    selector = text_attribute(uapi.NFTA_RULE_TABLE, chain.table) + chain_selector
    return sock.dump(Message(f"look at nftables chain {chain}", uapi.NFT_MSG_GETRULE, 0, head + selector))


def _rule(body: bytes) -> ForeignRule:
    parts = attributes(body, NFGENMSG_BYTES)
    drops = has_condition = False
    compared = set[bytes]()
    for name, data in _expressions(parts):
        drops = drops or _drops(name, data)
        has_condition = has_condition or (name not in _NO_CONDITION and not _is_comment(name, data))
        if name == "cmp" and data.get(uapi.NFTA_CMP_OP) == uapi.NFT_CMP_EQ.to_bytes(4, "big"):
            compared.add(attributes(data.get(uapi.NFTA_CMP_DATA, b""), 0).get(uapi.NFTA_DATA_VALUE, b""))
    handle = int.from_bytes(parts.get(uapi.NFTA_RULE_HANDLE, b""), "big")
    return ForeignRule(handle, drops, has_condition, frozenset(compared))


def _expressions(rule: Mapping[int, bytes]) -> Iterator[tuple[str, Mapping[int, bytes]]]:
    """Yield the name and the attributes of each expression of a rule."""
    for member in members(rule.get(uapi.NFTA_RULE_EXPRESSIONS, b"")):
        expression = attributes(member, 0)
        name = expression.get(uapi.NFTA_EXPR_NAME, b"").rstrip(b"\0").decode("ascii", "replace")
        yield name, attributes(expression.get(uapi.NFTA_EXPR_DATA, b""), 0)


def _drops(name: str, data: Mapping[int, bytes]) -> bool:
    if name == "immediate":
        verdict = attributes(data.get(uapi.NFTA_IMMEDIATE_DATA, b""), 0).get(uapi.NFTA_DATA_VERDICT, b"")
        return attributes(verdict, 0).get(uapi.NFTA_VERDICT_CODE) == uapi.NF_DROP.to_bytes(4, "big")
    is_reject_extension = name == "target" and data.get(uapi.NFTA_TARGET_NAME, b"").rstrip(b"\0") == b"REJECT"
    return name == "reject" or is_reject_extension


def _is_comment(name: str, data: Mapping[int, bytes]) -> bool:
    return name == "match" and data.get(uapi.NFTA_MATCH_NAME, b"").rstrip(b"\0") == b"comment"
