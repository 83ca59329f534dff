"""Every netlink message that wiring, checks and surveys send, one function each: values to bytes, no I/O.

Additions use CREATE|EXCL where an existing object may belong to somebody else, and CREATE|REPLACE where only ours can be right.
Removals tolerate "not there". What changes the node itself, its ENIs, tables and rules, is packed by the same functions
(docs/adr/0004).
Rejected: RTM_NEWLINK with NLM_F_REPLACE, which changes another owner's link of the same name.
"""

from __future__ import annotations

import errno
import struct
import sys
from collections.abc import Mapping
from functools import partial

from ipamd.kernel import uapi
from ipamd.kernel.netlink import Message, attribute, attributes, text_attribute
from ipamd.model.family import IPV4, IPV6, Family, IpAddress, IpNetwork, family_of, unpack_address
from ipamd.model.record import dataclass

ABSENT = frozenset({errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.EADDRNOTAVAIL})
"""The kernel's errnos if an object to be removed does not exist.

Source: the kernel's net/core/fib_rules.c, net/ipv4/fib_trie.c, net/core/rtnetlink.c.
"""

PRESENT = frozenset({errno.EEXIST})

UNREACHABLE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH})
"""The kernel's errnos if nothing leads to an address. Source: the kernel's net/ipv4/route.c, ip_route_output_key_hash_rcu."""

_ADD = uapi.NLM_F_CREATE | uapi.NLM_F_EXCL
_PUT = uapi.NLM_F_CREATE | uapi.NLM_F_REPLACE

LINK = struct.Struct("=BxHiII")  # ifinfomsg: family, type, index, flags, change
ADDRESS = struct.Struct("=BBBBI")  # ifaddrmsg: family, prefix length, flags, scope, index
# fib_rule_hdr has the same layout, with the action for the type
ROUTE = struct.Struct("=BBBBBBBBI")  # rtmsg: family, dst length, src length, tos, table, protocol, scope, type, flags
NEIGHBOUR = struct.Struct("=BxxxiHBB")  # ndmsg: family, index, state, flags, type
U32 = struct.Struct("=I")

_LOOK_UP_FLAGS = {IPV4.number: uapi.RTM_F_LOOKUP_TABLE, IPV6.number: 0}
"""IPv6 names the table in any case, and refuses the flag (the kernel's net/ipv6/route.c, inet6_rtm_valid_getroute_req)."""


def create_veth(name: str, *, mac: str, peer_name: str, peer_mac: str, peer_netns: int, mtu: int) -> Message:
    """Create a pair whose peer starts in its final namespace (an open descriptor); EEXIST if either name is taken.

    `mtu` in bytes, of both ends. Creating it in the host and moving it later would cost seconds in a burst.
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
    """Create an 802.1Q link on the link with index `parent`, whose MTU it takes; EEXIST if that has one with this ID, of any name.

    Until it is named it is in MAKING_GROUP. Source: the kernel's net/8021q/vlan_netlink.c.
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
    """Ask for one link by name or index, of the namespace with a number if one is given; none is fine, and has no reply."""
    index, name = (0, text_attribute(uapi.IFLA_IFNAME, which)) if isinstance(which, str) else (which, b"")
    body = _link(index) + name + _NO_STATS
    if netnsid:
        body += attribute(uapi.IFLA_TARGET_NETNSID, netnsid)
    return Message(f"look at link {which}", uapi.RTM_GETLINK, 0, body, ABSENT)


def get_namespace_number(fd: int) -> Message:
    """Ask by which number the links of this namespace name the namespace of a descriptor (`Link.netnsid`)."""
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
) -> Message:
    """Change a link's state, ifalias (at most 255 bytes), group, name, MAC, MTU (bytes) or IPv4 settings;
    an argument left out changes nothing.

    With an alias, as a host veth of ours has, it also leaves a bridge that it was put into.
    `ipv4_conf`: number of a setting below /proc/sys/net/ipv4/conf -> value. It needs NET_ADMIN only, and no writable /proc/sys.
    """
    flags = uapi.IFF_UP if is_up else 0
    change = 0 if is_up is None else uapi.IFF_UP
    body = _link(index, flags, change)
    if alias:
        body += attribute(uapi.IFLA_IFALIAS, alias.encode())  # its length is the attribute's: no terminator
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
    return Message(step, uapi.RTM_SETLINK, 0, body)


