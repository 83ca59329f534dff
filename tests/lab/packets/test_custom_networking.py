"""Pods on ENIs of other subnets, in a second CIDR block of the VPC: their packets arrive everywhere, by the right gateway and address.

Node-a has custom networking with subnet and group of a file; node-b finds a subnet by its tag, after the first one it chose was full.
Of either family: a node whose own subnet is excluded.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network

import pytest

from lab.fabric import talk
from lab.lab import IPV6_CIDR, Lab
from lab.node.kernel_view import read_kernel
from lab.vpc.family import IPV4, Family
from lab.vpc.limits import InstanceLimits
from lab.vpc.model import ReservationKind
from lab.vpc.state import Vpc
from tests.families import EACH_FAMILY
from tests.lab.packets.ground import OUTSIDE
from tests.rig import Rig, wait_until

pytestmark = pytest.mark.privileged

PODS = IPv4Network("100.64.0.0/24")
LARGE, FULL = "10.0.48.0/21", "10.0.64.0/20"
NODES = ("node-a", "node-b")
PLACES = ("pod-a", "pod-b", "node-a", "node-b", "host-a", "outside")
NETWORK_FILE = "/run/vpc-ipamd/network.json"


@dataclass
class Place:
    """Where questions start and end."""

    path: str
    address: IPv4Address


@dataclass
class Ground:
    """The lab with one pod on each node."""

    lab: Lab
    rigs: dict[str, Rig]
    group: str
    places: dict[str, Place] = field(default_factory=dict)

    def eni_of(self, pod: str) -> str:
        """The ENI that a pod's address is on."""
        return self.rigs[f"node-{pod[-1]}"].ec2_addresses()[self.places[pod].address]


@pytest.fixture(scope="module")
def made() -> Iterator[Ground]:
    """Both nodes with their daemons and a pod each."""
    vpc = Vpc(cidr="10.0.0.0/16,100.64.0.0/16", limits={"m5.large": InstanceLimits((3,), 4), "t3.nano": InstanceLimits((2,), 2)})
    with Lab(nodes=NODES, hosts=["host-a"], containerd=False, vpc=vpc) as lab, talk.Servers() as servers:
        lab.add_internet()
        pods = vpc.add_subnet(str(PODS))
        vpc.add_subnet(LARGE, tags={"kubernetes.io/role/cni": "1"})
        full = vpc.add_subnet(FULL, tags={"kubernetes.io/role/cni": "1"})
        ground = Ground(lab, {}, vpc.add_security_group("pods"))
        zones = {"us-west-2a": {"subnet": pods.subnet_id, "securityGroups": [ground.group]}}
        node = lab.node("node-a")
        node.write_file(NETWORK_FILE, json.dumps({"zones": zones}).encode())
        custom = {"AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG": "true", "VPC_IPAMD_NETWORK_FILE": NETWORK_FILE, "WARM_IP_TARGET": "1"}
        discovered = {"WARM_IP_TARGET": "4"}  # more than the primary ENI's three
        ground.rigs = {"node-a": Rig(lab, node, env=custom), "node-b": Rig(lab, lab.node("node-b"), env=discovered)}
        # What EC2 counts as free is reserved: it refuses where most seems to be.
        vpc.reserve_cidr(full.subnet_id, FULL, ReservationKind.EXPLICIT)
        for name, rig in ground.rigs.items():
            rig.start()
            _place(ground, servers, name, lab.node(name).netns_path(), lab.primary_address(name))
        _fill(ground, servers)
        _place(ground, servers, "host-a", lab.hosts["host-a"].path, lab.primary_address("host-a"))
        _place(ground, servers, "outside", lab.internet.outside.path, IPv4Address("198.51.100.10"))
        yield ground
        for rig in ground.rigs.values():
            rig.assert_sound()
        assert lab.fabric.problems == []


def _fill(ground: Ground, servers: talk.Servers) -> None:
    """Add one pod to node-a, and pods to node-b until one is on its second ENI; that one is pod-b."""
    for name, rig in ground.rigs.items():
        own = ground.lab.vpc.enis_of(rig.node.instance_id)[0].eni_id
        for number in range(6):
            reply = rig.add(label := f"{name}-{number}")
            if rig.ec2_addresses()[reply.address] != own:
                _place(ground, servers, f"pod-{name[-1]}", rig.node.netns_path(f"/run/netns/{label}"), reply.address)
                break
        else:
            raise AssertionError(f"no pod of {name} is on a secondary ENI")


def _place(ground: Ground, servers: talk.Servers, name: str, path: str, address: IPv4Address) -> None:
    ground.places[name] = Place(path, address)
    servers.add(name, path, address=address)


