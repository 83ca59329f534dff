"""`packet_*`, `connect_*`: the time of a packet and of a connection between two sandboxes, by the number of sandboxes on the node.

For each number there are two nodes and a router between them, all network namespaces. The nodes have the daemon's own wiring, routing
and confinement, and strict rp_filter. The measured sandboxes are wired after half of the others, so that they are in the middle of all
tables. Single addresses are chosen at random from their subnet, as EC2 does. The references are veths with routes only, on one node,
and on two nodes with a router between them. Rounds of all numbers and of the references alternate in one run on one CPU. Figures are
medians.
"""

from __future__ import annotations

import ctypes
import os
import random
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from bench.figures import Figure
from ipamd.kernel import messages, uapi
from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.kernel.netlink import NetlinkSocket
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.kernel.wiring import KernelWiring
from ipamd.model.attachment import WiringSpec, veth_name
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni
from ipamd.model.family import IPV4, IpAddress
from ipamd.model.ids import EniId, InstanceId, MacAddress, SubnetId, parse_key
from ipamd.settings import NetworkConfig

SIZES = (10, 110, 700)
"""Numbers of sandboxes on each node."""

ROUNDS = 60
PACKETS = 400
"""Packets of each round. The kernel handles a packet within the call that sends it, up to the receiver's socket. There it drops it,
because the socket's buffer is full."""

CONNECTIONS = 60
PORT = 4000
CLONE_NEWNET = 0x40000000  # linux/sched.h
_libc = ctypes.CDLL(None, use_errno=True)


class Space:
    """A network namespace, and the thread that works in it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self.fd = self.call(self._enter)
        self.path = f"/proc/{os.getpid()}/fd/{self.fd}"

    @staticmethod
    def _enter() -> int:
        if _libc.unshare(CLONE_NEWNET):
            raise PermissionError(ctypes.get_errno(), "unshare: root is needed")
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function in the namespace. Returns: its result."""
        return self._thread.submit(function, *args).result()

    def sh(self, command: str) -> None:
        """Run a command line in the namespace. Raises: CalledProcessError."""
        self.call(lambda: subprocess.run(["/bin/sh", "-ec", command], check=True))

    def close(self) -> None:
        """End the thread and release the namespace."""
        self._thread.shutdown()
        os.close(self.fd)


class Node:
    """A node with a primary and a secondary ENI, both connected to a router. Its sandboxes are on the secondary ENI."""

    def __init__(self, stack: ExitStack, router: Space, *, number: int, has_prefixes: bool) -> None:
        self._stack = stack
        self._has_prefixes = has_prefixes
        self.space = self._space()
        self._net = IPv4Network((f"10.{number}.0.0", 16))
        self._subnet = IPv4Network((f"10.{number}.16.0", 20))
        macs = [MacAddress(f"02:00:00:00:{number:02x}:{index:02x}") for index in (1, 2)]
        for name, mac in zip(("eth0", "eth1"), macs, strict=True):
            router.sh(f"ip link add r{name}{number} type veth peer name x{number}; ip link set r{name}{number} up")
            router.sh(f"ip link set x{number} address {mac} name {name} netns {self.space.path}")
        gateway, main = self._subnet.network_address + 1, self._net.network_address + 1
        router.sh(
            f"sysctl -qw net.ipv4.ip_forward=1; ip addr add {main}/24 dev reth0{number};"
            f"ip addr add {gateway}/20 dev reth1{number};"
            f"ip neigh replace {main + 9} lladdr {macs[0]} dev reth0{number}"
        )
        self._router, self._link, self._mac = router, f"reth1{number}", macs[1]
        self.space.sh(f"ip addr add {main + 9}/24 dev eth0; ip link set eth0 up; ip route add default via {main}")
        self._host = self.space.call(HostNetns)
        stack.callback(self._host.close)
        config = NetworkConfig()
        self._hostnet = hostnet = KernelHostNetwork(self._host, config=config, nft=Nftables(self._host), link_wait_s=2.0)
        self._wiring = KernelWiring(self._host, veth_prefix="eni")
        identity = InstanceIdentity(
            InstanceId("i-1"), "m5.large", "eu-x-1", "eu-x-1a", "vpc-1", (IPv4Network("10.0.0.0/8"),), macs[0], EniId("eni-1"),
            main + 9, SubnetId("subnet-1"), IPv4Network((main, 24), strict=False), ("sg-1",),
        )  # fmt: skip
        subnet = SubnetId("subnet-2")
        eni = Eni(EniId("eni-2"), macs[1], 1, 0, subnet, self._subnet, self._subnet.network_address + 4, is_primary=False)
        hostnet.setup_node(identity)
        hostnet.choose_source_tree(not has_prefixes)
        hostnet.setup_eni(eni)
        hostnet.confine_sandboxes()
        self._count = 0
        # As many as the largest node needs, so that a sandbox has the same address on a node of any size.
        self._offsets = random.Random(number).sample(range(16, self._subnet.num_addresses - 1), 2 * max(SIZES))
        self._others = self._space()

    def fill(self, count: int) -> None:
        """Wire further sandboxes, which are not measured, as interfaces of one namespace."""
        for _ in range(count):
            self._wire(self._others, f"eth{self._count}")
        self._hostnet.confine_sandboxes()  # as each pass does; it also turns off IPv6, which would have routes for each link

    def sandbox(self) -> tuple[Space, IpAddress]:
        """Wire a sandbox with a namespace of its own. Returns: the namespace, and the sandbox's address."""
        space = self._space()
        return space, self._wire(space, "eth0").address

    def _wire(self, space: Space, ifname: str) -> WiringSpec:
        spec = self._spec(space, ifname)
        if ifname != "eth0":  # a namespace can have only one default route, so that of the interface before is removed
            space.call(_forget_routes)
        self._wiring.wire(spec)
        if ifname == "eth0":
            self._router.sh(f"ip neigh replace {spec.address} lladdr {self._mac} dev {self._link}")
        self._count += 1
        return spec

    def _spec(self, space: Space, ifname: str) -> WiringSpec:
        key = parse_key(f"{self._count:064x}", ifname)
        offset = 16 + self._count if self._has_prefixes else self._offsets[self._count]
        address = self._subnet.network_address + offset
        spec = WiringSpec(key, address, 2, veth_name(key, prefix="eni"), space.path, 9001)
        if self._has_prefixes:
            return replace(spec, prefix=IPv4Network((address, IPV4.prefix_length), strict=False))
        return replace(spec, subnet=self._subnet)

    def _space(self) -> Space:
        space = Space()
        self._stack.callback(space.close)
        return space


