"""Read all our wiring in the host's namespace, from uninterrupted dumps (I11).

Three dumps, each repeated if the kernel reports a change meanwhile. A veth of ours is recognised by alias, by name prefix and by
the dying group, so neither a changed prefix nor a crash before the alias was set hides it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address

from ipamd.kernel import layout, messages, records, uapi
from ipamd.kernel.netlink import NetlinkSocket
from ipamd.model import dataplane
from ipamd.model.attachment import decode_alias
from ipamd.model.kernel import HostVeth, KernelSurvey


def survey(sock: NetlinkSocket, *, veth_prefix: str) -> KernelSurvey:
    """Read host veths, /32 routes of main and sandbox rules.

    Returns: n veths by name; with sound wiring n routes and up to 2n rules.
    Raises: KernelDumpError if a dump was interrupted in every attempt; WiringError.
    """
    links = links_of(sock)
    routes = routes_of(sock, table=uapi.RT_TABLE_MAIN)
    rules = rules_of(sock)
    names = {link.index: link.name for link in links}
    from_rules: dict[IPv4Address, tuple[int, ...]] = {}
    for rule in rules:
        if is_from_sandbox(rule) and rule.source is not None:
            from_rules[rule.source] = (*from_rules.get(rule.source, ()), rule.table)
    return KernelSurvey(
        veths=tuple(sorted(_host_veths(links, veth_prefix), key=lambda veth: veth.name)),
        routes={
            route.destination: names.get(route.index, "")
            for route in routes
            if route.destination is not None and route.length == 32 and route.route_type == uapi.RTN_UNICAST
        },
        to_rules=frozenset(rule.destination for rule in rules if rule.destination is not None and is_to_sandbox(rule)),
        from_rules=from_rules,
    )


def is_to_sandbox(rule: records.Rule) -> bool:
    """Whether it is a rule `512: to address/32 lookup main`."""
    return (
        rule.priority == dataplane.TO_SANDBOX_PRIORITY
        and rule.destination_length == 32
        and rule.source is None
        and rule.table == uapi.RT_TABLE_MAIN
    )


def is_from_sandbox(rule: records.Rule) -> bool:
    """Whether it is a rule `1536: from address/32 lookup <table>`."""
    return rule.priority == dataplane.FROM_SANDBOX_PRIORITY and rule.source_length == 32 and rule.table != 0


def links_of(sock: NetlinkSocket, *, kind: str = layout.VETH_KIND) -> list[records.Link]:
    """All links of a kind, or all for an empty one. Raises: KernelDumpError, WiringError."""
    links = [records.read_link(body) for body in sock.dump(messages.dump_links(kind=kind))]
    return [link for link in links if not kind or link.kind == kind]


def routes_of(sock: NetlinkSocket, *, table: int = 0) -> list[records.Route]:
    """The IPv4 routes of a table, or of all for 0; a table that does not exist has none.

    Raises: KernelDumpError, WiringError.
    """
    routes = [records.read_route(body) for body in sock.dump(messages.dump_routes(table))]
    return [route for route in routes if not table or route.table == table]


def rules_of(sock: NetlinkSocket) -> list[records.Rule]:
    """All IPv4 rules. Raises: KernelDumpError, WiringError."""
    return [records.read_rule(body) for body in sock.dump(messages.dump_rules())]


def host_veth(link: records.Link) -> HostVeth:
    """Make the value of one link; of whom it is stands in its alias."""
    key, address = decode_alias(link.alias) or (None, None)
    return HostVeth(
        name=link.name,
        ifindex=link.index,
        alias=link.alias,
        is_dying=link.group == layout.DYING_GROUP,
        is_up=link.is_up,
        key=key,
        address=address,
    )


def _host_veths(links: Iterable[records.Link], prefix: str) -> Iterator[HostVeth]:
    for link in links:
        veth = host_veth(link)
        if veth.key is not None or veth.is_dying or link.name.startswith(prefix):
            yield veth
