"""Pack every netlink message that wiring, checks and surveys send, with one function for each kind of message. No I/O.

Additions use CREATE|EXCL where an existing object may belong to another program, and CREATE|REPLACE where any other object would be
wrong. Removals tolerate that the object is missing. The same functions pack the messages that change the node itself: its ENIs, tables
and rules (docs/adr/0004).
Rejected: RTM_NEWLINK with NLM_F_REPLACE, which changes another owner's link of the same name.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping
from functools import partial

from ipamd.kernel import uapi
from ipamd.kernel.netlink import Message, attribute, text_attribute
from ipamd.model.family import IPV4, IPV6, Family, IpAddress, IpNetwork, family_of

ABSENT = frozenset({errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.EADDRNOTAVAIL})
"""The kernel's errnos for a message about an object that does not exist.

Source: the kernel's net/core/fib_rules.c, net/ipv4/fib_trie.c, net/core/rtnetlink.c.
"""

PRESENT = frozenset({errno.EEXIST})

UNREACHABLE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH})
"""The kernel's errnos if there is no route to an address. Source: the kernel's net/ipv4/route.c, ip_route_output_key_hash_rcu."""

_ADD = uapi.NLM_F_CREATE | uapi.NLM_F_EXCL

_PUT = uapi.NLM_F_CREATE | uapi.NLM_F_REPLACE

LINK = struct.Struct("=BxHiII")  # ifinfomsg: family, type, index, flags, change

ADDRESS = struct.Struct("=BBBBI")  # ifaddrmsg: family, prefix length, flags, scope, index

# fib_rule_hdr has the same layout, with the action in place of the type
ROUTE = struct.Struct("=BBBBBBBBI")  # rtmsg: family, dst length, src length, tos, table, protocol, scope, type, flags

NEIGHBOUR = struct.Struct("=BxxxiHBB")  # ndmsg: family, index, state, flags, type

U32 = struct.Struct("=I")

_LOOK_UP_FLAGS = {IPV4.number: uapi.RTM_F_LOOKUP_TABLE, IPV6.number: 0}
"""Number of a family -> the flags of a route lookup. The answer to an IPv4 lookup contains the route's table only if the flag requests
it. The answer to an IPv6 lookup always contains the table, and the kernel refuses the flag (net/ipv6/route.c,
inet6_rtm_valid_getroute_req)."""


def create_veth(name: str, *, mac: str, peer_name: str, peer_mac: str, peer_netns: int, mtu: int) -> Message:
    """Create a veth pair whose peer is made directly in its final namespace. The kernel answers EEXIST if either name is taken.

    If the peer were made in the host's namespace and then moved, a burst of ADDs would take seconds longer.

    Args:
        peer_netns: an open descriptor of the peer's namespace.
        mtu: of both ends, in bytes.
    """
    peer = _link() + b"".join(
        (
            text_attribute(uapi.IFLA_IFNAME, peer_name),
            attribute(uapi.IFLA_ADDRESS, _mac(peer_mac)),
            _u32(uapi.IFLA_MTU, mtu),
            _u32(uapi.IFLA_NET_NS_FD, peer_netns),
            _ONE_QUEUE,
        )
    )
    data = attribute(uapi.IFLA_INFO_DATA | uapi.NLA_F_NESTED, attribute(uapi.VETH_INFO_PEER | uapi.NLA_F_NESTED, peer))
    body = _link() + b"".join(
        (
            text_attribute(uapi.IFLA_IFNAME, name),
            attribute(uapi.IFLA_ADDRESS, _mac(mac)),
            _u32(uapi.IFLA_MTU, mtu),
            _ONE_QUEUE,
            attribute(uapi.IFLA_LINKINFO | uapi.NLA_F_NESTED, text_attribute(uapi.IFLA_INFO_KIND, uapi.VETH_KIND) + data),
        )
    )
    return Message(f"create veth {name} and {peer_name}", uapi.RTM_NEWLINK, _ADD, body)


def create_vlan(name: str, *, vlan: int, parent: int, mac: str) -> Message:
    """Create an 802.1Q link on the link with index `parent`, with that link's MTU.

    The kernel answers EEXIST if the parent has a link with this ID, of any name. The link is put into MAKING_GROUP, which it leaves
    when it gets its alias. Source: the kernel's net/8021q/vlan_netlink.c.
    """
    data = attribute(uapi.IFLA_INFO_DATA | uapi.NLA_F_NESTED, attribute(uapi.IFLA_VLAN_ID, struct.pack("=H", vlan)))
    body = _link() + b"".join(
        (
            text_attribute(uapi.IFLA_IFNAME, name),
            _u32(uapi.IFLA_LINK, parent),
            attribute(uapi.IFLA_ADDRESS, _mac(mac)),
            _u32(uapi.IFLA_GROUP, uapi.MAKING_GROUP),
            attribute(uapi.IFLA_LINKINFO | uapi.NLA_F_NESTED, text_attribute(uapi.IFLA_INFO_KIND, uapi.VLAN_KIND) + data),
        )
    )
    return Message(f"create vlan {name} on link {parent}", uapi.RTM_NEWLINK, _ADD, body)


def get_link(which: str | int, *, netnsid: bytes = b"") -> Message:
    """Ask for one link by name or index. The kernel sends no reply if the link is missing.

    `netnsid`: number of the namespace with the link (`Link.netnsid`); empty for this namespace.
    """
    body = _link() + text_attribute(uapi.IFLA_IFNAME, which) if isinstance(which, str) else _link(which)
    body += _NO_STATS
    if netnsid:
        body += attribute(uapi.IFLA_TARGET_NETNSID, netnsid)
    return Message(f"look at link {which}", uapi.RTM_GETLINK, 0, body, ABSENT)


def get_namespace_number(fd: int) -> Message:
    """Ask for the number (nsid) by which links of this namespace name the network namespace of a file descriptor (`Link.netnsid`)."""
    return Message("look at a namespace's number", uapi.RTM_GETNSID, 0, bytes(U32.size) + _u32(uapi.NETNSA_FD, fd))


def change_link(
    index: int,
    *,
    step: str,
    is_up: bool | None = None,
    alias: str = "",
    group: int | None = None,
    name: str = "",
    mac: str = "",
    mtu: int = 0,
    ipv4_conf: Mapping[int, int] | None = None,
    tolerated: frozenset[int] = frozenset(),
) -> Message:
    """Change a link's state, ifalias (at most 255 bytes), group, name, MAC, MTU (bytes) or IPv4 settings.

    An argument that is left out changes nothing. If an alias is given, which only links of ours get, the link is also taken out of its
    bridge.

    `ipv4_conf`: number of a setting below /proc/sys/net/ipv4/conf -> value. Setting it needs only NET_ADMIN, and no writable
        /proc/sys.
    """
    body = _link(index)
    if is_up is not None:
        body = _link(index, flags=uapi.IFF_UP if is_up else 0, change=uapi.IFF_UP)
    if alias:
        body += attribute(uapi.IFLA_IFALIAS, alias.encode())  # without a terminator
        body += _u32(uapi.IFLA_MASTER, 0)
    if group is not None:
        body += _u32(uapi.IFLA_GROUP, group)
    if name:
        body += text_attribute(uapi.IFLA_IFNAME, name)
    if ipv4_conf:
        settings = b"".join(_u32(number, value) for number, value in ipv4_conf.items())
        body += _family(IPV4, attribute(uapi.IFLA_INET_CONF | uapi.NLA_F_NESTED, settings))
    if mac:
        body += attribute(uapi.IFLA_ADDRESS, _mac(mac))
    if mtu:
        body += _u32(uapi.IFLA_MTU, mtu)
    return Message(step, uapi.RTM_SETLINK, 0, body, tolerated)


def disable_ipv6_autoconfiguration(index: int, *, step: str) -> Message:
    """Keep the kernel from adding an IPv6 address to a link, which must still be down. A kernel without IPv6 is fine.

    The message does the same as `ip link set addrgenmode none`. It must be a separate message: in RTM_NEWLINK the kernel refuses the
    setting (EAFNOSUPPORT), and in the message that raises the link the kernel would apply it only after raising the link. Source: the
    kernel's net/core/rtnetlink.c, validate_linkmsg and do_setlink.
    """
    mode = attribute(uapi.IFLA_INET6_ADDR_GEN_MODE, bytes([uapi.IN6_ADDR_GEN_MODE_NONE]))
    body = _link(index) + _family(IPV6, mode)
    return Message(step, uapi.RTM_SETLINK, 0, body, frozenset({errno.EAFNOSUPPORT}))


def reset_ipv6(index: int, *, mtu: int) -> list[Message]:
    """Give a link the IPv6 settings of a new link, and no address; it is then down, without routes and neighbours.

    This also resets disable_ipv6, which netlink cannot set, and which cannot be set if /proc/sys is read-only. It works because an MTU
    below 1280 removes IPv6 and its settings from a link. Source: the kernel's net/ipv6/addrconf.c, addrconf_notify (NETDEV_CHANGEMTU).
    """
    step = "renew IPv6"
    remove = change_link(index, step=step, is_up=False, mtu=1279)
    restore = change_link(index, step=step, mtu=mtu)
    return [remove, restore, disable_ipv6_autoconfiguration(index, step=step)]


def delete_link(index: int, *, step: str) -> Message:
    """Delete one link; a missing one is fine. The kernel answers after an RCU grace period (docs/performance.md).

    Raises: ValueError for an index below 1, which no link has.
    """
    if index <= 0:
        raise ValueError(f"link index {index} names no link")
    return Message(step, uapi.RTM_DELLINK, 0, _link(index), ABSENT)


def delete_group(group: int) -> Message:
    """Delete every link of a group in one kernel call. An empty group is fine.

    Raises: ValueError for group 0, which holds every link that was never put into a group (the kernel refuses it too).
    """
    if group == 0:
        raise ValueError("group 0 holds every ordinary link of the node")
    body = _link() + _u32(uapi.IFLA_GROUP, group)
    return Message(f"delete links of group {group:#x}", uapi.RTM_DELLINK, 0, body, ABSENT)


def add_address(index: int, address: IpAddress, *, length: int, step: str, is_connected: bool = True) -> Message:
    """Add an address of global scope. The kernel answers EEXIST if the link has the address.

    The kernel does not test whether another host uses an IPv6 address, because that takes a second or two (RFC 4862, 5.4).

    `is_connected`: whether the kernel also adds the route to the address's subnet in table main.
    """
    flags = 0
    if address.version == 6:
        flags = uapi.IFA_F_NODAD
    body = _address_body(index, address, length, flags=flags)
    if not is_connected:
        body += _u32(uapi.IFA_FLAGS, flags | uapi.IFA_F_NOPREFIXROUTE)
    return Message(step, uapi.RTM_NEWADDR, _ADD, body)


def get_address(index: int, address: IpAddress) -> Message:
    """Ask whether a link has an IPv6 address. The kernel answers EADDRNOTAVAIL if it does not."""
    body = ADDRESS.pack(family_of(address).number, 0, 0, 0, index) + attribute(uapi.IFA_ADDRESS, address.packed)
    return Message(f"look at address {address}", uapi.RTM_GETADDR, 0, body)


def delete_address(index: int, address: IpAddress, *, length: int, step: str) -> Message:
    """Remove an address from a link. A missing address is fine."""
    return Message(step, uapi.RTM_DELADDR, 0, _address_body(index, address, length), ABSENT)


def add_route(
    destination: IpAddress | None,
    *,
    index: int,
    step: str,
    via: IpAddress | None = None,
    table: int = uapi.RT_TABLE_MAIN,
    is_replaced: bool = False,
    metric: int = 0,
) -> Message:
    """Add a route to one address. With `destination` None add the default route.

    Args:
        index: of the link that the route leads through.
        via: the next hop; None: the destination is on the link. A default route is of the next hop's family, or of IPv4 if it has no
            next hop.
        is_replaced: replace a route with the same destination and metric. Otherwise the kernel answers EEXIST if there is one.
        metric: 0 for the default metric of the family.
    """
    scope = uapi.RT_SCOPE_UNIVERSE
    if via is None:
        scope = uapi.RT_SCOPE_LINK
    length = 0
    if destination:
        length = destination.max_prefixlen
    body = _route_body(destination, via, length=length, table=table, scope=scope, protocol=uapi.RTPROT_STATIC)
    if via is not None:
        body += attribute(uapi.RTA_GATEWAY, via.packed)
    if metric:
        body += _u32(uapi.RTA_PRIORITY, metric)
    return Message(step, uapi.RTM_NEWROUTE, _PUT if is_replaced else _ADD, body + _u32(uapi.RTA_OIF, index))


def add_local_route(address: IpAddress, *, index: int, step: str) -> Message:
    """Add the local route of a link's address: with it the kernel accepts packets to the address.

    For an IPv6 address the kernel adds this route itself, but only a moment later. Source: the kernel's net/ipv6/addrconf.c,
    addrconf_dad_start, which defers it to a work queue.
    """
    body = _route_body(
        address, None, length=address.max_prefixlen, table=uapi.RT_TABLE_LOCAL, scope=uapi.RT_SCOPE_UNIVERSE,
        protocol=uapi.RTPROT_STATIC, route_type=uapi.RTN_LOCAL,
    )  # fmt: skip
    return Message(step, uapi.RTM_NEWROUTE, _ADD, body + _u32(uapi.RTA_OIF, index))


def add_unreachable_route(prefix: IpNetwork, *, table: int) -> Message:
    """Add an unreachable route for a prefix, which refuses packets to addresses without a route of their own in the table."""
    body = _route_body(
        prefix.network_address, None, length=prefix.prefixlen, table=table, scope=uapi.RT_SCOPE_UNIVERSE,
        protocol=uapi.RTPROT_STATIC, route_type=uapi.RTN_UNREACHABLE,
    )  # fmt: skip
    return Message(f"add unreachable {prefix} table {table}", uapi.RTM_NEWROUTE, _ADD, body, PRESENT)


def add_table_end(table: int, *, metric: int, family: Family) -> Message:
    """Add an unreachable default route, which refuses packets that match no other route of the table. An existing one is fine."""
    return Message(
        f"add unreachable default table {table}",
        uapi.RTM_NEWROUTE,
        _ADD,
        _table_end_body(table, metric, family),
        PRESENT,
    )


def delete_table_end(table: int, *, metric: int, family: Family) -> Message:
    """Remove the route that `add_table_end` adds. A missing route is fine."""
    return Message(
        f"delete unreachable default table {table}",
        uapi.RTM_DELROUTE,
        0,
        _table_end_body(table, metric, family),
        ABSENT,
    )


def _table_end_body(table: int, metric: int, family: Family) -> bytes:
    small = table if table < 256 else uapi.RT_TABLE_UNSPEC
    header = ROUTE.pack(family.number, 0, 0, 0, small, uapi.RTPROT_STATIC, uapi.RT_SCOPE_UNIVERSE, uapi.RTN_UNREACHABLE, 0)
    return header + _u32(uapi.RTA_TABLE, table) + _u32(uapi.RTA_PRIORITY, metric)


def delete_route(
    destination: IpAddress | None,
    *,
    length: int,
    table: int,
    index: int,
    step: str,
    metric: int = 0,
    via: IpAddress | None = None,
) -> Message:
    """Remove one route of any scope, type and protocol. A missing route is fine.

    Args:
        length: length of the destination's prefix.
        index: of the link that the route leads through; 0 for any link.
        metric: 0 for any metric.
        via: the next hop; None for any. A default route is of the next hop's family, or of IPv4 if it has no next hop.
    """
    body = _route_body(destination, via, length=length, table=table, scope=uapi.RT_SCOPE_NOWHERE, protocol=0)
    if index:
        body += _u32(uapi.RTA_OIF, index)
    if metric:
        body += _u32(uapi.RTA_PRIORITY, metric)
    return Message(step, uapi.RTM_DELROUTE, 0, body, ABSENT)


def look_up_route(
    destination: IpAddress, source: IpAddress | None = None, incoming: int = 0, mark: int = 0, *, port: int = 0
) -> Message:
    """Ask where the kernel would send a packet. The answer contains the table. For an unreachable address there is no reply.

    Args:
        source: the packet's source; None: the kernel chooses one.
        incoming: index of the link by which the packet arrives from `source`; 0 for a packet that the host itself sends. Without
            `source` it is ignored.
        mark: the packet's mark.
        port: TCP port at the destination, for rules that select by port. With 0 the kernel looks up the route of a UDP packet without
            a port.
    """
    family, length = family_of(destination).number, destination.max_prefixlen
    body = ROUTE.pack(family, length, length if source else 0, 0, 0, 0, 0, 0, _LOOK_UP_FLAGS[family])
    body += attribute(uapi.RTA_DST, destination.packed) + _u32(uapi.RTA_MARK, mark)
    if source:
        body += attribute(uapi.RTA_SRC, source.packed) + _u32(uapi.RTA_IIF, incoming)
    if port:
        body += attribute(uapi.RTA_IP_PROTO, bytes([uapi.IPPROTO_TCP])) + attribute(uapi.RTA_DPORT, port.to_bytes(2, "big"))
    return Message("look up a route", uapi.RTM_GETROUTE, 0, body, UNREACHABLE)


def match_route(destination: IpAddress, *, index: int, source: IpAddress | None = None) -> Message:
    """Ask which route the kernel uses for an address through the link `index`. The kernel answers an errno if there is none.

    `source`: the packet's source, for rules that select by source.
    """
    length = destination.max_prefixlen
    source_length = source.max_prefixlen if source else 0
    body = ROUTE.pack(family_of(destination).number, length, source_length, 0, 0, 0, 0, 0, uapi.RTM_F_FIB_MATCH)
    body += attribute(uapi.RTA_DST, destination.packed) + _u32(uapi.RTA_OIF, index)
    if source:
        body += attribute(uapi.RTA_SRC, source.packed)
    return Message(f"look up the route to {destination} through link {index}", uapi.RTM_GETROUTE, 0, body)


def get_neighbour(index: int, address: IpAddress) -> Message:
    """Ask for one neighbour entry. The kernel answers ENOENT if there is none. A kernel before 5.0 always answers EOPNOTSUPP."""
    body = NEIGHBOUR.pack(family_of(address).number, index, 0, 0, 0) + attribute(uapi.NDA_DST, address.packed)
    return Message(f"look at neighbour {address}", uapi.RTM_GETNEIGH, 0, body)


def add_neighbour(index: int, address: IpAddress, *, mac: str) -> Message:
    """Add a permanent neighbour entry, or replace the entry of the address."""
    body = NEIGHBOUR.pack(family_of(address).number, index, uapi.NUD_PERMANENT, 0, 0)
    body += attribute(uapi.NDA_DST, address.packed) + attribute(uapi.NDA_LLADDR, _mac(mac))
    return Message(f"set neighbour {address}", uapi.RTM_NEWNEIGH, _PUT, body)


def dump_connections(mark: int, *, without: int) -> Message:
    """Ask for the tracked IPv4 connections that have all bits of `mark` and none of `without`. The kernel filters.

    Source: the kernel's net/netfilter/nf_conntrack_netlink.c, ctnetlink_filter_match; include/uapi/linux/netfilter/nfnetlink.h.
    """
    body = struct.pack("=BBH", IPV4.number, 0, 0)
    body += attribute(uapi.CTA_MARK, struct.pack(">I", mark))
    body += attribute(uapi.CTA_MARK_MASK, struct.pack(">I", mark | without))
    return Message(f"dump of connections with mark {mark:#x}", uapi.IPCTNL_MSG_CT_GET, 0, body)


def dump_links(*, kind: str = "") -> Message:
    """Ask for all links, or for the links of a kind, without statistics."""
    body = _link() + _NO_STATS
    if kind:
        body += attribute(uapi.IFLA_LINKINFO | uapi.NLA_F_NESTED, text_attribute(uapi.IFLA_INFO_KIND, kind))
    return Message("dump of links", uapi.RTM_GETLINK, 0, body)


def dump_addresses(family: Family) -> Message:
    """Ask for all addresses of a family."""
    return Message("dump of addresses", uapi.RTM_GETADDR, 0, ADDRESS.pack(family.number, 0, 0, 0, 0))


def dump_routes(table: int, *, index: int = 0, family: Family) -> Message:
    """Ask for a family's routes. An empty or missing table is fine.

    A kernel before 4.20 returns the routes of all tables and links, so the caller must filter.

    Args:
        table: number of the table; 0 for all tables.
        index: of the link that the routes lead through; 0 for all links.
    """
    body = ROUTE.pack(family.number, 0, 0, 0, 0, 0, 0, 0, 0)
    if table:
        body += _u32(uapi.RTA_TABLE, table)
    if index:
        body += _u32(uapi.RTA_OIF, index)
    return Message("dump of routes", uapi.RTM_GETROUTE, 0, body, ABSENT)


def dump_rules(family: Family) -> Message:
    """Ask for all rules of a family."""
    return Message("dump of rules", uapi.RTM_GETRULE, 0, ROUTE.pack(family.number, 0, 0, 0, 0, 0, 0, 0, 0))


def _address_body(index: int, address: IpAddress, length: int, *, flags: int = 0) -> bytes:
    body = ADDRESS.pack(family_of(address).number, length, flags, uapi.RT_SCOPE_UNIVERSE, index)
    return body + attribute(uapi.IFA_LOCAL, address.packed) + attribute(uapi.IFA_ADDRESS, address.packed)


def _rule(
    verb: str,
    kind: int,
    flags: int,
    tolerated: frozenset[int],
    priority: int | None,
    *,
    table: int,
    source: IpAddress | IpNetwork | None = None,
    destination: IpAddress | IpNetwork | None = None,
    mark: int = 0,
    incoming: str = "",
    protocol: int = 0,
    family: Family = IPV4,
) -> Message:
    """Pack the addition or deletion of a rule that looks up a table. The message's step has the rule as `ip rule` prints it."""
    small = table if table < 256 else uapi.RT_TABLE_UNSPEC
    family = _family_or(destination or source, family)
    to_length, to = _selected(destination)
    from_length, from_ = _selected(source)
    body = ROUTE.pack(family.number, to_length, from_length, 0, small, 0, 0, uapi.FR_ACT_TO_TBL, 0)
    words = "" if priority is None else str(priority)
    if to:
        body += attribute(uapi.FRA_DST, to)
        words += f" to {destination}"
    if from_:
        body += attribute(uapi.FRA_SRC, from_)
        words += f" from {source}"
    selectors, selector_words = _further_selectors(mark, incoming, protocol)
    body += selectors
    if priority is not None:
        body += _u32(uapi.FRA_PRIORITY, priority)
    if table:
        body += _u32(uapi.FRA_TABLE, table)
    words += f"{selector_words} lookup {'main' if table == uapi.RT_TABLE_MAIN else table}"
    return Message(f"{verb} rule {words.lstrip()}", kind, flags, body, tolerated)


