"""Find what other software on the node does to sandboxes' traffic that we cannot repair: name it, with the command that mends it.

Rules that amazon-vpc-cni-k8s left, which SNAT or mark traffic whatever our settings say; filters (Docker, firewalld, an
administrator's) that drop all that sandboxes send or are sent; kube-proxy in IPVS mode beside sandboxes in strict mode. None is ours
to change, and no table of ours can undo them: a drop is final, and the first source translation stands. Source of the names:
amazon-vpc-cni-k8s pkg/networkutils/network.go.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import socket
import struct
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from ipamd.kernel import uapi
from ipamd.kernel.netlink import Message, NetlinkSocket, attributes, members, text_attribute
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import NFGENMSG_BYTES, Nftables, generation
from ipamd.model.errors import WiringError
from ipamd.model.family import IPV4, IPV6, Family, IpAddress, read_address
from ipamd.model.kernel import NODE, RoutingDifference
from ipamd.model.record import dataclass, field, replace
from ipamd.model.words import counted

LEFT_CHAINS = ("AWS-SNAT-CHAIN-", "AWS-CONNMARK-CHAIN-")
LEFT_TABLE = ("ip", "aws-cni")
"""Its connection marks, where iptables is iptables-nft. Source: amazon-vpc-cni-k8s pkg/networkutils/nftables_connmark.go."""

EGRESS_CHAINS = ("CNI-E4-", "CNI-E6-")
"""One for each sandbox with an address for egress: `ipamd/model/aws_node.py`, egress_chain."""

FAMILY_NUMBERS = {one.nft: one.number for one in (IPV4, IPV6)}
FAMILIES, HOOKS = ("inet", "netdev"), ("prerouting", "forward", "postrouting")
"""Families of nftables that see what every family sends; besides there are those of pool and egress."""
IPVS_CONF = Path("/proc/sys/net/ipv4/conf/kube-ipvs0")
"""Of the link that has each service's address in that mode. Source: kubernetes pkg/proxy/ipvs/proxier.go, defaultDummyDevice."""
IPVS = RoutingDifference(
    NODE,
    "kube-proxy is in IPVS mode: pods with branch ENIs in strict mode reach no service",
    False,
    "set kube-proxy's mode to nftables; or POD_SECURITY_GROUP_ENFORCING_MODE=standard, and make these pods anew",
    False,
)
"""IPVS takes what is delivered to the node; theirs is led to their branch ENIs before that (`MOVED_LOCAL_PRIORITY` in `kernel.py`)."""

EXAMPLE, ITS_LINK = "00000000000", "its link "
OURS = "vpc-ipamd"
"""How the names of our own tables begin."""

_DEVICES = re.compile(r"gress devices? (.*) priority")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
# Follow a forwarded packet through the filter chains of other software, as far as interfaces decide. Pure.
#
# A verdict of drop is final in every base chain, so an accept in a table of ours does not help (nft(8), "verdict statement"); what
# can be done is to say who drops. The question is only whether *all* new connections of sandboxes are dropped, so in doubt a filter is
# not blamed: a rule that accepts some of their traffic by address counts as one that accepts; a rule that takes only a part of all
# traffic (ports, states, marks, sets) neither accepts nor drops here.
#
# Of single ports only DNS is asked for: nobody means pods to resolve no name, while a drop of any other port may be meant. There a
# rule that may accept some queries counts as one that accepts them all, so a filter is blamed only for what nothing before it took.


DNS_PORT, UDP = 53, 17
NO_QUERY = ("conntrack", "state", "tcp")
"""Extensions of iptables that choose no new DNS query. Ours of the first two, whose arguments are not read: nearly all rules with
them let answers pass, or drop what is invalid."""

PER_SANDBOX = "cali-from-wl-dispatch", "cali-to-wl-dispatch"
"""How the names end of chains in which Calico decides about each sandbox, by marks of its policies, and drops what it does not know:
no obstacle to all. Source: projectcalico/calico felix/rules/rule_defs.go; in nftables the name begins with the table's."""

MAX_CHAINS = 64
"""Chains that one packet is followed through. Ours: Docker, firewalld and kube-proxy need fewer than 20."""


class Scope(StrEnum):
    """Which of the packets that fit a rule's interfaces the rule takes."""

    ALL = "all"
    DNS = "every DNS query"
    BY_ADDRESS = "by address"
    PART = "part"
    OTHER = "no new DNS query"


class Verdict(StrEnum):
    """What a rule does with a packet."""

    NONE = "none"
    ACCEPT = "accept"
    DROP = "drop"
    RETURN = "return"
    JUMP = "jump"
    GOTO = "goto"