def _forget_routes() -> None:
    gateway = messages.delete_route(IPV4.gateway, length=32, table=uapi.RT_TABLE_MAIN, index=0, step="forget the gateway")
    default = messages.delete_route(None, length=0, table=uapi.RT_TABLE_MAIN, index=0, step="forget the default route")
    with closing(NetlinkSocket()) as sock:
        sock.request([default, gateway])


class Pair:
    """Two sandboxes: packets and connections go from the first to the second."""

    def __init__(self, stack: ExitStack, sender: Space, receiver: Space, address: IpAddress) -> None:
        self._sender, self._target = sender, (str(address), PORT)
        ear = stack.enter_context(closing(receiver.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM)))
        ear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        ear.bind(("0.0.0.0", PORT))  # all addresses of the sandbox's namespace only
        self._mouth = stack.enter_context(closing(sender.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM)))
        self._mouth.connect(self._target)
        listener = receiver.call(socket.create_server, ("0.0.0.0", PORT))
        stack.callback(_serve(listener))

    def packet_us(self) -> float:
        """Send a round of packets. Returns: microseconds of each, on average."""
        send, content = self._mouth.send, b"x" * 64
        send(content)
        started = time.perf_counter()
        for _ in range(PACKETS):
            send(content)
        return (time.perf_counter() - started) / PACKETS * 1e6

    def connections_per_s(self) -> float:
        """Make a round of connections, one after the other. Returns: connections a second."""
        socks = [self._sender.call(socket.socket) for _ in range(CONNECTIONS)]
        try:
            started = time.perf_counter()
            for sock in socks:
                sock.connect(self._target)
            return CONNECTIONS / (time.perf_counter() - started)
        finally:
            for sock in socks:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                sock.close()


def _serve(listener: socket.socket) -> Callable[[], None]:
    """Accept connections in a new process. Returns: a function that ends it."""
    pid = os.fork()
    if pid == 0:
        try:
            while True:
                accepted, _ = listener.accept()
                accepted.close()
        finally:
            os._exit(0)
    listener.close()

    def end() -> None:
        os.kill(pid, 9)
        os.waitpid(pid, 0)

    return end


def _bare(stack: ExitStack) -> Pair:
    """Make the reference on one node: two namespaces, and a host with a veth and a route to each, as the ptp plugin makes them."""
    host = _router(stack)
    spaces = [_bare_sandbox(stack, host, number) for number in (2, 3)]
    return Pair(stack, spaces[0], spaces[1], IPv4Address("10.9.9.3"))


