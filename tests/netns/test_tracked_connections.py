"""The kernel's table of tracked connections: large ones, zones, other namespaces, and kernels without it."""

from __future__ import annotations

import pytest

from ipamd.kernel import conntrack, sysctls
from ipamd.kernel.conntrack import KernelConnectionTracking
from ipamd.model.errors import KernelDumpError, WiringError
from tests.netns import tracking
from tests.netns.conftest import EACH_FAMILY

pytestmark = [pytest.mark.privileged, EACH_FAMILY]

PORTS = 200


@pytest.fixture
def connections(world):
    """The adapter in the world's host."""
    return KernelConnectionTracking(world.netns)


def entry(world, *numbers, port=1000, zone=0):
    """An entry of four addresses by their numbers."""
    return tracking.entry(*(world.address(number) for number in numbers), port=port, zone=zone)


def _ordinary(world, number):
    """One of many connections, each of its own client and port."""
    client = 100 + number // PORTS
    return entry(world, client, 6, 6, client, port=number % PORTS)


@pytest.mark.parametrize("whole_dump_max", [0, 10_000], ids=["chosen by the kernel", "read as a whole"])
def test_both_ways_to_find_entries_find_the_same(world, connections, monkeypatch, whole_dump_max):
    """In each of the four places, of entries with the same tuple in several zones too; others stay."""
    monkeypatch.setattr(conntrack, "WHOLE_DUMP_MAX", whole_dump_max)
    places = ((5, 6, 7, 8), (6, 5, 7, 8), (6, 7, 5, 8), (6, 7, 8, 5))
    stale = [entry(world, *numbers, port=1000 + place) for place, numbers in enumerate(places)]
    stale += [entry(world, 5, 6, 6, 5, zone=zone, port=999) for zone in (0, 1, 2)]
    tracking.track(world.host, [*stale, entry(world, 6, 7, 8, 9, zone=3, port=998)])
    assert connections.remove([world.address(5)]) == len(stale)
    assert tracking.tracked(world.host) == [tuple(world.address(number) for number in (6, 7, 8, 9))]


def test_one_address_is_found_among_many_entries(world, connections):
    """A table beyond what is read as a whole: the kernel chooses, and nothing else goes."""
    many = range(conntrack.WHOLE_DUMP_MAX + 1)
    tracking.track(world.host, [_ordinary(world, number) for number in many])
    tracking.track(world.host, [entry(world, 7, 8, 5, 7)])
    assert connections.remove([world.address(5)]) == 1
    assert world.host.sh("cat /proc/sys/net/netfilter/nf_conntrack_count").strip() == str(len(many))


def test_entries_of_a_sandboxs_own_namespace_are_its_own(world, connections):
    """Only the host's are compared, whichever thread asks."""
    sandbox = world.space()
    for space in (sandbox, world.host):
        tracking.track(space, [entry(world, 5, 6, 6, 5)])
    assert sandbox.call(connections.remove, [world.address(5)]) == 1
    assert (len(tracking.tracked(sandbox)), tracking.tracked(world.host)) == (1, [])


def test_a_kernel_that_tracks_nothing_has_nothing_to_delete(world, connections, monkeypatch, tmp_path):
    """nf_conntrack is not loaded: no table, and no error."""
    monkeypatch.setattr(sysctls, "SYSCTL_ROOT", tmp_path)
    assert connections.remove([world.address(5)]) == 0


def test_a_table_that_was_resized_meanwhile_is_looked_at_again(world, connections, monkeypatch):
    """The kernel does not mark such a dump, and it may have passed over an entry (I11)."""
    tracking.track(world.host, [entry(world, 5, 6, 6, 5)])
    sizes = iter([(1, 1024), (1, 2048)])
    monkeypatch.setattr(connections, "_table_size", lambda: next(sizes))
    with pytest.raises(KernelDumpError):
        connections.remove([world.address(5)])


def test_a_refusal_says_what_is_needed(world, connections, monkeypatch):
    """The kernel tracks, and nobody can list: by a message that it does not know."""
    tracking.track(world.host, [entry(world, 5, 6, 6, 5)])
    monkeypatch.setattr(conntrack.uapi, "IPCTNL_MSG_CT_GET", 0x1FF)
    with pytest.raises(WiringError) as refused:
        connections.remove([world.address(5)])
    assert "nf_conntrack_netlink" in refused.value.details
