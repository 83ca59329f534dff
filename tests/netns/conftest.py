"""A private "host" namespace and sandboxes, so that nothing here ever touches the machine's own network.

Each namespace has a thread of its own that made it; the adapters are built in the host's thread and then used from any thread.
What the kernel holds is looked at with `ip` and `nft`, so that our own parsing does not check itself.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Network, ip_address

import pytest

from ipamd.kernel import ruleset
from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.kernel.wiring import KernelWiring
from ipamd.model.attachment import WiringSpec, veth_name
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni
from ipamd.model.family import IPV4, IPV6
from ipamd.model.ids import AttachmentKey, EniId, InstanceId, MacAddress, SubnetId, parse_key
from ipamd.ports.kernel import VlanLinks
from ipamd.settings import NetworkConfig
from lab.fabric.netns import raise_loopback
from lab.node.vlan_standin import VlanStandIn

CLONE_NEWNET = 0x40000000
libc = ctypes.CDLL(None, use_errno=True)
ROOT_NETNS = os.stat("/proc/self/ns/net").st_ino

PRIMARY_MAC = MacAddress("02:00:00:00:00:01")
SECONDARY_MAC = MacAddress("02:00:00:00:00:02")

EACH_FAMILY = pytest.mark.parametrize("family", [IPV4, IPV6], ids=["ipv4", "ipv6"])
"""Marks what is promised in both families: the world of the test is then of one and of the other."""

EACH_FAMILY_HEAVY_IPV6 = pytest.mark.parametrize(
    "family", [IPV4, pytest.param(IPV6, marks=pytest.mark.heavy)], ids=["ipv4", "ipv6"]
)
"""The same where one code serves both: IPv6 in `make test-all`. What differs has files of its own (`test_ipv6_node.py`)."""

FIRST = {IPV4: ip_address("10.0.0.0"), IPV6: ip_address("2001:db8:0:1:abcd::")}
"""The address before those of sandboxes: of the subnet, and of the node's /80."""

ROUTER, SUBNET6, VPC6 = "fe80:ec2::1", ip_address("2001:db8:0:1::"), "2001:db8:77::7"
NODE6 = SUBNET6 + 0x10

IN_IPV6 = {
    r"\bip (route|rule|neigh)\b": r"ip -6 \1",
    r"\b(table|add table|chain|delete table) ip\b": r"\1 ip6",
    r"\bip (daddr|saddr)\b": r"ip6 \1",
    r"169\.254\.1\.1\b": "fe80::1",
    r"192\.0\.0\.0/": "2000::/",
    r"192\.0\.2\.9": "2001:db8:0:9::9",
    r"203\.0\.113\.9": "2001:db8:113::9",
    r"0\.0\.0\.0/1": "::/1",
    r"128\.0\.0\.0/1": "8000::/1",
    r"/32\b": "/128",
}
"""What commands of IPv4 are in IPv6."""

LATE_ROUTES = re.compile(r"ff00::/8|^(local|anycast) fe80:")
"""Lines of IPv6 routes that come with a carrier, or when nobody else turned out to have a link-local address."""