@dataclass(frozen=True, slots=True)
class Interface:
    """A condition on an interface: its name, or the beginning of it when the text ends in `*`."""

    pattern: str
    is_negated: bool = False

    def takes(self, name: str) -> bool:
        """Whether a name fits."""
        fits = name.startswith(self.pattern[:-1]) if self.pattern.endswith("*") else name == self.pattern
        return fits != self.is_negated


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. Every condition must hold; `target` is the chain of a jump or goto. `addresses`: the only ones that it takes, if
    one condition says so.
    """

    verdict: Verdict
    incoming: tuple[Interface, ...] = ()
    outgoing: tuple[Interface, ...] = ()
    scope: Scope = Scope.ALL
    target: str = ""
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Packet:
    """A new connection between two interfaces, of which nothing else is known, or a DNS query by UDP."""

    incoming: str
    outgoing: str
    is_dns: bool = False


Rules = Callable[[str], Sequence[Rule] | None]
"""The rules of a chain of one table, by its name; None if there is no such chain."""


def is_dropped(rules: Rules, chain: str, packet: Packet, *, policy_drops: bool) -> bool:
    """Whether a base chain drops every such packet for certain.

    `rules` is called once per chain on the way, at most MAX_CHAINS times.
    """
    verdict = _follow(rules, chain, packet, [MAX_CHAINS])
    return verdict is Verdict.DROP or (verdict is Verdict.NONE and policy_drops)


def _follow(rules: Rules, chain: str, packet: Packet, budget: list[int]) -> Verdict:
    """NONE: the end of the chain was reached, or a return."""
    budget[0] -= 1
    if budget[0] < 0:
        return Verdict.ACCEPT  # too long a way: not known
    for rule in rules(chain) or ():
        is_nothing = rule.scope is Scope.OTHER or (not packet.is_dns and rule.scope in (Scope.PART, Scope.DNS))
        if is_nothing or not (
            all(one.takes(packet.incoming) for one in rule.incoming) and all(one.takes(packet.outgoing) for one in rule.outgoing)
        ):
            continue  # as if it were not there
        # Else some of the packets that fit its interfaces may escape it.
        is_whole = rule.scope is Scope.ALL or (packet.is_dns and rule.scope is Scope.DNS)
        if rule.verdict in (Verdict.JUMP, Verdict.GOTO):
            inner = Verdict.ACCEPT if rule.target.endswith(PER_SANDBOX) else _follow(rules, rule.target, packet, budget)
            if inner is Verdict.ACCEPT or (inner is Verdict.DROP and is_whole):
                return inner
            if rule.verdict is Verdict.GOTO and is_whole:
                return Verdict.NONE
        elif rule.verdict is Verdict.ACCEPT:
            return Verdict.ACCEPT
        elif is_whole and rule.verdict is Verdict.DROP:
            return Verdict.DROP
        elif rule.verdict is Verdict.RETURN and (is_whole or packet.is_dns):
            return Verdict.NONE if is_whole else Verdict.ACCEPT  # some may have escaped what comes behind
    return Verdict.NONE


# Read chains and rules out of nftables' JSON, as far as `filters` needs them. Pure.
#
# iptables-nft's rules are among them; what it keeps as an extension ("xt") is named there without its arguments. Source of the
# shapes: libnftables-json(5).


JsonObject = Mapping[str, Any]

_VERDICTS = {one.value: one for one in Verdict if one is not Verdict.NONE} | {"reject": Verdict.DROP}
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
                # What is of another type translates, and its chains may have a rule for each service.
                hook = str(chain.get("hook") or "") if chain.get("type") == "filter" else ""
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
        if kind == "match" and isinstance(body, dict):
            rule = _with_match(rule, body)
        elif kind == "xt":
            rule = _with_extension(rule, body)
        elif kind in _VERDICTS:
            rule = replace(rule, verdict=_VERDICTS[kind], target=str(body.get("target", "")) if isinstance(body, dict) else "")
        elif kind not in _HARMLESS:
            rule = replace(rule, scope=Scope.PART)
    return rule


def _with_match(rule: Rule, body: JsonObject) -> Rule:
    left, right, operator = body.get("left"), body.get("right"), body.get("op")
    key = left.get("meta", {}).get("key") if isinstance(left, dict) and isinstance(left.get("meta"), dict) else None
    if key in ("iifname", "oifname", "iif", "oif") and isinstance(right, str) and operator in ("==", "!="):
        condition = Interface(right, is_negated=operator == "!=")
        if key[0] == "i":
            return replace(rule, incoming=(*rule.incoming, condition))
        return replace(rule, outgoing=(*rule.outgoing, condition))
    payload = left.get("payload") if isinstance(left, dict) else None
    if isinstance(payload, dict) and payload.get("field") in ("saddr", "daddr"):
        is_all = operator == "==" and rule.scope is not Scope.BY_ADDRESS  # from one to another is less than all of either
        # A prefix may be meant, and which way the packets go decides whose they are: of single addresses alone there is no doubt.
        named = tuple(one for one in _values(right) if isinstance(one, str)) if is_all else ()
        return _narrowed(replace(rule, addresses=named), Scope.BY_ADDRESS)
    if operator == "in" and isinstance(left, dict) and left.get("ct") == {"key": "state"}:
        is_new = "new" in (right if isinstance(right, list) else [right])
        return rule if is_new else _narrowed(rule, Scope.OTHER)
    return _narrowed(rule, _flow(key, payload, right, is_negated=operator == "!="))


def _values(right: object) -> list[Any]:
    """Of a set without a name, or the one value."""
    found = right.get("set") if isinstance(right, dict) else None
    return found if isinstance(found, list) else [right]


def _flow(key: object, payload: object, right: object, *, is_negated: bool) -> Scope:
    """What a condition on protocol or port leaves of DNS queries; PART if it is another one."""
    name, takes = (payload.get("field") if isinstance(payload, dict) else key), None
    if name in ("l4proto", "protocol", "nexthdr"):
        takes = _holds(right, "udp")
    elif isinstance(payload, dict) and name in ("dport", "sport") and payload.get("protocol") == "tcp":
        return Scope.OTHER
    elif isinstance(payload, dict) and name == "dport" and payload.get("protocol") in ("udp", "th"):
        takes = _holds(right, DNS_PORT)
    if takes is None:
        return Scope.PART
    return Scope.DNS if takes != is_negated else Scope.OTHER


def _holds(right: object, wanted: str | int) -> bool | None:
    """Whether a value, a set or a range has it; None if that is not known, as of a named set."""
    for value in _values(right):
        ends = value.get("range") if isinstance(value, dict) else [value, value]
        if not isinstance(ends, list) or len(ends) != 2 or str(ends[0]).startswith("@"):
            return None
        if all(type(end) is type(wanted) for end in ends) and ends[0] <= wanted <= ends[1]:
            return True
    return False


def _with_extension(rule: Rule, body: object) -> Rule:
    """An iptables extension: of its arguments nothing is known, so a match but for a comment takes a part of the traffic."""
    name, kind = (body.get("name"), body.get("type")) if isinstance(body, dict) else (None, None)
    if kind == "match":
        return rule if name == "comment" else _narrowed(rule, Scope.OTHER if name in NO_QUERY else Scope.PART)
    if name == "REJECT":
        return replace(rule, verdict=Verdict.DROP)
    return rule


def _narrowed(rule: Rule, scope: Scope) -> Rule:
    """By one more condition: what several conditions leave is known of protocol and port alone."""
    both = {rule.scope, scope} - {Scope.ALL}
    return replace(rule, scope=scope if both == {scope} else Scope.OTHER if Scope.OTHER in both else Scope.PART)


# Read the tables of iptables-legacy, which nftables does not show: chains, and what decides about forwarded packets.
#
# Read only, by the two socket options that `iptables-legacy -S` and `ip6tables-legacy -S` use. Only tables that are there are asked
# for: asking for another one would load its module. Source of the layout: linux/netfilter_ipv4/ip_tables.h,
# linux/netfilter_ipv6/ip6_tables.h, linux/netfilter/x_tables.h.


LOOKED_AT = {"filter": b"", "nat": b"AWS-"}
"""Tables that are read, and what must be in one for it to be taken apart: kube-proxy's nat table may have 100,000 rules."""

