"""Parse the kernel's answers into links, addresses, routes, rules and neighbours. No I/O.

Only attributes that a decision needs are read. Unknown ones are skipped, so answers of a newer kernel are parsed too.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from ipamd.kernel import uapi
from ipamd.kernel.messages import ADDRESS, LINK, NEIGHBOUR, ROUTE, U32
from ipamd.kernel.netlink import attributes
from ipamd.model.family import IpAddress, unpack_address
from ipamd.model.record import dataclass

_OTHER_SELECTORS = frozenset(
    {
        uapi.FRA_TUN_ID,
        uapi.FRA_OIFNAME,
        uapi.FRA_L3MDEV,
        uapi.FRA_UID_RANGE,
        uapi.FRA_SPORT_RANGE,
    }
)
"""Attributes that select packets and that `read_rule` does not read. A rule with any of them is marked
(`PolicyRule.has_other_selectors`). Source: the kernel's net/core/fib_rules.c."""


@dataclass(frozen=True, slots=True)
class Link:
    """One link.

    `kind`: the kernel's name for the type of a virtual link, for example "veth"; "" for hardware and the loopback.
    `mac`: in lower case.
    `mtu`: in bytes.
    `group`: number of its link group.
    `peer_index`: index of the other end of a veth, in the namespace of that end; for a link on top of another link, such as a VLAN
        link, the index of its parent; for any other link its own index.
    `families`: its settings for each address family, not decoded (`ipamd/kernel/devconf.py`).
    `master`: index of the bridge or other link that takes its packets, or 0.
    `netnsid`: number of the namespace that contains the link with index `peer_index`, not decoded; empty for this namespace.
    `vlan`: ID of a VLAN link; 0 for other links.
    `vlan_protocol`: tag protocol (Ethernet type) of a VLAN link; 0 for other links.
    `has_carrier`: whether an up link has a carrier; always True for a link that is down.
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
    vlan_protocol: int = 0
    has_carrier: bool = True


@dataclass(frozen=True, slots=True)
class InterfaceAddress:
    """One address on a link.

    `index`: index of the link.
    `length`: prefix length of the address's subnet.
    `scope`: one of RT_SCOPE_*.
    `is_secondary`: an IPv4 address that is not the first of its subnet on the link (IFA_F_SECONDARY). If the first one is removed, the
        kernel removes this one too, or makes it the first if the sysctl promote_secondaries is on.
    """

    index: int
    address: IpAddress
    length: int
    scope: int
    is_secondary: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """One route.

    `destination`: first address of the network that it leads to; None for a default route.
    `length`: length of the network's prefix.
    `index`: of the link that it leads through; 0 if it has no link or several.
    `via`: the next hop; None if it has none or several.
    `route_type`: one of RTN_*.
    `protocol`: the kernel's number for the origin of the route, one of RTPROT_*.
    """

    destination: IpAddress | None
    length: int
    table: int
    index: int
    via: IpAddress | None
    route_type: int
    metric: int
    protocol: int = 0

    def is_to(self, address: IpAddress) -> bool:
        """Whether the route leads to this single address and to no larger network."""
        return self.destination == address and self.length == address.max_prefixlen


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One policy rule.

    A rule does one of four things with the packets that it selects: it looks up a route table, refuses them, makes the kernel continue
    at the rules of another priority (`goto`), or does nothing (`nop`).

    `table`: number of the table that it looks up; 0 for a rule that looks up none.
    `source`, `source_length`: network of the selected source addresses; None for any.
    `destination`, `destination_length`: network of the selected destinations; None for any.
    `mark`, `mask`: it selects packets whose mark has the value `mark` in the bits of `mask`; 0 and 0 for any mark.
    `is_refusal`: it refuses the packets.
    `incoming`: name of the link by which selected packets arrive; "" for any.
    `protocol`: number of the selected IP protocol; 0 for any.
    `ports`: the lowest and the highest selected destination port; None for any.
    `has_other_selectors`: it also selects by a field that is not read here, for example a user, or it is inverted.
    `target`: priority at which a `goto` rule makes the kernel continue; 0 for any other rule.
    `is_nop`: it does nothing.
    """

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
    ports: tuple[int, int] | None = None
    has_other_selectors: bool = False
    target: int = 0
    is_nop: bool = False


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One neighbour entry.

    `address`: the neighbour's IP address; None if the answer contains none.
    `mac`: its MAC in lower case; "" if the kernel has not resolved it.
    `is_permanent`: the kernel neither verifies nor removes the entry.
    """

    address: IpAddress | None
    mac: str
    is_permanent: bool


def read_link(body: bytes) -> Link:
    """Read an RTM_NEWLINK body."""
    _, _, index, flags, _ = LINK.unpack_from(body)
    payloads = attributes(body, LINK.size)
    info = attributes(payloads[uapi.IFLA_LINKINFO], 0) if uapi.IFLA_LINKINFO in payloads else {}
    vlan, vlan_protocol = _vlan(info)
    return Link(
        index=index,
        name=_text(payloads.get(uapi.IFLA_IFNAME)),
        kind=_text(info.get(uapi.IFLA_INFO_KIND)),
        mac=_read_mac(payloads.get(uapi.IFLA_ADDRESS)),
        mtu=_number(payloads.get(uapi.IFLA_MTU)),
        alias=_text(payloads.get(uapi.IFLA_IFALIAS)),
        group=_number(payloads.get(uapi.IFLA_GROUP)),
        is_up=bool(flags & uapi.IFF_UP),
        # Older kernels leave the peer's index out if it equals the link's own index.
        peer_index=_number(payloads.get(uapi.IFLA_LINK)) or index,
        families=payloads.get(uapi.IFLA_AF_SPEC, b""),
        master=_number(payloads.get(uapi.IFLA_MASTER)),
        netnsid=payloads.get(uapi.IFLA_LINK_NETNSID, b""),
        vlan=vlan,
        vlan_protocol=vlan_protocol,
        has_carrier=bool(flags & uapi.IFF_LOWER_UP) or not flags & uapi.IFF_UP,
    )


def _vlan(info: Mapping[int, bytes]) -> tuple[int, int]:
    """ID and tag protocol of a VLAN link; 0 and 0 for any other link."""
    if _text(info.get(uapi.IFLA_INFO_KIND)) != uapi.VLAN_KIND:
        return 0, 0
    data = attributes(info.get(uapi.IFLA_INFO_DATA, b""), 0)
    number = data.get(uapi.IFLA_VLAN_ID, bytes(2))
    protocol = data.get(uapi.IFLA_VLAN_PROTOCOL, bytes(2))
    return int.from_bytes(number[:2], sys.byteorder), int.from_bytes(protocol[:2], "big")


def read_namespace_number(body: bytes) -> bytes:
    """Return the number of a namespace from an RTM_NEWNSID body, not decoded; empty if the body has none."""
    return attributes(body, U32.size).get(uapi.NETNSA_NSID, b"")


def read_address(body: bytes) -> InterfaceAddress:
    """Read an RTM_NEWADDR body."""
    _, length, flags, scope, index = ADDRESS.unpack_from(body)
    payloads = attributes(body, ADDRESS.size)
    local = payloads.get(uapi.IFA_LOCAL) or payloads.get(uapi.IFA_ADDRESS) or bytes(4)
    is_secondary = bool(flags & uapi.IFA_F_SECONDARY) and len(local) == 4  # with IPv6 the same bit means "temporary"
    return InterfaceAddress(index=index, address=unpack_address(local), length=length, scope=scope, is_secondary=is_secondary)


def read_route(body: bytes) -> Route:
    """Read an RTM_NEWROUTE body."""
    _, length, _, _, table, protocol, _, route_type, _ = ROUTE.unpack_from(body)
    payloads = attributes(body, ROUTE.size)
    return Route(
        destination=_address(payloads.get(uapi.RTA_DST)),
        length=length,
        table=_number(payloads.get(uapi.RTA_TABLE)) or table,
        index=_number(payloads.get(uapi.RTA_OIF)),
        via=_address(payloads.get(uapi.RTA_GATEWAY)),
        route_type=route_type,
        metric=_number(payloads.get(uapi.RTA_PRIORITY)),
        protocol=protocol,
    )


def read_rule(body: bytes) -> PolicyRule:
    """Read an RTM_NEWRULE body."""
    _, destination_length, source_length, tos, table, _, _, action, flags = ROUTE.unpack_from(body)
    payloads = attributes(body, ROUTE.size)
    return PolicyRule(
        priority=_number(payloads.get(uapi.FRA_PRIORITY)),
        table=(_number(payloads.get(uapi.FRA_TABLE)) or table) if action == uapi.FR_ACT_TO_TBL else 0,
        source=_address(payloads.get(uapi.FRA_SRC)),
        source_length=source_length,
        destination=_address(payloads.get(uapi.FRA_DST)),
        destination_length=destination_length,
        mark=_number(payloads.get(uapi.FRA_FWMARK)),
        mask=_number(payloads.get(uapi.FRA_FWMASK)),
        is_refusal=action >= uapi.FR_ACT_BLACKHOLE,
        incoming=_text(payloads.get(uapi.FRA_IIFNAME)),
        protocol=(payloads.get(uapi.FRA_IP_PROTO) or b"\0")[0],
        ports=_ports(payloads.get(uapi.FRA_DPORT_RANGE)),
        has_other_selectors=bool(tos or flags & uapi.FIB_RULE_INVERT or payloads.keys() & _OTHER_SELECTORS),
        target=_number(payloads.get(uapi.FRA_GOTO)) if action == uapi.FR_ACT_GOTO else 0,
        is_nop=action == uapi.FR_ACT_NOP,
    )


def _ports(payload: bytes | None) -> tuple[int, int] | None:
    """Read fib_rule_port_range, in the host's byte order; None if it is missing or too short."""
    if payload is None or len(payload) < 4:
        return None
    return int.from_bytes(payload[:2], sys.byteorder), int.from_bytes(payload[2:4], sys.byteorder)


def read_neighbour(body: bytes) -> Neighbour:
    """Read an RTM_NEWNEIGH body."""
    _, _, state, _, _ = NEIGHBOUR.unpack_from(body)
    payloads = attributes(body, NEIGHBOUR.size)
    return Neighbour(
        address=_address(payloads.get(uapi.NDA_DST)),
        mac=_read_mac(payloads.get(uapi.NDA_LLADDR)),
        is_permanent=bool(state & (uapi.NUD_PERMANENT | uapi.NUD_NOARP)),
    )


def _number(payload: bytes | None) -> int:
    if payload and len(payload) >= 4:
        return int(U32.unpack(payload[:4])[0])
    return 0


def _text(payload: bytes | None) -> str:
    if payload:
        return payload.rstrip(b"\0").decode("utf-8", "replace")
    return ""


def _read_mac(payload: bytes | None) -> str:
    if payload:
        return payload.hex(":")
    return ""


def _address(payload: bytes | None) -> IpAddress | None:
    if payload and len(payload) in {4, 16}:
        return unpack_address(payload)
    return None