class Space:
    """One fresh network namespace and the thread that lives in it; `dash`: what tells `ip` the family."""

    def __init__(self, dash="-4"):
        self.dash = dash
        self._thread = ThreadPoolExecutor(max_workers=1)
        self.fd = self.call(self._enter)

    @staticmethod
    def _enter():
        assert libc.unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        assert os.fstat(fd).st_ino != ROOT_NETNS
        raise_loopback()
        return fd

    @property
    def path(self):
        """A path to the namespace while it is held."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    def call(self, function, *args, **named):
        """Run a function inside."""
        return self._thread.submit(function, *args, **named).result(timeout=300)

    def submit(self, function, *args):
        """Start a function inside."""
        return self._thread.submit(function, *args)

    def sh(self, command):
        """Run a command line inside; its output."""
        done = self.call(
            lambda: subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=240, check=False)
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def ip(self, command):
        """Run `ip -j -d` inside, of the family unless the command names another; the parsed answer."""
        own = self.dash if command.split()[0] in ("route", "rule", "neigh") else ""
        return json.loads(self.sh(f"ip -j -d {own} {command}") or "[]")

    def link_names(self):
        """Names of all links but the loopback."""
        return {one["ifname"] for one in self.ip("link") if one["ifname"] != "lo"}

    def snapshot(self):
        """Everything of the family that a wiring could leave behind, but for what the kernel tells late: carrier (linkwatch) and the
        multicast route that comes with it, and that nobody else has a link-local address, which is when it gets its local routes.
        """
        asked = ("-o addr", "route show table all", "rule", "neigh show nud permanent")
        found = {what: self.sh(f"ip {self.dash} {what}").replace(" linkdown", "").replace(" tentative", "") for what in asked}
        if self.dash == "-6":  # in the order in which they were made, if they were made again
            lines = {
                what: [one for one in text.splitlines(keepends=True) if not LATE_ROUTES.search(one)]
                for what, text in found.items()
            }
            found = {what: "".join(sorted(each)) for what, each in lines.items()}
        found["link"] = [
            (one["ifname"], one["address"], one["mtu"], one["group"], one.get("ifalias"), "UP" in one["flags"])
            for one in self.ip("link")
        ]
        return found

    def close(self):
        """Let the namespace go."""
        self._thread.shutdown(wait=True)
        os.close(self.fd)


class StandInsOf(VlanLinks):
    """The lab's VLAN links, in a host's namespace whoever calls."""

    kind = VlanStandIn.kind

    def __init__(self, space):
        self._space = space

    def make(self, name, *, vlan, parent, mac):
        """See the port."""
        return self._space.call(lambda: VlanStandIn().make(name, vlan=vlan, parent=parent, mac=mac))

    def place(self, name, *, peer):
        """See the port."""
        return self._space.call(lambda: VlanStandIn().place(name, peer=peer))


class World:
    """A host with the adapters under test, and as many sandboxes as a test asks for."""

    def __init__(self, family=IPV4, **config):
        self.family, self.dash = family, "-4" if family is IPV4 else "-6"
        config |= {} if family is IPV4 else {"ipv4": False, "ipv6": True}
        self.spaces = []
        self.host = self.space()
        self.netns = self.host.call(HostNetns)
        # The node's, in place before a sandbox is wired.
        self.host.sh("ip rule add prio 513 lookup 113213; ip -6 rule add prio 513 lookup 113213")
        self.config = NetworkConfig(**config)
        self.vlan_links = StandInsOf(self.host)
        self.wiring = self.new_wiring()
        self.nft = Nftables(self.netns)
        self.prefixes = dict  # a test that has a pool says which, with the ENI of each
        self.hostnet = KernelHostNetwork(
            self.netns, config=self.config, nft=self.nft, link_wait_s=2.0, prefixes=lambda: self.prefixes(),
            vlan_links=self.vlan_links,
        )  # fmt: skip
        self.vpc_cidrs = (IPv4Network("10.0.0.0/16"),)

    def new_wiring(self, failpoint=None):
        """Another adapter on the same host."""
        is_strict = not self.config.extra_sources
        families = (self.family, *ruleset.families(self.config, ())[1:])
        return KernelWiring(self.netns, veth_prefix="eni", families=lambda: families, failpoint=failpoint, is_strict=is_strict)

    def words(self, text):
        """A command or a sentence that is written for IPv4, in the world's family."""
        if self.family is IPV4:
            return text
        for four, six in IN_IPV6.items():
            text = re.sub(four, six, text)
        return text

    def address(self, number):
        """One for sandboxes."""
        return FIRST[self.family] + number

    def space(self):
        """Make a namespace that goes with the world."""
        space = Space(self.dash)
        self.spaces.append(space)
        return space

    def spec(self, sandbox, *, number=5, table=254, ifname="eth0", container="", mtu=9001):
        """What to wire for a sandbox, by the number of its address: 10.0.0.<number> of IPv4."""
        key = self.key(container or f"sandbox{number}", ifname)
        address = self.address(number)
        path = sandbox if isinstance(sandbox, str) else sandbox.path
        return WiringSpec(key, address, table, veth_name(key, prefix="eni"), path, mtu)

    @staticmethod
    def key(container, ifname="eth0") -> AttachmentKey:
        """A key."""
        return parse_key(container, ifname)

    def mark_for_deletion(self, spec):
        """DEL of a spec."""
        self.wiring.mark_for_deletion(spec)

    def fabric(self):
        """Give the host a primary and a secondary ENI (eth0, eth1), cabled to a VPC router; returns the router's space.

        Strict reverse path there: a packet whose source address came in by the wrong ENI is lost, as in a VPC. Of IPv6 the router
        is link-local and sends what is for the /80 to the primary ENI.
        """
        vpc = self.space()
        vpc.sh("ip link add p0 type veth peer name q0; ip link add p1 type veth peer name q1")
        vpc.sh(
            f"ip link set q0 address {PRIMARY_MAC} name eth0 netns /proc/{os.getpid()}/fd/{self.host.fd} &&"
            f"ip link set q1 address {SECONDARY_MAC} name eth1 netns /proc/{os.getpid()}/fd/{self.host.fd}"
        )
        vpc.sh(
            "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.p0.rp_filter=1"
            " net.ipv4.conf.p1.rp_filter=1;"
            "ip addr add 10.0.0.1/32 dev p0; ip addr add 10.0.1.1/24 dev p1; ip link set p0 up; ip link set p1 up;"
            "ip addr add 203.0.113.9/32 dev lo; ip route add 10.0.0.10/32 dev p0; ip addr add 10.0.77.7/32 dev lo"
        )
        self.host.sh("ip addr add 10.0.0.10/24 dev eth0; ip link set eth0 up; ip route add default via 10.0.0.1")
        if self.family is IPV6:
            vpc.sh(
                f"sysctl -qw net.ipv6.conf.all.forwarding=1; ip -6 addr add {ROUTER} dev p0 nodad; ip addr add {VPC6}/128 dev lo;"
                f"ip -6 addr add {SUBNET6 + 1}/64 dev p0 nodad; ip -6 route add {FIRST[IPV6]}/80 via {NODE6} dev p0"
            )
            self.host.sh(f"ip -6 addr add {NODE6}/64 dev eth0 nodad; ip -6 route add default via {ROUTER} dev eth0")
        return vpc

    def identity(self):
        """The node's identity."""
        return InstanceIdentity(
            InstanceId("i-1"), "m5.large", "eu-x-1", "eu-x-1a", "vpc-1", self.vpc_cidrs, PRIMARY_MAC, EniId("eni-1"),
            IPv4Address("10.0.0.10"), SubnetId("subnet-1"), IPv4Network("10.0.0.0/24"), ("sg-1",),
        )  # fmt: skip

    @staticmethod
    def eni(*, device_index=1, mac=SECONDARY_MAC):
        """The secondary ENI."""
        return Eni(
            EniId("eni-2"), mac, device_index, 0, SubnetId("subnet-2"), IPv4Network("10.0.1.0/24"),
            IPv4Address("10.0.1.10"), is_primary=device_index == 0,
        )  # fmt: skip

    def close(self):
        """Let everything go."""
        self.netns.close()
        for space in self.spaces:
            space.close()


@pytest.fixture
def family():
    """That of the world."""
    return IPV4


@pytest.fixture
def world(family):
    """A host of its own for the test."""
    world = World(family)
    yield world
    world.close()


@pytest.fixture
def make_world(family):
    """Hosts with settings of the test's choice."""
    worlds = []

    def make(**config):
        worlds.append(World(family, **config))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()