SO_GET_INFO = 64
SO_GET_ENTRIES = 65
FORWARD_HOOK = 2
MAX_BYTES = 32 * 1024 * 1024
"""Largest table that is read. Ours: 100,000 rules of kube-proxy are about 25 MB."""

_INFO = struct.Struct("=32sI5I5III")
_GET_ENTRIES = struct.Struct("=32sI4x")
_TARGET = struct.Struct("=H29sB")
_INVERT_IN, _INVERT_OUT, _INVERT_PROTOCOL = 0x01, 0x02, 0x40
_UDP_MATCH = struct.Struct("=HHHHB")  # linux/netfilter/xt_tcpudp.h: struct xt_udp
_RETURN = -5  # linux/netfilter/x_tables.h: XT_RETURN is -NF_REPEAT - 1

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What the kernel's two implementations differ in.

    `tool`: for people. `names`: the tables in the namespace of the thread that opens it; without the tool it is missing. `level`: of
    the socket options. `entry`: source, destination, their masks; the links' names, their masks; protocol, flags, what is inverted;
    cache; offset of the target, size, origin. `goto`: the flag of a jump that does not return.
    """

    tool: str
    names: Path
    socket_family: int
    level: int
    entry: struct.Struct
    goto: int


_KINDS = {
    IPV4.nft: _Kind(
        "iptables-legacy",
        Path("/proc/thread-self/net/ip_tables_names"),
        socket.AF_INET,
        socket.IPPROTO_IP,
        struct.Struct("=4s4s4s4s16s16s16s16sHBBIHHI16x"),  # struct ipt_entry
        0x02,
    ),
    IPV6.nft: _Kind(
        "ip6tables-legacy",
        Path("/proc/thread-self/net/ip6_tables_names"),
        socket.AF_INET6,
        socket.IPPROTO_IPV6,
        struct.Struct("=16s16s16s16s16s16s16s16sHxBB3xIHHI4x16x"),  # struct ip6t_entry, which has a traffic class and is aligned
        0x04,
    ),
}


@dataclass(slots=True)
class LegacyTable:
    """One table: the rules of its chains by name; FORWARD among them if the table has that hook."""

    name: str
    chains: dict[str, list[Rule]] = field(default_factory=dict)
    forward_drops: bool = False


class LegacyTables:
    """Reads those of LOOKED_AT of a family in the host's namespace. Used by one thread at a time."""

    def __init__(self, host: HostNetns, family: Family = IPV4) -> None:
        self._host = host
        self._kind = _KINDS[family.nft]
        self._nat: tuple[bytes, bytes] = b"", b""  # number and size of its entries, and what they were

    def read(self) -> list[LegacyTable]:
        """The tables; the table nat only again when it has another size, which every chain and rule changes.

        Raises: WiringError if one cannot be read.
        """
        kind = self._kind
        with self._host.entered():
            try:
                names = sorted(LOOKED_AT.keys() & set(kind.names.read_text(encoding="ascii").split()))
            except FileNotFoundError:
                return []
            except OSError as exc:
                raise WiringError(
                    f"the tables of {kind.tool} could not be listed", details=f"{kind.names}: {exc.strerror}"
                ) from exc
            if not names:
                return []
            with socket.socket(kind.socket_family, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_RAW) as sock:
                answers = [(name, *self._read(sock, name)) for name in names]
        return [parse(name, info, entries, kind=kind) for name, info, entries in answers if LOOKED_AT[name] in entries]

    def _read(self, sock: socket.socket, name: str) -> tuple[bytes, bytes]:
        info = _ask(sock, self._kind, SO_GET_INFO, name.encode(), _INFO.size, name)
        if name == "nat" and info == self._nat[0]:
            return self._nat
        size = _INFO.unpack(info)[-1]
        if size > MAX_BYTES:
            raise WiringError(f"table {name} of {self._kind.tool} has {size} bytes", details=f"at most {MAX_BYTES} are read")
        request = _GET_ENTRIES.pack(name.encode(), size)
        answer = _ask(sock, self._kind, SO_GET_ENTRIES, request, _GET_ENTRIES.size + size, name, sought=LOOKED_AT[name])
        entries = answer[_GET_ENTRIES.size :]
        if name == "nat":
            self._nat = info, entries
        return info, entries


