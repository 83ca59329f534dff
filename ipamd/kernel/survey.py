"""Read all our wiring in the host's namespace, from uninterrupted dumps (I11).

Dumps of links and of IPv4 routes are repeated if the kernel reports a change meanwhile. The kernel reports no change of rules and
IPv6 routes, and continues such a dump by the number of entries that it has sent (net/core/fib_rules.c, dump_rules;
net/ipv6/ip6_fib.c, fib6_dump_table). If an entry is removed between two datagrams, the second datagram therefore skips an entry that
was there all the time. So rules and IPv6 routes are read until two reads agree whose datagrams end at different places.

A veth of ours is recognised by its alias, by its name prefix, or by the dying group, so neither a changed prefix nor a crash before
the alias was set hides it. Parsed answers are cached by their bytes: a survey of a quiet node parses nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Hashable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import cast

from ipamd.kernel import answers, devconf, messages, uapi
from ipamd.kernel.answer_cache import AnswerCache
from ipamd.kernel.legs.uplink_survey import incoming_rules, is_uplinked, may_have_uplink, vlan_link, vlans_among, with_uplinks
from ipamd.kernel.netlink import Message, NetlinkSocket
from ipamd.kernel.netns import opened_netns
from ipamd.model import kernel_numbers, source_rules
from ipamd.model.attachment import Attachment
from ipamd.model.errors import IpamError
from ipamd.model.family import IPV4, Family, IpAddress, IpNetwork, family_of
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import HostVeth, KernelSurvey
from ipamd.model.legs import decode_first_alias, host_veths, read_alias
from ipamd.model.legs.leg import SHARED_TABLES
from ipamd.model.source_rules import RulePlace
from ipamd.ports.kernel import VlanLinks

RULE_READS = 6
"""The largest number of reads of rules or IPv6 routes. Reading ends when two successive reads agree; if none do, the result has
every entry of every read. While nothing changes, two reads are enough. Ours: while 50 sandboxes a second come and go on a node with
730 others, one read in four lacks a rule, so it is very unlikely that six reads lack the same rule. Every second read uses
shorter datagrams: otherwise changes in step with the reads could hide the same rule from two successive reads."""

read_link = AnswerCache(answers.read_link, most=4096)
_route = AnswerCache(answers.read_route, most=8192)
_rule = AnswerCache(answers.read_rule, most=8192)


def survey(
    sock: NetlinkSocket,
    *,
    veth_prefix: str,
    families: Collection[Family] = (IPV4,),
    may_be_torn: bool = False,
    vlan_links: VlanLinks | None = None,
) -> KernelSurvey:
    """Read host veths, uplinks, sandbox rules, and the routes to single addresses in main and in our own table.

    Args:
        veth_prefix: beginning of the names of our host veths.
        families: the families whose routes and rules are read.
        may_be_torn: if every attempt of a dump is interrupted, use the entries of all attempts, and set `is_whole` to False.
        vlan_links: recognises the links that a lab uses in place of VLAN links, because its kernel cannot make VLAN links; None if the
            kernel makes them.
    Returns: the survey, with veths sorted by name. If the wiring is sound, n sandboxes of the pool have n routes in each of the two
        tables, and at most n rules.
    Raises: KernelDumpError if a dump was interrupted in every attempt; WiringError.
    """
    # Links of every kind are read: a kernel whose module for VLAN links is not loaded would not filter by kind, and a host has few
    # links of other kinds.
    links, are_links_whole = _dump_merged(sock, messages.dump_links(), may_be_torn=may_be_torn)
    routes = list[bytes]()
    rules = list[tuple[bytes, ...]]()
    is_whole = are_links_whole
    if any(may_have_uplink(read_link(body)) for body in links):
        bodies, is_table_whole = _route_bodies(sock, uapi.RT_TABLE_UNSPEC, family=next(iter(families)), may_be_torn=may_be_torn)
        routes += bodies
        is_whole &= is_table_whole
    for family in families:
        for table in SHARED_TABLES:
            bodies, is_table_whole = _route_bodies(sock, table, family=family, may_be_torn=may_be_torn)
            routes += bodies
            is_whole &= is_table_whole
        rule_bodies, _ = _dump_until_agreed(sock, messages.dump_rules(family), may_be_torn=may_be_torn)
        rules.append(tuple(rule_bodies))
    return _parsed(tuple(links), tuple(routes), tuple(rules), veth_prefix, is_whole, cast(Hashable, vlan_links))


def survey_of(
    veths: Iterable[HostVeth],
    names: Mapping[int, str],
    *,
    routes: Iterable[answers.Route],
    rules: Iterable[answers.PolicyRule],
    is_whole: bool = True,
    has_own_rule: bool = False,
) -> KernelSurvey:
    """Make a survey from parsed objects.

    Args:
        veths: our host veths.
        names: names of links, by index.
        routes: routes of any table; only those to single addresses are used.
        rules: all rules.
        has_own_rule: whether every surveyed family has the rule to OWN_TABLE.
    """
    routes_by_table = _sandbox_routes(routes)
    to_rules, rule_places, from_prefixes = _sandbox_rules(rules)
    own_routes = _devices_of_routes(routes_by_table[kernel_numbers.OWN_TABLE], names)
    main_routes = _devices_of_routes(routes_by_table[uapi.RT_TABLE_MAIN], names)
    pool_veths: list[HostVeth] = []
    extra_veths: list[HostVeth] = []
    uplinked_veths: list[HostVeth] = []
    for veth in veths:
        if not veth.is_first:
            extra_veths.append(veth)
        elif veth.is_of_pool:
            pool_veths.append(veth)
        else:
            uplinked_veths.append(veth)
    return KernelSurvey(
        veths=tuple(pool_veths),
        routes=main_routes,
        to_rules=to_rules,
        from_rules={address: tuple(place.table for place in places) for address, places in rule_places.items()},
        is_whole=is_whole,
        own_routes=own_routes,
        has_own_rule=has_own_rule,
        from_prefixes=from_prefixes,
        extra=tuple(extra_veths),
        uplinked=tuple(uplinked_veths),
        rule_places=rule_places,
    )


def is_to_sandbox(rule: answers.PolicyRule) -> bool:
    """Whether a rule leads packets to a single sandbox: `512: to address/32 lookup main` (/128 with IPv6)."""
    return (
        rule.priority == kernel_numbers.TO_SANDBOX_PRIORITY
        and rule.destination is not None
        and rule.destination_length == rule.destination.max_prefixlen
        and rule.source is None
        and rule.table == uapi.RT_TABLE_MAIN
    )


def is_from_sandbox(rule: answers.PolicyRule) -> bool:
    """Whether a rule selects packets from a single sandbox: `from address/32 lookup <table>`, at 1536 or in a bucket."""
    return (
        rule.priority in source_rules.SINGLE_PRIORITIES
        and rule.source is not None
        and rule.source_length == rule.source.max_prefixlen
        and rule.table != 0
    )


def from_prefix(rule: answers.PolicyRule) -> IpNetwork | None:
    """Return the source of a rule `1536: from prefix lookup <table>`; None for any other rule."""
    if rule.priority != kernel_numbers.FROM_SANDBOX_PRIORITY or rule.source is None or rule.table == 0:
        return None
    family = family_of(rule.source)
    if rule.source_length == family.prefix_length:
        return family.network((rule.source, rule.source_length))
    return None


def links_of(sock: NetlinkSocket, *, kind: str = uapi.VETH_KIND) -> list[answers.Link]:
    """Return all links of a kind; with an empty kind all links. Raises: KernelDumpError, WiringError."""
    links = [read_link(body) for body in sock.dump(messages.dump_links(kind=kind))]
    return [link for link in links if not kind or link.kind == kind]


def sandboxes_behind(
    sock: NetlinkSocket,
    foreign_links: Iterable[answers.Link],
    *,
    ours: Collection[answers.Link],
    attachments: Collection[Attachment],
) -> dict[int, AttachmentKey]:
    """Return the links of other software, of any kind, that lead into a sandbox's namespace: index -> sandbox.

    If a link leads into the namespace of a recorded sandbox and is not the recorded link, it counts as other software's, even if it
    looks like ours. If a sandbox's own veth is gone, its namespace is looked up by its path, because a sandbox may delete its veth to
    hide where other links lead.

    Args:
        foreign_links: links that do not look like ours.
        ours: links that look like ours.
        attachments: the recorded sandboxes.
    Raises: WiringError.
    """
    recorded: dict[str, AttachmentKey] = {}
    for attachment in attachments:
        recorded.update(dict.fromkeys(host_veths(attachment), attachment.key))
    recorded_owners = {link.netnsid: recorded[link.name] for link in ours if link.name in recorded}
    owners = _owners_by_alias(ours) | recorded_owners
    suspects = [link for link in foreign_links if link.netnsid]
    forged = _second_links(ours, recorded, recorded_owners)
    if any(link.netnsid not in owners for link in suspects):
        owners |= _owners_without_veth(sock, attachments, ours)
    return {link.index: owners[link.netnsid] for link in [*suspects, *forged] if link.netnsid in owners}


def namespace_number(sock: NetlinkSocket, path: str) -> bytes:
    """Return the number that the namespace at a path has in links of the host (`Link.netnsid`).

    Returns: b"" if it has no number, or if the number cannot be read (I11).
    """
    with suppress(IpamError), opened_netns(path) as (fd, _):
        (outcome,) = sock.request([messages.get_namespace_number(fd)])
        return b"".join(map(answers.read_namespace_number, outcome.replies))
    return b""


def routes_of(sock: NetlinkSocket, *, table: int = 0, index: int = 0, family: Family) -> list[answers.Route]:
    """Return a family's routes in a table (0 for all tables) through a link (0 for all links); none if the table does not exist.

    Raises: KernelDumpError, WiringError.
    """
    bodies, _ = _route_bodies(sock, table, index=index, family=family)
    routes: list[answers.Route] = []
    for route in map(_route, bodies):
        is_in_table = not table or route.table == table
        is_through_link = not index or route.index == index
        if is_in_table and is_through_link:
            routes.append(route)
    return routes


def rules_of(sock: NetlinkSocket, family: Family) -> list[answers.PolicyRule]:
    """Return all rules of a family from two reads that agree; if no two of RULE_READS agree, every rule of every read.

    So a rule that the result lacks did not exist. The result may contain a rule that was removed during the reads.
    Raises: KernelDumpError (a later kernel may report interrupted dumps of rules); WiringError.
    """
    bodies, _ = _dump_until_agreed(sock, messages.dump_rules(family), may_be_torn=False)
    return [_rule(body) for body in bodies]


def strict_links(sock: NetlinkSocket, family: Family) -> set[str]:
    """Return the names of links by which the rules of strict mode select packets: uplinks, and host veths of sandboxes in strict mode.

    Raises: as `rules_of`.
    """
    return {rule.incoming for rule in incoming_rules(rules_of(sock, family))}


def host_veth(link: answers.Link) -> HostVeth:
    """Convert one link to a `HostVeth`. Sandbox and address are read from the link's alias."""
    alias = read_alias(link.alias)
    kind = alias.leg if alias else None
    return HostVeth(
        name=link.name,
        ifindex=link.index,
        alias=link.alias,
        is_dying=link.group == uapi.DYING_GROUP,
        is_up=link.is_up,
        key=alias.key if alias else None,
        address=alias.address if alias else None,
        mac=link.mac,
        mtu=link.mtu,
        kind=link.kind,
        master=link.master,
        is_extra=kind is not None and not kind.is_first,
        has_uplink=is_uplinked(link, kind),
        has_ipv6=devconf.has_ipv6(link),
    )