def _bare_across(stack: ExitStack) -> Pair:
    """Make the reference on two nodes, with a router between them."""
    router = _router(stack)
    spaces = []
    for number, far in ((2, 3), (3, 2)):
        host = _router(stack)
        router.sh(f"ip link add r{number} type veth peer name x{number}; ip link set x{number} name eth1 netns {host.path}")
        router.sh(f"ip link set r{number} up; ip addr add 10.9.{number}.1/24 dev r{number}")
        host.sh(f"ip addr add 10.9.{number}.2/24 dev eth1; ip link set eth1 up; ip route add 10.9.9.{far} via 10.9.{number}.1")
        router.sh(f"ip route add 10.9.9.{number} via 10.9.{number}.2")
        spaces.append(_bare_sandbox(stack, host, number))
    return Pair(stack, spaces[0], spaces[1], IPv4Address("10.9.9.3"))


def _router(stack: ExitStack) -> Space:
    """Make a namespace that forwards packets, with strict rp_filter."""
    space = Space()
    stack.callback(space.close)
    space.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=1")
    return space


def _bare_sandbox(stack: ExitStack, host: Space, number: int) -> Space:
    """Make a namespace with the address 10.9.9.<number>, a veth to `host`, and routes in both directions."""
    space = Space()
    stack.callback(space.close)
    host.sh(f"ip link add v{number} type veth peer name p{number}; ip link set p{number} name eth0 netns {space.path}")
    host.sh(f"ip link set v{number} up; ip addr add 10.9.9.1/32 dev v{number}; ip route add 10.9.9.{number} dev v{number}")
    space.sh(
        f"ip link set eth0 up; ip addr add 10.9.9.{number}/32 dev eth0; ip route add 10.9.9.1 dev eth0;"
        "ip route add default via 10.9.9.1"
    )
    return space


@contextmanager
def pairs(*, has_prefixes: bool) -> Iterator[dict[str, Pair]]:
    """Make the pairs: the two references, and for each number of sandboxes a pair on one node and a pair across two nodes.

    `has_prefixes`: whether addresses are from prefixes; otherwise they are single addresses. Yields: name -> pair.
    """
    with ExitStack() as stack:
        made_pairs = {"ptp": _bare(stack), "ptp across": _bare_across(stack)}
        for index, size in enumerate(SIZES):
            router = Space()
            stack.callback(router.close)
            nodes = [Node(stack, router, number=2 * index + offset + 1, has_prefixes=has_prefixes) for offset in (0, 1)]
            for node in nodes:
                node.fill(size // 2 - 1)
            first, second, far = nodes[0].sandbox(), nodes[0].sandbox(), nodes[1].sandbox()
            for node in nodes:
                node.fill(size // 2 - 1)
            made_pairs[f"same node, {size}"] = Pair(stack, first[0], second[0], second[1])
            made_pairs[f"across nodes, {size}"] = Pair(stack, first[0], far[0], far[1])
        yield made_pairs


def measure() -> list[Figure]:
    """Measure all figures. Raises: PermissionError without root."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        prefixes, singles = medians(has_prefixes=True), medians(has_prefixes=False)
    finally:
        os.sched_setaffinity(0, before)
    least, most = SIZES[0], SIZES[-1]
    figures = [
        Figure(
            f"packet_same_node_{size}", prefixes[f"same node, {size}"][0], "us", prefixes["ptp"][0], "a bare veth with a route"
        )
        for size in SIZES
    ]
    for name, which in (("packet_across", prefixes), ("packet_across_singles", singles)):
        few, many = (which[f"across nodes, {size}"][0] for size in (least, most))
        figures.append(Figure(f"{name}_{most}", many, "us", which["ptp across"][0], "bare veths with routes, and a router"))
        figures.append(Figure(f"{name}_{most}_to_{least}", many / few, "x", note=f"{few:.1f} and {many:.1f} us"))
    few, many = (prefixes[f"same node, {size}"][1] for size in (least, most))
    figures.append(Figure(f"connect_{most}_to_{least}", few / many, "x", note=f"{few:.0f} and {many:.0f} connections a second"))
    return figures


def medians(*, has_prefixes: bool) -> dict[str, tuple[float, float]]:
    """Measure all pairs. Returns: name of a pair -> median microseconds of a packet, and median connections a second."""
    with pairs(has_prefixes=has_prefixes) as by_name:
        packets: dict[str, list[float]] = {name: [] for name in by_name}
        connections: dict[str, list[float]] = {name: [] for name in by_name}
        for _ in range(ROUNDS):
            for name, pair in by_name.items():
                packets[name].append(pair.packet_us())
                connections[name].append(pair.connections_per_s())
        return {name: (statistics.median(packets[name]), statistics.median(connections[name])) for name in by_name}