def _ask(sock: socket.socket, kind: _Kind, option: int, request: bytes, size: int, name: str, *, sought: bytes = b"") -> bytes:
    """A getsockopt whose buffer of `size` bytes is question and answer; Python's own cannot send.

    Returns: the answer; b"" if `sought` is not in it. It is searched in memory of its own, which goes back at once: a large table
    would be copied, and stay in the process as memory that was freed.
    """
    with mmap.mmap(-1, size) as area:
        area[: len(request)] = request
        buffer, length = (ctypes.c_char * size).from_buffer(area), ctypes.c_uint32(size)
        refused = _libc.getsockopt(sock.fileno(), kind.level, option, ctypes.byref(buffer), ctypes.byref(length))
        cause = os.strerror(ctypes.get_errno())
        del buffer  # the area cannot be closed before
        answer = area[:] if area.find(sought) >= 0 else b""
    if refused:
        raise WiringError(f"table {name} of {kind.tool} could not be read", details=f"{cause}; look with {kind.tool}-save")
    return answer


def parse(name: str, info: bytes, entries: bytes, *, kind: _Kind) -> LegacyTable:
    """Read a table from the kernel's two answers. Raises: WiringError if their layout is not the known one. Pure."""
    unpacked = _INFO.unpack(info)
    hooks, underflows = unpacked[2:7], unpacked[7:12]
    table = LegacyTable(name)
    try:
        found = dict(_entries(entries, kind))
    except (struct.error, ValueError) as exc:
        raise WiringError(f"table {name} of {kind.tool} was not understood", details=str(exc)) from exc
    starts = {hooks[FORWARD_HOOK]: "FORWARD"} if unpacked[1] & (1 << FORWARD_HOOK) else {}
    others = {offset for index, offset in enumerate(hooks) if unpacked[1] & (1 << index)} - starts.keys()
    chains = {offset + size: chain for offset, (size, chain, _) in found.items() if chain} | starts
    current: list[Rule] | None = None
    for offset, (_, chain, rule) in found.items():
        if offset in starts:
            current = table.chains.setdefault("FORWARD", [])
        elif offset in others:
            current = None
        if chain:
            current = None if chain == "ERROR" else table.chains.setdefault(chain, [])
        elif current is not None and rule is not None:
            current.append(_with_name(rule, chains))
    if starts:
        last = found.get(underflows[FORWARD_HOOK], (0, "", None))[2]
        table.forward_drops = last is not None and last.verdict is Verdict.DROP
    return table


