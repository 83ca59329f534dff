"""An ENI whose subnet becomes excluded gives its unused addresses back at once; what sandboxes have or had stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.model.errors import CloudError
from ipamd.model.ids import EniId, MacAddress, SubnetId
from ipamd.model.pool_settings import RELEASE_HOLD_S, PoolSettings
from tests.fakes.cloud import IDENTITY, PRIMARY, SUBNET, FakeEc2
from tests.fakes.node import FakeNode

OTHER = SubnetId("subnet-other")
SMALL = PoolSettings(warm_ip_target=2, minimum_ip_target=5)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with five addresses on its primary ENI, and a subnet beside its own."""
    ec2 = FakeEc2(pool_size=100)
    ec2.add_subnet(str(OTHER), "10.0.33.0/24", free_count=240, role="1")
    made = FakeNode(tmp_path, settings=SMALL, ec2=ec2)
    made.bring_up()
    yield made
    made.datastore.close()


def exclude(node: FakeNode, subnet_id: SubnetId = SUBNET, *, warm_ip_target: int = 12) -> None:
    """Somebody tags a subnet, and the pool, which wants more than it has, looks."""
    node.ec2.subnets[subnet_id] = replace(node.ec2.subnets[subnet_id], tags={"kubernetes.io/role/cni": "0"})
    node.clock.advance(301)
    node.pool.set_limits(node.ec2.limits, settings=PoolSettings(warm_ip_target=warm_ip_target))
    for _ in range(10):
        node.pool.cycle()


def at_ec2(node: FakeNode, eni_id: EniId) -> frozenset[IPv4Address]:
    """The secondary addresses of an ENI, at EC2."""
    return node.ec2.enis[eni_id].secondary_addresses


def of(node: FakeNode, eni_id: EniId) -> set[IPv4Address]:
    """Its addresses, as recorded."""
    return {row.address for row in node.datastore.addresses() if row.eni_id == eni_id}


def test_what_is_used_cooling_or_lost_stays_and_the_rest_goes_at_once(node: FakeNode) -> None:
    """Five addresses: one assigned, one cooling, one lost under its sandbox; the two others are released in one call, with no
    window waited for. The cooling one follows when it has cooled, the lost one's row stays its sandbox's (I2, I8)."""
    live, lost = node.add("live"), node.add("lost")
    node.ec2.unassign(PRIMARY, addresses=[lost.address], prefixes=[])
    node.look_twice()
    gone = node.add("gone")
    node.pool.cycle()
    node.delete("gone")
    before = at_ec2(node, PRIMARY)
    unassigned = node.ec2.calls["unassign"]
    assert len(before) >= 4
    node.ec2.subnets[SUBNET] = replace(node.ec2.subnets[SUBNET], tags={"kubernetes.io/role/cni": "0"})
    node.app.pool.subnets._listed_monotonic_s = float("-inf")
    node.pool.set_limits(node.ec2.limits, settings=PoolSettings(warm_ip_target=12))
    for _ in range(10):
        node.pool.cycle()
    assert node.datastore.eni(PRIMARY).excluded  # type: ignore[union-attr]
    assert at_ec2(node, PRIMARY) == {live.address, gone.address}
    assert of(node, PRIMARY) == {live.address, gone.address, lost.address}
    assert node.ec2.calls["unassign"] == unassigned + 1
    node.cool()
    for _ in range(10):
        node.pool.cycle()
    assert at_ec2(node, PRIMARY) == {live.address}
    assert {row.address for row in node.datastore.attachments()} == {live.address, lost.address}
    assert node.datastore.audit() == []


def test_new_sandboxes_find_room_elsewhere(node: FakeNode) -> None:
    """What is released was no supply any more: the pool meets its target on an ENI of the other subnet."""
    live = node.add("live")
    exclude(node)
    assert at_ec2(node, PRIMARY) == {live.address}
    assert node.add("new").eni_id != PRIMARY
    assert node.datastore.counts().free >= 8
    node.assert_sound()


