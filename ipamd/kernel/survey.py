"""Read all our wiring in the host's namespace, from uninterrupted dumps (I11).

Dumps of links and of IPv4 routes are repeated if the kernel reports a change meanwhile. Of rules and of IPv6 routes it reports none: a
dump continues by counting (net/core/fib_rules.c, dump_rules; net/ipv6/ip6_fib.c, fib6_dump_table), so one that goes between two
datagrams hides the one that the second would begin with, which was there all the time. They are read until two reads agree whose
datagrams end at different places. A veth of ours is
recognised by alias, by name prefix and by the dying group, so neither a changed prefix nor a crash before the alias was set hides
it. Answers are remembered by their bytes: a survey of a quiet node parses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import chain

from ipamd.kernel import devconf, messages, uapi
from ipamd.kernel.netlink import Message, NetlinkSocket
from ipamd.kernel.netns import opened_netns
from ipamd.model import kernel as dataplane
from ipamd.model.attachment import BRANCH_TAG, EGRESS_TAG, VETH_HASH_LENGTH, Attachment, decode_alias, host_veths
from ipamd.model.branch import LINK_PREFIX, STRICT_VETH_PREFIX, TABLE_BASE, Branch, decode_link_alias
from ipamd.model.errors import IpamError
from ipamd.model.family import IPV4, Family, IpAddress, IpNetwork, family_of
from ipamd.model.ids import AttachmentKey, EniId, MacAddress
from ipamd.model.kernel import BranchRoute, HostVeth, IncomingRule, KernelSurvey, VlanLink
from ipamd.model.record import replace

RULE_READS = 6
"""Reads of rules and IPv6 routes until two agree; after so many, what any showed. Ours: while 50 sandboxes a second come and go, a
quarter of the reads of 730 sandboxes lacks some rule, the same ones again if others come and go in step with the reads: therefore
every second read is cut at other places. While nothing changes two are enough."""

SANDBOX_TABLES = (dataplane.OWN_TABLE, uapi.RT_TABLE_MAIN)
"""Each has the route to every sandbox: ours for packets, main for other software, which looks there."""

_STRICT_VETH = re.compile(rf"{STRICT_VETH_PREFIX}[0-9a-f]{{{VETH_HASH_LENGTH}}}")

read_link = lru_cache(maxsize=2048)(messages.read_link)
_route = lru_cache(maxsize=4096)(messages.read_route)
_rule = lru_cache(maxsize=4096)(messages.read_rule)
_identity = lru_cache(maxsize=2048)(decode_alias)


def survey(
    sock: NetlinkSocket, *, veth_prefix: str, families: Collection[Family] = (IPV4,), may_be_torn: bool = False
) -> KernelSurvey:
    """Read host veths, and of families the routes to single addresses of main and of our own table, and sandbox rules.

    Args:
        may_be_torn: if every attempt of a dump is interrupted, take what any of them showed, and say so (`is_whole`).
    Returns: n veths by name; with sound wiring n routes in each table and up to n rules.
    Raises: KernelDumpError if a dump was interrupted in every attempt; WiringError.
    """
    # Of every kind: a kernel that does not know the kind of VLAN links yet would not choose, and a host has few links of others.
    links, are_links_whole = _merged(sock, messages.dump_links(), may_be_torn=may_be_torn)
    routes, rules, is_whole = list[bytes](), list[tuple[bytes, ...]](), are_links_whole
    if any(map(vlan_link, map(read_link, links))):
        found, is_table_whole = _route_bodies(sock, uapi.RT_TABLE_UNSPEC, family=next(iter(families)), may_be_torn=may_be_torn)
        routes += found
        is_whole &= is_table_whole
    for family in families:
        for table in SANDBOX_TABLES:
            found, is_table_whole = _route_bodies(sock, table, family=family, may_be_torn=may_be_torn)
            routes += found
            is_whole &= is_table_whole
        rules.append(tuple(_agreed(sock, messages.dump_rules(family), may_be_torn=may_be_torn)[0]))
    return _parsed(tuple(links), tuple(routes), tuple(rules), veth_prefix, is_whole)


@lru_cache(maxsize=1)
def _parsed(
    links: tuple[bytes, ...], routes: tuple[bytes, ...], rules: tuple[tuple[bytes, ...], ...], veth_prefix: str, is_whole: bool
) -> KernelSurvey:
    # The last of an index wins: it is the youngest.
    every = {link.index: link for link in map(read_link, links)}.values()
    veths = [link for link in every if link.kind == uapi.VETH_KIND]
    ours = sorted(our_veths(veths, veth_prefix), key=lambda veth: veth.name)
    vlans = tuple(one for one in map(vlan_link, every) if one)
    names = {link.index: link.name for link in veths} | {one.ifindex: one.name for one in vlans}
    read = [[_rule(body) for body in of_family] for of_family in rules]
    all_rules = [*chain(*read)]
    found = seen(
        ours,
        names,
        routes=map(_route, routes),
        rules=all_rules,
        is_whole=is_whole,
        has_own_rule=all(
            (dataplane.OWN_TABLE_PRIORITY, dataplane.OWN_TABLE) in ((rule.priority, rule.table) for rule in of_family)
            for of_family in read
        ),
    )
    tables = {TABLE_BASE + one.vlan for one in vlans} | {dataplane.STRICT_TABLE}
    branch_routes = frozenset(
        BranchRoute(one.table, _destination(one), one.via, names.get(one.index, f"link {one.index}"))
        for one in map(_route, routes)
        if one.table in tables and one.route_type == uapi.RTN_UNICAST
    )
    incoming = frozenset(
        IncomingRule(rule.incoming, rule.table)
        for rule in all_rules
        if rule.priority == dataplane.BRANCH_PRIORITY and rule.incoming
    )
    return replace(found, vlans=vlans, branch_routes=branch_routes, incoming_rules=incoming)


def seen(
    veths: Iterable[HostVeth],
    names: Mapping[int, str],
    *,
    routes: Iterable[messages.Route],
    rules: Iterable[messages.Rule],
    is_whole: bool = True,
    has_own_rule: bool = False,
) -> KernelSurvey:
    """Make a survey of what was read; `names`: of the links by index. Of several routes the one with the least metric counts."""
    ours = tuple(veths)
    taken: dict[int, dict[IpAddress, messages.Route]] = {table: {} for table in SANDBOX_TABLES}
    for route in routes:
        if route.destination is None or not route.is_to(route.destination) or route.route_type != uapi.RTN_UNICAST:
            continue
        if (there := taken.get(route.table)) is not None:
            known = there.get(route.destination)
            if known is None or route.metric <= known.metric:
                there[route.destination] = route
    to_rules = set[IpAddress]()
    from_rules: dict[IpAddress, tuple[int, ...]] = {}
    from_prefixes: dict[IpNetwork, tuple[int, ...]] = {}
    for rule in rules:
        if is_from_sandbox(rule) and rule.source is not None:
            from_rules[rule.source] = (*from_rules.get(rule.source, ()), rule.table)
        elif (prefix := from_prefix(rule)) is not None:
            from_prefixes[prefix] = (*from_prefixes.get(prefix, ()), rule.table)
        elif is_to_sandbox(rule) and rule.destination is not None:
            to_rules.add(rule.destination)
    own, main = (
        {
            address: names.get(one.index, f"link {one.index}") + (f" via {one.via}" if one.via else "")
            for address, one in taken[table].items()
        }
        for table in SANDBOX_TABLES
    )
    first = tuple(one for one in ours if not (one.is_egress or one.is_branch))
    second, branches = tuple(one for one in ours if one.is_egress), tuple(one for one in ours if one.is_branch)
    return KernelSurvey(
        first, main, frozenset(to_rules), from_rules, is_whole, own, has_own_rule, from_prefixes, second, branches=branches
    )


def _destination(route: messages.Route) -> IpAddress | IpNetwork | None:
    """What a route leads to, as `BranchRoute` has it."""
    address = route.destination
    return address if address is None or route.is_to(address) else family_of(address).network((address, route.length))


def _merged(sock: NetlinkSocket, message: Message, *, may_be_torn: bool) -> tuple[list[bytes], bool]:
    if not may_be_torn:
        return sock.dump(message), True
    passes, is_whole = sock.dump_passes(message)
    return (passes[-1] if is_whole else [body for one in passes for body in one]), is_whole


def is_to_sandbox(rule: messages.Rule) -> bool:
    """Whether it is a rule `512: to address/32 lookup main`."""
    return (
        rule.priority == dataplane.TO_SANDBOX_PRIORITY
        and rule.destination is not None
        and rule.destination_length == rule.destination.max_prefixlen
        and rule.source is None
        and rule.table == uapi.RT_TABLE_MAIN
    )


def is_from_sandbox(rule: messages.Rule) -> bool:
    """Whether it is a rule `1536: from address/32 lookup <table>`."""
    return (
        rule.priority == dataplane.FROM_SANDBOX_PRIORITY
        and rule.source is not None
        and rule.source_length == rule.source.max_prefixlen
        and rule.table != 0
    )


def from_prefix(rule: messages.Rule) -> IpNetwork | None:
    """The source of a rule `1536: from prefix lookup <table>`; None of any other rule."""
    if rule.priority != dataplane.FROM_SANDBOX_PRIORITY or rule.source is None or rule.table == 0:
        return None
    family = family_of(rule.source)
    return family.network((rule.source, rule.source_length)) if rule.source_length == family.prefix_length else None


def links_of(sock: NetlinkSocket, *, kind: str = uapi.VETH_KIND) -> list[messages.Link]:
    """All links of a kind, or all for an empty one. Raises: KernelDumpError, WiringError."""
    links = [read_link(body) for body in sock.dump(messages.dump_links(kind=kind))]
    return [link for link in links if not kind or link.kind == kind]


def sandboxes_behind(
    sock: NetlinkSocket, others: Iterable[messages.Link], *, ours: Collection[messages.Link], attachments: Collection[Attachment]
) -> dict[int, AttachmentKey]:
    """Find those of others' links that lead into a sandbox's namespace, as ours do, by index; of any kind that tells where it leads.

    What looks like ours may be another's too: a second link into the namespace of a recorded one.
    The namespace of a sandbox whose own veth is gone is asked for: it may have deleted that to be no sandbox's any more.
    Raises: WiringError.
    """
    owners = {link.netnsid: found[0] for link in ours if (found := _identity(link.alias))}
    recorded = {name: one.key for one in attachments for name in host_veths(one)}
    names = {link.name for link in ours}
    known = {link.netnsid: recorded[link.name] for link in ours if link.name in recorded}
    owners |= known
    led = [link for link in others if link.netnsid]
    forged = [one for one in ours if one.name not in recorded and one.netnsid in known and one.group != uapi.DYING_GROUP]
    if any(link.netnsid not in owners for link in led):
        for one in attachments:
            if one.host_veth not in names:
                owners[namespace_number(sock, one.netns)] = one.key
    return {link.index: owners[link.netnsid] for link in [*led, *forged] if link.netnsid in owners}


def namespace_number(sock: NetlinkSocket, path: str) -> bytes:
    """By which number links name a namespace (`Link.netnsid`); empty if it is gone, not known or does not say (I11)."""
    with suppress(IpamError), opened_netns(path) as (fd, _):
        (asked,) = sock.request([messages.get_namespace_number(fd)])
        return b"".join(map(messages.read_namespace_number, asked.replies))
    return b""


def routes_of(sock: NetlinkSocket, *, table: int = 0, index: int = 0, family: Family) -> list[messages.Route]:
    """A family's routes of a table and of a link, or of all for 0; a table that does not exist has none.

    Raises: KernelDumpError, WiringError.
    """
    bodies, _ = _route_bodies(sock, table, index=index, family=family)
    routes = map(_route, bodies)
    return [route for route in routes if (not table or route.table == table) and (not index or route.index == index)]


def rules_of(sock: NetlinkSocket, family: Family) -> list[messages.Rule]:
    """All rules of a family, of two reads that agree; of RULE_READS that never did, every rule that one had.

    So a rule that is not in the answer was not there; one that went while they were read may be.
    Raises: KernelDumpError (a kernel may mark dumps of rules one day); WiringError.
    """
    return [_rule(body) for body in _agreed(sock, messages.dump_rules(family), may_be_torn=False)[0]]


def led_to_branches(sock: NetlinkSocket, family: Family) -> set[str]:
    """Names of the links whose packets rules lead to branch ENIs, in strict mode. Raises: as `rules_of`."""
    return {one.incoming for one in rules_of(sock, family) if one.priority == dataplane.BRANCH_PRIORITY and one.incoming}


def _route_bodies(
    sock: NetlinkSocket, table: int, *, index: int = 0, family: Family, may_be_torn: bool = False
) -> tuple[Iterable[bytes], bool]:
    read = _merged if family is IPV4 else _agreed
    return read(sock, messages.dump_routes(table, index=index, family=family), may_be_torn=may_be_torn)


def _agreed(sock: NetlinkSocket, message: Message, *, may_be_torn: bool) -> tuple[Iterable[bytes], bool]:
    """What two reads agree in, else what any of RULE_READS had: either counts as whole."""
    seen: dict[bytes, None] = {}
    before: list[bytes] | None = None
    for number in range(RULE_READS):
        reader = sock if number % 2 == 0 else sock.shorter or sock
        bodies, _ = _merged(reader, message, may_be_torn=may_be_torn)
        if bodies == before:
            return dict.fromkeys(bodies), True
        before = bodies
        seen |= dict.fromkeys(bodies)
    return seen, True


def host_veth(link: messages.Link) -> HostVeth:
    """Make the value of one link; of whom it is stands in its alias."""
    second, branch = _identity(link.alias, EGRESS_TAG), _identity(link.alias, BRANCH_TAG)
    key, address = _identity(link.alias) or second or branch or (None, None)
    return HostVeth(
        name=link.name,
        ifindex=link.index,
        alias=link.alias,
        is_dying=link.group == uapi.DYING_GROUP,
        is_up=link.is_up,
        key=key,
        address=address,
        mac=link.mac,
        mtu=link.mtu,
        kind=link.kind,
        master=link.master,
        is_egress=second is not None,
        is_branch=branch is not None or (key is None and is_strict_veth(link)),
        has_ipv6=devconf.has_ipv6(link),
    )


def is_strict_veth(link: messages.Link) -> bool:
    """Whether a link is named as host veths in strict mode are."""
    return link.kind == uapi.VETH_KIND and bool(_STRICT_VETH.fullmatch(link.name))


def vlan_link(link: messages.Link) -> VlanLink | None:
    """Make the value of one link to a branch ENI, by name or alias: where it is a stand-in it is of another kind. None of others."""
    found = decode_link_alias(link.alias, name=link.name, mac=link.mac)
    number = link.name.removeprefix(LINK_PREFIX)
    if number == link.name or not (number.isascii() and number.isdigit()):
        return None
    unfinished = Branch(int(number), MacAddress(link.mac), IPV4.gateway, False) if link.group == uapi.MAKING_GROUP else None
    address, eni_id, branch = found or (None, EniId(""), unfinished)
    return VlanLink(
        name=link.name,
        ifindex=link.index,
        vlan=int(number),
        mac=link.mac,
        alias=link.alias,
        parent=link.peer_index,
        is_dying=link.group == uapi.DYING_GROUP,
        is_up=link.is_up,
        address=address,
        eni_id=eni_id,
        branch=branch,
    )


def our_veths(links: Iterable[messages.Link], prefix: str) -> Iterable[HostVeth]:
    """Those of the links that are host veths of ours: by alias, by prefix, or because they are dying."""
    for link in links:
        veth = host_veth(link)
        if vlan_link(link) is None and (veth.key or veth.is_dying or veth.is_branch or link.name.startswith(prefix)):
            yield veth
