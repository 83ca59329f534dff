"""Changes to the node itself: idempotent, from any thread, and a refused one does not stop the others."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from ipamd.kernel import messages
from ipamd.kernel.netns import OWN_NETNS
from ipamd.model.errors import WiringError
from ipamd.model.failures import FailureCode
from tests.errors import failed

pytestmark = pytest.mark.privileged

NO_LINK = 99999
"""A link index that no namespace here has."""


def carry_out(world, *changes):
    """Make changes in the host's namespace."""
    with world.netns.netlink() as sock:
        sock.carry_out(changes, operation="setup of eni-9")


def test_refusal_names_step_and_cause_and_the_rest_is_done(world):
    """I14: the first refusal is raised in the kernel's words; changes after it are made all the same."""
    wanted = [
        messages.change_link(NO_LINK, step="raise eth9 (eni-9)", is_up=True),
        messages.change_link(NO_LINK, step="set MTU of eth9 (eni-9)", mtu=9001),
        messages.add_rule(32765, table=10203, source=IPv4Address("10.0.1.10")),
    ]
    with pytest.raises(
        WiringError, check=failed(FailureCode.STEP_REFUSED, work="setup of eni-9", step="raise eth9 (eni-9)")
    ) as caught:
        carry_out(world, *wanted)
    assert "ENODEV" in caught.value.details
    assert [(one["src"], one["table"]) for one in world.host.ip("rule") if one["priority"] == 32765] == [("10.0.1.10", "10203")]


def test_changes_are_idempotent(world):
    """Every change can be made twice, and removing what is not there succeeds."""
    world.fabric()
    world.host.sh("ip link set eth1 up")
    index = next(one["ifindex"] for one in world.host.ip("link show eth1"))
    address, router = IPv4Address("10.0.1.10"), IPv4Address("10.0.1.1")
    before = world.host.snapshot()
    address_of_eni = messages.add_address(index, address, length=24, step="add address", is_connected=False)
    make = [
        replace(address_of_eni, tolerated=messages.PRESENT),
        messages.add_route(router, index=index, table=10203, step="add router", is_replaced=True),
        messages.add_route(None, via=router, index=index, table=10203, step="add default", is_replaced=True),
        messages.add_rule(32765, table=10203, source=address),
        messages.add_rule(1024, table=254, mark=0x80),
        messages.add_rule(1025, table=254, destination=IPv4Network("198.51.100.0/24")),
    ]
    remove = [
        messages.delete_rule(1025, table=254, destination=IPv4Network("198.51.100.0/24")),
        messages.delete_rule(1024, table=254),
        messages.delete_rule(32765, table=10203, source=address),
        messages.delete_route(None, length=0, index=index, table=10203, step="delete default"),
        messages.delete_route(router, length=32, index=index, table=10203, step="delete router"),
        messages.delete_address(index, address, length=24, step="delete address"),
    ]
    carry_out(world, *make)
    once = world.host.snapshot()
    assert once != before
    assert "10.0.1.0/24" not in world.host.sh("ip route show table main")  # an ENI's address brings no connected route
    assert [one["fwmark"] for one in world.host.ip("rule") if one["priority"] == 1024] == ["0x80"]
    assert "proto static scope link" in world.host.sh("ip -d route show table 10203 10.0.1.1")
    carry_out(world, *make)
    assert world.host.snapshot() == once
    for _ in range(2):
        carry_out(world, *remove)
        assert world.host.snapshot() == before


def test_many_threads_change_at_once(world):
    """Any thread may change the node while others do; each is back in its own namespace, and no descriptor is left open."""
    rounds, count = 10, 8
    carry_out(world, messages.add_rule(1024, table=254, mark=0x80))
    home, opened = os.stat(OWN_NETNS).st_ino, len(os.listdir("/proc/self/fd"))
    gate = threading.Barrier(count)

    def work(number: int) -> int:
        gate.wait(timeout=120)
        rules = [(table, IPv4Address("10.0.1.0") + number) for table in (10203, 10204)]
        for _ in range(rounds):
            carry_out(world, *(messages.add_rule(32765, table=t, source=a) for t, a in rules))
            carry_out(world, *(messages.delete_rule(32765, table=t, source=a) for t, a in rules[1:]))
        return os.stat(OWN_NETNS).st_ino

    with ThreadPoolExecutor(count) as threads:
        assert set(threads.map(work, range(count), timeout=120)) == {home}
    found = sorted((one["src"], one["table"]) for one in world.host.ip("rule") if one["priority"] == 32765)
    assert found == [(f"10.0.1.{number}", "10203") for number in range(count)]
    # A thread keeps no socket of its own: those that were open at once lie idle for the next change, two descriptors each.
    assert len(os.listdir("/proc/self/fd")) <= opened + 2 * count