def test_a_tag_of_while_no_daemon_ran_is_seen_after_the_start(node: FakeNode, tmp_path: Path) -> None:
    """A pool that is full need not grow for days, and asks once all the same: no new sandbox on the excluded ENI; not a second time.

    Their tests of subnet discovery found this: they tag the node's own subnet and restart the daemon."""
    node.datastore.close()
    node.ec2.subnets[SUBNET] = replace(node.ec2.subnets[SUBNET], tags={"kubernetes.io/role/cni": "0"})
    again = FakeNode(tmp_path, settings=SMALL, ec2=node.ec2)
    again.bring_up()
    for _ in range(10):
        again.pool.cycle()
    assert not of(again, PRIMARY)
    assert again.add("new").eni_id != PRIMARY
    calls = again.ec2.calls["describe_subnets"]
    again.clock.advance(600)
    again.pool.cycle()
    assert again.ec2.calls["describe_subnets"] == calls
    again.datastore.close()


def test_an_emptied_one_of_ours_is_deleted(node: FakeNode) -> None:
    """The other subnet is excluded: its empty ENI is deleted, its routing gone; on a full node another takes its place."""
    node.pool.set_limits(node.ec2.limits, settings=PoolSettings(warm_ip_target=12))
    node.pool.cycle()
    (second,) = [eni.eni_id for eni in node.datastore.enis() if not eni.is_primary]
    assert node.ec2.enis[second].subnet_id == OTHER
    exclude(node, OTHER, warm_ip_target=20)
    assert second not in node.ec2.enis
    assert second not in node.hostnet.enis
    assert node.datastore.counts().free >= 20
    assert {eni.subnet_id for eni in node.ec2.enis.values()} == {SUBNET}
    node.assert_sound()


def test_a_refused_call_loses_nothing_and_is_made_again(node: FakeNode) -> None:
    """EC2 refuses the first Unassign: the addresses are still recorded, and go after a pause."""
    live = node.add("live")
    node.ec2.fail["unassign"] = [CloudError("no")]
    exclude(node)
    assert of(node, PRIMARY) == at_ec2(node, PRIMARY) > {live.address}
    assert any("releases that were begun are retried" in text for text in node.health.conditions())
    node.clock.advance(RELEASE_HOLD_S)
    for _ in range(10):
        node.pool.cycle()
    assert of(node, PRIMARY) == {live.address}
    node.assert_sound()


def test_one_tagged_no_manage_is_never_touched(node: FakeNode) -> None:
    """Somebody's ENI in the excluded subnet: neither its addresses nor the ENI, and it gives no sandbox an address."""
    theirs = replace(
        node.ec2.enis[PRIMARY],
        eni_id=EniId("eni-theirs"),
        mac=MacAddress("02:00:00:00:00:99"),
        device_index=1,
        attachment_id="attach-theirs",
        primary_address=IPv4Address("10.0.6.10"),
        secondary_addresses=frozenset({IPv4Address("10.0.6.11"), IPv4Address("10.0.6.12")}),
        tags={"node.k8s.amazonaws.com/no_manage": "true"},
    )
    node.ec2.enis[theirs.eni_id] = theirs
    node.look_twice()
    assert not node.datastore.eni(theirs.eni_id).managed  # type: ignore[union-attr]
    live = node.add("live")
    exclude(node)
    assert node.datastore.eni(PRIMARY).excluded  # type: ignore[union-attr]
    for _ in range(5):
        node.clock.advance(RELEASE_HOLD_S)
        node.pool.cycle()
    assert at_ec2(node, PRIMARY) == {live.address}
    assert node.ec2.enis[theirs.eni_id] == theirs
    assert of(node, theirs.eni_id) == set()
    assert IDENTITY.primary_address not in {row.address for row in node.datastore.addresses()}
    node.assert_sound()


@pytest.mark.parametrize("is_excluded", [False, True])
def test_what_others_remove_of_its_routing_is_put_back(node: FakeNode, is_excluded: bool) -> None:
    """I2: the sandboxes of an ENI that gets no new ones still need its table, its rules and its link."""
    node.pool.set_limits(node.ec2.limits, settings=PoolSettings(warm_ip_target=12))
    node.pool.cycle()
    (second,) = [eni.eni_id for eni in node.datastore.enis() if not eni.is_primary]
    assert second in {node.add(f"pod-{number}").eni_id for number in range(12)}
    if is_excluded:
        exclude(node, OTHER, warm_ip_target=20)
    eni = node.datastore.eni(second)
    assert eni is not None
    assert (bool(eni.excluded), eni.host_ready) == (is_excluded, True)
    del node.hostnet.enis[second]
    node.host_reconciler.reconcile()
    assert second in node.hostnet.enis
