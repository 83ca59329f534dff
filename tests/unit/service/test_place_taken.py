"""A place that another hand's ENI takes is known from an answer that is not believed: what it shows is there."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import EniLimitError
from ipamd.model.ids import EniId, InstanceId, MacAddress
from ipamd.service.pool.places import REFUSED_MAX_S, Places
from ipamd.service.pool.recent_changes import RecentChanges
from tests.fakes.clock import FakeClock
from tests.fakes.cloud import IDENTITY, PRIMARY, FakeEc2
from tests.fakes.node import FakeNode
from tests.stories.other_hands import settle
from tests.stories.stale_reads import run_sandboxes


def test_no_second_eni_is_made_for_a_taken_place(tmp_path: Path) -> None:
    """Chaos seed 803: a hand had attached an ENI as device 3, and EC2's answers were not believed, because they lacked every address
    of running sandboxes. Each try made an ENI for device 3, which EC2 refused to attach there: 120 calls in a minute (I13)."""
    node = FakeNode(tmp_path, ec2=FakeEc2(limits=InstanceLimits("m5.large", 4, 10)))
    node.bring_up()
    run_sandboxes(node, "a", "b")
    settle(node)
    primary = node.ec2.enis[PRIMARY]
    other = EniId("eni-other")
    node.ec2.enis[other] = replace(
        primary,
        eni_id=other,
        mac=MacAddress("02:00:00:00:00:77"),
        device_index=3,
        secondary_addresses=frozenset(),
        prefixes=frozenset(),
    )
    node.ec2.enis[PRIMARY] = replace(primary, secondary_addresses=frozenset())
    outcome = node.enis.sync_with_ec2(IDENTITY)
    assert "lacks 2 of 2 addresses" in outcome.implausible
    assert (0, 3) in node.provisioner.occupied()
    snapshot = node.pool.snapshot()
    assert snapshot is not None
    assert 3 in snapshot.unmanaged_device_indexes
    assert node.datastore.eni(other) is None, "nothing is recorded from such an answer"
    node.datastore.close()


def hide(node: FakeNode, *indexes: int) -> None:
    """ENIs of another hand are attached, and no Describe shows them."""
    primary = node.ec2.enis[PRIMARY]
    for index in indexes:
        eni_id = EniId(f"eni-hidden-{index}")
        mac = MacAddress(f"02:00:00:00:01:{index:02x}")
        node.ec2.enis[eni_id] = replace(
            primary,
            eni_id=eni_id,
            mac=mac,
            device_index=index,
            primary_address=IPv4Address(f"10.0.15.{index}"),
            secondary_addresses=frozenset(),
            prefixes=frozenset(),
        )
        node.ec2.hidden.add(eni_id)


def node_of(tmp_path: Path, *, eni_count: int = 6) -> FakeNode:
    """A node that needs its second ENI."""
    node = FakeNode(tmp_path, ec2=FakeEc2(limits=InstanceLimits("m5.large", eni_count, 4)))
    node.bring_up()
    return node


def devices(node: FakeNode) -> list[int]:
    """Device indexes of the ENIs in the datastore."""
    return sorted(eni.device_index for eni in node.datastore.enis())


def test_an_eni_takes_the_next_place_if_its_own_is_taken(tmp_path: Path) -> None:
    """Chaos seed 831: after a lost datastore Describe showed some of the ENIs only. Each refused attach cost a creation and a
    deletion, again and again, and ADDs waited: 129 calls in a minute (I13)."""
    node = node_of(tmp_path)
    hide(node, 1, 2)
    node.add("a")
    node.pool.cycle()
    assert devices(node) == [0, 3]
    assert (node.ec2.calls["create_eni"], node.ec2.calls["attach_eni"], node.ec2.calls["delete_eni"]) == (1, 3, 0)
    assert node.datastore.open_intents() == ()
    for number in range(5):
        node.add(f"b{number}")
        node.pool.cycle()
    assert devices(node) == [0, 3, 4]
    assert node.ec2.calls["attach_eni"] == 4, "the places are remembered"
    node.assert_sound()
    node.datastore.close()


def test_many_taken_places_are_learned_a_few_at_a_time(tmp_path: Path) -> None:
    """An ENI is tried at four places; then it is deleted and the next one goes on where that one ended."""
    node = node_of(tmp_path, eni_count=8)
    hide(node, 1, 2, 3, 4, 5)
    node.add("a")
    for _ in range(3):
        node.pool.cycle()
        node.clock.advance(2)
    assert devices(node) == [0, 6]
    assert (node.ec2.calls["create_eni"], node.ec2.calls["attach_eni"]) == (2, 6)
    assert set(node.ec2.enis) - node.ec2.hidden == {eni.eni_id for eni in node.datastore.enis()}, "I9: no ENI lies about"
    node.datastore.close()


def test_a_taken_place_counts_and_is_tried_again_later(tmp_path: Path) -> None:
    """An ENI that Describe does not show takes a place of the instance's; when it has gone, its place is used after a minute."""
    node = node_of(tmp_path, eni_count=3)
    hide(node, 1)
    for number in range(6):
        node.add(f"a{number}")
        node.pool.cycle()
    assert devices(node) == [0, 2]
    assert node.ec2.calls["create_eni"] == 1, "the instance takes three"
    assert "1 that are not ours" in node.demand.status().blocked_by
    hidden = node.ec2.enis[EniId("eni-hidden-1")]
    node.ec2.enis[hidden.eni_id] = replace(hidden, instance_id=InstanceId(""), device_index=-1)
    left_s = node.provisioner.next_retry_s()
    assert left_s is not None
    node.clock.advance(left_s)
    node.pool.cycle()
    assert devices(node) == [0, 1, 2]
    node.clock.advance(REFUSED_MAX_S)
    assert node.provisioner.next_retry_s() is None, "nothing is remembered of a place that was free"
    node.datastore.close()


def test_a_place_that_is_refused_again_is_left_for_longer(node: FakeNode) -> None:
    """Twice as long each time, up to a bound; an ENI that is shown there explains it."""
    clock = FakeClock()
    places = Places(clock=clock, datastore=node.datastore, changes=RecentChanges(clock))
    waits = []
    for _ in range(8):
        places.refuse((0, 2))
        assert list(places.taken().values()) == [(0, 2)]
        waits.append(places.next_end_s())
        clock.advance(waits[-1] or 0.0)
        assert places.taken() == {}
    assert waits == [60, 120, 240, 480, 960, 1800, 1800, 1800]
    places.refuse((0, 2))
    places.show({EniId("eni-2"): (0, 2)})
    assert places.taken() == {EniId("eni-2"): (0, 2)}


def test_a_cap_that_was_counted_without_hidden_enis_is_forgotten(tmp_path: Path) -> None:
    """EC2 refused an ENI when it showed one of three. Once it shows them, three are no reason to stop below a limit of five."""
    node = node_of(tmp_path, eni_count=5)
    hide(node, 1, 2)
    node.add("a")
    node.ec2.fail["attach_eni"] = [EniLimitError("full", code="AttachmentLimitExceeded")]
    node.pool.cycle()
    assert devices(node) == [0]
    assert "no further ENI" in node.demand.status().blocked_by
    node.ec2.hidden.clear()
    node.enis.set_up_adopted(node.enis.sync_with_ec2(IDENTITY))
    for number in range(12):
        node.add(f"b{number}")
        node.pool.cycle()
    assert devices(node) == [0, 1, 2, 3, 4]
    node.datastore.close()
