"""Beyond the VPC: who is carried and as whom, how large, and which targets a load balancer finds."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from lab.fabric.internet import AMAZON, NAT_GATEWAY
from lab.fabric.port import MTU
from lab.fabric.talk import REFUSED, Heard, Servers, ask, path_mtu
from lab.lab import Lab
from lab.node.node import IMDS_ADDRESS, IMDS_PORT
from tests.lab.fabric.conftest import assign, attach, primary, speak_as

pytestmark = pytest.mark.privileged
SILENT_S = 0.3


@pytest.fixture(scope="module")
def world() -> Iterator[Lab]:
    """Two nodes and the outside; the second node has an address on an ENI in another subnet."""
    with Lab(name=f"world-{time.monotonic_ns()}", nodes=["node-a", "node-b"], containerd=False) as lab:
        lab.add_internet()
        yield lab
        assert lab.fabric.problems == []


@pytest.fixture
def servers(world: Lab) -> Iterator[Servers]:
    """A server on each node's primary address, and one outside."""
    with Servers() as made:
        for name in ("node-a", "node-b"):
            made.add(name, world.node(name).netns_path(), address=world.primary_address(name))
        made.add("outside", world.internet.outside.path)
        yield made


OUTSIDE = "198.51.100.10"


def test_a_public_address_is_one_to_one(world: Lab, servers: Servers) -> None:
    """A node is seen outside as its public address, is reached by it, and keeps its ports."""
    public = world.internet.associate(world.primary_address("node-a"))
    assert public in AMAZON
    assert ask(world.node("node-a").netns_path(), OUTSIDE, source_port=5000) == Heard("outside", public, 5000)
    heard = ask(world.internet.outside.path, public, source_port=5001)
    assert heard is not None
    assert (heard.by, str(heard.seen_as), heard.seen_port) == ("node-a", OUTSIDE, 5001)
    assert ask(world.internet.outside.path, NAT_GATEWAY, timeout_s=SILENT_S) is None


def test_without_a_public_address_the_nat_gateway_speaks(world: Lab, servers: Servers) -> None:
    """A secondary address goes out as the NAT gateway; one that is not on the ENI goes nowhere."""
    node = world.node("node-b")
    (address,) = assign(world, primary(world, "node-b"))
    speak_as(node, address)
    node.netns.ip([f"route replace {OUTSIDE} via {primary(world, 'node-b').subnet_cidr.network_address + 1} src {address}"])
    heard = ask(node.netns_path(), OUTSIDE)
    assert heard is not None
    assert heard.seen_as == NAT_GATEWAY
    world.vpc.interfaces.unassign(primary(world, "node-b").eni_id, addresses=(address,), prefixes=())
    world.settle()
    assert ask(node.netns_path(), OUTSIDE, timeout_s=SILENT_S) is None
    assert world.fabric.dropped(address) > 0
    node.netns.ip([f"route del {OUTSIDE}"])


def test_a_private_node_has_its_own_type_and_no_public_address() -> None:
    """It speaks to the outside by the NAT gateway, and is in a subnet of its own."""
    private = {"node-p": "t3.medium"}
    with (
        Lab(name=f"private-{time.monotonic_ns()}", nodes=["node-a"], private=private, containerd=False) as lab,
        Servers() as made,
    ):
        made.add("outside", lab.add_internet().outside.path)
        heard = ask(lab.node("node-p").netns_path(), OUTSIDE)
        assert heard is not None
        assert heard.seen_as == NAT_GATEWAY
        instances = {name: lab.vpc.instance(name) for name in ("node-a", "node-p")}
    assert [instance.instance_type for instance in instances.values()] == ["m5.large", "t3.medium"]
    assert instances["node-a"].subnet_id != instances["node-p"].subnet_id


def test_without_a_nat_gateway_nothing_private_goes_out() -> None:
    """Only addresses with a public one are carried by an internet gateway."""
    with Lab(name=f"igw-{time.monotonic_ns()}", nodes=["node-a"], containerd=False) as lab, Servers() as servers:
        lab.add_internet(nat_gateway=False)
        servers.add("outside", lab.internet.outside.path)
        host = lab.add_host("later")
        assert ask(lab.node("node-a").netns_path(), OUTSIDE) is not None
        assert ask(host.path, OUTSIDE, timeout_s=SILENT_S) is None
        assert "counter packets 0 " not in lab.fabric.router.tool(["nft", "list", "chain", "ip", "internet", "untranslated"])


