"""IPv4 and IPv6 as values of the lab's own: what checks the daemon shares no table with it (`ipamd/model/family.py`).

A place that asks for the family of an address, or of a node's daemon, has no branch. What differs in kind is code where it differs:
an ENI's pool in IPv6 is a /80, whose addresses nobody can list (`Pool`).
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network

from lab.vpc.model import Address, Eni, Network


@dataclass(frozen=True)
class Family:
    """One family. `number`: the kernel's. `nft`: in nftables the word for family and header. `headers_bytes`: of a datagram.

    `settings`: what makes a daemon's pool one of this family. `egress`, `egress_link`: what a sandbox gets of this family, and on
    which link, if its node's pool is of the other one; the addresses are good on their node alone, and every node has the same.
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
        """What makes `ip` speak of this family alone."""
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
    """The family of an address or a network."""
    return IPV4 if one.version == IPV4.version else IPV6


def family_by(settings: Mapping[str, str]) -> Family:
    """The family of the pool of a daemon with these settings."""
    return IPV6 if settings.get("ENABLE_IPv6") == "true" else IPV4


def other(family: Family) -> Family:
    """The other of the two."""
    return IPV6 if family is IPV4 else IPV4


def egress_by(settings: Mapping[str, str]) -> Family | None:
    """The other family, if sandboxes of a daemon with these settings may reach it: IPv6's by default, IPv4's when it is asked for."""
    family = family_by(settings)
    name, default = ("ENABLE_V4_EGRESS", "true") if family is IPV6 else ("ENABLE_V6_EGRESS", "false")
    return other(family) if settings.get(name, default) == "true" else None


def pool_of(eni: Eni, family: Family) -> tuple[Network, ...]:
    """What of an ENI is for sandboxes of a node with such a pool: in IPv4 its secondary addresses and prefixes, in IPv6 its /80s."""
    if family is IPV6:
        return eni.ipv6_prefixes
    return (*map(IPv4Network, eni.secondary_addresses), *eni.prefixes)
