"""`ipamctl path`: each cause by its code, on a kernel whose decisions the test writes. With packets: `tests/lab/packets`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.attachment import Attachment
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.errors import InvalidRequestError, NetnsError, WiringError
from ipamd.model.family import read_address
from ipamd.model.ids import parse_key
from ipamd.model.packet_path import RouteAnswer, RoutedPacket, RouteResult
from ipamd.model.repairs import NODE
from ipamd.model.routing_difference import routing_difference
from ipamd.model.sandbox import Sandbox, SandboxState
from ipamd.pb import introspection_pb2 as pb
from ipamd.report.path_messages import MESSAGES, PathCause, PathVerdict
from tests.fakes.cloud import IDENTITY
from tests.fakes.node import FakeNode

IN_VPC, OUTSIDE = IPv4Address("10.0.77.7"), IPv4Address("203.0.113.9")
MARK = 0x80


class Kernel:
    """A kernel that forwards as a node in order does; a test replaces single decisions."""

    def __init__(self, node: FakeNode, attachment: Attachment) -> None:
        self.attachment = attachment
        self.node = node
        self.uplink = "eth0"
        node.paths.links = {eni.mac: f"eth{eni.device_index}" for eni in node.datastore.enis()}
        node.paths.pod = self.in_pod
        node.paths.node = self.on_node

    def in_pod(self, packet: RoutedPacket) -> RouteAnswer | None:
        """The default route of a sandbox."""
        source = packet.source or self.attachment.address
        return RouteAnswer(RouteResult.FORWARDED, table=254, link="eth0", source=source)

    def on_node(self, packet: RoutedPacket) -> RouteAnswer | None:
        """Addresses of sandboxes by their host veths, marked packets by the primary ENI."""
        for attachment in self.node.datastore.attachments():
            if packet.destination == attachment.address:
                return RouteAnswer(RouteResult.FORWARDED, 513, "lookup 113213", 113213, attachment.host_veth)
        if packet.destination == IDENTITY.primary_address:
            return RouteAnswer(RouteResult.LOCAL, 0, "lookup 255", 255, "lo")
        uplink = "eth0" if packet.mark else self.uplink
        return RouteAnswer(RouteResult.FORWARDED, 32766, "lookup 254", 254, uplink, source=packet.source)


@pytest.fixture
def kernel(node: FakeNode) -> Kernel:
    """A node with one pod."""
    attachment = node.add("a", pod="web")
    eni = next(eni for eni in node.datastore.enis() if eni.eni_id == attachment.eni_id)
    made = Kernel(node, attachment)
    made.uplink = f"eth{eni.device_index}"
    return made


def path(kernel: Kernel, destination: object, subject: str = "web") -> pb.PathReply:
    """The reply."""
    return kernel.node.app.introspection.Path(pb.PathRequest(subject=subject, destination=str(destination)))


def test_a_packet_within_the_vpc_keeps_its_source(kernel: Kernel) -> None:
    """The node has nothing against it. The ENI with its groups and subnet is named, and what cannot be seen."""
    reply = path(kernel, f"{IN_VPC}:5432")
    eni = next(eni for eni in kernel.node.datastore.enis() if eni.eni_id == kernel.attachment.eni_id)
    assert (reply.verdict, reply.cause, reply.kind) == ("leaves", PathCause.LEAVES, "pool")
    assert (reply.seen_as, reply.translated) == (str(kernel.attachment.address), False)
    assert (reply.eni.eni_id, reply.eni.device_index, reply.eni.subnet_id) == (eni.eni_id, eni.device_index, eni.subnet_id)
    assert [lookup.place for lookup in reply.lookups] == ["pod", "node", "answer"]
    assert (reply.lookups[1].mark, reply.lookups[1].incoming) == (0, kernel.attachment.host_veth)
    assert (reply.lookups[2].rule, reply.lookups[2].destination) == (513, str(kernel.attachment.address))
    assert reply.lookups[0].rule == -1
    assert [part.console.partition(" > ")[0] for part in reply.unseen] == ["VPC"] * 5
    assert f"TCP port 5432 from {kernel.attachment.address}" in reply.unseen[0].subject


def test_a_type_that_forgets_idle_connections_is_told_of(kernel: Kernel) -> None:
    """New connections work there, so only its number of seconds hints at the cause."""
    rows = len(path(kernel, f"{IN_VPC}:5432").unseen)
    limits = kernel.node.pool.limits
    assert limits is not None
    settings = kernel.node.app.settings.pool_settings(max_pods=limits.max_pods, supports_prefixes=limits.supports_prefixes)
    kernel.node.pool.set_limits(replace(limits, tcp_timeout_s=350), settings=settings)
    *others, idle = path(kernel, f"{IN_VPC}:5432").unseen
    assert len(others) == rows
    assert " 350 s " in idle.subject
    assert " 350 s " not in str(path(kernel, "169.254.169.254:80").unseen)


def test_a_packet_to_outside_is_seen_as_the_node(kernel: Kernel) -> None:
    """It has our mark when its route is looked up, and leaves by the primary ENI, whose groups metadata told."""
    reply = path(kernel, OUTSIDE)
    assert (reply.seen_as, reply.translated, reply.lookups[1].mark) == (str(IDENTITY.primary_address), True, MARK)
    assert tuple(reply.eni.security_group_ids) == IDENTITY.security_group_ids
    assert f"{OUTSIDE}/32 " in reply.next
    kernel.node.paths.config = replace(kernel.node.paths.config, external_snat=True)
    reply = path(kernel, OUTSIDE)
    assert (reply.seen_as, reply.translated, reply.lookups[1].mark) == (str(kernel.attachment.address), False, 0)
    assert f"{OUTSIDE}/32 " not in reply.next


def test_nothing_is_asked_of_ec2(kernel: Kernel) -> None:
    """The daemon's own knowledge is enough."""
    before = dict(kernel.node.ec2.calls)
    path(kernel, OUTSIDE)
    assert dict(kernel.node.ec2.calls) == before