def _entries(data: bytes, kind: _Kind) -> Iterator[tuple[int, tuple[int, str, Rule | None]]]:
    """Every entry by its offset: its size, the chain that it begins, its rule."""
    offset = 0
    while offset < len(data):
        *head, _, target_offset, size, _ = kind.entry.unpack_from(data, offset)
        if not kind.entry.size <= target_offset <= size - _TARGET.size:
            raise ValueError(f"an entry of {size} bytes at {offset}")
        target_size, raw, _ = _TARGET.unpack_from(data, offset + target_offset)
        target = _text(raw)
        body = data[offset + target_offset + _TARGET.size : offset + target_offset + target_size]
        if target == "ERROR":
            yield offset, (size, _text(body[:30]), None)
        else:
            matches = data[offset + kind.entry.size : offset + target_offset]
            yield offset, (size, "", _legacy_rule(head, matches, target, body, goto=kind.goto))
        offset += size


def _text(field: bytes) -> str:
    return field.split(b"\0")[0].decode("ascii", "replace")


def _legacy_rule(head: Sequence[Any], matches: bytes, target: str, body: bytes, *, goto: int) -> Rule:
    *masks, incoming, outgoing, in_mask, out_mask, protocol, flags, inverted = head
    verdict, chain_offset = _verdict(target, body, is_goto=bool(flags & goto))
    rule = Rule(
        verdict,
        _interface(incoming, in_mask, inverted & _INVERT_IN),
        _interface(outgoing, out_mask, inverted & _INVERT_OUT),
        Scope.BY_ADDRESS if any(masks[2] + masks[3]) else Scope.ALL,
        str(chain_offset) if verdict in (Verdict.JUMP, Verdict.GOTO) else "",
    )
    if protocol:
        rule = _narrowed(rule, Scope.DNS if (protocol == UDP) != bool(inverted & _INVERT_PROTOCOL) else Scope.OTHER)
    for name, told in _matches(matches):
        if name == "udp":
            *sources, first, last, turned = _UDP_MATCH.unpack_from(told)
            takes = Scope.DNS if (first <= DNS_PORT <= last) != bool(turned & 2) else Scope.OTHER
            rule = _narrowed(rule, takes if sources == [0, 0xFFFF] and not turned & 1 else Scope.PART)
        elif name != "comment":
            rule = _narrowed(rule, Scope.OTHER if name in NO_QUERY else Scope.PART)
    return rule


def _matches(data: bytes) -> Iterator[tuple[str, bytes]]:
    offset = 0
    while offset + _TARGET.size <= len(data):
        size, raw, _ = _TARGET.unpack_from(data, offset)
        if size < _TARGET.size:
            raise ValueError(f"a match of {size} bytes")
        yield _text(raw), data[offset + _TARGET.size : offset + size]
        offset += size


def _verdict(target: str, body: bytes, *, is_goto: bool) -> tuple[Verdict, int]:
    if target:
        return (Verdict.DROP if target == "REJECT" else Verdict.NONE), 0
    (number,) = struct.unpack_from("=i", body)
    if number >= 0:
        return (Verdict.GOTO if is_goto else Verdict.JUMP), number
    return {-1: Verdict.DROP, -2: Verdict.ACCEPT, _RETURN: Verdict.RETURN}.get(number, Verdict.NONE), 0


def _interface(name: bytes, mask: bytes, is_negated: int) -> tuple[Interface, ...]:
    """A name whose mask ends before its terminator is the beginning of one; the tool keeps the `+` that says so."""
    text = _text(name)
    if not text:
        return ()
    counted = len(mask.rstrip(b"\0"))
    return (Interface(text if counted > len(text) else f"{text[:counted]}*", bool(is_negated)),)


def _with_name(rule: Rule, chains: dict[int, str]) -> Rule:
    """Name the chain of a jump, which the kernel tells by the offset of its first entry."""
    if rule.verdict not in (Verdict.JUMP, Verdict.GOTO):
        return rule
    target = chains.get(int(rule.target), "")
    # An unconditional jump to the next entry is how the kernel says "no target": it is no chain.
    return Rule(rule.verdict if target else Verdict.NONE, rule.incoming, rule.outgoing, rule.scope, target)


