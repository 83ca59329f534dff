"""A host with a primary and a trunk ENI, a VPC behind both, and sandboxes with branch ENIs; VLAN links are the lab's stand-in."""

from __future__ import annotations

import os

from ipamd.kernel.wiring import KernelWiring
from ipamd.model.attachment import WiringSpec, veth_name
from ipamd.model.family import IPV4
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.kernel_numbers import STRICT_VETH_PREFIX
from ipamd.model.legs.branch_eni import Branch
from lab.fabric import vlan as stand_in
from tests.netns.conftest import ROUTER, World

TRUNK_MAC = MacAddress("02:00:00:00:00:03")


class Node:
    """A world whose VPC has branch ENIs too; `wiring` is its adapter."""

    def __init__(self, world: World):
        self.world, self.host, self.vpc = world, world.host, world.fabric()
        self.add_trunk("p2")
        self.links = self.world.vlan_links
        self.wiring = self.new_wiring()
        self.setup()

    def new_wiring(self, failpoint=None):
        """Another adapter on the same host."""
        families = (self.world.family,)
        return KernelWiring(
            self.world.netns, veth_prefix="eni", families=lambda: families, failpoint=failpoint, vlan_links=self.links,
            state_reader=self.world.hostnet.state_reader,
        )  # fmt: skip

    def add_trunk(self, port):
        """Its link; `port`: of the VPC."""
        self.vpc.sh(
            f"ip link add {port} type veth peer name q2; ip link set {port} up;"
            f"ip link set q2 address {TRUNK_MAC} name eth2 netns /proc/{os.getpid()}/fd/{self.host.fd}"
        )
        self.host.sh("ip link set eth2 addrgenmode none")

    def setup(self):
        """What the daemon does before the first sandbox."""
        self.world.hostnet.setup_node(self.world.identity())
        self.world.hostnet.confine_sandboxes()

    def spec(self, sandbox, *, vlan=5, number=200, is_strict=True, container="") -> WiringSpec:
        """What to wire; the VPC knows the branch ENI from now on."""
        family = self.world.family
        gateway = family.address("10.0.2.1" if family is IPV4 else ROUTER)
        address = family.address("10.0.2.0" if family is IPV4 else "2001:db8:0:2::") + number
        mac = MacAddress(f"02:00:00:00:05:{vlan:02x}")
        branch = Branch(vlan, mac, gateway, is_strict)
        key = self.world.key(container or f"branch{number}")
        return WiringSpec(
            key, address, branch.route_table, veth_name(key, prefix=STRICT_VETH_PREFIX if is_strict else "eni"), sandbox.path, 1500,
            uplink=branch, eni_id=EniId(f"eni-0{vlan:04x}"), trunk_mac=TRUNK_MAC,
        )  # fmt: skip

    def know(self, spec):
        """The VPC's side of a branch ENI: it knows its MAC and asks nobody."""
        name, ip, branch = f"b{spec.uplink.vlan}", f"ip {self.world.dash}", spec.uplink
        self.vpc.call(stand_in.make, "p2", name, branch.vlan)
        nodad, length = ("", 32) if self.world.family is IPV4 else ("nodad", 128)
        self.vpc.sh(
            f"sysctl -qw net.ipv4.conf.{name}.rp_filter=2;"  # the node asks for the router in the name of its primary address
            f"ip link set {name} up; {ip} addr add {branch.gateway}/{length} dev {name} {nodad};"
            f"{ip} route add {spec.address} dev {name}; {ip} neigh add {spec.address} dev {name} lladdr {branch.mac} nud permanent"
        )

    def add(self, *, vlan=5, number=200, is_strict=True):
        """A sandbox with a branch ENI, wired: its namespace and its spec."""
        pod = self.world.space()
        spec = self.spec(pod, vlan=vlan, number=number, is_strict=is_strict)
        self.know(spec)
        self.wiring.wire(spec)
        self.world.hostnet.confine_sandboxes()  # as the pass after a link's event does
        return pod, spec

    def mark(self, spec):
        """DEL."""
        return self.wiring.mark_for_deletion(spec, owner=spec.key)