def _further_selectors(mark: int, incoming: str, protocol: int) -> tuple[bytes, str]:
    """Pack the selectors of a rule other than addresses. Returns: the attributes, and the selectors as `ip rule` prints them."""
    body, words = b"", ""
    if mark:
        body += _u32(uapi.FRA_FWMARK, mark) + _u32(uapi.FRA_FWMASK, mark)
        words += f" fwmark {mark:#x}/{mark:#x}"
    if incoming:
        body += text_attribute(uapi.FRA_IIFNAME, incoming)
        words += f" iif {incoming}"
    if protocol:
        body += attribute(uapi.FRA_IP_PROTO, bytes([protocol]))
        words += f" ipproto {protocol}"
    return body, words


add_rule = partial(_rule, "add", uapi.RTM_NEWRULE, _ADD, PRESENT)
"""Add a rule that looks up a table. An existing rule is fine.

The rule selects packets by source, by destination, by mark (the mark is its own mask), by the name of the incoming link, or by
protocol. Without any selector it selects every packet. `family`: needed for a rule without an address. `protocol`: number of the IP
protocol; 0 for any.
"""

delete_rule = partial(_rule, "delete", uapi.RTM_DELRULE, 0, ABSENT)
"""Remove one rule; its arguments are those of `add_rule`. A missing rule is fine. With `table` 0 the rule may lead to any table. With
`priority` None the kernel removes the first rule with these selectors, at any priority."""


