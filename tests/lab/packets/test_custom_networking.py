"""Pods on ENIs of other subnets, in a second CIDR block of the VPC: their packets arrive everywhere, by the right gateway and address.

Node-a has custom networking with subnet and group of a file; node-b finds a subnet by its tag, after the first one it chose was full.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network

import pytest

from lab.fabric import talk
from lab.lab import Lab
from lab.node.kernel_view import read_kernel
from lab.vpc.limits import InstanceLimits
from lab.vpc.space import Reservation
from lab.vpc.state import Vpc
from tests.rig import Rig

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
        vpc.reserve_cidr(full.subnet_id, FULL, Reservation.EXPLICIT)
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
