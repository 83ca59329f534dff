"""IPv4 and IPv6 as values, with the constants in which they differ. `family_of` returns the family of an address.

Addresses and prefixes of sandboxes are `IpAddress` and `IpNetwork`; all addresses of a node's pool are of one family. The code uses
`IPv4Address` for objects that are IPv4 on every node: the addresses of instance and ENIs, the CIDRs of VPC, subnets and settings.
Where no address determines the family, a parameter has the family of the node's pool; its default is `IPV4`. These constants replace
an `if` at each place. Only differences in behaviour are code: ARP or neighbour discovery, sysctls, EC2's calls, and a /80, which has
too many addresses to list.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton

from ipamd.model.record import dataclass

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network


class _IPv4(IPv4Address):
    """An IPv4 address that the C library formats: this takes half the time of Python, and an ADD formats addresses twenty times."""

    __slots__ = ()

    def __str__(self) -> str:
        return inet_ntop(AF_INET, self.packed)


class _IPv6(IPv6Address):
    """An IPv6 address that the C library formats, because Python takes 10 to 15 us. Addresses that contain an IPv4 address or have a
    zone are left to Python, which formats them differently.
    """

    __slots__ = ()

    def __str__(self) -> str:
        text = inet_ntop(AF_INET6, self.packed)
        if "." in text or self.scope_id:
            return super().__str__()
        return text


@dataclass(frozen=True, slots=True)
class LocalRange:
    """A range of addresses that are valid on this node only, for a sandbox's extra legs (`ipamd/model/legs/`).

    `network`: the network of the range. SNAT translates its addresses to the node's own, so no other host sees them, and all nodes use
        the same network.
    `gateway`: the next hop inside every sandbox.
    `first`, `last`: the first and last address that a sandbox can get.
    `ifname`: the name of the link inside a sandbox.
    `untranslated`: destinations to which packets keep their source: multicast.
    """

    network: IpNetwork
    gateway: IpAddress
    first: IpAddress
    last: IpAddress
    ifname: str
    untranslated: IpNetwork

    def addresses(self) -> list[IpAddress]:
        """Return all addresses that sandboxes can get, ascending."""
        make = type(self.first)
        return [make(number) for number in range(int(self.first), int(self.last) + 1)]


@dataclass(frozen=True, slots=True)
class Family:
    """One IP family.

    number: the kernel's number, AF_INET or AF_INET6.
    address, network: the classes of its addresses and networks, which read text, bytes and numbers.
    any_route: the destination of a default route.
    gateway: the next hop inside every sandbox. No host has this address: a permanent neighbour entry resolves it to the host veth's
        MAC.
    route_metric: the metric that the kernel gives to a route that was added without a metric.
    outside: an address that is reachable by a default route only.
    prefix_length: the length of a delegated prefix; EC2 delegates no other length.
    is_sparse: whether only some addresses of a prefix are recorded: those that are not free, and the last one, whose row stands for
        all others.
    addresses_leaf, prefixes_leaf: the keys for addresses and prefixes below an interface in instance metadata.
    nft: the word by which nftables names the family and its header.
    nft_address: nftables' type of a set of addresses of the family.
    local_range: the range from which a sandbox gets an address of this family for egress, if its pool is of the other family.
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
    local_range: LocalRange

    def prefix(self, text: str) -> IpNetwork:
        """Read a delegated prefix. Raises: ValueError, also if it has host bits or a length that EC2 does not delegate."""
        prefix = self.network(text)
        if prefix.prefixlen != self.prefix_length:
            raise ValueError(f"{text} is no /{self.prefix_length}")
        return prefix


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
    local_range=LocalRange(
        network=IPv4Network("169.254.172.0/22"),
        gateway=_IPv4("169.254.172.1"),
        first=_IPv4("169.254.172.2"),
        last=_IPv4("169.254.175.254"),
        ifname="v4if0",
        untranslated=IPv4Network("224.0.0.0/4"),
    ),
)
"""Sources in amazon-vpc-cni-k8s: for the gateway cmd/routed-eni-cni-plugin/driver/driver.go, createVethPairContext.run; for the keys
in metadata pkg/awsutils/imds.go; for the local range cmd/aws-vpc-cni/main.go. For `outside`: RFC 5737, TEST-NET-1, which no host
has. For the prefix: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-prefix-eni.html."""

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
    local_range=LocalRange(
        network=IPv6Network("fd00::ac:0/118"),
        gateway=_IPv6("fd00::ac:1"),
        first=_IPv6("fd00::ac:2"),
        last=_IPv6("fd00::ac:3ff"),
        ifname="v6if0",
        untranslated=IPv6Network("ff00::/8"),
    ),
)
"""Sources as for IPV4, except for `outside`: RFC 3849; and for `route_metric`: the kernel's linux/ipv6_route.h, IP6_RT_PRIO_USER."""

IPV6_GATEWAY = _IPv6("fe80:ec2::1")
"""The IPv6 router of every subnet. Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, GetIPv6Gateway."""

_FAMILIES = {4: IPV4, 6: IPV6}


def family_of(address: IpAddress | IpNetwork) -> Family:
    """Return the family of an address or a network."""
    return _FAMILIES[address.version]


def read_address(text: str) -> IpAddress:
    """Read an address of either family. Raises: ValueError, also for an address with a zone (`%eth0`)."""
    family = IPV6 if ":" in text else IPV4
    try:
        return family.address(inet_pton(family.number, text))
    except OSError:
        raise ValueError(f"{text!r} is no address") from None


def read_spelling(text: str) -> IpAddress:
    """Read an address that another program wrote. An IPv4-mapped IPv6 address is read as the IPv4 address (RFC 4291, 2.5.5.2).

    Raises: ValueError.
    """
    address = read_address(text)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    if mapped is None:
        return address
    return mapped


def unpack_address(packed: bytes) -> IpAddress:
    """Build an address from its 4 or 16 bytes. Raises: ValueError."""
    return (IPV4 if len(packed) == 4 else IPV6).address(packed)


def read_network(text: str) -> IpNetwork:
    """Read a network of either family. Raises: ValueError, also if it has host bits."""
    return (IPV6 if ":" in text else IPV4).network(text)


def members(prefix: IpNetwork) -> tuple[IpAddress, ...]:
    """Return the addresses that have rows for a prefix: each address of a /28, ascending; only the last address of a /80."""
    if family_of(prefix).is_sparse:
        return (prefix[-1],)
    return tuple[IpAddress, ...](prefix)


def stand_in(address: IpAddress) -> IpAddress | None:
    """Return the last address of the /80 that contains an address: its row stands for the address while the address has no row of its
    own.

    Returns: None for an IPv4 address.
    """
    family = family_of(address)
    if not family.is_sparse:
        return None
    hosts = (1 << (address.max_prefixlen - family.prefix_length)) - 1
    return family.address(int(address) | hosts)