def _skip(
    verb: str,
    kind: int,
    flags: int,
    tolerated: frozenset[int],
    priority: int,
    *,
    source: IpNetwork | None = None,
    target: int = 0,
) -> Message:
    """Pack the addition or deletion of a rule that looks up no table: a `goto` rule if it has a target, otherwise a `nop` rule."""
    length, from_ = _selected(source)
    action = uapi.FR_ACT_GOTO if target else uapi.FR_ACT_NOP
    body = ROUTE.pack(IPV4.number, 0, length, 0, uapi.RT_TABLE_UNSPEC, 0, 0, action, 0)
    words = str(priority)
    if from_:
        body += attribute(uapi.FRA_SRC, from_)
        words += f" from {source}"
    body += _u32(uapi.FRA_PRIORITY, priority)
    if target:
        body += _u32(uapi.FRA_GOTO, target)
    return Message(f"{verb} rule {words} {f'goto {target}' if target else 'nop'}", kind, flags, body, tolerated)


add_skip = partial(_skip, "add", uapi.RTM_NEWRULE, _ADD, PRESENT)
"""Add an IPv4 rule that makes the kernel continue at the rules of priority `target` (`goto`), or without a target does nothing
(`nop`).

An existing rule is fine. The kernel ignores a `goto` rule while no rule has the priority `target`.
"""