_UNKNOWN = (Rule(Verdict.ACCEPT),)
"""A chain that cannot be read may accept everything (I11)."""


class OtherSoftware:
    """Looks, and changes nothing. Used under the lock of `KernelHostNetwork`."""

    def __init__(
        self,
        host: HostNetns,
        nft: Nftables,
        *,
        veth_prefix: str,
        families: Callable[[], Collection[Family]] = lambda: (IPV4,),
    ) -> None:
        """`families`: of the pool and of egress."""
        self._host = host
        self._nft = nft
        self._families = families
        self._veth_prefix = veth_prefix
        self._legacy = {family.nft: LegacyTables(host, family) for family in (IPV4, IPV6)}
        self._known: tuple[object, list[RoutingDifference]] | None = None  # generation, primary link, families; what was found

    def find(self, primary_link: str, addresses: Container[IpAddress] = (), has_strict: bool = False) -> list[RoutingDifference]:
        """Everything found, each with the command that mends it, of single addresses only these. Raises: WiringError if nftables
        cannot be asked.

        Cost: less than a millisecond while no rule changes.
        """
        now, families = generation(self._host), tuple(self._families())
        looked_at = now, primary_link, families
        if self._known is None or now is None or self._known[0] != looked_at:
            chains = read_chains(self._nft.query("list chains"))
            found = list(self._in_nft(chains, primary_link, {*FAMILIES, *(one.nft for one in families)}))
            # What changed while we read is read again the next time: the number is the one from before.
            self._known = None if now is None else (looked_at, found)
        else:
            found = self._known[1]
        names = (NODE, self._veth_prefix)
        found = [one for one in found if one.subject.startswith(names) or _is_one_of(one.subject, addresses)]
        if has_strict:
            with self._host.entered():
                if IPVS_CONF.exists():
                    found.append(IPVS)
        return [*found, *(one for family in families for one in self._in_legacy(primary_link, family))]

    def _in_nft(self, chains: Sequence[Chain], primary_link: str, families: Container[str]) -> Iterator[RoutingDifference]:
        places = {(chain.family, chain.table, chain.name) for chain in chains}
        for chain in chains:
            rules, name = self._rules(chain.family, chain.table), chain.name
            if (chain.family, chain.table) == ("ip", "nat") and name.startswith(LEFT_CHAINS) and rules(name):
                yield _left(name, "iptables-nft")
            if chain.hook and chain.family in families and not chain.table.startswith(OURS):
                what, mend = f"chain {chain.family} {chain.table} {name}", self._mend(chain, places)
                if chain.hook in HOOKS:
                    listed = f"nft -a list chain {chain.family} {chain.table} {name}"
                    yield from self._obstacles(what, rules, (name, chain.policy_drops), primary_link, mend, listed)
                show = f"nft -a list chain {chain.family} {chain.table} {name}, and delete that rule by its handle"
                for one in rules(name) or ():
                    for who in self._dropped(one, chain, primary_link):
                        is_link = who.startswith(ITS_LINK)
                        is_cut = not is_link or who == ITS_LINK + primary_link
                        yield RoutingDifference(NODE if is_link else who, f"{what} drops packets of {who}", False, show, is_cut)
        if any((chain.family, chain.table) == LEFT_TABLE for chain in chains):
            what = f"nftables table {' '.join(LEFT_TABLE)} of amazon-vpc-cni-k8s marks connections besides ours"
            mend = f"remove the DaemonSet aws-node, then: nft delete table {' '.join(LEFT_TABLE)}"
            yield RoutingDifference(NODE, what, False, mend, is_cut=False)

    def _dropped(self, rule: Rule, chain: Chain, primary_link: str) -> Iterable[str]:
        """Whose packets, all of them, a rule drops: addresses, a host veth, devices. Links of others are no matter."""
        conditions = (*rule.incoming, *rule.outgoing)
        if rule.verdict is not Verdict.DROP:
            return ()
        if rule.scope is Scope.BY_ADDRESS:
            own = (primary_link, f"{self._veth_prefix}{EXAMPLE}")
            is_own = all(each.pattern.startswith(self._veth_prefix) or any(map(each.takes, own)) for each in conditions)
            return rule.addresses if is_own else ()
        links = (each.pattern for each in conditions if not each.is_negated)
        veths = [link for link in links if link.startswith(self._veth_prefix) and link[-1] != "*"]
        if rule.scope is not Scope.ALL:
            return ()
        if veths or not chain.hook.endswith("gress"):
            return veths[:1]
        listed = self._nft.run(f"list chain {chain.family} {chain.table} {chain.name}\n")  # JSON lacks devices in nftables 1.0.6
        devices = re.findall(r'[^ "={},]+', "".join(_DEVICES.findall(listed)))
        return [one if one.startswith(self._veth_prefix) else ITS_LINK + one for one in devices]

    def _in_legacy(self, primary_link: str, family: Family) -> Iterator[RoutingDifference]:
        tool = _KINDS[family.nft].tool
        try:
            tables = self._legacy[family.nft].read()
        except WiringError as exc:
            yield RoutingDifference(NODE, str(exc), False, mend=f"{tool}-save", is_cut=False)
            return
        for table in tables:
            for name, rules in table.chains.items():
                # A chain with no more than the return that ends each does nothing.
                if table.name == "nat" and name.startswith(LEFT_CHAINS) and any(rule != Rule(Verdict.RETURN) for rule in rules):
                    yield _left(name, tool)
            if "FORWARD" in table.chains:
                what = f"chain FORWARD of {tool}, table {table.name},"
                mend = _accepts(tool, table.name, "FORWARD", self._veth_prefix)
                base, listed = ("FORWARD", table.forward_drops), f"{tool} -t {table.name} -S FORWARD"
                yield from self._obstacles(what, table.chains.get, base, primary_link, mend, listed)

    def _obstacles(
        self, what: str, rules: Rules, base: tuple[str, bool], primary_link: str, mend: str, listed: str
    ) -> Iterator[RoutingDifference]:
        veth, (chain, policy_drops) = f"{self._veth_prefix}{EXAMPLE}", base
        ways = {"from sandboxes": (veth, primary_link), "to sandboxes": (primary_link, veth)}
        for is_dns in (False, True):
            packets = {way: Packet(*links, is_dns) for way, links in ways.items()}
            dropped = " and ".join(
                way for way, packet in packets.items() if is_dropped(rules, chain, packet, policy_drops=policy_drops)
            )
            if dropped and is_dns:
                said = f"{what} drops DNS queries (UDP port {DNS_PORT}) {dropped}"
                yield RoutingDifference(NODE, said, False, f"{listed}, and delete the rule that does it", is_cut=False)
            elif dropped:
                yield RoutingDifference(NODE, f"{what} drops what is forwarded {dropped}", False, mend)
                return

    def _rules(self, family: str, table: str) -> Rules:
        """Read a chain's rules when they are asked for: listing everything would cost seconds beside kube-proxy's rules."""

        @cache
        def read(chain: str) -> tuple[Rule, ...]:
            if not all(_PLAIN_NAME.fullmatch(name) for name in (table, chain)):
                return _UNKNOWN
            try:
                return tuple(read_rules(self._nft.query(f"list chain {family} {table} {chain}")))
            except WiringError:
                return _UNKNOWN  # its name is a word of nft's language, or it has gone

        return read

    def _mend(self, chain: Chain, names: set[tuple[str, str, str]]) -> str:
        prefix = self._veth_prefix
        if chain.family in FAMILY_NUMBERS and chain.table == "filter":
            is_docker, tool = (chain.family, "filter", "DOCKER-USER") in names, f"{chain.family}tables-nft"
            return _accepts(tool, "filter", "DOCKER-USER" if is_docker else chain.name, prefix)
        if chain.table == "firewalld":
            zone = f"firewall-cmd --permanent --zone=trusted --add-interface={prefix}+"
            policy = (
                "firewall-cmd --permanent --new-policy=vpc-ipamd; firewall-cmd --permanent --policy=vpc-ipamd"
                " --add-ingress-zone=ANY --add-egress-zone=trusted --set-target=ACCEPT"
            )
            return f"{zone}; {policy}; firewall-cmd --reload"
        where = f"nft insert rule {chain.family} {chain.table} {chain.name}"
        return f"{where} iifname '\"{prefix}*\"' accept; {where} oifname '\"{prefix}*\"' accept"


