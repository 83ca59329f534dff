"""Between DEL and sweep a sandbox's address neither sends nor answers, whether its link is down or its source is checked (I4)."""

from __future__ import annotations

import contextlib
import socket

import pytest

from ipamd.kernel import uapi as layout
from tests.netns import packets
from tests.netns.confined import NODE, PRIMARY, SECONDARY, VPC, WORLD, Node

pytestmark = pytest.mark.privileged


def delete(node, spec, *, is_source_checked):
    """DEL, as the daemon does it; the sandbox's namespace stays as it is."""
    node.world.wiring.mark_for_deletion(spec, is_source_checked=is_source_checked)


def link_of(node, spec):
    """The host veth as `ip` shows it."""
    return node.host.ip(f"link show {spec.host_veth}")[0]


@pytest.fixture
def node(world):
    """A host with a sandbox on each ENI."""
    return Node(world)


WAYS = pytest.mark.parametrize("is_checked", [True, False], ids=["checked", "down"])


@WAYS
@pytest.mark.parametrize("number", [0, 1], ids=["primary", "secondary"])
def test_a_deleted_sandbox_sends_nothing(node, is_checked, number):
    """Nothing with its old address, another sandbox's or a foreign one arrives anywhere, though its namespace is still there."""
    assert node.world.hostnet.is_source_checked()
    dead, live = (node.primary, node.secondary)[number], (node.secondary, node.primary)[number]
    own, other = (PRIMARY, SECONDARY)[number], (SECONDARY, PRIMARY)[number]
    delete(node, node.specs[number], is_source_checked=is_checked)
    assert ("UP" in link_of(node, node.specs[number])["flags"]) is is_checked
    with contextlib.ExitStack() as stack:
        links = [(node.vpc, "p0"), (node.vpc, "p1"), (live, "eth0")]
        ear = packets.Ear(stack, links=links, ports=[node.host])
        targets = (NODE, other, VPC, WORLD)
        packets.send(dead, "eth0", [packets.udp(source, to, b"dead") for source in (own, other, WORLD) for to in targets])
        packets.send(live, "eth0", [packets.udp(other, to, b"live") for to in (NODE, VPC)])
        assert ear.heard(b"dead", until=b"live") == []


def send_from_node(node, target, text):
    """A packet of the node itself; unreachable is as good as lost."""
    with (
        contextlib.closing(node.host.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM)) as sock,
        contextlib.suppress(OSError),
    ):
        sock.sendto(text, (target, 4000))


@WAYS
@pytest.mark.parametrize("number", [0, 1], ids=["primary", "secondary"])
def test_a_deleted_sandbox_hears_nothing(node, is_checked, number):
    """What is sent to its old address, from the node, the other sandbox or the VPC, arrives in no sandbox: nothing to answer."""
    dead, live = (node.primary, node.secondary)[number], (node.secondary, node.primary)[number]
    own, other = (PRIMARY, SECONDARY)[number], (SECONDARY, PRIMARY)[number]

    def heard(least):
        with contextlib.ExitStack() as stack:
            ear = packets.Ear(stack, links=[(dead, "eth0"), (live, "eth0")])
            mac = node.host.ip("link show eth0")[0]["address"]
            for target, text in ((own, b"to own"), (other, b"to other")):
                send_from_node(node, target, text)
                packets.send(node.vpc, "p0", [packets.udp(VPC, target, text)], to=mac)
            packets.send(live, "eth0", [packets.udp(other, own, b"to own")])
            return sum(
                one[9] == packets.UDP for one in ear.heard(b"to own", until=b"to other", least=least)
            )  # not the errors that answer

    assert heard(3) >= 3
    delete(node, node.specs[number], is_source_checked=is_checked)
    assert heard(1) == 1  # what the live sandbox itself sends, which an ear on its link hears too


def test_its_link_stays_up_only_without_a_route(node):
    """A second route of the address through its link would let its packets pass the check: then the link goes down."""
    spec = node.specs[0]
    node.host.sh(f"ip route add {PRIMARY}/32 dev {spec.host_veth} metric 77")
    delete(node, spec, is_source_checked=True)
    link = link_of(node, spec)
    assert "UP" not in link["flags"]
    assert int(link["group"], 0) == layout.DYING_GROUP
    assert PRIMARY not in node.host.sh("ip route show table all; ip rule")


@WAYS
def test_marking_leaves_no_route_or_rule_and_sweep_no_link(node, is_checked):
    """I4: at the reply no route and no rule of the address is left in any table; after the sweep no veth. Twice is fine."""
    for spec in node.specs:
        for _ in range(2):
            delete(node, spec, is_source_checked=is_checked)
            assert int(link_of(node, spec)["group"], 0) == layout.DYING_GROUP
            assert str(spec.address) not in node.host.sh("ip route show table all; ip rule")
    node.world.wiring.sweep()
    assert not node.host.link_names() & set(node.veths)
    for spec in node.specs:
        delete(node, spec, is_source_checked=is_checked)


def test_a_route_that_others_lead_elsewhere_is_left_alone(node):
    """I1: a route of the address through another link is not this sandbox's, and its own packets are dropped all the same."""
    spec = node.specs[0]
    node.host.sh(f"ip route replace {PRIMARY}/32 dev {node.veths[1]}")
    delete(node, spec, is_source_checked=True)
    assert node.veths[1] in node.host.sh(f"ip route show {PRIMARY}")
