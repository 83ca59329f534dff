"""IPv4 and IPv6 as values: what the two differ in and a value can say. Code asks for the family of the address that it has.

What sandboxes may have is an `IpAddress` or `IpNetwork`, and of one family on a node. `IPv4Address` in the code is what every node has
besides: the addresses of instance and ENIs, the CIDRs of VPC, subnets and settings. Where no address tells the family, because text
is read or everything is listed, `IPV4` stands for that of the node's pool. Rejected: a branch at each place. Only what differs in kind
is code: ARP or neighbour discovery, sysctls, EC2's calls, and a /80, whose addresses nobody could write out.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton

from ipamd.model.record import dataclass

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network


class _IPv4(IPv4Address):
    """One that the C library spells: an ADD does so twenty times, and in IPv6 each took 10 to 15 microseconds."""

    __slots__ = ()

    def __str__(self) -> str:
        return inet_ntop(AF_INET, self.packed)


class _IPv6(IPv6Address):
    """The same; Python spells those that hold an IPv4 address otherwise."""

    __slots__ = ()

    def __str__(self) -> str:
        text = inet_ntop(AF_INET6, self.packed)
        return super().__str__() if "." in text or self.scope_id else text


@dataclass(frozen=True, slots=True)
class Egress:
    """What a sandbox gets of a family if its pool is of the other: an address that is good on this node alone.

    `network`: SNAT makes the node's own address of it on the way out, so no other host ever sees it, and all nodes have the same.
    `gateway` and `first` to `last`: the next hop, and what sandboxes get. `ifname`: of the link inside a sandbox. `untranslated`:
    multicast, which keeps its source.
    """

    network: IpNetwork
    gateway: IpAddress
    first: IpAddress
    last: IpAddress
    ifname: str
    untranslated: IpNetwork

    def addresses(self) -> list[IpAddress]:
        """All that sandboxes can get, ascending."""
        make = type(self.first)
        return [make(number) for number in range(int(self.first), int(self.last) + 1)]


@dataclass(frozen=True, slots=True)
class Family:
    """One family. `address`, `network`: its classes, which read text, bytes and numbers. `number`: the kernel's, AF_INET or AF_INET6.

    `gateway`: next hop inside every sandbox. No host has it: a permanent neighbour entry resolves it to the host veth's MAC.
    `route_metric`: the kernel's, of a route that names none. `outside`: an address to which nothing but a default route should lead.
    `prefix_length`: of a delegated prefix; EC2 has no other. `is_sparse`: of a prefix only the addresses that are not free are
    recorded, and the last one, which stands for all others.
    `addresses_leaf`, `prefixes_leaf`: what instance metadata calls them below an interface. `nft`, `nft_address`: in nftables, the
    word for family and header, and the type of a set's element. `egress`: for sandboxes of a pool of the other family.
    """

    number: int
    address: type[IPv4Address] | type[IPv6Address]
    network: type[IPv4Network] | type[IPv6Network]
    any_route: IpNetwork
    gateway: IpAddress
    route_metric: int
    outside: IpAddress
    prefix_length: int
    is_sparse: bool
    addresses_leaf: str
    prefixes_leaf: str
    nft: str
    nft_address: str
    egress: Egress

    def prefix(self, text: str) -> IpNetwork:
        """Read a delegated prefix. Raises: ValueError, also if it has host bits or is of another length than EC2 delegates."""
        found = self.network(text)
        if found.prefixlen != self.prefix_length:
            raise ValueError(f"{text} is no /{self.prefix_length}")
        return found


IPV4 = Family(
    number=2,
    address=_IPv4,
    network=IPv4Network,
    any_route=IPv4Network("0.0.0.0/0"),
    gateway=_IPv4("169.254.1.1"),
    route_metric=0,
    outside=_IPv4("192.0.2.1"),
    prefix_length=28,
    is_sparse=False,
    addresses_leaf="local-ipv4s",
    prefixes_leaf="ipv4-prefix",
    nft="ip",
    nft_address="ipv4_addr",
    egress=Egress(
        network=IPv4Network("169.254.172.0/22"),
        gateway=_IPv4("169.254.172.1"),
        first=_IPv4("169.254.172.2"),
        last=_IPv4("169.254.175.254"),
        ifname="v4if0",
        untranslated=IPv4Network("224.0.0.0/4"),
    ),
)
"""Source of the gateway: amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/driver/driver.go, createVethPairContext.run; of the leaves:
pkg/awsutils/imds.go there; of egress: cmd/aws-vpc-cni/main.go and cmd/egress-cni-plugin there; outside: RFC 5737, TEST-NET-1, which
no host has.
The prefix: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-prefix-eni.html."""

IPV6 = Family(
    number=10,
    address=_IPv6,
    network=IPv6Network,
    any_route=IPv6Network("::/0"),
    gateway=_IPv6("fe80::1"),
    route_metric=1024,
    outside=_IPv6("2001:db8::1"),
    prefix_length=80,
    is_sparse=True,
    addresses_leaf="ipv6s",
    prefixes_leaf="ipv6-prefix",
    nft="ip6",
    nft_address="ipv6_addr",
    egress=Egress(
        network=IPv6Network("fd00::ac:0/118"),
        gateway=_IPv6("fd00::ac:1"),
        first=_IPv6("fd00::ac:2"),
        last=_IPv6("fd00::ac:3ff"),
        ifname="v6if0",
        untranslated=IPv6Network("ff00::/8"),
    ),
)
"""Sources as for IPv4, but for outside: RFC 3849; metric: the kernel's linux/ipv6_route.h, IP6_RT_PRIO_USER."""

_FAMILIES = {4: IPV4, 6: IPV6}


def family_of(one: IpAddress | IpNetwork) -> Family:
    """The family of an address or a network."""
    return _FAMILIES[one.version]


def read_address(text: str) -> IpAddress:
    """Read an address of either family; one with a zone (`%eth0`) is none that can be compared. Raises: ValueError."""
    family = IPV6 if ":" in text else IPV4
    try:
        return family.address(inet_pton(family.number, text))
    except OSError:
        raise ValueError(f"{text!r} is no address") from None


def unpack_address(packed: bytes) -> IpAddress:
    """Make an address of its 4 or 16 bytes. Raises: ValueError."""
    return (IPV4 if len(packed) == 4 else IPV6).address(packed)


def read_network(text: str) -> IpNetwork:
    """Read a network of either family. Raises: ValueError, also if it has host bits."""
    return (IPV6 if ":" in text else IPV4).network(text)


def members(prefix: IpNetwork) -> tuple[IpAddress, ...]:
    """The addresses by which a prefix is recorded, asked for and held back: each of a /28, ascending; of a /80 its last one."""
    return (prefix[-1],) if family_of(prefix).is_sparse else tuple[IpAddress, ...](prefix)


def stand_in(address: IpAddress) -> IpAddress | None:
    """The address whose row stands for this one while it has none, as that of a /80; None where every address has a row."""
    family = family_of(address)
    if not family.is_sparse:
        return None
    hosts = (1 << (address.max_prefixlen - family.prefix_length)) - 1
    return family.address(int(address) | hosts)