def our_veths(links: Iterable[answers.Link], prefix: str) -> Iterable[HostVeth]:
    """Yield the links that are host veths of ours: by alias, by name (the prefix, or the form of strict mode), or because they are in
    the dying group.
    """
    for link in links:
        veth = host_veth(link)
        if vlan_link(link) is None and (veth.key or veth.is_dying or veth.has_uplink or link.name.startswith(prefix)):
            yield veth


@lru_cache(maxsize=1)
def _parsed(
    links: tuple[bytes, ...],
    routes: tuple[bytes, ...],
    rules: tuple[tuple[bytes, ...], ...],
    veth_prefix: str,
    is_whole: bool,
    vlan_links: Hashable,
) -> KernelSurvey:
    # The merged attempts of an interrupted dump may have several links with the same index: the last of them is the youngest.
    by_index = {link.index: link for link in map(read_link, links)}
    veths = [link for link in by_index.values() if link.kind == uapi.VETH_KIND]
    ours = sorted(our_veths(veths, veth_prefix), key=lambda veth: veth.name)
    vlans = vlans_among(by_index, cast(VlanLinks | None, vlan_links))
    names = {link.index: link.name for link in veths}
    names.update((vlan.ifindex, vlan.name) for vlan in vlans)
    all_routes = [_route(body) for body in routes]
    rules_by_family = [[_rule(body) for body in bodies] for bodies in rules]
    all_rules = [*chain.from_iterable(rules_by_family)]
    result = survey_of(
        ours,
        names,
        routes=all_routes,
        rules=all_rules,
        is_whole=is_whole,
        has_own_rule=all(map(_has_own_rule, rules_by_family)),
    )
    read_link.keep(links)
    _route.keep(routes)
    _rule.keep([*chain.from_iterable(rules)])
    return with_uplinks(result, vlans, routes=all_routes, rules=all_rules, names=names)


