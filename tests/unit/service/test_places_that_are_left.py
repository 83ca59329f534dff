"""How many places an instance has left, where some of its ENIs are not shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipamd.model.eni import EniState, InstanceLimits
from ipamd.model.ids import EniId
from ipamd.model.placement import growth_actions
from ipamd.model.pool import CreateEni, EniCapacity, GrowthState, PoolCounts, PoolSettings, PoolSnapshot, Refusal
from tests.fakes.cloud import IDENTITY, FakeEc2
from tests.fakes.node import FakeNode
from tests.unit.service.test_place_taken import devices, hide, node_of


def test_an_eni_is_moved_to_no_more_places_than_there_are(tmp_path: Path) -> None:
    """MAX_ENI=2, and an ENI that EC2 does not show has the second place: ours is deleted, not attached as a third."""
    ec2 = FakeEc2(limits=InstanceLimits("m5.large", 6, 4))
    node = FakeNode(tmp_path, settings=PoolSettings(max_eni=2), ec2=ec2)
    node.bring_up()
    hide(node, 1)
    node.add("a")
    for _ in range(4):
        node.pool.cycle()
        node.clock.advance(2)
    assert devices(node) == [0]
    assert (ec2.calls["create_eni"], ec2.calls["attach_eni"], ec2.calls["delete_eni"]) == (1, 1, 1)
    node.datastore.close()


def test_a_place_of_an_eni_that_left_may_be_taken_by_it(tmp_path: Path) -> None:
    """Its sandboxes keep the record of an ENI that EC2 does not show any more. It is there all the same: its place is remembered."""
    node = node_of(tmp_path)
    for name in ("a", "b", "c", "d", "e"):
        node.add(name)
        node.pool.cycle()
    gone = next(eni.eni_id for eni in node.datastore.enis() if eni.device_index == 1)
    node.ec2.hidden.add(gone)
    for _ in range(3):
        node.clock.advance(301)
        node.enis.sync_with_ec2(IDENTITY)
    for name in ("f", "g"):
        node.add(name)
        node.pool.cycle()
        node.clock.advance(2)
    snapshot = node.pool.snapshot()
    assert snapshot is not None
    assert {eni.device_index for eni in snapshot.enis} == {0, 2, 3}, "it has left"
    assert snapshot.refused_device_indexes == {1}
    node.datastore.close()


@pytest.mark.parametrize(("known", "refused", "place_count"), [(2, {3}, 1), (2, set(), 1), (1, {1, 2}, 2), (3, set(), 0)])
def test_a_cap_is_counted_in_enis_that_ec2_shows(known: int, refused: set[int], place_count: int) -> None:
    """An ENI that leaves makes room below the cap, whatever places are refused."""
    enis = tuple(EniCapacity(EniId(f"eni-{n}"), 10 + n, EniState.ATTACHED, 3, is_primary=n == 0) for n in range(known))
    growth = GrowthState(cap=Refusal("full", "", 60.0, is_lasting=True), eni_cap=3)
    limits = InstanceLimits("m5.large", 6, 4)
    snapshot = PoolSnapshot(enis, PoolCounts(), limits, refused_device_indexes=frozenset(refused), growth=growth)
    found = list(growth_actions(snapshot, PoolSettings(warm_ip_target=9), 9))
    assert len(found) == place_count
    assert not {one.device_index for one in found if isinstance(one, CreateEni)} & refused
