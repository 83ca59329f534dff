"""Another tool takes an address or an ENI of the pool, or fills one: the pool goes on, and nothing is given twice."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.model.address import AddressState
from ipamd.model.ids import EniId
from ipamd.model.pool_settings import PoolSettings
from tests.fakes.cloud import IDENTITY, PRIMARY
from tests.fakes.node import FakeNode
from tests.stories.external_changes import settle
from tests.unit.service.cloud_comparison import OTHER


def two_enis(node: FakeNode) -> None:
    """Bring the second ENI up."""
    node.add("first")
    node.pool.cycle()
    assert len(node.datastore.enis()) == 2


def take_by_hand(node: FakeNode, eni_id: EniId, count: int) -> frozenset[IPv4Address]:
    """Somebody else assigns addresses to an ENI."""
    eni = node.ec2.enis[eni_id]
    taken = frozenset(node.ec2._take(count))
    node.ec2.enis[eni_id] = replace(eni, secondary_addresses=eni.secondary_addresses | taken)
    return taken


def detach_by_hand(node: FakeNode, eni_id: EniId) -> None:
    """Somebody else detaches and deletes an ENI."""
    node.ec2.detach_eni(node.ec2.enis[eni_id].attachment_id)
    node.ec2.delete_eni(eni_id)


def test_an_eni_that_another_hand_filled_does_not_stop_the_pool(tmp_path: Path) -> None:
    """EC2 says that the ENI is full: it is read again, and the pool goes on with what is true, at once."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=2))
    node.bring_up()
    taken = take_by_hand(node, PRIMARY, 7)
    for number in range(2):
        node.add(f"s{number}")
    node.pool.cycle()
    assert node.datastore.counts().free >= 2
    assert all(node.datastore.address(address) is not None for address in taken)
    node.assert_sound()


def test_an_eni_that_another_hand_detached_does_not_stop_the_pool(tmp_path: Path) -> None:
    """EC2 does not know the ENI that we would fill: it is forgotten, its addresses with it, and the pool grows elsewhere (I7)."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=2))
    node.bring_up()
    for number in range(9):
        node.add(f"s{number}")
        node.pool.cycle()
    detach_by_hand(node, OTHER)
    node.add("last-on-it")
    settle(node)
    given = node.add("served")
    assert given.eni_id in node.ec2.enis
    assert {row.eni_id for row in node.datastore.addresses() if row.state is AddressState.FREE} <= node.ec2.enis.keys()


@pytest.mark.parametrize("source", [PRIMARY, OTHER])
def test_an_address_that_moved_to_another_eni_does_not_stop_the_comparison(node: FakeNode, source: EniId) -> None:
    """Somebody moved a free address from one of our ENIs to another: it is taken where it is now, whatever the order."""
    two_enis(node)
    target = OTHER if source == PRIMARY else PRIMARY
    row = next(row for row in node.datastore.addresses() if row.eni_id == source and row.state is AddressState.FREE)
    node.ec2.unassign(source, addresses=[row.address], prefixes=[])
    eni = node.ec2.enis[target]
    node.ec2.enis[target] = replace(eni, secondary_addresses=eni.secondary_addresses | {row.address})
    node.look_twice()
    now = node.datastore.address(row.address)
    assert now is not None
    assert now.eni_id == target
    node.assert_sound()


def test_an_address_that_moved_with_its_sandbox_is_kept_and_told(node: FakeNode) -> None:
    """The sandbox keeps its row (I2), nobody else gets the address (I1), and the rest of EC2's answer is recorded."""
    two_enis(node)
    made = node.datastore.attachments()[0]
    target = OTHER if made.eni_id == PRIMARY else PRIMARY
    node.ec2.unassign(made.eni_id, addresses=[made.address], prefixes=[])
    eni = node.ec2.enis[target]
    node.ec2.enis[target] = replace(eni, secondary_addresses=eni.secondary_addresses | {made.address})
    fresh = take_by_hand(node, PRIMARY, 0) | take_by_hand(node, target, 1)
    outcome = node.enis.sync_with_ec2(IDENTITY)
    assert node.datastore.attachment(made.key) == made
    assert any(str(made.address) in str(kept) for kept in outcome.contradictions)
    assert all(node.datastore.address(address) is not None for address in fresh)


def test_a_new_eni_with_an_address_that_we_hold_elsewhere_does_not_stop_the_pool(node: FakeNode) -> None:
    """EC2 took a free address from one ENI and gave it to the next: our row of it was stale, and goes."""
    node.add("a")
    row = next(row for row in node.datastore.addresses() if row.state is AddressState.FREE)
    node.ec2.unassign(PRIMARY, addresses=[row.address], prefixes=[])
    fresh = node.ec2._fresh
    # `zip` in the fake takes one more than it gives: primary, lost, then the secondary addresses
    node.ec2._fresh = (a for a in [next(fresh), next(fresh), row.address, *fresh])
    node.pool.cycle()
    for _ in range(3):
        node.clock.advance(61)
        node.pool.cycle()
    assert node.datastore.open_intents() == ()
    assert len(node.datastore.enis()) == 2
    node.assert_sound()
