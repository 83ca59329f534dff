"""IPv4 and IPv6 as values. The lab does not use the daemon's (`ipamd/model/family.py`), because a defect there would hide itself.

Code that uses the values of a Family needs no `if` for each family. Where no value can express a difference, the code has an `if`: an
ENI's pool in IPv6, for example, is a /80, whose addresses cannot be listed one by one.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network

from lab.vpc.model import Address, Eni, Network


@dataclass(frozen=True)
class Family:
    """One address family.

    `number`: its number in the kernel (AF_INET, AF_INET6).
    `nft`: the keyword of nftables for the family and for its IP header.
    `headers_bytes`: bytes of the IP and UDP headers of a datagram.
    `settings`: the daemon's environment variables that give its pool this family.
    `egress`, `egress_link`: the range of egress addresses of this family, and the name of their link in a sandbox, on a node whose
        pool has the other family. Every node has the same range, because these addresses are only used inside their node.
    """

    version: int
    number: int
    nft: str
    headers_bytes: int
    settings: Mapping[str, str] = field(compare=False)
    egress: Network
    egress_link: str

    @property
    def option(self) -> str:
        """The option that limits `ip` to this family."""
        return f"-{self.version}"


IPV4 = Family(
    version=4,
    number=socket.AF_INET,
    nft="ip",
    headers_bytes=28,
    settings={},
    egress=IPv4Network("169.254.172.0/22"),
    egress_link="v4if0",
)
IPV6 = Family(
    version=6,
    number=socket.AF_INET6,
    nft="ip6",
    headers_bytes=48,
    settings={"ENABLE_IPv6": "true", "ENABLE_IPv4": "false", "ENABLE_PREFIX_DELEGATION": "true"},
    egress=IPv6Network("fd00::ac:0/118"),
    egress_link="v6if0",
)
"""Sources: RFC 791, 8200 and 768 for the headers of a datagram; amazon-vpc-cni-k8s README and pkg/ipamd/ipamd.go (isConfigValid) for
the settings, cmd/aws-vpc-cni/main.go for egress."""

FAMILIES = (IPV4, IPV6)


def family_of(one: Address | Network) -> Family:
    """Return the family of an address or a network."""
    return IPV4 if one.version == IPV4.version else IPV6


def family_by(settings: Mapping[str, str]) -> Family:
    """Return the family of the pool of a daemon with these settings."""
    return IPV6 if settings.get("ENABLE_IPv6") == "true" else IPV4


def other(family: Family) -> Family:
    """Return the other family."""
    return IPV6 if family is IPV4 else IPV4


def egress_by(settings: Mapping[str, str]) -> Family | None:
    """Return the family in which sandboxes have egress besides the pool's family, by the daemon's settings; None if there is none.

    Sandboxes with an IPv6 pool have IPv4 egress by default. Sandboxes with an IPv4 pool have IPv6 egress only if a setting turns it
    on.
    """
    family = family_by(settings)
    name, default = ("ENABLE_V4_EGRESS", "true") if family is IPV6 else ("ENABLE_V6_EGRESS", "false")
    return other(family) if settings.get(name, default) == "true" else None


def pool_of(eni: Eni, family: Family) -> tuple[Network, ...]:
    """Return the networks of an ENI from which sandboxes get addresses, if the node's pool has this family: in IPv4 the ENI's
    secondary addresses and prefixes, in IPv6 its /80s."""
    if family is IPV6:
        return eni.ipv6_prefixes
    return (*map(IPv4Network, eni.secondary_addresses), *eni.prefixes)
