"""Remove the chains that amazon-vpc-cni-k8s made with iptables-nft, and its own nftables table, once nobody needs them.

A rule of its is known by the chain to which it jumps or by its comment, which iptables-nft keeps as an extension that libnftables does
not show: so rules are read by netlink, and removed by their handles in one transaction. Tables of iptables-legacy are only reported
(`other_software.py`). Source of names and comments: amazon-vpc-cni-k8s
pkg/networkutils/network.go, pkg/networkutils/nftables_connmark.go; of the
layout: linux/netfilter/nf_tables.h, linux/netfilter/nf_tables_compat.h, linux/netfilter/xt_comment.h; libnftnl udata.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ipamd.kernel import nft_rules, uapi
from ipamd.kernel.netlink import Message, NetlinkSocket, attribute
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.kernel.nft_generation import NFGENMSG_BYTES
from ipamd.kernel.other_software import LEFT_CHAINS, LEFT_TABLE
from ipamd.model.words import counted

BASE_CHAINS = (("nat", "PREROUTING"), ("nat", "POSTROUTING"), ("mangle", "PREROUTING"))
"""Of family ip: where its rules are that call its chains, or mark packets by themselves."""

COMMENTS = frozenset({b"AWS SNAT CHAIN", b"AWS, outbound connections", b"AWS, CONNMARK", b"AWS, primary ENI"})

_FAMILY_IP = 2
_ATTRIBUTE = struct.Struct("=HH")
_TYPE_MASK = 0x3FFF


@dataclass(frozen=True, slots=True)
class LeftRule:
    """One rule of a base chain, by its handle."""

    table: str
    chain: str
    handle: int


class LeftChains:
    """Finds and removes. Used by one thread at a time."""

    def __init__(self, host: HostNetns, nft: Nftables) -> None:
        self._host = host
        self._nft = nft

    def remove(self) -> str:
        """Remove everything of its in one transaction. Returns: what was removed, "" if there was nothing. Raises: WiringError."""
        chains = nft_rules.read_chains(self._nft.query("list chains"))
        names = {(one.table, one.name) for one in chains if one.family == "ip"}
        own = sorted(place for place in names if place[0] == "nat" and place[1].startswith(LEFT_CHAINS))
        has_table = any((one.family, one.table) == LEFT_TABLE for one in chains)
        with self._host.netfilter() as sock:
            rules = [rule for place in BASE_CHAINS if place in names for rule in left_rules(sock, *place)]
        commands = [f"delete rule ip {rule.table} {rule.chain} handle {rule.handle}" for rule in rules]
        commands += [f"flush chain ip {table} {name}" for table, name in own]  # all first: its chains may call one another
        commands += [f"delete chain ip {table} {name}" for table, name in own]
        commands += [f"delete table {' '.join(LEFT_TABLE)}"] if has_table else []
        if not commands:
            return ""
        self._nft.run("\n".join(commands) + "\n")
        said = [f"{counted(len(rules), 'rule')} of base chains"] if rules else []
        said += [name for _, name in own]
        return ", ".join([*said, *([f"table {' '.join(LEFT_TABLE)}"] if has_table else [])])


def left_rules(sock: NetlinkSocket, table: str, chain: str) -> list[LeftRule]:
    """Its rules in one base chain of family ip. Raises: WiringError, KernelDumpError."""
    selector = attribute(uapi.NFTA_RULE_TABLE, table.encode() + b"\0") + attribute(uapi.NFTA_RULE_CHAIN, chain.encode() + b"\0")
    step = f"look at nftables chain ip {table} {chain}"
    found = []
    for body in sock.dump(Message(step, uapi.NFT_MSG_GETRULE, 0, bytes((_FAMILY_IP, 0, 0, 0)) + selector)):
        parts = dict(_attributes(body[NFGENMSG_BYTES:]))
        texts = [
            parts.get(kind, b"").rstrip(b"\0").decode("ascii", "replace") for kind in (uapi.NFTA_RULE_TABLE, uapi.NFTA_RULE_CHAIN)
        ]
        if texts == [table, chain] and _is_left(parts):
            found.append(LeftRule(table, chain, int.from_bytes(parts[uapi.NFTA_RULE_HANDLE], "big")))
    return found


def _is_left(rule: dict[int, bytes]) -> bool:
    comments = {_udata_comment(rule.get(uapi.NFTA_RULE_USERDATA, b""))}
    for _, element in _attributes(rule.get(uapi.NFTA_RULE_EXPRESSIONS, b"")):
        expression = dict(_attributes(element))
        name, data = expression.get(uapi.NFTA_EXPR_NAME, b"").rstrip(b"\0"), expression.get(uapi.NFTA_EXPR_DATA, b"")
        if name == b"immediate" and any(chain.encode() in data for chain in LEFT_CHAINS):
            return True
        if name == b"match":
            match = dict(_attributes(data))
            if match.get(uapi.NFTA_MATCH_NAME, b"").rstrip(b"\0") == b"comment":
                comments.add(match.get(uapi.NFTA_MATCH_INFO, b"").split(b"\0")[0])
    return bool(comments & COMMENTS)


def _udata_comment(data: bytes) -> bytes:
    """The comment of a rule's user data: type 0, a length, text with its terminator; newer iptables-nft may put it there."""
    if len(data) >= 2 and data[0] == 0:
        return data[2 : 2 + data[1]].rstrip(b"\0")
    return b""


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Every attribute in order: a list has many of one kind."""
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, offset)
        if size < _ATTRIBUTE.size:
            return
        yield kind & _TYPE_MASK, data[offset + _ATTRIBUTE.size : offset + size]
        offset += (size + 3) & ~3
