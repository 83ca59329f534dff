"""Changes to the node through pyroute2: only when there is one, from any thread, bounded, and nothing left open."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address

import pytest

from ipamd.kernel import changes
from ipamd.kernel.netns import OWN_NETNS
from ipamd.model.errors import WiringError

pytestmark = pytest.mark.privileged

NO_LINK = 99999
"""A link index that no namespace here has."""


def test_whole_node_does_without_the_library(world, monkeypatch):
    """Survey, repeated setup, reconciliation without a difference, ADD and DEL never import pyroute2 (docs/adr/0004)."""
    world.fabric()
    world.hostnet.setup_node(world.identity())
    world.hostnet.setup_eni(world.eni())
    monkeypatch.setitem(sys.modules, "pyroute2", None)  # importing it raises from here on
    world.hostnet.setup_node(world.identity())
    world.hostnet.setup_eni(world.eni())
    assert world.hostnet.reconcile(identity=world.identity(), enis=[world.eni()]) == []
    spec = world.spec(world.space())
    world.wiring.wire(spec)
    assert [veth.name for veth in world.wiring.survey().veths] == [spec.host_veth]
    world.mark_for_deletion(spec)
    world.wiring.sweep()
    world.host.sh("ip rule del prio 1024")
    with pytest.raises(ImportError):  # the library is what repairs: this test can tell
        world.hostnet.reconcile(identity=world.identity(), enis=[])


def test_refusal_names_step_and_cause_and_the_rest_is_done(world):
    """I14: the first refusal is raised in the kernel's words; changes after it are made all the same."""
    wanted = [
        changes.raise_link(NO_LINK, who="eth9 (eni-9)"),
        changes.set_mtu(NO_LINK, 9001, who="eth9 (eni-9)"),
        changes.add_rule(32765, table=10203, source=IPv4Address("10.0.1.10")),
    ]
    with pytest.raises(WiringError, match=r"setup of eni-9: raise eth9 \(eni-9\) failed") as caught:
        changes.execute(world.netns, wanted, what="setup of eni-9")
    assert "ENODEV" in caught.value.details
    assert [(one["src"], one["table"]) for one in world.host.ip("rule") if one["priority"] == 32765] == [("10.0.1.10", "10203")]


def test_changes_are_idempotent(world):
    """Every change can be made twice, and removing what is not there succeeds."""
    world.fabric()
    world.host.sh("ip link set eth1 up")
    index = next(one["ifindex"] for one in world.host.ip("link show eth1"))
    address, router = IPv4Address("10.0.1.10"), IPv4Address("10.0.1.1")
    before = world.host.snapshot()
    make = [
        changes.add_address(index, address, 24, who="eth1"),
        changes.put_route(router, index=index, table=10203, step="add router"),
        changes.put_route(None, via=router, index=index, table=10203, step="add default"),
        changes.add_rule(32765, table=10203, source=address),
        changes.add_rule(1024, table=254, mark=0x80),
    ]
    remove = [
        changes.delete_rule(1024, table=254, mark=0x80),
        changes.delete_rule(32765, table=10203, source=address),
        changes.delete_route(None, 0, index=index, table=10203, metric=0, step="delete default"),
        changes.delete_route(router, 32, index=index, table=10203, metric=0, step="delete router"),
        changes.delete_address(index, address, 24, who="eth1"),
    ]
    changes.execute(world.netns, make, what="test")
    once = world.host.snapshot()
    assert once != before
    assert "proto static scope link" in world.host.sh("ip -d route show table 10203 10.0.1.1")
    changes.execute(world.netns, make, what="test")
    assert world.host.snapshot() == once
    for _ in range(2):
        changes.execute(world.netns, remove, what="test")
        assert world.host.snapshot() == before


def test_many_threads_change_at_once(world):
    """Any thread may change the node while others do; each is back in its own namespace, and no descriptor is left open."""
    rounds, count = 10, 8
    changes.execute(world.netns, [changes.add_rule(1024, table=254, mark=0x80)], what="test")  # imports
    home, opened = os.stat(OWN_NETNS).st_ino, len(os.listdir("/proc/self/fd"))
    gate = threading.Barrier(count)

    def work(number: int) -> int:
        gate.wait(timeout=20)
        rules = [(table, IPv4Address("10.0.1.0") + number) for table in (10203, 10204)]
        for _ in range(rounds):
            changes.execute(world.netns, [changes.add_rule(32765, table=t, source=a) for t, a in rules], what="test")
            changes.execute(world.netns, [changes.delete_rule(32765, table=t, source=a) for t, a in rules[1:]], what="test")
        return os.stat(OWN_NETNS).st_ino

    with ThreadPoolExecutor(count) as threads:
        assert set(threads.map(work, range(count), timeout=60)) == {home}
    found = sorted((one["src"], one["table"]) for one in world.host.ip("rule") if one["priority"] == 32765)
    assert found == [(f"10.0.1.{number}", "10203") for number in range(count)]
    assert len(os.listdir("/proc/self/fd")) <= opened  # fewer: what an earlier test left to the garbage collector


def test_silence_of_the_kernel_is_bounded(world, monkeypatch):
    """I14: an answer that never comes is an error that names the step, not a thread that waits for ever."""
    import pyroute2

    monkeypatch.setattr(changes, "RECEIVE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(pyroute2.AsyncIPRoute, "send", lambda _self, data, _flags=0: len(data))
    rule = changes.add_rule(32765, table=2, source=IPv4Address("10.0.1.10"))
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(WiringError, match=r"teardown: add rule 32765 .* the kernel's answer was lost"):
        changes.execute(world.netns, [rule], what="teardown")
    assert len(os.listdir("/proc/self/fd")) <= opened  # fewer: what an earlier test left to the garbage collector