def refused(result: RouteResult = RouteResult.REFUSED) -> RouteAnswer:
    """A refusal by a rule of others."""
    return RouteAnswer(result, 9, "from all refuses", 0, error="EACCES")


Spoil = Callable[[Kernel], None]


def _pod(answer: RouteAnswer) -> Spoil:
    return lambda kernel: setattr(kernel.node.paths, "pod", lambda _: answer)


def _on_node(answer: RouteAnswer, *, is_answer: bool = False) -> Spoil:
    """Replace the decision about the packet, or about the one that comes back."""

    def spoil(kernel: Kernel) -> None:
        def decide(packet: RoutedPacket) -> RouteAnswer | None:
            is_back = packet.destination == kernel.attachment.address
            return answer if packet.incoming and is_back == is_answer else kernel.on_node(packet)

        kernel.node.paths.node = decide

    return spoil


def _problem(*, loses_packets: bool) -> Spoil:
    if loses_packets:
        problem = routing_difference(DifferenceCode.RULE_REFUSES, NODE, priority=9)
    else:
        problem = routing_difference(DifferenceCode.FILTER_POLICY_DROPS, NODE, chain="ip x y", command="nft insert")
    return lambda kernel: kernel.node.paths.problems.append(problem)


def _fail(error: Exception) -> Spoil:
    return lambda kernel: kernel.node.paths.fail.append(error)  # type: ignore[arg-type]


FORWARDED = RouteAnswer(RouteResult.FORWARDED, 32766, "lookup 254", 254, "docker0")

