"""Two nodes with daemons, sandboxes on both ENIs of each, servers everywhere: one ground for all paths of one pool mode.

The network settings are node-a's and change under its running sandboxes, as they do when a DaemonSet is updated; node-b keeps the
defaults. Sandboxes are bare namespaces; every answer tells who answered and whom it saw (lab/fabric/talk.py). In IPv6 all sandboxes
are on the first ENI, whatever their names say, and everybody is asked by IPv6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, IPv6Network

from lab.fabric import talk
from lab.fabric.internet import NAT_GATEWAY, OUTSIDE_6, OUTSIDE_HOST_6
from lab.fabric.load_balancer import LoadBalancer
from lab.lab import IPV6_CIDR, Lab
from lab.node.kube_proxy import KubeProxy, Service
from lab.vpc.family import IPV4, IPV6, Family, egress_by, family_by
from lab.vpc.limits import InstanceLimits
from lab.vpc.model import Address
from lab.vpc.state import Vpc
from tests.rig import Rig, wait_until

SMALL = InstanceLimits((2,), 2)
LIMITS = {"secondary": InstanceLimits((2,), 4), "prefix": SMALL, "ipv6": SMALL, "t3.nano": SMALL}
"""Instance types that fill their first ENI soon: three sandboxes in secondary mode, sixteen in prefix mode."""

MODES: dict[str, Mapping[str, str]] = {
    "secondary": {},
    "prefix": {"ENABLE_PREFIX_DELEGATION": "true", "WARM_PREFIX_TARGET": "1", "ENABLE_V6_EGRESS": "true"},
    "ipv6": IPV6.settings,
}
COMMON = {"MAX_ENI": "2", "IP_COOLDOWN_PERIOD": "600"}
EXCLUDED = IPv4Address("198.51.100.200")
OUTSIDE: dict[Family, Address] = {IPV4: IPv4Address("198.51.100.10"), IPV6: OUTSIDE_HOST_6}
EXCLUDED_OF: dict[Family, Address] = {IPV4: EXCLUDED, IPV6: OUTSIDE_6[200]}
SERVICES = {IPV4: IPv4Address("10.100.0.0"), IPV6: IPv6Address("fd00:100::")}
"""Where services' addresses begin: of a range of their own, as on EKS."""

OTHER_SUBNET = "10.0.16.0/22"

PODS = ("pod-a", "pod-a-too", "pod-a-eth1", "pod-b", "pod-b-eth1")
"""On node-a twice eth0 and once eth1; on node-b one of each, and its eth1 is in another subnet."""
NODES = ("node-a", "node-b")
MOST_PODS = 20
"""Ours: a prefix full, and a few of the next ENI."""


@dataclass(frozen=True)
class Setting:
    """One SNAT setting of node-a, and who translates towards the two outside addresses. `is_made`: what nft shows of it."""

    env: dict[str, str]
    is_made: Callable[[str], bool]
    node_translates: bool = True
    translates_excluded: bool = True
    keeps_ports: bool = False


SETTINGS = {
    "default": Setting({}, lambda shown: "fully-random" in shown and str(EXCLUDED) not in shown),
    "external-snat": Setting(
        {"AWS_VPC_K8S_CNI_EXTERNALSNAT": "true"},
        lambda shown: "snat to" not in shown,
        node_translates=False,
        translates_excluded=False,
    ),
    "exclude-cidrs": Setting(
        {"AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS": f"{EXCLUDED}/32"},
        lambda shown: "snat to" in shown and str(EXCLUDED) in shown,
        translates_excluded=False,
    ),
    "randomize-none": Setting(
        {"AWS_VPC_K8S_CNI_RANDOMIZESNAT": "none"},
        lambda shown: "snat to" in shown and "random" not in shown,
        keeps_ports=True,
    ),
}


@dataclass
class Ground:
    """Everything that a path can start and end at, by name. `setting` is node-a's present one."""

    lab: Lab
    servers: talk.Servers
    rigs: dict[str, Rig]
    balancer: LoadBalancer
    setting: Setting
    family: Family
    addresses: dict[str, Address] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    next_port: int = 5100

    def ask(self, client: str, server: str | Address, **options: object) -> talk.Heard | None:
        """Ask from one place to another, by name or address; options as talk.ask. UDP comes from a port of its own, because a node
        remembers for two minutes how it translated what another question from that port sent, whatever its setting is now."""
        target = self.addresses[server] if isinstance(server, str) else server
        if not options.get("tcp"):
            options.setdefault("source_port", *self.unused_ports(1))
        return talk.ask(self.paths[client], target, **options)  # type: ignore[arg-type]

    @property
    def node_translates(self) -> bool:
        """Whether node-a gives its own address to what its sandboxes send outside: never in IPv6."""
        return self.family is IPV4 and self.setting.node_translates

    def public(self, name: str) -> Address:
        """The public address of a node's primary one; in IPv6 that itself."""
        own = self.addresses[name]
        return self.lab.internet.associate(own) if isinstance(own, IPv4Address) else own

    def translated(self, pod: str, outside: str) -> Address:
        """Whom an outside address sees when a sandbox of node-a speaks to it, under the present setting: in IPv6 the sandbox."""
        if self.family is IPV6:
            return self.addresses[pod]
        by_node = self.setting.translates_excluded if outside == "excluded" else self.setting.node_translates
        return self.public("node-a") if by_node else NAT_GATEWAY

    def unused_ports(self, count: int) -> list[int]:
        """Ports that no question came from yet, so that no translation of an earlier one is remembered; not that of the servers."""
        if self.next_port <= talk.PORT < self.next_port + count:
            self.next_port = talk.PORT + 1
        self.next_port += count
        return list(range(self.next_port - count, self.next_port))

    def unassigned(self) -> Address:
        """An address of node-a's subnet that is on no ENI."""
        first = self.lab.vpc.enis_of(self.rigs["node-a"].node.instance_id)[0]
        if self.family is IPV6:
            # The first /80 of a subnet has EC2's own addresses, so no ENI gets it.
            return IPv6Network((int(first.ipv6_addresses[0]) >> 64 << 64, 80))[99]
        subnet = first.subnet_cidr
        return next(address for address in reversed(list(subnet.hosts())) if self.lab.vpc.owner_of(address) is None)

    def node_of(self, pod: str) -> str:
        """The node of a sandbox; a node's own name."""
        return pod if pod in NODES else f"node-{pod[4]}"

    def apply(self, setting: Setting) -> None:
        """Start node-a's daemon again with a setting, under its running sandboxes; return when the kernel has it.

        A slow machine's daemon serves ADD before instance metadata has answered it; its table follows then.
        """
        rig = self.rigs["node-a"]
        if setting.env != self.setting.env:
            rig.restart(env=setting.env)
        show = ["nft", "list", "table", "ip", "vpc-ipamd"]
        if self.family is IPV4:  # in IPv6 no setting changes anything
            wait_until(lambda: setting.is_made(rig.node.netns.tool(show)), what=f"the table of {setting.env}")
        self.setting = setting