def _is_one_of(text: str, addresses: Container[IpAddress]) -> bool:
    with suppress(ValueError):  # a set's name, or what nft made of it
        return read_address(text) in addresses
    return False


def _left(chain: str, tool: str) -> RoutingDifference:
    effect = "SNATs" if "SNAT" in chain else "marks"
    what = f"chain {chain} ({tool}, table nat) of amazon-vpc-cni-k8s {effect} traffic whatever our settings say"
    mend = f"remove the DaemonSet aws-node, then: {tool} -t nat -F {chain}"
    return RoutingDifference(NODE, what, False, mend, is_cut=False)


def _accepts(tool: str, table: str, chain: str, prefix: str) -> str:
    return f"{tool} -t {table} -I {chain} -i {prefix}+ -j ACCEPT; {tool} -t {table} -I {chain} -o {prefix}+ -j ACCEPT"


# Remove the chains that amazon-vpc-cni-k8s made with iptables-nft, and its own nftables table, once nobody needs them.
#
# A rule of its is known by the chain to which it jumps or by its comment, which iptables-nft keeps as an extension that
# libnftables does not show: so rules are read by netlink, and removed by their handles in one transaction. Tables of
# iptables-legacy are only reported. Source of names and comments: amazon-vpc-cni-k8s
# pkg/networkutils/network.go, pkg/networkutils/nftables_connmark.go; of the layout: linux/netfilter/nf_tables.h,
# linux/netfilter/nf_tables_compat.h, linux/netfilter/xt_comment.h; libnftnl udata.h.