def give_no_ipv6_address(index: int, *, step: str) -> Message:
    """Let a link that is still down come up without an IPv6 address of the kernel's choice; no IPv6 at all is fine.

    As `ip link set addrgenmode none`. A message of its own: in RTM_NEWLINK the kernel refuses it (EAFNOSUPPORT), and in the message
    that raises the link it would come after the raising. Source: the kernel's net/core/rtnetlink.c, validate_linkmsg and do_setlink.
    """
    mode = attribute(uapi.IFLA_INET6_ADDR_GEN_MODE, bytes([uapi.IN6_ADDR_GEN_MODE_NONE]))
    body = _link(index) + _family(IPV6, mode)
    return Message(step, uapi.RTM_SETLINK, 0, body, frozenset({errno.EAFNOSUPPORT}))


def renew_ipv6(index: int, *, mtu: int) -> list[Message]:
    """Give a link the IPv6 settings that new links have, and no address; it is down after that, without routes and neighbours.

    For disable_ipv6, which netlink does not take, where /proc/sys is read-only: an MTU below 1280 takes IPv6 off a link with its
    settings. Source: the kernel's net/ipv6/addrconf.c, addrconf_notify (NETDEV_CHANGEMTU).
    """
    step = "renew IPv6"
    without, again = change_link(index, step=step, is_up=False, mtu=1279), change_link(index, step=step, mtu=mtu)
    return [without, again, give_no_ipv6_address(index, step=step)]


def delete_link(index: int, *, step: str) -> Message:
    """Delete one link; gone already is fine. The kernel answers after an RCU grace period (docs/performance.md)."""
    if index <= 0:
        raise ValueError(f"link index {index} names no link")
    return Message(step, uapi.RTM_DELLINK, 0, _link(index), ABSENT)


def delete_group(group: int) -> Message:
    """Delete every link of a group in one kernel call; none is fine.

    Raises: ValueError for group 0, which holds every link that was never put into a group (the kernel refuses it too).
    """
    if group == 0:
        raise ValueError("group 0 holds every ordinary link of the node")
    body = _link() + _u32(uapi.IFLA_GROUP, group)
    return Message(f"delete links of group {group:#x}", uapi.RTM_DELLINK, 0, body, ABSENT)


def add_address(index: int, address: IpAddress, *, length: int, step: str, is_connected: bool = True) -> Message:
    """Add an address of global scope; EEXIST if the link has it. `is_connected`: with the route to its subnet in main.

    It is usable at once: of an IPv6 address the kernel would ask for a second or two whether somebody has it (RFC 4862, 5.4).
    """
    flags = uapi.IFA_F_NODAD if address.version == 6 else 0
    body = _address_body(index, address, length, flags=flags)
    if not is_connected:
        body += _u32(uapi.IFA_FLAGS, flags | uapi.IFA_F_NOPREFIXROUTE)
    return Message(step, uapi.RTM_NEWADDR, _ADD, body)


def get_address(index: int, address: IpAddress) -> Message:
    """Ask whether a link has an IPv6 address; EADDRNOTAVAIL if not."""
    body = ADDRESS.pack(family_of(address).number, 0, 0, 0, index) + attribute(uapi.IFA_ADDRESS, address.packed)
    return Message(f"look at address {address}", uapi.RTM_GETADDR, 0, body)


def delete_address(index: int, address: IpAddress, *, length: int, step: str) -> Message:
    """Remove an address from a link; absent is fine."""
    return Message(step, uapi.RTM_DELADDR, 0, _address_body(index, address, length), ABSENT)


def add_route(
    destination: IpAddress | None,
    *,
    index: int,
    step: str,
    via: IpAddress | None = None,
    table: int = uapi.RT_TABLE_MAIN,
    is_replaced: bool = False,
) -> Message:
    """Add a route to one address, or the default route for None; scope link unless `via` a next hop, whose family it then has.

    EEXIST if there is one to the same destination, unless that `is_replaced`.
    """
    scope = uapi.RT_SCOPE_LINK if via is None else uapi.RT_SCOPE_UNIVERSE
    length = destination.max_prefixlen if destination else 0
    body = _route_body(destination, via, length=length, table=table, scope=scope, protocol=uapi.RTPROT_STATIC)
    if via is not None:
        body += attribute(uapi.RTA_GATEWAY, via.packed)
    return Message(step, uapi.RTM_NEWROUTE, _PUT if is_replaced else _ADD, body + _u32(uapi.RTA_OIF, index))


