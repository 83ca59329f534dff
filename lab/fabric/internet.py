"""The connection of the VPC to the outside: an internet gateway, a NAT gateway, load balancers, and one host beyond them.

    fabric  igw ---- eth0  outside        1500 bytes; larger packets with DF set are answered with "fragmentation needed"

The router does the gateways' work in one nftables table of its own, made anew as a whole at each change:

    internet gateway   translates an address to its public address and back, one to one; packets from an address without a public one
                       do not pass ("Enable internet access for a VPC using an internet gateway", VPC user guide)
    NAT gateway        translates addresses without a public address to its own ("NAT gateways", VPC user guide)
    load balancer      sends packets for its public address to a target, with the client's or its own source address
                       (load_balancer.py)

IPv6 packets are not translated, except by a load balancer, because an IPv6 address of the VPC is public.

Different from AWS: there a subnet's route table leads to one of the two gateways. Here an address with a public address uses the
internet gateway, and all others the NAT gateway, so that a test sees by the source address whether the node translated it. Connections
within the VPC are not tracked, except those that a security group or a load balancer must recognise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from lab.fabric import groups, source_check
from lab.fabric.errors import FabricError
from lab.fabric.netns import Netns
from lab.vpc.family import IPV4, IPV6, Family, family_of
from lab.vpc.model import Address

MTU = 1500  # bytes; "Network MTU for your EC2 instance", EC2 user guide: through an internet gateway
OUTSIDE = IPv4Network("198.51.100.0/24")  # of the outside host; ours: a range for documentation (RFC 5737), so nobody else has it
AMAZON = IPv4Network("203.0.113.0/24")  # public addresses of the VPC; ours: a range for documentation too (RFC 5737)
OUTSIDE_6 = IPv6Network("2001:db8:51::/64")  # of the outside host; ours: a range for documentation (RFC 3849)
OUTSIDE_HOST, OUTSIDE_HOST_6 = OUTSIDE[10], OUTSIDE_6[0x10]
NAT_GATEWAY = AMAZON.broadcast_address - 1
LINK = "igw"
_NEAR, _FAR = IPv4Address("169.254.254.1"), IPv4Address("169.254.254.2")  # ours: link-local, because only this wire uses them

_NEAR_6, _FAR_6 = IPv6Address("fe80::1"), IPv6Address("fe80::2")


@dataclass(frozen=True)
class Forwarding:
    """One listener of a load balancer: TCP connections to `public`:`port` go to one of the targets.

    `keeps_client`: whether a target sees the client's address; otherwise it sees `private`.
    """

    public: Address
    port: int
    targets: tuple[tuple[Address, int], ...]
    private: Address
    keeps_client: bool


class Internet:
    """The gateways in the router's namespace and the host `outside`. Concurrency: one thread changes it at a time."""

    def __init__(
        self, router: Netns, *, vpc_cidrs: Sequence[IPv4Network], nat_gateway: bool = True, ipv6_cidr: IPv6Network | None = None
    ) -> None:
        """Wire the outside host to the router, also for IPv6 if the VPC has it.

        Raises: FabricError if that fails; the outside host is removed then.
        """
        self._router = router
        self._vpc_cidrs = tuple(vpc_cidrs)
        self._has_nat_gateway = nat_gateway
        self._public: dict[IPv4Address, IPv4Address] = {}
        self._ipv6_cidr = ipv6_cidr
        self._forwardings: dict[tuple[Address, int], Forwarding] = {}
        self._free = AMAZON.hosts()
        self.outside = Netns.new("outside")
        try:
            self._wire()
            self._tell()
            if ipv6_cidr is not None:
                self._wire_ipv6(ipv6_cidr)
        except BaseException:
            self.outside.close()
            raise

    def add_address(self, number: int, family: Family = IPV4) -> Address:
        """Add the address with this number in OUTSIDE or OUTSIDE_6 to the outside host. Returns: the address."""
        address = (OUTSIDE if family is IPV4 else OUTSIDE_6)[number]
        self.outside.ip([f"addr replace {address}/{address.max_prefixlen} dev eth0 {'' if family is IPV4 else 'nodad'}"])
        return address

    def associate(self, private: IPv4Address) -> IPv4Address:
        """Return the public address of an address of the VPC. It gets one at the first call, and keeps it."""
        if private not in self._public:
            self._public[private] = self._next_public()
            self._tell()
        return self._public[private]

    def new_public(self) -> IPv4Address:
        """Take a public address for a load balancer."""
        return self._next_public()

    def forward(self, forwarding: Forwarding) -> None:
        """Set or replace a load balancer's listener. A listener without targets does not answer."""
        self._forwardings[forwarding.public, forwarding.port] = forwarding
        self._tell()

    def forwarding(self, public: Address, port: int) -> Forwarding:
        """Return a listener. Raises: KeyError if there is none."""
        return self._forwardings[public, port]

    def close(self) -> None:
        """Remove the outside host, and with it the wire to it; idempotent."""
        self.outside.close()

    def _next_public(self) -> IPv4Address:
        address = next(self._free)
        if address == NAT_GATEWAY:
            raise FabricError(f"all public addresses of {AMAZON} are taken")
        return address

    def _wire(self) -> None:
        self._router.ip(
            [
                f"link add {LINK} mtu {MTU} type veth peer name eth0 mtu {MTU} netns {self.outside.path}",
                f"addr add {_NEAR}/30 dev {LINK} scope link",
                f"link set {LINK} up",
            ]
        )
        self.outside.ip([f"addr add {_FAR}/30 dev eth0 scope link", "link set eth0 up"])
        first = self.add_address(10)
        self.outside.ip([f"route add default via {_NEAR} dev eth0 src {first}"])
        self._router.ip([f"route add default via {_FAR} dev {LINK}"])
        for netns, link in ((self._router, LINK), (self.outside, "eth0")):
            netns.sysctl({f"ipv4/neigh/{link}/retrans_time_ms": "100", f"ipv4/conf/{link}/rp_filter": "0"})
        source_check.change(self._router, LINK, added=[OUTSIDE], removed=())

    def _wire_ipv6(self, vpc_cidr: IPv6Network) -> None:
        self._router.ip([f"addr add {_NEAR_6}/64 dev {LINK} nodad"])
        # The link is up already, so the outside host may have sent a solicitation and got an answer. Its route is set here instead.
        self.outside.sysctl({"ipv6/conf/eth0/accept_ra": "0"})
        self.outside.ip(
            [
                f"addr add {_FAR_6}/64 dev eth0 nodad",
                f"addr add {OUTSIDE_HOST_6}/128 dev eth0 nodad",
                f"route replace default via {_NEAR_6} dev eth0 src {OUTSIDE_HOST_6}",
            ]
        )
        # Packets to an address of the VPC that no ENI has must not follow the default route to the outside.
        self._router.ip([f"route add default via {_FAR_6} dev {LINK}", f"route add blackhole {vpc_cidr}"])
        source_check.change(self._router, LINK, added=[OUTSIDE_6], removed=())

    def _tell(self) -> None:
        self._router.tool(["nft", "-f", "-"], script="\n".join(self._ruleset()))

    def _ruleset(self) -> Iterator[str]:
        vpc, pairs = f"{{ {', '.join(map(str, self._vpc_cidrs))} }}", sorted(self._public.items())
        yield from self._balanced(IPV4, vpc)
        if pairs:
            inward = ", ".join(f"{public} : {private}" for private, public in pairs)
            yield f'  iifname "{LINK}" dnat to ip daddr map {{ {inward} }}'
        yield f' }}\n chain check {{ type filter hook forward priority filter;\n  iifname "{LINK}" ip daddr != {vpc} drop\n }}'
        yield from self._as_itself(IPV4)
        if pairs:
            outward = ", ".join(f"{private} : {public}" for private, public in pairs)
            yield f'  oifname "{LINK}" snat to ip saddr map {{ {outward} }}'
        if self._has_nat_gateway:
            yield f'  oifname "{LINK}" ip saddr {vpc} snat to {NAT_GATEWAY}'
        yield " }\n chain untranslated { type filter hook postrouting priority srcnat + 10;"
        yield f'  oifname "{LINK}" ip saddr {vpc} counter drop\n }}\n}}'
        if self._forwardings_of(IPV6):
            yield from (*self._balanced(IPV6, str(self._ipv6_cidr)), " }", *self._as_itself(IPV6), " }\n}")

    def _balanced(self, family: Family, vpc: str) -> Iterator[str]:
        """Yield the beginning of the table: the chain that exempts packets from tracking, and a chain that begins with the listeners
        and is not closed, so that the caller can add rules."""
        ip, forwardings = family.nft, self._forwardings_of(family)
        kept = f" {ip} daddr != {{ {_words({forwarding.private for forwarding in forwardings})} }}" if forwardings else ""
        yield f"add table {ip} internet\ndelete table {ip} internet\ntable {ip} internet {{"
        yield " chain within { type filter hook prerouting priority raw;"
        yield f"  {ip} saddr {vpc} {ip} daddr {vpc}{kept} meta mark != {groups.TRACKED} notrack\n }}"
        yield " chain gateway_in { type nat hook prerouting priority dstnat;"
        for forwarding in forwardings:
            yield from _listener(forwarding)

    def _as_itself(self, family: Family) -> Iterator[str]:
        """Yield the beginning of the chain for source addresses, with the rules of load balancers that use their own address. The
        chain is not closed, so that the caller can add rules."""
        yield " chain gateway_out { type nat hook postrouting priority srcnat;"
        for forwarding in self._forwardings_of(family):
            if not forwarding.keeps_client:
                to = f"ct original {family.nft} daddr {forwarding.public} ct original proto-dst {forwarding.port}"
                yield f"  meta l4proto tcp {to} snat to {forwarding.private}"

    def _forwardings_of(self, family: Family) -> list[Forwarding]:
        return [forwarding for forwarding in self._forwardings.values() if family_of(forwarding.public) is family]


def _listener(forwarding: Forwarding) -> Iterator[str]:
    match = f"  {family_of(forwarding.public).nft} daddr {forwarding.public} tcp dport {forwarding.port}"
    for number, (address, port) in enumerate(forwarding.targets):
        left = len(forwarding.targets) - number
        choice = f" numgen random mod {left} 0" if left > 1 else ""
        where = f"[{address}]" if address.version == IPV6.version else address
        yield f"{match}{choice} dnat to {where}:{port}"


def _words(addresses: Iterable[Address]) -> str:
    return ", ".join(sorted(map(str, addresses)))
