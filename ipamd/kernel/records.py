"""Parse the kernel's answers into values: links, addresses, routes, rules, neighbours. No I/O.

Only attributes that a decision needs are read. Unknown ones are skipped, so a newer kernel does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address

from ipamd.kernel import uapi
from ipamd.kernel.messages import ADDRESS, LINK, NEIGHBOUR, ROUTE, U32
from ipamd.kernel.netlink import attributes


@dataclass(frozen=True, slots=True)
class Link:
    """One link. `peer_index`: the other end of a veth, in the peer's namespace. MAC in lower case; MTU in bytes.

    `families`: its settings per address family, unread (`ipamd/kernel/devconf.py`).
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


@dataclass(frozen=True, slots=True)
class InterfaceAddress:
    """One IPv4 address on a link. `is_secondary`: the kernel removes it with the first one of its subnet (IFA_F_SECONDARY)."""

    index: int
    address: IPv4Address
    length: int
    scope: int
    is_secondary: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """One IPv4 route with one next hop; `destination` None: the default route. `index` 0: no or several links."""

    destination: IPv4Address | None
    length: int
    table: int
    index: int
    via: IPv4Address | None
    route_type: int
    metric: int


@dataclass(frozen=True, slots=True)
class Rule:
    """One IPv4 policy rule that looks a table up."""

    priority: int
    table: int
    source: IPv4Address | None
    source_length: int
    destination: IPv4Address | None
    destination_length: int
    mark: int
    mask: int


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One IPv4 neighbour entry."""

    address: IPv4Address | None
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
        mac=_mac(found.get(uapi.IFLA_ADDRESS)),
        mtu=_number(found.get(uapi.IFLA_MTU)),
        alias=_text(found.get(uapi.IFLA_IFALIAS)),
        group=_number(found.get(uapi.IFLA_GROUP)),
        is_up=bool(flags & uapi.IFF_UP),
        # Older kernels leave the peer's index out when it equals the own one.
        peer_index=_number(found.get(uapi.IFLA_LINK)) or index,
        families=found.get(uapi.IFLA_AF_SPEC, b""),
    )


def read_address(body: bytes) -> InterfaceAddress:
    """Read an RTM_NEWADDR body."""
    _, length, flags, scope, index = ADDRESS.unpack_from(body)
    found = attributes(body, ADDRESS.size)
    local = found.get(uapi.IFA_LOCAL) or found.get(uapi.IFA_ADDRESS) or bytes(4)
    is_secondary = bool(flags & uapi.IFA_F_SECONDARY)
    return InterfaceAddress(index=index, address=IPv4Address(local), length=length, scope=scope, is_secondary=is_secondary)


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
    )


def read_neighbour(body: bytes) -> Neighbour:
    """Read an RTM_NEWNEIGH body."""
    _, _, state, _, _ = NEIGHBOUR.unpack_from(body)
    found = attributes(body, NEIGHBOUR.size)
    return Neighbour(
        address=_address(found.get(uapi.NDA_DST)),
        mac=_mac(found.get(uapi.NDA_LLADDR)),
        is_permanent=bool(state & uapi.NUD_PERMANENT),
    )


def _number(payload: bytes | None) -> int:
    return int(U32.unpack(payload[:4])[0]) if payload and len(payload) >= 4 else 0


def _text(payload: bytes | None) -> str:
    return payload.rstrip(b"\0").decode("utf-8", "replace") if payload else ""


def _mac(payload: bytes | None) -> str:
    return payload.hex(":") if payload else ""


def _address(payload: bytes | None) -> IPv4Address | None:
    return IPv4Address(payload) if payload and len(payload) == 4 else None