def deliver(address: IpAddress, *, index: int, step: str) -> Message:
    """Have packets to an address of a link delivered here at once: of an IPv6 address the kernel adds that route a moment later.

    Source: the kernel's net/ipv6/addrconf.c, addrconf_dad_start, which leaves it to a work queue.
    """
    body = _route_body(
        address, None, length=address.max_prefixlen, table=uapi.RT_TABLE_LOCAL, scope=uapi.RT_SCOPE_UNIVERSE,
        protocol=uapi.RTPROT_STATIC, route_type=uapi.RTN_LOCAL,
    )  # fmt: skip
    return Message(step, uapi.RTM_NEWROUTE, _ADD, body + _u32(uapi.RTA_OIF, index))


def refuse_rest(prefix: IpNetwork, *, table: int) -> Message:
    """Have packets to those addresses of a prefix that have no route of their own in a table answered: nothing is there."""
    body = _route_body(
        prefix.network_address, None, length=prefix.prefixlen, table=table, scope=uapi.RT_SCOPE_UNIVERSE,
        protocol=uapi.RTPROT_STATIC, route_type=uapi.RTN_UNREACHABLE,
    )  # fmt: skip
    return Message(f"add unreachable {prefix} table {table}", uapi.RTM_NEWROUTE, _ADD, body, PRESENT)


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
    """Remove one route through a link, of any scope, type and protocol; absent is fine. `index` or `metric` 0: any. `via`: the next
    hop, whose family a default route has; without it IPv4.
    """
    body = _route_body(destination, via, length=length, table=table, scope=uapi.RT_SCOPE_NOWHERE, protocol=0)
    if index:
        body += _u32(uapi.RTA_OIF, index)
    if metric:
        body += _u32(uapi.RTA_PRIORITY, metric)
    return Message(step, uapi.RTM_DELROUTE, 0, body, ABSENT)


def look_up_route(destination: IpAddress, source: IpAddress | None = None, incoming: int = 0, mark: int = 0) -> Message:
    """Ask where the kernel would send a packet to an address; an unreachable one is fine, and has no reply.

    `incoming`: the link by which it comes from `source`; without both it is the host's own. The answer names the route's table.
    """
    family, length = family_of(destination).number, destination.max_prefixlen
    body = ROUTE.pack(family, length, length if source else 0, 0, 0, 0, 0, 0, _LOOK_UP_FLAGS[family])
    body += attribute(uapi.RTA_DST, destination.packed) + _u32(uapi.RTA_MARK, mark)
    if source:
        body += attribute(uapi.RTA_SRC, source.packed) + _u32(uapi.RTA_IIF, incoming)
    return Message("look up a route", uapi.RTM_GETROUTE, 0, body, UNREACHABLE)


def match_route(destination: IpAddress, *, index: int) -> Message:
    """Ask which entry of the route tables the kernel takes for an address through a link; an errno if it takes none."""
    body = ROUTE.pack(family_of(destination).number, destination.max_prefixlen, 0, 0, 0, 0, 0, 0, uapi.RTM_F_FIB_MATCH)
    body += attribute(uapi.RTA_DST, destination.packed) + _u32(uapi.RTA_OIF, index)
    return Message(f"look up the route to {destination} through link {index}", uapi.RTM_GETROUTE, 0, body)


def get_neighbour(index: int, address: IpAddress) -> Message:
    """Ask for one neighbour entry; ENOENT if there is none, EOPNOTSUPP by a kernel before 5.0."""
    body = NEIGHBOUR.pack(family_of(address).number, index, 0, 0, 0) + attribute(uapi.NDA_DST, address.packed)
    return Message(f"look at neighbour {address}", uapi.RTM_GETNEIGH, 0, body)


def add_neighbour(index: int, address: IpAddress, *, mac: str) -> Message:
    """Add a permanent neighbour entry, or replace the entry of the address."""
    body = NEIGHBOUR.pack(family_of(address).number, index, uapi.NUD_PERMANENT, 0, 0)
    body += attribute(uapi.NDA_DST, address.packed) + attribute(uapi.NDA_LLADDR, _mac(mac))
    return Message(f"set neighbour {address}", uapi.RTM_NEWNEIGH, _PUT, body)