def _has_own_rule(rules: Iterable[answers.PolicyRule]) -> bool:
    """Whether the rule to our own table is among the rules of a family."""
    own_rule = (kernel_numbers.OWN_TABLE_PRIORITY, kernel_numbers.OWN_TABLE)
    return any((rule.priority, rule.table) == own_rule for rule in rules)


def _sandbox_routes(routes: Iterable[answers.Route]) -> dict[int, dict[IpAddress, answers.Route]]:
    """Return the routes to single addresses in each of SHARED_TABLES; for each address the route with the lowest metric."""
    by_table: dict[int, dict[IpAddress, answers.Route]] = {table: {} for table in SHARED_TABLES}
    for route in routes:
        address = route.destination
        if address is None or not route.is_to(address) or route.route_type != uapi.RTN_UNICAST:
            continue
        by_address = by_table.get(route.table)
        if by_address is None:
            continue
        other = by_address.get(address)
        if other is None or route.metric <= other.metric:
            by_address[address] = route
    return by_table


def _sandbox_rules(
    rules: Iterable[answers.PolicyRule],
) -> tuple[frozenset[IpAddress], dict[IpAddress, tuple[RulePlace, ...]], dict[IpNetwork, tuple[int, ...]]]:
    """Return the addresses to which a rule of priority 512 leads, the places of the rules from each single address, and the tables to
    which rules of priority 1536 from each prefix lead.
    """
    to_rules = set[IpAddress]()
    rule_places: dict[IpAddress, tuple[RulePlace, ...]] = {}
    from_prefixes: dict[IpNetwork, tuple[int, ...]] = {}
    for rule in rules:
        prefix = from_prefix(rule)
        if is_from_sandbox(rule) and rule.source is not None:
            place = RulePlace(rule.priority, rule.table)
            rule_places[rule.source] = (*rule_places.get(rule.source, ()), place)
        elif prefix is not None:
            from_prefixes[prefix] = (*from_prefixes.get(prefix, ()), rule.table)
        elif is_to_sandbox(rule) and rule.destination is not None:
            to_rules.add(rule.destination)
    return frozenset(to_rules), rule_places, from_prefixes


