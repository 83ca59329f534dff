"""A place that another hand's ENI takes is known from an answer that is not believed: what it shows is there."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.eni.book import PLACE, EniBook
from ipamd.model.blocked import Blocked
from ipamd.model.eni import EniState, InstanceLimits
from ipamd.model.errors import EniLimitError
from ipamd.model.growth_state import GrowthState, growth_refusal
from ipamd.model.ids import EniId, InstanceId, MacAddress
from ipamd.model.placement import growth_actions
from ipamd.model.pool_actions import CreateEni
from ipamd.model.pool_counts import PoolCounts
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import EniCapacity, PoolSnapshot
from tests.fakes.cloud import IDENTITY, PRIMARY, FakeEc2
from tests.fakes.node import FakeNode
from tests.stories.external_changes import settle
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
    assert (0, 3) in node.provisioner.enis.book.unrecorded_enis().values()
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
    assert node.demand.status.kind is Blocked.NODE_FULL
    hidden = node.ec2.enis[EniId("eni-hidden-1")]
    node.ec2.enis[hidden.eni_id] = replace(hidden, instance_id=InstanceId(""), device_index=-1)
    left_s = node.provisioner.next_retry_s()
    assert left_s is not None
    node.clock.advance(left_s)
    node.pool.cycle()
    assert devices(node) == [0, 1, 2]
    assert node.provisioner.next_retry_s() is None, "nothing is remembered of a place that was free"
    node.datastore.close()


def test_a_place_that_is_refused_again_is_left_for_longer(node: FakeNode) -> None:
    """Twice as long each time, up to a bound; an ENI that is shown there explains it, and one that is attached there ends it."""
    clock, places = node.clock, EniBook(node.app.context)
    waits = []
    for _ in range(8):
        places.mark_taken((0, 2))
        assert places.refused() == {(0, 2)}
        assert places.free_index(beside={1}) == 3
        waits.append(places._backoffs.next_s(PLACE))
        clock.advance(waits[-1] or 0.0)
        assert not places.refused()
        assert places.free_index(beside={1}) == 2
    assert waits == [120, 240, 480, 960, 1920, 3600, 3600, 3600]
    places.mark_free((0, 2))
    places.mark_taken((0, 2))
    assert places._backoffs.next_s(PLACE) == 120
    places.set_unrecorded({EniId("eni-2"): (0, 2)})
    assert (places.refused(), places.unrecorded_enis()) == (frozenset(), {EniId("eni-2"): (0, 2)})
    places.set_unrecorded({})
    assert (places.refused(), places.unrecorded_enis(), places._backoffs.next_s(PLACE)) == (frozenset(), {}, None)


def test_a_cap_that_was_counted_without_hidden_enis_is_forgotten(tmp_path: Path) -> None:
    """EC2 refused an ENI when it showed one of three. Once it shows them, three are no reason to stop below a limit of five."""
    node = node_of(tmp_path, eni_count=5)
    hide(node, 1, 2)
    node.add("a")
    node.ec2.fail["attach_eni"] = [EniLimitError("full", code="AttachmentLimitExceeded")]
    node.pool.cycle()
    assert devices(node) == [0]
    assert node.demand.status.kind is Blocked.ENI_LIMIT
    node.ec2.hidden.clear()
    node.enis.set_up_adopted(node.enis.sync_with_ec2(IDENTITY))
    for number in range(12):
        node.add(f"b{number}")
        node.pool.cycle()
    assert devices(node) == [0, 1, 2, 3, 4]
    node.datastore.close()


def test_a_cap_is_not_forgotten_for_places_without_an_eni(tmp_path: Path) -> None:
    """Volumes take the places of ENIs (EC2 attaches three of six), and two of them are not shown: what EC2 refused stays learned, with
    its growing pause. Counted with the ENIs, refused places would disprove it each time."""
    node = node_of(tmp_path)
    hide(node, 1, 2)
    node.ec2.attached_count_max = 3
    node.add("a")
    for _ in range(24 * 60):
        node.clock.advance(60)
        node.pool.run_once()
    assert node.ec2.calls["create_eni"] <= 8, "1 and 6 in a day, docs/pool.md"
    assert set(node.ec2.enis) - node.ec2.hidden == {PRIMARY}
    node.datastore.close()


def test_a_cap_counts_what_the_comparison_after_the_refusal_shows(tmp_path: Path) -> None:
    """EC2 refuses the third ENI; the second is one without IPv4 that another hand attached a moment ago. One try teaches it."""
    node = node_of(tmp_path)
    hide(node, 5)
    other = node.ec2.enis[EniId("eni-hidden-5")]
    node.ec2.enis[other.eni_id] = replace(other, primary_address=None)
    node.ec2.hidden.clear()
    node.ec2.attached_count_max = 2
    node.add("a")
    for _ in range(60):
        node.pool.cycle()
        node.clock.advance(10)
    assert (node.ec2.calls["create_eni"], node.ec2.calls["delete_eni"]) == (1, 1)
    node.datastore.close()


def test_an_eni_of_another_hand_that_is_shown_is_used_instead(tmp_path: Path) -> None:
    """The comparison that follows the refusal shows it: the pool plans anew with its slots, and the ENI that was made is deleted."""
    node = node_of(tmp_path)
    hide(node, 1)
    node.ec2.hidden.clear()
    node.add("a")
    node.pool.cycle()
    assert devices(node) == [0, 1]
    assert (node.ec2.calls["create_eni"], node.ec2.calls["delete_eni"]) == (1, 1)
    node.assert_sound()
    node.datastore.close()


@pytest.mark.parametrize("status", ["attached", "attaching"])
def test_an_eni_whose_own_place_is_taken_by_itself_is_kept(tmp_path: Path, status: str) -> None:
    """The daemon died after Attach, and EC2 lags: its Describe of the ENI lacks the attachment, which that of the instance has. The
    ENI is taken into use, not moved, and not deleted (I2, I9)."""
    node = node_of(tmp_path)
    node.ec2.is_place_first = True
    node.add("a")

    class Killed(BaseException):
        pass

    def kill(name: str) -> None:
        if name == "growth.attach-asked":
            raise Killed

    node.failpoint = kill
    with pytest.raises(Killed):
        node.pool.cycle()
    mine = next(eni for eni in node.ec2.enis.values() if eni.eni_id != PRIMARY)
    node.crash()
    node.ec2.answers = [(node.ec2.enis[PRIMARY],)]  # at start, before the intent is taken up
    node.ec2.enis[mine.eni_id] = replace(mine, attachment_status=status)
    lagging = replace(mine, attachment_id="", attachment_status="", instance_id="", device_index=-1, status="available")
    node.ec2.described = {mine.eni_id: [lagging]}
    node.bring_up()
    assert node.ec2.calls["attach_eni"] == 2
    node.ec2.enis[mine.eni_id] = replace(node.ec2.enis[mine.eni_id], attachment_status="attached")
    for _ in range(3):
        node.clock.advance(61)
        node.pool.cycle()
    assert devices(node) == [0, 1]
    assert (node.ec2.calls["create_eni"], node.ec2.calls["delete_eni"]) == (1, 0)
    assert node.datastore.open_intents() == ()
    node.assert_sound()
    node.datastore.close()


# How many places an instance has left, where some of its ENIs are not shown


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
    growth = GrowthState(eni_cap_refusal=growth_refusal("full", "", 60.0, is_lasting=True), eni_cap=3)
    limits = InstanceLimits("m5.large", 6, 4)
    snapshot = PoolSnapshot(enis, PoolCounts(), limits, refused_device_indexes=frozenset(refused), growth=growth)
    found = list(growth_actions(snapshot, PoolSettings(warm_ip_target=9), 9))
    assert len(found) == place_count
    assert not {one.device_index for one in found if isinstance(one, CreateEni)} & refused