def dump_connections(mark: int, *, without: int) -> Message:
    """Ask for tracked connections of IPv4 that carry all bits of a mark, and none of `without`. The kernel chooses.

    Source: the kernel's net/netfilter/nf_conntrack_netlink.c, ctnetlink_filter_match; include/uapi/linux/netfilter/nfnetlink.h.
    """
    chosen = ((uapi.CTA_MARK, mark), (uapi.CTA_MARK_MASK, mark | without))
    body = struct.pack("=BBH", IPV4.number, 0, 0) + b"".join(attribute(kind, struct.pack(">I", value)) for kind, value in chosen)
    return Message(f"dump of connections with mark {mark:#x}", uapi.IPCTNL_MSG_CT_GET, 0, body)


def dump_links(*, kind: str = "") -> Message:
    """Ask for all links, or those of a kind, without statistics."""
    body = _link() + _NO_STATS
    if kind:
        body += attribute(uapi.IFLA_LINKINFO | uapi.NLA_F_NESTED, text_attribute(uapi.IFLA_INFO_KIND, kind))
    return Message("dump of links", uapi.RTM_GETLINK, 0, body)


def dump_addresses(family: Family) -> Message:
    """Ask for all addresses of a family."""
    return Message("dump of addresses", uapi.RTM_GETADDR, 0, ADDRESS.pack(family.number, 0, 0, 0, 0))


def dump_routes(table: int, *, index: int = 0, family: Family) -> Message:
    """Ask for a family's routes of a table and of a link, or of all; none is fine. A kernel before 4.20 sends all: filter again."""
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
    what: str,
    kind: int,
    flags: int,
    tolerated: frozenset[int],
    priority: int,
    *,
    table: int,
    source: IpAddress | IpNetwork | None = None,
    destination: IpAddress | IpNetwork | None = None,
    mark: int = 0,
    incoming: str = "",
    protocol: int = 0,
    family: Family = IPV4,
) -> Message:
    """Pack a rule; the step says it as `ip rule` prints it."""
    small = table if table < 256 else uapi.RT_TABLE_UNSPEC
    family = _of(destination or source, family)
    (to_length, to), (by_length, by) = map(_selected, (destination, source))
    body = ROUTE.pack(family.number, to_length, by_length, 0, small, 0, 0, uapi.FR_ACT_TO_TBL, 0)
    words = str(priority)
    if to:
        body += attribute(uapi.FRA_DST, to)
        words += f" to {destination}"
    if by:
        body += attribute(uapi.FRA_SRC, by)
        words += f" from {source}"
    if mark:
        body += _u32(uapi.FRA_FWMARK, mark) + _u32(uapi.FRA_FWMASK, mark)
        words += f" fwmark {mark:#x}/{mark:#x}"
    if incoming:
        body += text_attribute(uapi.FRA_IIFNAME, incoming)
        words += f" iif {incoming}"
    if protocol:
        body += attribute(uapi.FRA_IP_PROTO, bytes([protocol]))
        words += f" ipproto {protocol}"
    body += _u32(uapi.FRA_PRIORITY, priority) + (_u32(uapi.FRA_TABLE, table) if table else b"")
    step = f"{what} rule {words} lookup {'main' if table == uapi.RT_TABLE_MAIN else table}"
    return Message(step, kind, flags, body, tolerated)


add_rule = partial(_rule, "add", uapi.RTM_NEWRULE, _ADD, PRESENT)
"""Add a rule for a source, for a destination, for a mark, which is its own mask, for the name of the link by which a packet comes,
or for every packet; present is fine.

`family`: of a rule that names no address. `protocol`: by its number, of a rule for it alone.
"""

delete_rule = partial(_rule, "delete", uapi.RTM_DELRULE, 0, ABSENT)
"""Remove one rule, selected as for `add_rule`; absent is fine. `table` 0: whatever it looks up."""


def _selected(one: IpAddress | IpNetwork | None) -> tuple[int, bytes]:
    """The length and the bytes by which a rule selects; of everything there are none."""
    if one is None:
        return 0, b""
    return (one.prefixlen, one.network_address.packed) if isinstance(one, IpNetwork) else (one.max_prefixlen, one.packed)


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
    body = ROUTE.pack(_of(destination or via).number, length if destination else 0, 0, 0, small, protocol, scope, route_type, 0)
    if destination is not None:
        body += attribute(uapi.RTA_DST, destination.packed)
    return body + _u32(uapi.RTA_TABLE, table)