@contextmanager
def ground(mode: str, *, more: Mapping[str, str] | None = None) -> Iterator[Ground]:
    """Build it, and remove everything. `more`: settings of both daemons beside the mode's."""
    family = family_by(MODES[mode])
    has_ipv6 = IPV6 in (family, egress_by(MODES[mode]))
    vpc = Vpc(limits=LIMITS, ipv6_cidr=IPV6_CIDR if has_ipv6 else "")
    with Lab(nodes=NODES, hosts=["host-a"], instance_type=mode, containerd=False, vpc=vpc) as lab, talk.Servers() as servers:
        lab.add_internet()
        lab.internet.add_address(200, family)
        _attach_elsewhere(lab, mode)
        rigs = {name: Rig(lab, lab.node(name), env={**COMMON, **MODES[mode], **(more or {})}) for name in NODES}
        made = Ground(lab, servers, rigs, lab.add_load_balancer("nlb", family=family), SETTINGS["default"], family)
        for rig in rigs.values():
            rig.start(wait=False)
        for name in NODES:
            _place(made, name, lab.node(name).netns_path(), lab.own_address(name, family))
            rigs[name].wait_ready()
            _fill(made, name)
        _place(made, "host-a", lab.hosts["host-a"].path, lab.own_address("host-a", family))
        made.addresses["nlb"] = lab.own_address("nlb", family)
        _place(made, "outside", lab.internet.outside.path, OUTSIDE[family])
        _place(made, "excluded", lab.internet.outside.path, EXCLUDED_OF[family])
        _serve_services(made)
        yield made
        for rig in rigs.values():
            rig.assert_sound()
        assert lab.fabric.problems == []


def service_of(pod: str, *, is_local: bool = False, family: Family = IPV4) -> Service:
    """The name and numbers of a sandbox's service; its endpoints are added by the ground."""
    number = PODS.index(pod) + 1
    name = f"{'local' if is_local else 'all'}-{number}"
    address = SERVICES[family] + number + 100 * is_local
    return Service(name, address, 80, (), node_port=30000 + number + 1000 * is_local, is_local=is_local)


def _attach_elsewhere(lab: Lab, mode: str) -> None:
    """Somebody gives node-b an ENI in another subnet, which its daemon adopts, and in IPv6 leaves alone."""
    subnet = lab.vpc.add_subnet(OTHER_SUBNET)
    want = {"address_count": 3} if mode == "secondary" else {"prefix_count": 1}
    lab.vpc.hands.attach(lab.node("node-b").instance_id, subnet_id=subnet.subnet_id, **want)
    lab.settle()


def _place(made: Ground, name: str, path: str, address: Address) -> None:
    made.paths[name], made.addresses[name] = path, address
    made.servers.add(name, path, address=address)


def _fill(made: Ground, node: str) -> None:
    """Add sandboxes until those that the paths need are there, whatever ENI the pool fills first; the others stay too."""
    rig, letter = made.rigs[node], node[-1]
    first = made.lab.vpc.enis_of(rig.node.instance_id)[0].eni_id
    on_first = [name for name in PODS if made.node_of(name) == node and "eth1" not in name]
    on_second = [f"pod-{letter}-eth1"]
    if made.family is IPV6:
        on_first, on_second = on_first + on_second, []
    for number in range(MOST_PODS):
        reply = rig.add(label := f"{node}-{number}")
        wanted = on_first if rig.eni_of(reply.any_address) == first else on_second
        _place(made, wanted.pop(0) if wanted else label, rig.node.netns_path(f"/run/netns/{label}"), reply.any_address)
        if not on_first and not on_second:
            return
    raise AssertionError(f"{node} has no sandbox for {on_first + on_second}")


def _serve_services(made: Ground) -> None:
    services = []
    for pod in PODS:
        for is_local in (False, True):
            shape = service_of(pod, is_local=is_local, family=made.family)
            endpoints = ((made.addresses[pod], talk.PORT),)
            services.append(Service(shape.name, shape.cluster_address, shape.port, endpoints, shape.node_port, is_local=is_local))
    for node in NODES:
        local = [made.addresses[pod] for pod in PODS if made.node_of(pod) == node]
        KubeProxy(made.lab.node(node)).sync(services, local=local)
