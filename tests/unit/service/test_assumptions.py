"""False answers to assumptions that no source settles (docs/assumptions.md): the pool goes on, and gives only what EC2 named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.model.ids import EniId
from ipamd.model.pool_settings import PoolSettings
from tests.fakes.cloud import PRIMARY
from tests.fakes.node import FakeNode

Assign = Callable[..., frozenset[IPv4Address]]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[FakeNode]:
    """A node that serves, whose pool wants four free addresses."""
    made = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=4, minimum_ip_target=4))
    made.bring_up()
    yield made
    made.datastore.close()


def answering(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, answer: Callable[[Assign, EniId, int], frozenset[IPv4Address]]
) -> None:
    """Let Assign answer otherwise."""
    assign = node.ec2.assign_addresses
    monkeypatch.setattr(node.ec2, "assign_addresses", lambda eni_id, *, count: answer(assign, eni_id, count))


def test_an_assign_that_gives_less_than_asked_is_asked_again(small: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """EC2 gives one address at a time: the pool plans anew, until it has its target."""
    answering(small, monkeypatch, lambda assign, eni_id, _: assign(eni_id, count=1))
    for name in ("a", "b", "c"):
        small.add(name)
    for _ in range(3):
        small.pool.cycle()
        small.clock.advance(10)
    assert small.datastore.counts().free >= 4
    assert {row.address for row in small.datastore.addresses()} == small.ec2.enis[PRIMARY].secondary_addresses
    small.assert_sound()


def test_an_assign_that_names_old_addresses_adds_only_the_new(small: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """EC2 answers with all addresses of the ENI: those that are known, in use or cooling, keep their state (I1, I8)."""

    def all_of_it(assign: Assign, eni_id: EniId, count: int) -> frozenset[IPv4Address]:
        assign(eni_id, count=count)
        return small.ec2.enis[eni_id].secondary_addresses

    answering(small, monkeypatch, all_of_it)
    first, second = small.add("a"), small.add("b")
    small.delete("b")
    before = small.datastore.address(first.address), small.datastore.address(second.address)
    count = small.datastore.counts().total
    small.pool.cycle()
    assert small.datastore.counts().total > count
    assert (small.datastore.address(first.address), small.datastore.address(second.address)) == before
    assert {row.address for row in small.datastore.addresses()} == small.ec2.enis[PRIMARY].secondary_addresses
    small.assert_sound()