def _of(one: IpAddress | IpNetwork | None, otherwise: Family = IPV4) -> Family:
    return family_of(one) if one else otherwise


def _link(index: int = 0, flags: int = 0, change: int = 0) -> bytes:
    """The header of a message about links, of any family and type."""
    return LINK.pack(0, 0, index, flags, change)


def _u32(kind: int, value: int) -> bytes:
    return attribute(kind, U32.pack(value))


def _family(family: Family, settings: bytes) -> bytes:
    return attribute(uapi.IFLA_AF_SPEC | uapi.NLA_F_NESTED, attribute(family.number | uapi.NLA_F_NESTED, settings))


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


_NO_STATS = _u32(uapi.IFLA_EXT_MASK, uapi.RTEXT_FILTER_SKIP_STATS)
"""Without counters an answer has a third of the size: more links per datagram, fewer interrupted dumps."""

_ONE_QUEUE = _u32(uapi.IFLA_NUM_TX_QUEUES, 1) + _u32(uapi.IFLA_NUM_RX_QUEUES, 1)
"""One queue per veth. By default the kernel allocates one per possible CPU and uses only one (drivers/net/veth.c,
veth_init_queues): 15 % of the time to create a pair on 2 CPUs, measured, and more on large nodes."""


# Parse the kernel's answers into values: links, addresses, routes, rules, neighbours. No I/O.
#
# Only attributes that a decision needs are read. Unknown ones are skipped, so a newer kernel does no harm.


@dataclass(frozen=True, slots=True)
class Link:
    """One link. `peer_index`: the other end of a veth, in the peer's namespace, or the link below. MAC in lower case; MTU in bytes.

    `netnsid`: the number of the namespace that its other end, its lower link or its tunnel is in, unread; empty: of this one.
    `master`: index of the bridge or other link that takes its packets, or 0.
    `families`: its settings per address family, unread (`ipamd/kernel/devconf.py`). `vlan`: the ID of one of that kind.
    """

    index: int
    name: str
    kind: str
    mac: str
    mtu: int
    alias: str
    group: int
    is_up: bool
    peer_index: int
    families: bytes = b""
    master: int = 0
    netnsid: bytes = b""
    vlan: int = 0


@dataclass(frozen=True, slots=True)
class InterfaceAddress:
    """One address on a link. `is_secondary`: the kernel removes it with the first one of its subnet (IFA_F_SECONDARY)."""

    index: int
    address: IpAddress
    length: int
    scope: int
    is_secondary: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """One route with one next hop; `destination` None: the default route. `index` 0: no or several links."""

    destination: IpAddress | None
    length: int
    table: int
    index: int
    via: IpAddress | None
    route_type: int
    metric: int

    def is_to(self, address: IpAddress) -> bool:
        """Whether it is the route to this one address."""
        return self.destination == address and self.length == address.max_prefixlen