SPOILT = {
    PathCause.NAMESPACE_GONE: _fail(NetnsError("gone")),
    PathCause.UNREADABLE: _fail(WiringError("no answer")),
    PathCause.POD_REFUSES: _pod(refused()),
    PathCause.FOREIGN_INTERFACE: _pod(replace(FORWARDED, link="tun0")),
    PathCause.ITSELF: _pod(replace(FORWARDED, result=RouteResult.LOCAL)),
    PathCause.REVERSE_PATH: _on_node(refused(RouteResult.DROPPED_BY_SOURCE)),
    PathCause.NODE_REFUSES: _on_node(refused()),
    PathCause.FOREIGN_LINK: _on_node(FORWARDED),
    PathCause.ANSWER_REVERSE_PATH: _on_node(refused(RouteResult.DROPPED_BY_SOURCE), is_answer=True),
    PathCause.ANSWER_REFUSED: _on_node(refused(), is_answer=True),
    PathCause.ANSWER_DIVERTED: _on_node(FORWARDED, is_answer=True),
    PathCause.FILTERED: _problem(loses_packets=True),
    PathCause.MAY_BE_FILTERED: _problem(loses_packets=False),
    PathCause.WIRING_DIFFERS: lambda kernel: kernel.node.wiring.wired.clear(),
}


@pytest.mark.parametrize("cause", SPOILT, ids=str)
def test_what_is_in_the_way_is_the_answer(kernel: Kernel, cause: PathCause) -> None:
    """Whatever it is, it comes first, with its verdict and a next action."""
    SPOILT[cause](kernel)
    reply = path(kernel, IN_VPC)
    assert (reply.cause, reply.verdict) == (cause, MESSAGES[cause].verdict)
    assert reply.text
    assert reply.next


def test_a_source_of_another_eni_is_dropped_by_ec2(kernel: Kernel) -> None:
    """A packet that falls through to the primary ENI with the address of another one, or is translated and leaves by another."""
    node = kernel.node
    first = kernel.attachment.eni_id
    while kernel.attachment.eni_id == first:
        node.pool.cycle()
        number = len(node.datastore.attachments())
        kernel.attachment = node.add(f"more-{number}", pod=f"far-{number}")
        assert len(node.datastore.attachments()) < 20
    far = kernel.attachment.key.container_id
    kernel = Kernel(node, kernel.attachment)
    kernel.uplink = "eth1"
    assert path(kernel, IN_VPC, far).cause == PathCause.LEAVES
    node.paths.node = _diverted_to(kernel, "eth0")
    assert path(kernel, IN_VPC, far).cause == PathCause.SOURCE_CHECK
    assert path(kernel, OUTSIDE, far).cause == PathCause.LEAVES
    node.paths.node = _diverted_to(kernel, "eth1")
    reply = path(kernel, OUTSIDE, far)
    assert (reply.cause, reply.verdict) == (PathCause.SOURCE_CHECK, "dropped")


def _diverted_to(kernel: Kernel, uplink: str) -> Callable[[RoutedPacket], RouteAnswer | None]:
    def decide(packet: RoutedPacket) -> RouteAnswer | None:
        answer = kernel.on_node(packet)
        return replace(answer, link=uplink) if answer and answer.link.startswith("eth") else answer

    return decide


@pytest.mark.parametrize(
    ("destination", "pages"),
    [("169.254.169.254:80", ["EC2"]), ("169.254.169.253:53", ["VPC"]), ("{base}:53", ["VPC"]), ("169.254.169.123", [])],
    ids=["metadata", "DNS", "DNS at the VPC's base", "time"],
)
@pytest.mark.parametrize("subject", ["web", str(IDENTITY.primary_address)])
def test_no_group_filters_a_service_of_the_vpc(kernel: Kernel, destination: str, pages: list[str], subject: str) -> None:
    """Instance metadata, DNS and time pass neither security groups nor network ACLs, so these are in no list."""
    reply = path(kernel, destination.format(base=IDENTITY.vpc_cidrs[0][2]), subject)
    assert (reply.verdict, reply.cause) == ("leaves", PathCause.VPC_SERVICE)
    assert [part.console.partition(" > ")[0] for part in reply.unseen] == pages


