"""What a sandbox with a branch ENI costs beside one of the pool: messages to the kernel, and the sends that carry them."""

from __future__ import annotations

import pytest

from ipamd.kernel.netlink import NetlinkSocket
from tests.netns.branched import Node

pytestmark = pytest.mark.privileged

MORE_MESSAGES, MORE_SENDS = 10, 0
"""Beyond a sandbox of the pool: the trunk's link and the VLAN link read, that one named, raised and kept without an IPv6 address, two
routes to the router, the end of the table, two rules and one that goes. The message that makes the VLAN link, which the stand-in
replaces, is one more."""

FIRST_MESSAGES, FIRST_SENDS = 1, 2
"""Of the first one, more: the trunk's link is raised, and the VLAN link made by a send of its own; a dump is not counted."""


@pytest.fixture
def sends(monkeypatch):
    """How many messages each send has."""
    found: list[int] = []
    plain = NetlinkSocket.request

    def request(self, batch):
        found.extend([len(batch)] if batch else [])
        return plain(self, batch)

    monkeypatch.setattr(NetlinkSocket, "request", request)
    return found


@pytest.mark.parametrize("is_strict", [True, False], ids=["strict", "standard"])
def test_a_branch_costs_few_messages_more(world, sends, is_strict):
    """The first one has the trunk's link looked for besides; nothing grows with those that are there."""
    node = Node(world)
    for number in range(3):
        pooled = world.spec(world.space(), number=30 + number)
        branched = node.spec(world.space(), vlan=20 + number, number=100 + number, is_strict=is_strict)
        sends.clear()
        node.wiring.wire(pooled)
        of_pool = sum(sends), len(sends)
        sends.clear()
        node.wiring.wire(branched)
        more = sum(sends) - of_pool[0], len(sends) - of_pool[1]
        first = number == 0
        assert 0 < more[0] <= MORE_MESSAGES + first * FIRST_MESSAGES
        assert more[1] == MORE_SENDS + first * FIRST_SENDS


def test_a_trunk_that_came_back_has_another_index(world):
    """What was known of its link is out of date: the VLAN link is made on the link that has its MAC now."""
    node = Node(world)
    node.wiring.wire(node.spec(world.space(), vlan=5, number=100))
    node.host.sh("ip link del eth2")
    node.add_trunk("p3")
    spec = node.spec(world.space(), vlan=6, number=101)
    node.wiring.wire(spec)
    (trunk,), (link,) = node.host.ip("link show eth2"), node.host.ip(f"link show {spec.uplink.link}")
    assert link["address"] == spec.uplink.mac
    assert f"-{trunk['ifindex']}" in node.host.sh("ip link")
    assert node.wiring.check(spec) == []


@pytest.mark.parametrize("what", ["down", "mtu 1280"])
def test_a_trunk_that_was_changed(world, what):
    """It is raised and has the sandboxes' MTU again, though its link is where it was."""
    node = Node(world)
    node.wiring.wire(node.spec(world.space(), vlan=5, number=100))
    node.host.sh(f"ip link set eth2 {what}")
    spec = node.spec(world.space(), vlan=6, number=101)
    node.wiring.wire(spec)
    (trunk,) = node.host.ip("link show eth2")
    assert "UP" in trunk["flags"]
    assert trunk["mtu"] >= spec.mtu
    (link,) = node.host.ip(f"link show {spec.uplink.link}")
    assert link["mtu"] >= spec.mtu
