"""What the node tracks for a sandbox's address ends before the address is given again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest

from ipamd.model.address import AddressState
from ipamd.model.conditions import ConditionCode
from ipamd.model.errors import WiringError
from ipamd.model.family import IPV6, IpAddress
from ipamd.sandbox.cooldown import CONNECTIONS, CONNECTIONS_PAUSE_MAX_S, CONNECTIONS_RETRY_S
from tests.conditions import codes
from tests.fakes.connections import Connection
from tests.fakes.node import COOLDOWN_S, FakeNode
from tests.families import family_for, in_both, network_of
from tests.unit.service.branches import attach, node_with_trunk

CLIENT, SERVICE, OUTSIDE = (ip_address(text) for text in ("10.0.0.200", "10.100.0.1", "203.0.113.9"))


@pytest.fixture
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FakeNode]:
    """A node that serves."""
    made = FakeNode(tmp_path, network=network_of(family_for(request)))
    made.bring_up()
    yield made
    made.datastore.close()


def by_service(address: IpAddress) -> Connection:
    """Of a client to a ClusterIP: only the reply names the sandbox."""
    return Connection(CLIENT, SERVICE, address, CLIENT)


def is_free(node: FakeNode, address: IpAddress) -> bool:
    """Whether an address may be given."""
    row = node.datastore.address(address)
    return row is not None and row.state is AddressState.FREE


@in_both("node")
def test_connections_end_between_cooldown_and_freedom(node: FakeNode) -> None:
    """Of the address, whose link is gone by then, and of no other; an address that is still cooling keeps them."""
    first, second = node.add("a").address, node.add("b").address
    node.connections.entries = {by_service(first), by_service(second)}
    states = list[tuple[bool, bool]]()
    node.connections.before = lambda: states.append((is_free(node, first), bool(node.wiring.dying)))
    node.delete("a")
    node.cooldown.work()
    assert node.connections.asked == []
    node.clock.advance(COOLDOWN_S)
    node.cooldown.work()
    assert states == [(False, False)]
    assert is_free(node, first)
    assert node.connections.entries == {by_service(second)}


def test_one_look_serves_all_that_are_due(node: FakeNode) -> None:
    """Not one for each: the table may be large."""
    addresses = [node.add(f"s{number}").address for number in range(8)]
    for number in range(8):
        node.delete(f"s{number}")
    node.cool()
    assert node.connections.asked == [frozenset(addresses)]
    assert all(is_free(node, address) for address in addresses)


def test_an_address_whose_connections_stay_is_not_given(node: FakeNode) -> None:
    """It goes on cooling, a condition names it, the next try comes by itself, and the condition ends with it (I8)."""
    address = node.add("a").address
    node.delete("a")
    node.cooldown.work()
    node.clock.advance(COOLDOWN_S)
    node.connections.fail = [WiringError("refused", details="load the module"), WiringError("refused")]
    node.cooldown.work()
    assert not is_free(node, address)
    assert codes(node.health, CONNECTIONS) == {ConditionCode.CONNECTIONS_KEPT}
    assert node.cooldown.next_due_s() == CONNECTIONS_RETRY_S
    node.cooldown.work()
    assert len(node.connections.asked) == 1, "not before the pause has passed"
    for is_refused in (True, False):
        node.clock.advance(CONNECTIONS_RETRY_S)
        node.cooldown.work()
        assert (CONNECTIONS in node.health.conditions_by_subject(), is_free(node, address)) == (is_refused, not is_refused)


def test_a_slow_look_is_followed_by_a_pause(node: FakeNode) -> None:
    """A large table takes a bounded share of a processor; what is due then waits, and is freed after it."""
    addresses = []
    for name in ("a", "b"):
        addresses.append(node.add(name).address)
        node.delete(name)
        node.cooldown.work()
        node.clock.advance(0.5)
    node.connections.before = lambda: node.clock.advance(1.0)
    node.clock.advance(COOLDOWN_S - 1.0)
    node.cooldown.work()
    assert [is_free(node, address) for address in addresses] == [True, False]
    assert node.cooldown.next_due_s() == CONNECTIONS_PAUSE_MAX_S
    node.clock.advance(CONNECTIONS_PAUSE_MAX_S)
    node.cooldown.work()
    assert is_free(node, addresses[1])


def test_an_adopted_address_keeps_its_connections(node: FakeNode) -> None:
    """Cooling and then found wired: somebody lives there (I2)."""
    made = node.add("a")
    spec = node.wiring.wired[made.host_veth]
    node.delete("a")
    node.cooldown.work()
    other = type(spec)(node.key("b"), spec.address, spec.route_table, "enib", spec.netns, spec.mtu)
    node.wiring.wired["enib"], node.wiring.routes[spec.address] = other, "enib"
    node.runtime.run("b")
    veth = next(veth for veth in node.wiring.survey().veths if veth.name == "enib")
    assert node.quarantine.adopt(veth, node.runtime.listed["b"], node.wiring.survey()) == ""
    node.clock.advance(COOLDOWN_S)
    node.cooldown.work()
    assert node.connections.asked == []


def test_the_address_for_egress_is_forgotten_with_its_own(node: FakeNode) -> None:
    """Both, because both are given again together."""
    node.hostnet.egress_family = IPV6
    made = node.add("a")
    assert made.other_address is not None
    node.connections.entries = {Connection(made.other_address, OUTSIDE, OUTSIDE, CLIENT)}
    node.delete("a")
    node.cool()
    assert node.connections.asked == [{made.address, made.other_address}]
    assert node.connections.entries == set()


@pytest.fixture
def trunked(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with security groups for pods."""
    made = node_with_trunk(tmp_path)
    yield made
    made.datastore.close()


@pytest.mark.parametrize("is_strict", [True, False], ids=["strict", "standard"])
def test_a_branch_address_is_forgotten_when_its_links_are_gone(trunked: FakeNode, is_strict: bool) -> None:
    """It does not cool; a refusal is tried again."""
    made = attach(trunked, 7, is_strict=is_strict)
    trunked.connections.entries = {by_service(made.address)}
    trunked.delete("sandbox-7")
    trunked.connections.fail = [WiringError("refused")]
    trunked.cooldown.work()
    assert CONNECTIONS in trunked.health.conditions_by_subject()
    assert trunked.cooldown.next_due_s() == CONNECTIONS_RETRY_S
    trunked.clock.advance(CONNECTIONS_RETRY_S)
    trunked.cooldown.work()
    assert trunked.connections.entries == set()
    assert CONNECTIONS not in trunked.health.conditions_by_subject()
    assert trunked.cooldown.next_due_s() is None


def test_the_pods_next_sandbox_keeps_its_connections(trunked: FakeNode) -> None:
    """It has the branch ENI of the one before."""
    made = attach(trunked, 7)
    trunked.delete("sandbox-7")
    trunked.cooldown.sweep()
    with trunked.datastore.transaction() as uow:
        uow.confirm(replace(made, key=trunked.key("sandbox-8")))
    trunked.cooldown.work()
    assert trunked.connections.asked == []
    assert trunked.cooldown.next_due_s() is None