def test_the_services_of_the_vpc_have_addresses_of_ipv6(kernel: Kernel) -> None:
    """Unique local ones."""
    assert path(kernel, "fd00:ec2::254").cause == PathCause.VPC_SERVICE
    assert path(kernel, "fd00:ec3::254").cause == PathCause.LEAVES


@pytest.mark.parametrize("destination", ["169.254.20.10", "169.254.170.23:80"])
def test_a_link_local_address_that_nobody_has_is_not_looked_for_in_aws(kernel: Kernel, destination: str) -> None:
    """An agent of the node serves it: node-local DNS, EKS Pod Identity. Where it runs, the node has the address."""
    reply = path(kernel, destination)
    assert (reply.verdict, reply.cause, list(reply.unseen)) == ("unseen", PathCause.NO_AGENT, [])

    def with_agent(packet: RoutedPacket) -> RouteAnswer | None:
        if str(packet.destination) in destination:
            return RouteAnswer(RouteResult.LOCAL, 0, "lookup 255", 255, "lo")
        return kernel.on_node(packet)

    kernel.node.paths.node = with_agent
    assert path(kernel, destination).cause == PathCause.NODE


def test_another_pod_and_the_node_are_reached(kernel: Kernel) -> None:
    """What stays on the node is seen whole."""
    other = kernel.node.add("b", pod="db")
    reply = path(kernel, other.address)
    assert (reply.verdict, reply.cause, list(reply.unseen)) == ("reaches", PathCause.POD_ON_NODE, [])
    reply = path(kernel, IDENTITY.primary_address)
    assert (reply.verdict, reply.cause) == ("reaches", PathCause.NODE)


def test_a_pod_without_the_family_is_told_so(kernel: Kernel) -> None:
    """A pod of IPv4 has no IPv6 without egress."""
    kernel.node.paths.pod = lambda _: refused()
    assert path(kernel, "2001:db8::9").cause == PathCause.NO_FAMILY


def test_a_lost_address_is_graver_than_the_way_out(kernel: Kernel) -> None:
    """EC2 shows the address no more: whatever the kernel does, nothing comes back."""
    kernel.node.app.introspection.sources = replace(
        kernel.node.app.introspection.sources, frozen=lambda: {kernel.attachment.eni_id: "its link is gone"}
    )
    reply = path(kernel, IN_VPC)
    assert (reply.cause, reply.verdict) == (PathCause.NO_NETWORK, "dropped")
    assert ([finding.cause for finding in reply.findings], list(reply.unseen)) == ([PathCause.NO_NETWORK], [])


def test_a_pod_in_the_nodes_network_sends_as_the_node(kernel: Kernel) -> None:
    """The runtime lists it, and it has no address of ours; no policy agent filters it. The node's own address means the same."""
    listed = Sandbox(kernel.node.key("proxy").container_id, SandboxState.READY, "kube-system", "kube-proxy-x")
    kernel.node.runtime.listed[listed.container_id] = listed
    kernel.node.paths.node = lambda packet: (
        RouteAnswer(RouteResult.LOCAL, 0, "lookup 255", 255, "lo")
        if packet.destination == IDENTITY.primary_address
        else RouteAnswer(RouteResult.FORWARDED, 32766, "lookup 254", 254, "eth0", source=IDENTITY.primary_address)
    )
    for subject in ("kube-system/kube-proxy-x", "kube-proxy-x", str(IDENTITY.primary_address)):
        reply = path(kernel, OUTSIDE, subject)
        assert (reply.kind, reply.cause, reply.seen_as) == ("host-network", PathCause.LEAVES, str(IDENTITY.primary_address))
        assert [lookup.place for lookup in reply.lookups] == ["node", "answer"]
        assert not reply.translated


