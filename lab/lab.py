"""The whole lab in one object: a VPC, its fabric, nodes with containerd, hosts, and Amazon's endpoints in each node.

`with Lab(nodes=["node-a", "node-b"], hosts=["host-a"]) as lab:` starts everything. All of it is removed at the end of the block, after
an exception during the start, and if the process dies (lab/node/guard.py, lab/node/init.py, and file descriptors do that).
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from ipaddress import IPv4Address
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from lab.ec2.server import Ec2Server
from lab.fabric import ping
from lab.fabric.fabric import Fabric
from lab.fabric.internet import Internet
from lab.fabric.load_balancer import LoadBalancer
from lab.fabric.netns import Netns
from lab.httpd import Listener
from lab.imds.server import ImdsServer
from lab.node import containerd
from lab.node.errors import NodeError
from lab.node.node import EC2_ADDRESS, EC2_PORT, IMDS_ADDRESS, IMDS_PORT, Node
from lab.node.workspace import Workspace
from lab.vpc.family import IPV4, Family, family_of
from lab.vpc.faults import Faults
from lab.vpc.model import Address, Instance
from lab.vpc.state import Vpc

log = logging.getLogger(__name__)

NODE_SUBNET, HOST_SUBNET = "10.0.0.0/22", "10.0.8.0/24"  # ours: two ranges, so that people can tell nodes and hosts apart
SECOND_ZONE, SECOND_NODE_SUBNET = "us-west-2b", "10.0.4.0/22"
PRIVATE_SUBNET = "10.0.12.0/22"
IPV6_CIDR = "2600:1f14:abc:de00::/56"
"""Block for the argument `ipv6_cidr` of a Vpc whose nodes have IPv6. Ours: in Amazon's range, so that addresses look like those of
AWS."""

WIRE_TIMEOUT_S = 30.0
OUTSIDE = "outside"
"""The name that `ping` takes for the host beyond the internet gateway. The host is in no VPC and in no list of hosts."""

Source = str | Node | tuple[Node, str]


class _Server(Protocol):
    def start(self) -> object: ...
    def stop(self) -> object: ...


class Lab:
    """One lab. Concurrency: the methods may be called from any thread; enter and leave from one."""

    def __init__(
        self,
        *,
        name: str = "",
        nodes: Sequence[str] = ("node-a",),
        hosts: Sequence[str] = (),
        instance_type: str = "m5.large",
        containerd: bool | Path = True,
        vpc: Vpc | None = None,
        second_zone: Collection[str] = (),
        private: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Describe a lab, which is built when the context is entered.

        Args:
            name: unique on this machine; by default made from the process ID.
            nodes, hosts: names, which must all differ. Hosts are in HOST_SUBNET, and nodes in NODE_SUBNET, except those of
                `second_zone`.
            containerd: False starts no containerd; `Node.make_netns` then makes namespaces in place of sandboxes. A path is the
                directory of another containerd (1.7 and later have events), its shim and ctr.
            vpc: a VPC that the caller made, with delays, limits, a clock or faults; the lab closes it.
            second_zone: names of the nodes in SECOND_ZONE, whose subnet is SECOND_NODE_SUBNET.
            private: further nodes: name -> instance type. They are in PRIVATE_SUBNET, have no public address, and no containerd
                until their user starts it.
        """
        self.name = name or f"lab-{os.getpid()}"
        self.vpc = vpc or Vpc()
        self.ec2: Ec2Server
        self.imds: dict[str, ImdsServer] = {}
        self.fabric: Fabric
        self._internet: Internet | None = None
        self._names = (tuple(nodes), tuple(hosts))
        self._instance_type = instance_type
        self._second_zone = frozenset(second_zone)
        self._private = dict(private)
        self._with_containerd = containerd is not False
        self._containerd_directory = str(containerd) if isinstance(containerd, Path) else ""
        self._nodes: dict[str, Node] = {}
        self._hosts: dict[str, Netns] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Lab:
        missing = missing_requirements(containerd=self._with_containerd)
        if missing:
            raise NodeError(missing)
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def faults(self) -> Faults:
        """The faults of the simulated cloud."""
        return self.vpc.faults

    @property
    def internet(self) -> Internet:
        """The simulated internet outside the VPC. Raises: NodeError if `add_internet` was not called."""
        if self._internet is None:
            raise NodeError(f"lab {self.name!r} has no outside: start it with `vpc-lab up --outside`")
        return self._internet

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Nodes by name."""
        return self._nodes

    @property
    def hosts(self) -> Mapping[str, Netns]:
        """Namespaces of the plain hosts by name."""
        return self._hosts

    def node(self, name: str) -> Node:
        """Find a node. Raises: NodeError with the names of all nodes, if there is none of this name."""
        try:
            return self._nodes[name]
        except KeyError:
            raise NodeError(f"no node {name!r} in lab {self.name!r}; there are: {', '.join(self._nodes) or 'none'}") from None

    def settle(self) -> None:
        """Wait until the links are as EC2 shows the ENIs now. It does not wait for attachments that are still in their delay."""
        self.vpc.drain(WIRE_TIMEOUT_S)

    def ping(
        self,
        *,
        source: Source,
        targets: Iterable[Address | str],
        timeout_s: float = ping.TIMEOUT_S,
        source_address: Address | None = None,
    ) -> Mapping[Address, bool]:
        """Ping each target. Returns: address -> whether it answered.

        Args:
            source: a host's or node's name, OUTSIDE, a Node, or (Node, sandbox ID or path of a namespace in the node).
            source_address: the address to send from; by default the kernel chooses it.
        """
        return ping.ping(self._netns_path(source), targets=targets, timeout_s=timeout_s, source=source_address)

    def add_node(self, name: str) -> Node:
        """Start one more node with its instance. It returns when eth0 is up and containerd serves, if the lab has containerd."""
        node = self._build_node(name)
        if self._with_containerd:
            node.start_containerd(self._containerd_directory)
        return node

    def add_host(self, name: str) -> Netns:
        """Start one more plain host of the VPC."""
        netns = self._hosts[name] = Netns.new(name)
        self._stack.callback(netns.close)
        self._connect(self.vpc.add_host(name=name, subnet_id=self._host_subnet_id), netns)
        return netns

    def add_internet(self, *, nat_gateway: bool = True) -> Internet:
        """Build the gateways and the host `outside`. The primary address of each node and host gets a public address, except
        those of private nodes."""
        self._internet = Internet(
            self.fabric.router, vpc_cidrs=self.vpc.cidrs, nat_gateway=nat_gateway, ipv6_cidr=self.vpc.ipv6_cidr
        )
        self._stack.callback(self.internet.close)
        for instance in self.vpc.instances():
            if instance.name not in self._private:
                self.internet.associate(self.primary_address(instance.name))
        return self.internet

    def add_load_balancer(self, name: str, *, family: Family = IPV4) -> LoadBalancer:
        """Start a load balancer on a new host of this name in the VPC. Call `add_internet` before."""
        host = self.add_host(name)
        return LoadBalancer(self.internet, netns_path=host.path, private=self.own_address(name, family))

    def primary_address(self, name: str) -> IPv4Address:
        """Return the primary address of a node or host. Raises: KeyError if there is none of that name."""
        (first, *_) = self.vpc.enis_of(self.vpc.instance(name).instance_id)
        if first.primary_address is None:
            raise KeyError(name)
        return first.primary_address

    def own_address(self, name: str, family: Family) -> Address:
        """Return a node's or host's own address of a family. Raises: KeyError if it has none, or there is none of that name."""
        (first, *_) = self.vpc.enis_of(self.vpc.instance(name).instance_id)
        for address in first.all_addresses:
            if family_of(address) is family:
                return address
        raise KeyError(name)

    def close(self) -> None:
        """Stop and remove everything; idempotent."""
        self.vpc.close()  # first, so that no event reaches namespaces that are being removed
        self._stack.close()

    def _build(self) -> None:
        self._workspace = Workspace(self.name)
        self._stack.callback(self._workspace.close)
        blocks = [*map(str, islice(self.vpc.ipv6_cidr.subnets(new_prefix=64), 3))] if self.vpc.ipv6_cidr else ["", "", ""]
        self._node_subnet_id = self.vpc.add_subnet(NODE_SUBNET, ipv6_cidr=blocks[0]).subnet_id
        self._host_subnet_id = self.vpc.add_subnet(HOST_SUBNET, ipv6_cidr=blocks[1]).subnet_id
        if self._second_zone:
            second = self.vpc.add_subnet(SECOND_NODE_SUBNET, az=SECOND_ZONE, ipv6_cidr=blocks[2])
            self._second_node_subnet_id = second.subnet_id
        self.fabric = Fabric(has_ipv6=self.vpc.ipv6_cidr is not None)
        self._stack.callback(self.fabric.close)
        self.vpc.subscribe(self.fabric.handle)
        self.ec2 = Ec2Server(self.vpc)
        self._serve(self.ec2)
        nodes, hosts = self._names
        for host in hosts:
            self.add_host(host)
        if self._private:
            self._private_subnet_id = self.vpc.add_subnet(PRIVATE_SUBNET).subnet_id
        built = [self._build_node(node) for node in nodes]  # one after another, so that the same seed gives the same instances
        for node in self._private:
            self._build_node(node)
        if self._with_containerd:
            with ThreadPoolExecutor(max_workers=os.cpu_count() or 2) as pool:
                list(pool.map(lambda node: node.start_containerd(self._containerd_directory), built))

    def _build_node(self, name: str) -> Node:
        node = Node.start(name, cgroup=self._workspace.node_cgroup(name))
        self._nodes[name] = node
        self._stack.callback(node.close)
        subnet_id = self._second_node_subnet_id if name in self._second_zone else self._node_subnet_id
        if name in self._private:
            subnet_id = self._private_subnet_id
        instance_type = self._private.get(name, self._instance_type)
        instance = self.vpc.add_instance(name=name, instance_type=instance_type, subnet_id=subnet_id)
        node.instance_id = instance.instance_id
        self._connect(instance, node.netns)
        self.ec2.add_listener(Listener(node.netns.listener(EC2_ADDRESS, EC2_PORT), instance.instance_id))
        # Only on loopback, because with EC2's hop limit of 1 sandboxes cannot reach instance metadata.
        listener = node.netns.listener(IMDS_ADDRESS, IMDS_PORT, link="lo")
        self.imds[name] = ImdsServer(self.vpc, instance.instance_id, socket=listener)
        self._serve(self.imds[name])
        return node

    def _connect(self, instance: Instance, netns: Netns) -> None:
        self.fabric.connect(instance.instance_id, netns)
        self.vpc.drain(WIRE_TIMEOUT_S)
        if self.fabric.problems:
            raise NodeError(f"{instance.name} has no network: {'; '.join(self.fabric.problems)}")

    def _serve(self, server: _Server) -> None:
        server.start()
        self._stack.callback(server.stop)

    def _netns_path(self, source: Source) -> str:
        if isinstance(source, tuple):
            return source[0].netns_path(source[1])
        if isinstance(source, Node):
            return source.netns_path()
        if source == OUTSIDE:
            return self.internet.outside.path
        return self._hosts[source].path if source in self._hosts else self.node(source).netns_path()


def missing_requirements(*, containerd: bool) -> str:
    """Return a sentence about the requirements of a lab that this machine does not meet; "" if it meets all."""
    if os.geteuid() != 0:
        return "the lab needs root, to make namespaces"
    absent = [tool for tool in ("ip", "nft", "unshare") if shutil.which(tool) is None]
    if absent:
        return f"the lab needs {', '.join(absent)}: apt-get install iproute2 nftables util-linux"
    if containerd and not _containerd_is_installed():
        packages = "containerd runc containernetworking-plugins"
        return f"the lab's nodes need containerd, runc and the loopback plugin: apt-get install {packages}"
    return ""


def _containerd_is_installed() -> bool:
    return containerd.is_installed()