@dataclass(frozen=True, slots=True)
class Rule:
    """One policy rule that looks a table up, or else refuses what it selects."""

    priority: int
    table: int
    source: IpAddress | None
    source_length: int
    destination: IpAddress | None
    destination_length: int
    mark: int
    mask: int
    is_refusal: bool = False
    incoming: str = ""
    protocol: int = 0


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One neighbour entry. `is_permanent`: the kernel does not ask whether it is right."""

    address: IpAddress | None
    mac: str
    is_permanent: bool


def read_link(body: bytes) -> Link:
    """Read an RTM_NEWLINK body."""
    _, _, index, flags, _ = LINK.unpack_from(body)
    found = attributes(body, LINK.size)
    info = attributes(found[uapi.IFLA_LINKINFO], 0) if uapi.IFLA_LINKINFO in found else {}
    return Link(
        index=index,
        name=_text(found.get(uapi.IFLA_IFNAME)),
        kind=_text(info.get(uapi.IFLA_INFO_KIND)),
        mac=_read_mac(found.get(uapi.IFLA_ADDRESS)),
        mtu=_number(found.get(uapi.IFLA_MTU)),
        alias=_text(found.get(uapi.IFLA_IFALIAS)),
        group=_number(found.get(uapi.IFLA_GROUP)),
        is_up=bool(flags & uapi.IFF_UP),
        # Older kernels leave the peer's index out when it equals the own one.
        peer_index=_number(found.get(uapi.IFLA_LINK)) or index,
        families=found.get(uapi.IFLA_AF_SPEC, b""),
        master=_number(found.get(uapi.IFLA_MASTER)),
        netnsid=found.get(uapi.IFLA_LINK_NETNSID, b""),
        vlan=_vlan_id(info),
    )


def _vlan_id(info: Mapping[int, bytes]) -> int:
    if _text(info.get(uapi.IFLA_INFO_KIND)) != uapi.VLAN_KIND:
        return 0
    found = attributes(info.get(uapi.IFLA_INFO_DATA, b""), 0).get(uapi.IFLA_VLAN_ID, bytes(2))
    return int.from_bytes(found[:2], sys.byteorder)


def read_namespace_number(body: bytes) -> bytes:
    """Read an RTM_NEWNSID body."""
    return attributes(body, U32.size).get(uapi.NETNSA_NSID, b"")


def read_address(body: bytes) -> InterfaceAddress:
    """Read an RTM_NEWADDR body."""
    _, length, flags, scope, index = ADDRESS.unpack_from(body)
    found = attributes(body, ADDRESS.size)
    local = found.get(uapi.IFA_LOCAL) or found.get(uapi.IFA_ADDRESS) or bytes(4)
    is_secondary = bool(flags & uapi.IFA_F_SECONDARY) and len(local) == 4  # the same bit says "temporary" in IPv6
    return InterfaceAddress(index=index, address=unpack_address(local), length=length, scope=scope, is_secondary=is_secondary)


def read_route(body: bytes) -> Route:
    """Read an RTM_NEWROUTE body."""
    _, length, _, _, table, _, _, route_type, _ = ROUTE.unpack_from(body)
    found = attributes(body, ROUTE.size)
    return Route(
        destination=_address(found.get(uapi.RTA_DST)),
        length=length,
        table=_number(found.get(uapi.RTA_TABLE)) or table,
        index=_number(found.get(uapi.RTA_OIF)),
        via=_address(found.get(uapi.RTA_GATEWAY)),
        route_type=route_type,
        metric=_number(found.get(uapi.RTA_PRIORITY)),
    )


def read_rule(body: bytes) -> Rule:
    """Read an RTM_NEWRULE body."""
    _, destination_length, source_length, _, table, _, _, action, _ = ROUTE.unpack_from(body)
    found = attributes(body, ROUTE.size)
    return Rule(
        priority=_number(found.get(uapi.FRA_PRIORITY)),
        table=(_number(found.get(uapi.FRA_TABLE)) or table) if action == uapi.FR_ACT_TO_TBL else 0,
        source=_address(found.get(uapi.FRA_SRC)),
        source_length=source_length,
        destination=_address(found.get(uapi.FRA_DST)),
        destination_length=destination_length,
        mark=_number(found.get(uapi.FRA_FWMARK)),
        mask=_number(found.get(uapi.FRA_FWMASK)),
        is_refusal=action >= uapi.FR_ACT_BLACKHOLE,
        incoming=_text(found.get(uapi.FRA_IIFNAME)),
        protocol=(found.get(uapi.FRA_IP_PROTO) or b"\0")[0],
    )


def read_neighbour(body: bytes) -> Neighbour:
    """Read an RTM_NEWNEIGH body."""
    _, _, state, _, _ = NEIGHBOUR.unpack_from(body)
    found = attributes(body, NEIGHBOUR.size)
    return Neighbour(
        address=_address(found.get(uapi.NDA_DST)),
        mac=_read_mac(found.get(uapi.NDA_LLADDR)),
        is_permanent=bool(state & (uapi.NUD_PERMANENT | uapi.NUD_NOARP)),
    )


def _number(payload: bytes | None) -> int:
    return int(U32.unpack(payload[:4])[0]) if payload and len(payload) >= 4 else 0


def _text(payload: bytes | None) -> str:
    return payload.rstrip(b"\0").decode("utf-8", "replace") if payload else ""


def _read_mac(payload: bytes | None) -> str:
    return payload.hex(":") if payload else ""


def _address(payload: bytes | None) -> IpAddress | None:
    return unpack_address(payload) if payload and len(payload) in {4, 16} else None