def test_1500_bytes_go_out_and_more_is_answered(world: Lab, servers: Servers) -> None:
    """The gateway answers a larger packet that must not be fragmented; within the VPC 9001 bytes pass and 9002 do not."""
    path = world.node("node-a").netns_path()
    assert path_mtu(path, OUTSIDE, size_bytes=MTU) == 1500
    assert ask(path, OUTSIDE, size_bytes=1500) is not None
    other = world.primary_address("node-b")
    assert path_mtu(path, other, size_bytes=MTU) == MTU
    assert ask(path, other, size_bytes=MTU) is not None
    assert ask(path, other, size_bytes=MTU + 1, timeout_s=SILENT_S) is None


def test_a_load_balancer_uses_healthy_targets_only(world: Lab, servers: Servers) -> None:
    """Health is asked from its own address; traffic has the client's, or its own; without targets nobody answers."""
    balancer = world.add_load_balancer("nlb")
    targets = [(world.primary_address(name), 7000) for name in ("node-a", "node-b")]
    assert balancer.listen(80, [*targets, (targets[0][0], 7009)]) == targets
    seen = [ask(world.internet.outside.path, balancer.public, port=80, tcp=True) for _ in range(8)]
    assert {heard.by for heard in seen if heard} == {"node-a", "node-b"}
    assert {str(heard.seen_as) for heard in seen if heard} == {OUTSIDE}
    balancer.listen(80, targets, keeps_client=False)
    heard = ask(world.internet.outside.path, balancer.public, port=80, tcp=True)
    assert heard is not None
    assert heard.seen_as == world.primary_address("nlb")
    assert balancer.listen(80, targets, health_port=7009) == []
    assert ask(world.internet.outside.path, balancer.public, port=80, tcp=True, timeout_s=SILENT_S) is None


def test_an_eni_in_another_subnet_has_its_own_router(world: Lab) -> None:
    """Its gateway is the first address of its subnet, and its addresses are carried."""
    subnet = world.vpc.add_subnet("10.0.16.0/22")
    eni = world.vpc.hands.attach(world.node("node-b").instance_id, subnet_id=subnet.subnet_id, address_count=1)
    world.settle()
    assert (eni.subnet_cidr, eni.subnet_id) == (subnet.cidr, subnet.subnet_id)
    node, address = world.node("node-b"), eni.secondary_addresses[0]
    speak_as(node, address)
    node.netns.ip(
        ["link set eth1 up", "route add default via 10.0.16.1 dev eth1 onlink table 9", f"rule add from {address} lookup 9"]
    )
    target = world.primary_address("node-a")
    assert world.ping(source="node-b", targets=[target], source_address=address)[target]


def test_metadata_is_the_nodes_own_and_of_no_sandbox(world: Lab) -> None:
    """Hop limit 1: processes on the node's network are served, a namespace behind it is refused; the address is not a global one."""
    node = world.node("node-b")
    assert ask(node.netns_path(), IMDS_ADDRESS, port=IMDS_PORT, tcp=True, timeout_s=SILENT_S) != REFUSED
    path = node.make_netns("behind")
    node.run(["ip", "link", "add", "behind", "type", "veth", "peer", "name", "eth0", "netns", path])
    node.netns.ip(["link set behind up", "addr add 10.99.0.1/24 dev behind"])
    for line in ("link set eth0 up", "addr add 10.99.0.2/24 dev eth0", "route add default via 10.99.0.1"):
        node.run(["ip", *line.split()], netns=path)
    assert ask(node.netns_path(path), IMDS_ADDRESS, port=IMDS_PORT, tcp=True) == REFUSED
    assert IMDS_ADDRESS not in node.netns.tool(["ip", "-4", "address", "show", "scope", "global"])
    node.remove_netns("behind")


def test_every_link_of_a_node_has_amazon_linux_sysctls(world: Lab) -> None:
    """Loose reverse path filtering on the links, none on all: of new links too."""
    node = world.node("node-a")
    attach(world, node, device_index=1)
    read = (
        "cd /proc/sys/net/ipv4/conf; cat all/rp_filter default/rp_filter eth0/rp_filter eth1/rp_filter eth1/accept_source_route"
    )
    assert node.netns.tool(["sh", "-c", read]).split() == ["0", "2", "2", "2", "0"]
