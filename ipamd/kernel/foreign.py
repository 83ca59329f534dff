"""Addresses of sandboxes and default routes that the host's own network configuration put where they cut pods off. No changes here.

EC2 shows every address of an ENI to software on the host, and amazon-ec2-net-utils or systemd-networkd may configure them all. An
address that is local on the host never reaches its sandbox. On the link of an ENI an address of the pool is wrong by construction
and removed; the ENI's own primary address is right. On any other link somebody put it there on purpose: it is named, with the command
that removes it. The same holds for a default route of main through a secondary ENI, which is not ours either.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address

from ipamd.kernel import checks, records, uapi
from ipamd.kernel import ruleset as nft_rules
from ipamd.kernel.enis import Repair, address_removal
from ipamd.kernel.links import HostLook
from ipamd.kernel.netlink import Message, NetlinkSocket, text_attribute
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.kernel.nft_state import NFGENMSG_BYTES
from ipamd.kernel.other_software import LEFT_CHAINS, LEFT_TABLE
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.ids import MacAddress
from ipamd.model.kernel import NODE, RoutingDifference
from ipamd.model.words import counted


def pod_address_repairs(
    look: HostLook, identity: InstanceIdentity, link: records.Link, addresses: Container[IPv4Address]
) -> Iterator[Repair]:
    """Find addresses of the pool on the primary ENI's link; secondary ENIs' links have `enis.address_repairs`."""
    ours = [one for one in look.addresses if one.index == link.index]
    for one in ours:
        if one.address in addresses and one.address != identity.primary_address:
            yield address_removal(one, link, ours, who=f"{link.name} (primary)")


def foreign_differences(
    sock: NetlinkSocket,
    look: HostLook,
    *,
    primary: MacAddress,
    secondary: Iterable[MacAddress],
    addresses: Container[IPv4Address],
) -> list[RoutingDifference]:
    """Find addresses of the pool on links of no ENI, and main's default route if it leads through a secondary ENI.

    Raises: WiringError.
    """
    others = [look.links[mac].index for mac in secondary if mac in look.links]
    enis = [*others, *(look.links[mac].index for mac in (primary,) if mac in look.links)]
    found = []
    for one in look.addresses:
        if one.address in addresses and one.index not in enis:
            name = _name(sock, one.index)
            what = f"{one.address}, an address for sandboxes, is local on {name}"
            command = f"ip address del {one.address}/{one.length} dev {name}"
            found.append(RoutingDifference(NODE, what, is_repaired=False, mend=command))
    defaults = [one for one in look.routes if one.table == uapi.RT_TABLE_MAIN and one.destination is None and one.length == 0]
    best = min(defaults, key=lambda one: one.metric, default=None)
    if best is not None and best.index in others:
        name = _name(sock, best.index)
        what = f"the node's default route leads through {name}, a secondary ENI"
        command = f"ip route del default dev {name} metric {best.metric}"
        found.append(RoutingDifference(NODE, what, is_repaired=False, mend=command))
    return found


def _name(sock: NetlinkSocket, index: int) -> str:
    link = checks.find_link(sock, index)
    return link.name if link is not None else f"link {index}"


# Remove the chains that amazon-vpc-cni-k8s made with iptables-nft, and its own nftables table, once nobody needs them.
#
# A rule of its is known by the chain to which it jumps or by its comment, which iptables-nft keeps as an extension that
# libnftables does not show: so rules are read by netlink, and removed by their handles in one transaction. Tables of
# iptables-legacy are only reported (`other_software.py`). Source of names and comments: amazon-vpc-cni-k8s
# pkg/networkutils/network.go, pkg/networkutils/nftables_connmark.go; of the layout: linux/netfilter/nf_tables.h,
# linux/netfilter/nf_tables_compat.h, linux/netfilter/xt_comment.h; libnftnl udata.h.


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
    selector = text_attribute(uapi.NFTA_RULE_TABLE, table) + text_attribute(uapi.NFTA_RULE_CHAIN, chain)
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
