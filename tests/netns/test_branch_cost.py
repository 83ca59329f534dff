"""What a sandbox with a branch ENI costs beside one of the pool: messages to the kernel, and the sends that carry them."""

from __future__ import annotations

import pytest

from ipamd.kernel.netlink import NetlinkSocket
from tests.netns.branched import Node

pytestmark = pytest.mark.privileged

MORE_MESSAGES, MORE_SENDS = 10, 2
"""Beyond a sandbox of the pool: its VLAN link made, read, named and raised, two routes to the router, two rules, and what stands in
the way of the link's name and ID looked for; one send for that and one for the link."""


@pytest.fixture
def sends(monkeypatch):
    """How many messages each send has."""
    found: list[int] = []
    plain = NetlinkSocket.request

    def request(self, batch):
        found.append(len(batch))
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
        assert 0 < more[0] <= MORE_MESSAGES + first
        assert more[1] == MORE_SENDS + first