delete_skip = partial(_skip, "delete", uapi.RTM_DELRULE, 0, ABSENT)
"""Remove one rule that `add_skip` adds. A missing rule is fine. The kernel does not compare the target."""


def _selected(target: IpAddress | IpNetwork | None) -> tuple[int, bytes]:
    """Return prefix length and bytes of a rule's selector; 0 and no bytes for None, which selects everything."""
    if target is None:
        return 0, b""
    if isinstance(target, IpNetwork):
        return target.prefixlen, target.network_address.packed
    return target.max_prefixlen, target.packed


def _route_body(
    destination: IpAddress | None,
    via: IpAddress | None,
    *,
    length: int,
    table: int,
    scope: int,
    protocol: int,
    route_type: int = uapi.RTN_UNICAST,
) -> bytes:
    small = table if table < 256 else uapi.RT_TABLE_UNSPEC
    route_type = route_type if scope != uapi.RT_SCOPE_NOWHERE else uapi.RTN_UNSPEC
    body = ROUTE.pack(
        _family_or(destination or via).number, length if destination else 0, 0, 0, small, protocol, scope, route_type, 0
    )
    if destination is not None:
        body += attribute(uapi.RTA_DST, destination.packed)
    return body + _u32(uapi.RTA_TABLE, table)


def _family_or(target: IpAddress | IpNetwork | None, default: Family = IPV4) -> Family:
    if target:
        return family_of(target)
    return default


def _link(index: int = 0, flags: int = 0, change: int = 0) -> bytes:
    """Pack the header of a message about links, of any family and type."""
    return LINK.pack(0, 0, index, flags, change)


def _u32(kind: int, value: int) -> bytes:
    return attribute(kind, U32.pack(value))


def _family(family: Family, settings: bytes) -> bytes:
    return attribute(uapi.IFLA_AF_SPEC | uapi.NLA_F_NESTED, attribute(family.number | uapi.NLA_F_NESTED, settings))


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


_NO_STATS = _u32(uapi.IFLA_EXT_MASK, uapi.RTEXT_FILTER_SKIP_STATS)
"""The attribute that asks for links without statistics. Without these counters an answer is a third as large, so a datagram has more
links and fewer dumps are interrupted."""

_ONE_QUEUE = _u32(uapi.IFLA_NUM_TX_QUEUES, 1) + _u32(uapi.IFLA_NUM_RX_QUEUES, 1)
"""One queue for each end of a veth. By default the kernel allocates one for each possible CPU and uses only one (drivers/net/veth.c,
veth_init_queues). Measured on 2 CPUs, this takes 15 % of the time to create a pair; on large nodes it takes more."""