def _devices_of_routes(routes: Mapping[IpAddress, answers.Route], names: Mapping[int, str]) -> dict[IpAddress, str]:
    """Return the name of the link that each route leads through, with the next hop if it has one."""
    devices: dict[IpAddress, str] = {}
    for address, route in routes.items():
        next_hop = ""
        if route.via:
            next_hop = f" via {route.via}"
        devices[address] = names.get(route.index, f"link {route.index}") + next_hop
    return devices


def _dump_merged(sock: NetlinkSocket, message: Message, *, may_be_torn: bool) -> tuple[list[bytes], bool]:
    """Dump in one uninterrupted pass. If every pass was interrupted and `may_be_torn`, return the entries of all passes.

    Returns: the entries, and whether they are of one uninterrupted pass.
    """
    if not may_be_torn:
        return sock.dump(message), True
    passes, is_whole = sock.dump_passes(message)
    if is_whole:
        return passes[-1], True
    return [*chain.from_iterable(passes)], False


def _owners_by_alias(links: Iterable[answers.Link]) -> dict[bytes, AttachmentKey]:
    """Return the sandboxes that the aliases of links name, by the number of the namespace that each link leads into."""
    owners: dict[bytes, AttachmentKey] = {}
    for link in links:
        identity = decode_first_alias(link.alias)
        if identity:
            owners[link.netnsid] = identity[0]
    return owners