def test_pods_are_where_they_should_be(made: Ground) -> None:
    """By the file: its subnet and group, nobody on the primary ENI. By tag: spilled over to the subnet that EC2 did not refuse."""
    vpc = made.lab.vpc
    by_file, by_tag = vpc.eni(made.eni_of("pod-a")), vpc.eni(made.eni_of("pod-b"))
    assert by_file.subnet_cidr == PODS
    assert list(by_file.security_groups) == [made.group]
    assert vpc.enis_of(made.rigs["node-a"].node.instance_id)[0].secondary_addresses == ()
    assert by_tag.subnet_cidr == IPv4Network(LARGE)
    creations = [
        call for call in vpc.calls(instance=made.rigs["node-b"].node.instance_id) if call.api == "CreateNetworkInterface"
    ]
    assert [call.outcome for call in creations][:2] == ["InsufficientFreeAddressesInSubnet", "OK"]


@pytest.mark.parametrize("client", PLACES[:-1])
def test_within_the_vpc_nobody_translates(made: Ground, client: str) -> None:
    """Pods of other subnets and of the second block reach nodes, hosts and each other as themselves, in both directions."""
    servers = [server for server in PLACES[:-1] if server != client]
    heard = [talk.ask(made.places[client].path, made.places[server].address) for server in servers]
    assert [(one.by, one.seen_as) if one else None for one in heard] == [(name, made.places[client].address) for name in servers]


@pytest.mark.parametrize("pod", ["pod-a", "pod-b"])
@pytest.mark.parametrize("tcp", [True, False])
def test_outside_sees_the_node(made: Ground, pod: str, tcp: bool) -> None:
    """What leaves the VPC leaves by the primary ENI, with the node's address."""
    heard = talk.ask(made.places[pod].path, made.places["outside"].address, tcp=tcp)
    assert heard is not None
    assert (heard.by, heard.seen_as) == ("outside", made.lab.internet.associate(made.places[f"node-{pod[-1]}"].address))


@pytest.mark.parametrize("pod", ["pod-a", "pod-b"])
def test_the_gateway_is_of_the_enis_own_subnet(made: Ground, pod: str) -> None:
    """The ENI's table leads to the first address of its own subnet, and the pod's rule to this table; nothing was dropped for it."""
    rig, eni = made.rigs[f"node-{pod[-1]}"], made.lab.vpc.eni(made.eni_of(pod))
    assert eni.attachment is not None
    table = eni.attachment.device_index + 1
    routes = rig.node.netns.tool(["ip", "route", "show", "table", str(table)])
    assert f"default via {eni.subnet_cidr.network_address + 1} " in routes
    assert str(made.places[pod].address) in read_kernel(rig.node).from_rules
    assert made.lab.fabric.dropped(made.places[pod].address) == 0


@EACH_FAMILY
def test_pods_of_a_node_in_an_excluded_subnet_reach_everybody(family: Family) -> None:
    """They are on an ENI of their own, and what they send leaves by it: after the start, after a kill, and after somebody flushed the
    ENI's table."""
    with (
        Vpc(ipv6_cidr=IPV6_CIDR) as vpc,
        Lab(name=f"excluded-{time.monotonic_ns()}", nodes=["node-a"], hosts=["host-a"], containerd=False, vpc=vpc) as lab,
        talk.Servers() as servers,
    ):
        lab.add_internet()
        node = lab.node("node-a")
        own = vpc.enis_of(node.instance_id)[0]
        vpc.retag(own.subnet_id, lambda tags: {**tags, "kubernetes.io/role/cni": "0"})
        vpc.add_subnet(LARGE, tags={"kubernetes.io/role/cni": "1"}, ipv6_cidr=IPV6_CIDR.replace("00::/56", "0f::/64"))
        rig = Rig(lab, node, env={"WARM_IP_TARGET": "2", **family.settings})
        rig.start()
        pods = {name: rig.add(name).any_address for name in ("pod-a", "pod-b")}
        assert {rig.eni_of(address) for address in pods.values()} & {own.eni_id, None} == set()
        path, host = node.netns_path("/run/netns/pod-a"), lab.own_address("host-a", family)
        servers.add("pod-b", node.netns_path("/run/netns/pod-b"), address=pods["pod-b"])
        servers.add("host-a", lab.hosts["host-a"].path, address=host)
        servers.add("outside", lab.internet.outside.path, address=OUTSIDE[family])
        public = lab.internet.associate(lab.primary_address("node-a")) if family is IPV4 else pods["pod-a"]
        expected = {
            pods["pod-b"]: ("pod-b", pods["pod-a"]),
            host: ("host-a", pods["pod-a"]),
            OUTSIDE[family]: ("outside", public),
        }

        def heard() -> dict[object, tuple[str, object] | None]:
            found = {to: talk.ask(path, to) for to in expected}
            return {to: one and (one.by, one.seen_as) for to, one in found.items()}

        assert heard() == expected
        rig.restart()
        assert heard() == expected
        node.netns.tool(["ip", family.option, "route", "flush", "table", "2"])
        wait_until(lambda: heard() == expected, what="the routes of the ENI's table are put back")
        assert lab.fabric.dropped(host) == 0
        assert not any("frozen" in one["subject"] or "routing" in one["subject"] for one in (rig.status() or {})["conditions"])
        rig.assert_sound()
        assert lab.fabric.problems == []
