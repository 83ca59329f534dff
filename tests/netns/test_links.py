"""Link notifications and the list of links, with real links in a namespace of the test (veths for ENIs)."""

from __future__ import annotations

import itertools
import queue
import threading

import pytest

from ipamd.kernel.notice_socket import NoticeSocket
from ipamd.model.kernel import LinkEvent, LinkEventKind
from tests.netns.conftest import PRIMARY_MAC, SECONDARY_MAC
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.privileged

GONE = LinkEvent(LinkEventKind.GONE, SECONDARY_MAC)


class Follower:
    """Follows the events of a world in a thread."""

    def __init__(self, hostnet):
        self.hostnet = hostnet
        self.found = queue.Queue()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()
        assert self.found.get(timeout=PATIENCE_S) == LinkEvent(LinkEventKind.OPENED)

    def _follow(self):
        for event in self.hostnet.host_events():
            if isinstance(event, LinkEvent):
                self.found.put(event)

    def until(self, wanted):
        """Every event up to and with the wanted one."""
        return list(itertools.takewhile(lambda one: one != wanted, iter(lambda: self.found.get(timeout=PATIENCE_S), None)))

    def stop(self):
        """End the stream; everything that came and was not read."""
        self.hostnet.stop_host_events()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return list(self.found.queue)


@pytest.fixture
def follower(world):
    """A host with two ENIs whose link notifications are followed."""
    world.router = world.fabric()
    made = Follower(world.hostnet)
    yield made
    made.stop()


def test_links_are_those_that_can_be_enis(world):
    """Up or down, an ENI's link is listed; a sandbox's is not, and neither is a bridge that took an ENI's MAC."""
    world.fabric()
    world.wiring.wire(world.spec(world.space()))
    assert {PRIMARY_MAC, SECONDARY_MAC} <= world.hostnet.links()
    sandboxes = {one["address"] for one in world.host.ip("link") if one["ifname"].startswith("eni")}
    assert sandboxes
    assert not world.hostnet.links() & sandboxes
    world.host.sh("ip link set eth1 down")
    assert SECONDARY_MAC in world.hostnet.links(), "down is not gone: the reconciler raises it"
    both = frozenset({PRIMARY_MAC, SECONDARY_MAC})
    assert world.hostnet.links(both) == both
    world.host.sh("ip link set eth1 name ens7")
    assert world.hostnet.links(both) == both, "it is looked for where it was, and then everywhere"
    world.host.sh("ip link set ens7 name eth1")
    world.host.sh("ip link add br0 type bridge; ip link set eth1 master br0; ip link del eth1")
    world.host.sh(f"ip link set br0 address {SECONDARY_MAC}")
    assert SECONDARY_MAC not in world.hostnet.links()
    assert world.hostnet.links(both) == {PRIMARY_MAC}


@pytest.mark.parametrize("how", ["ip link del eth1", "ip link set eth1 netns {elsewhere}"])
def test_a_link_that_goes_is_announced(world, follower, how):
    """A link that is deleted, or moved to another namespace, is announced with its MAC and is listed no more."""
    elsewhere = world.space()
    world.host.sh(how.format(elsewhere=elsewhere.path))
    follower.until(GONE)
    assert SECONDARY_MAC not in world.hostnet.links()


def test_a_link_that_comes_back_is_announced(world, follower):
    """A link that appears again is announced as seen."""
    elsewhere = world.space()
    world.host.sh(f"ip link set eth1 netns {elsewhere.path}")
    follower.until(GONE)
    elsewhere.sh(f"ip link set eth1 netns {world.host.path}")
    follower.until(LinkEvent(LinkEventKind.SEEN, SECONDARY_MAC))
    assert SECONDARY_MAC in world.hostnet.links()


def test_a_link_that_is_only_down_or_leaves_a_bridge_is_not_gone(world, follower):
    """Down, and out of a bridge (announced as a deletion in the bridge's own family): the link is still there."""
    world.host.sh("ip link set eth1 down; ip link add br0 type bridge; ip link set eth1 master br0; ip link set eth1 nomaster")
    world.host.sh(f"ip link add name end type bridge; ip link set eth0 address {PRIMARY_MAC}; ip link set eth0 mtu 1400")
    before = follower.until(LinkEvent(LinkEventKind.SEEN, PRIMARY_MAC))
    assert GONE not in [*before, *follower.stop()]


def test_sandboxes_are_not_announced(world, follower):
    """ADD and DEL make no events."""
    for number in range(5, 8):
        spec = world.spec(world.space(), number=number)
        world.wiring.wire(spec)
        world.mark_for_deletion(spec)
    world.wiring.sweep()
    world.host.sh("ip link del eth1")
    macs = {event.mac for event in follower.until(GONE)}
    assert macs <= {PRIMARY_MAC, SECONDARY_MAC}


def test_lost_notifications_are_said(world, follower, monkeypatch):
    """I11: when the kernel's queue for us overflows, MISSED is announced: everything must be looked at again."""
    resume = threading.Event()
    real = NoticeSocket.take
    monkeypatch.setattr(NoticeSocket, "take", lambda sock: (resume.wait(10 * PATIENCE_S), real(sock))[1])
    flood = "".join(f"link set eth0 mtu {1400 + number % 50}\n" for number in range(1500))
    for _ in range(4):
        world.host.sh(f"printf '{flood.encode('unicode_escape').decode()}' | ip -batch -")
    world.host.sh("ip link del eth1")
    resume.set()
    follower.until(LinkEvent(LinkEventKind.MISSED))
    assert SECONDARY_MAC not in world.hostnet.links()


def test_stopping_ends_the_stream_for_good(world):
    """`stop_host_events` ends a stream that waits, and one that is opened later ends at once."""
    follower = Follower(world.hostnet)
    follower.stop()
    assert list(world.hostnet.host_events()) == [LinkEvent(LinkEventKind.OPENED)]