def _second_links(
    ours: Iterable[answers.Link], recorded: Container[str], recorded_namespaces: Container[bytes]
) -> list[answers.Link]:
    """Return links that look like ours and lead into the namespace of a recorded sandbox, but are not its recorded link.

    Dying links are left out.

    Args:
        recorded: names of the recorded host veths.
        recorded_namespaces: numbers of the namespaces into which the recorded host veths lead.
    """
    links: list[answers.Link] = []
    for link in ours:
        is_recorded = link.name in recorded
        is_dying = link.group == uapi.DYING_GROUP
        if link.netnsid in recorded_namespaces and not (is_recorded or is_dying):
            links.append(link)
    return links


def _owners_without_veth(
    sock: NetlinkSocket, attachments: Iterable[Attachment], ours: Iterable[answers.Link]
) -> dict[bytes, AttachmentKey]:
    """Return the sandboxes whose host veth is missing, by the number of their namespace."""
    names = {link.name for link in ours}
    owners: dict[bytes, AttachmentKey] = {}
    for attachment in attachments:
        if attachment.host_veth not in names:
            owners[namespace_number(sock, attachment.netns)] = attachment.key
    return owners


def _route_bodies(
    sock: NetlinkSocket, table: int, *, index: int = 0, family: Family, may_be_torn: bool = False
) -> tuple[Iterable[bytes], bool]:
    read = _dump_merged if family is IPV4 else _dump_until_agreed
    return read(sock, messages.dump_routes(table, index=index, family=family), may_be_torn=may_be_torn)


def _dump_until_agreed(sock: NetlinkSocket, message: Message, *, may_be_torn: bool) -> tuple[Iterable[bytes], bool]:
    """Dump until two reads agree, or merge the entries of RULE_READS reads. Both results count as whole: the second value is True."""
    merged: dict[bytes, None] = {}
    previous: list[bytes] | None = None
    for number in range(RULE_READS):
        reader = sock if number % 2 == 0 else sock.shorter or sock
        bodies, _ = _dump_merged(reader, message, may_be_torn=may_be_torn)
        if bodies == previous:
            return dict.fromkeys(bodies), True
        previous = bodies
        merged |= dict.fromkeys(bodies)
    return merged, True