BASE_CHAINS = (("nat", "PREROUTING"), ("nat", "POSTROUTING"), ("mangle", "PREROUTING"), ("filter", "FORWARD"))
"""Where its rules are, in both families, that call its chains, or mark or refuse packets by themselves."""

_NODE_LOCAL = (b"Block Node Local Pod access via IPv4", b"Block Node Local Pod access via IPv6")
COMMENTS = frozenset({b"AWS SNAT CHAIN", b"AWS, outbound connections", b"AWS, CONNMARK", b"AWS, primary ENI", *_NODE_LOCAL})


def remove_left_chains(host: HostNetns, nft: Nftables, *, egress: Collection[str] | None) -> str:
    """Remove everything of its in one transaction; of the chains for egress of single sandboxes only these, or all for None.

    Returns: what was removed, "" if there was nothing. Raises: WiringError.
    """
    beginnings = (*LEFT_CHAINS, *(EGRESS_CHAINS if egress is None else egress))
    chains = read_chains(nft.query("list chains"))
    own = sorted(
        (one.family, one.table, one.name)
        for one in chains
        if one.family in FAMILY_NUMBERS and one.table == "nat" and one.name.startswith(beginnings)
    )
    places = {(one.family, one.table, one.name) for one in chains}
    jumps = [name.encode() for name in beginnings]
    with host.netfilter() as sock:
        commands = [
            command
            for family in FAMILY_NUMBERS
            for table, chain in BASE_CHAINS
            if (family, table, chain) in places
            for command in _rule_removals(sock, (family, table, chain), jumps)
        ]
    said = [f"{counted(len(commands), 'rule')} of base chains"] if commands else []
    for_one = [name for *_, name in own if name.startswith(EGRESS_CHAINS)]
    said += [name for *_, name in own if name not in for_one]
    said += [f"{counted(len(for_one), 'chain')} for egress"] if for_one else []
    commands += [f"flush chain {' '.join(place)}" for place in own]  # all first: its chains may call one another
    commands += [f"delete chain {' '.join(place)}" for place in own]
    if any((one.family, one.table) == LEFT_TABLE for one in chains):
        commands.append(f"delete table {' '.join(LEFT_TABLE)}")
        said.append(f"table {' '.join(LEFT_TABLE)}")
    if commands:
        nft.run("\n".join(commands) + "\n")
    return ", ".join(said)


def _rule_removals(sock: NetlinkSocket, place: tuple[str, str, str], jumps: Sequence[bytes]) -> Iterator[str]:
    """Remove its rules in one base chain, by their handles. Raises: WiringError, KernelDumpError."""
    family, table, chain = place
    selector = text_attribute(uapi.NFTA_RULE_TABLE, table) + text_attribute(uapi.NFTA_RULE_CHAIN, chain)
    step, head = f"look at nftables chain {' '.join(place)}", bytes((FAMILY_NUMBERS[family], 0, 0, 0))
    for body in sock.dump(Message(step, uapi.NFT_MSG_GETRULE, 0, head + selector)):
        parts = attributes(body, NFGENMSG_BYTES)
        if _is_left(parts, jumps):
            yield f"delete rule {' '.join(place)} handle {int.from_bytes(parts[uapi.NFTA_RULE_HANDLE], 'big')}"


def _is_left(rule: Mapping[int, bytes], jumps: Iterable[bytes]) -> bool:
    comments = set[bytes]()
    userdata = rule.get(uapi.NFTA_RULE_USERDATA, b"")
    if (
        len(userdata) >= 2 and userdata[0] == 0
    ):  # a comment's type; newer iptables-nft may put it there: its length, text, terminator
        comments.add(userdata[2 : 2 + userdata[1]].rstrip(b"\0"))
    for member in members(rule.get(uapi.NFTA_RULE_EXPRESSIONS, b"")):
        expression = attributes(member, 0)
        name, data = expression.get(uapi.NFTA_EXPR_NAME, b"").rstrip(b"\0"), expression.get(uapi.NFTA_EXPR_DATA, b"")
        if name == b"immediate" and any(chain in data for chain in jumps):
            return True
        if name == b"match":
            match = attributes(data, 0)
            if match.get(uapi.NFTA_MATCH_NAME, b"").rstrip(b"\0") == b"comment":
                comments.add(match.get(uapi.NFTA_MATCH_INFO, b"").split(b"\0")[0])
    return bool(comments & COMMENTS)