@pytest.mark.parametrize("subject", ["web", "default/web", "{container}", "{address}"])
def test_a_pod_is_named_as_for_explain(kernel: Kernel, subject: str) -> None:
    """By its name with or without the namespace, by the beginning of the container ID, by its address."""
    text = subject.format(container=kernel.attachment.key.container_id[:8], address=kernel.attachment.address)
    text = text.replace("default/web", kernel.attachment.sandbox_name)
    assert path(kernel, IN_VPC, text).sandbox == kernel.attachment.key.container_id


@pytest.mark.parametrize(
    "destination",
    ["", "db.example", "10.0.0", "10.0.0.9:0", "10.0.0.9:65536", "10.0.0.9:x", "[::1", "[2001:db8::9]x", "[2001:db8::9]:",
     "fe80::1", "fe80::1%eth0", "224.0.0.1", "255.255.255.255", "0.0.0.0", "127.0.0.1", "9" * 61, "10.0.0.9:²"],
)  # fmt: skip
def test_a_destination_that_is_no_address_is_refused(kernel: Kernel, destination: str) -> None:
    """With a typed error, before anything is asked of the kernel."""
    with pytest.raises(InvalidRequestError):
        path(kernel, destination)
    assert kernel.node.paths.asked == []


@pytest.mark.parametrize("destination", ["10.0.77.7", "10.0.77.7:1", "2001:db8::9", "[2001:db8::9]", "[2001:db8::9]:65535"])
def test_every_form_of_a_destination_is_read(kernel: Kernel, destination: str) -> None:
    """IPv6 with a port needs brackets."""
    reply = path(kernel, destination)
    assert read_address(reply.destination) in (IN_VPC, read_address("2001:db8::9"))
    assert reply.port == {"10.0.77.7:1": 1, "[2001:db8::9]:65535": 65535}.get(destination, 0)


def test_the_node_is_named_by_any_of_its_addresses(kernel: Kernel) -> None:
    """That of IPv6 is no ENI's primary address: the kernel knows it."""
    own = read_address("2001:db8::7")

    def on_node(packet: RoutedPacket) -> RouteAnswer | None:
        if packet.destination == own:
            return RouteAnswer(RouteResult.LOCAL, 0, "lookup 255", 255, "lo")
        return kernel.on_node(packet)

    kernel.node.paths.node = on_node
    reply = path(kernel, "2001:db8::9", str(own))
    assert (reply.kind, reply.cause, reply.seen_as) == ("host-network", PathCause.LEAVES, str(own))
    with pytest.raises(InvalidRequestError):
        path(kernel, "2001:db8::9", "2001:db8::8")


@pytest.mark.parametrize("subject", ["", "nobody", "10.9.9.9", "127.0.0.1", "::1", "0.0.0.0", "x" * 601])
def test_an_unknown_pod_is_refused(kernel: Kernel, subject: str) -> None:
    """With a typed error."""
    with pytest.raises(InvalidRequestError):
        path(kernel, IN_VPC, subject)


def test_a_beginning_of_several_container_ids_is_refused_with_their_number(kernel: Kernel) -> None:
    """The second interface of a sandbox has the same container ID."""
    node = kernel.node
    for name, ifname in (("twin-a", "eth0"), ("twin-a", "net1"), ("twin-b", "eth0")):
        request = replace(node.request(name), key=parse_key(name, ifname))
        node.attacher.attach_sandbox(request, deadline=Deadline.after(node.clock, 60.0), steps=StepTimer(node.clock))
    with pytest.raises(InvalidRequestError) as refused:
        path(kernel, IN_VPC, "twin-")
    assert re.findall(r"\d+", str(refused.value)) == ["2"]


def test_every_cause_has_one_message() -> None:
    """And each verdict has causes."""
    assert set(MESSAGES) == set(PathCause)
    assert {message.verdict for message in MESSAGES.values()} == set(PathVerdict)
