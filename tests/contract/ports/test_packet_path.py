"""What every `PacketPaths` promises: the fake of the report's tests, and the kernel in real namespaces, in both families."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from ipamd.kernel.packet_path import KernelPacketPaths
from ipamd.model.attachment import WiringSpec
from ipamd.model.errors import NetnsError, WiringError
from ipamd.model.family import IPV4, Family, IpAddress
from ipamd.model.packet_path import NewConnection, RouteAnswer, RoutedPacket, RouteResult, Translation
from ipamd.ports.packet_path import PacketPaths
from tests.fakes.packet_path import FakePacketPaths
from tests.netns.conftest import EACH_FAMILY, FIRST, NODE6, PRIMARY_MAC, World

pytestmark = [EACH_FAMILY, pytest.mark.privileged]

NOWHERE = "/run/netns/none"


@dataclass(frozen=True)
class Node:
    """One node with a wired sandbox and a primary ENI, whichever. `command` changes rules of the real one."""

    paths: PacketPaths
    world: World
    spec: WiringSpec
    command: Callable[[str], object]

    @property
    def own(self) -> IpAddress:
        """The node's address."""
        return self.world.identity().primary_address if self.world.family is IPV4 else NODE6


@pytest.fixture(params=["fake", "netlink"])
def node(request: pytest.FixtureRequest, family: Family) -> Iterator[Node]:
    """Both implementations, of the same node."""
    with wired(family) as kernel:
        yield replace(kernel, paths=fake(kernel.world, kernel.spec)) if request.param == "fake" else kernel


@pytest.fixture
def kernel(family: Family) -> Iterator[Node]:
    """The kernel's adapter alone."""
    with wired(family) as made:
        yield made


@contextmanager
def wired(family: Family) -> Iterator[Node]:
    """A node in namespaces, with its sandbox."""
    world = World(family)
    world.fabric()
    world.hostnet.confine_sandboxes()
    world.hostnet.setup_node(world.identity())
    spec = world.spec(world.space())
    world.wiring.wire(spec)
    yield Node(KernelPacketPaths(world.netns, world.hostnet), world, spec, world.host.sh)
    world.close()


def fake(world: World, spec: WiringSpec) -> FakePacketPaths:
    """The fake, told what such a node decides."""
    made = FakePacketPaths()
    made.config, made.links = world.config, {PRIMARY_MAC: "eth0"}
    own = world.identity().primary_address if world.family is IPV4 else NODE6

    def decide(packet: RoutedPacket) -> RouteAnswer:
        if packet.incoming == "gone":
            raise WiringError("link gone is missing")
        if packet.destination == own:
            return RouteAnswer(RouteResult.LOCAL, 0, "from all lookup 255", 255, "lo")
        if packet.destination == spec.address:
            return RouteAnswer(RouteResult.FORWARDED, 513, "from all lookup 113213", 113213, spec.host_veth)
        if packet.mark:
            return RouteAnswer(RouteResult.FORWARDED, 1024, "from all fwmark 0x80/0x80 lookup 254", 254, "eth0")
        return RouteAnswer(RouteResult.FORWARDED, 32766, "from all lookup 254", 254, "eth0")

    made.node = decide
    made.pod = lambda packet: RouteAnswer(RouteResult.FORWARDED, table=254, link="eth0", source=spec.address)
    return made


def decided(answer: RouteAnswer) -> tuple[RouteResult, int | None, int, str]:
    """What matters of an answer."""
    return answer.result, answer.rule, answer.table, answer.link


def test_each_decision_names_its_rule_and_table(node: Node) -> None:
    """To a sandbox, to the node, and out, with and without our mark, which IPv6 has no rule for."""
    spec, far = node.spec, node.world.family.outside
    into = RoutedPacket(spec.address, far, "eth0")
    assert decided(node.paths.on_node(into)) == (RouteResult.FORWARDED, 513, 113213, spec.host_veth)
    assert decided(node.paths.on_node(RoutedPacket(node.own)))[:3] == (RouteResult.LOCAL, 0, 255)
    out = RoutedPacket(far, spec.address, spec.host_veth)
    assert decided(node.paths.on_node(out)) == (RouteResult.FORWARDED, 32766, 254, "eth0")
    if node.world.family is IPV4:
        marked = RoutedPacket(far, spec.address, spec.host_veth, mark=0x80)
        assert decided(node.paths.on_node(marked)) == (RouteResult.FORWARDED, 1024, 254, "eth0")


def test_a_sandboxs_kernel_chooses_its_address(node: Node) -> None:
    """By its default route, whose link is named; rules of a sandbox are not listed."""
    answer = node.paths.inside(node.spec.netns, RoutedPacket(node.world.family.outside))
    assert (decided(answer), answer.source) == ((RouteResult.FORWARDED, None, 254, "eth0"), node.spec.address)


def test_a_link_that_is_gone_is_no_answer(node: Node) -> None:
    """No packet can come by it."""
    with pytest.raises(WiringError):
        node.paths.on_node(RoutedPacket(node.spec.address, node.world.family.outside, "gone"))


def test_links_of_enis_are_named(node: Node) -> None:
    """Those that are present."""
    assert node.paths.eni_links([PRIMARY_MAC]) == {PRIMARY_MAC: "eth0"}


def test_both_answer_by_the_same_rules(node: Node) -> None:
    """Outside the VPC the node's address is seen in IPv4, within it the sandbox's, and in IPv6 always."""
    far, near = node.world.family.outside, FIRST[node.world.family] + 99
    answers = [
        node.paths.translation(NewConnection(node.spec.address, destination, node.spec.host_veth, "eth0"), node.world.identity())
        for destination in (far, near)
    ]
    translated = Translation(0x80, node.world.identity().primary_address) if node.world.family is IPV4 else Translation()
    assert answers == [translated, Translation()]


REFUSALS = {
    "a rule": ("ip rule add prio 9 from {ip} blackhole", RouteResult.REFUSED, 9),
    "a route": ("ip route add unreachable {far} table 77; ip rule add prio 9 from {ip} lookup 77", RouteResult.REFUSED, 9),
    "the way back": ("ip rule add prio 8 to {ip} prohibit", RouteResult.DROPPED_BY_SOURCE, 8),
    "a port": ("ip rule add prio 7 ipproto tcp dport 70-80 prohibit", RouteResult.REFUSED, 7),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_refuses_is_named(kernel: Node, what: str) -> None:
    """By the kernel alone: the rule that refuses, that leads to a refusing route, or that refuses the way back of IPv4."""
    command, result, rule = REFUSALS[what]
    far, family, spec = kernel.world.family.outside, kernel.world.family, kernel.spec
    dash = "" if family is IPV4 else " -6"
    kernel.command(command.format(ip=spec.address, far=far).replace("ip r", f"ip{dash} r"))
    answer = kernel.paths.on_node(RoutedPacket(far, spec.address, spec.host_veth, port=77))
    if result is RouteResult.DROPPED_BY_SOURCE and family is not IPV4:  # it has no reverse-path filter
        assert answer.is_sent
    else:
        assert (answer.result, answer.rule, bool(answer.error)) == (result, rule, True)


def test_the_host_is_no_sandbox(kernel: Node) -> None:
    """A path that leads to the host's own namespace, or nowhere, is refused by the kernel's adapter."""
    with pytest.raises(WiringError):
        kernel.paths.inside(kernel.world.host.path, RoutedPacket(kernel.world.family.outside))
    with pytest.raises(NetnsError):
        kernel.paths.inside(NOWHERE, RoutedPacket(kernel.world.family.outside))
