"""What other hands do to our ENIs is noticed by links and metadata, EC2 is asked a bounded number of times, and nothing is concluded
from either hint alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.eni.book import VIEW_S
from ipamd.eni.external_changes import REQUESTS_PER_TURN
from ipamd.eni.resync import DOUBT_MAX_S, ResyncReason
from ipamd.model.cloud_evidence import MASS_LOSS_AGE_S
from ipamd.model.conditions import ConditionCode
from ipamd.model.eni import EniState, InstanceLimits
from ipamd.model.errors import CloudError
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.kernel import LinkEvent, LinkEventKind
from ipamd.model.metadata_evidence import ASK_AGAIN_S, ASK_PAUSES_S
from ipamd.model.pool_settings import PoolSettings
from ipamd.process.cloud_loop import CloudLoop
from tests.conditions import codes
from tests.fakes.cloud import PRIMARY, FakeEc2
from tests.fakes.metadata import FakeMetadata
from tests.fakes.node import FakeNode
from tests.loops import running
from tests.rig import wait_until
from tests.stories.external_changes import TURN_MAX_S, described, detach_by_hand, pass_time, settle
from tests.stories.stale_reads import run_sandboxes
from tests.unit.service.external_changes import SECOND, conditions, settled_node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with two ENIs and two sandboxes, long after its start."""
    with settled_node(tmp_path) as made:
        yield made


def test_an_idle_node_asks_ec2_nothing_for_a_day(node: FakeNode) -> None:
    """I13: nothing differs, so metadata is looked at all day long and EC2 is never called."""
    before = dict(node.ec2.calls)
    for _ in range(1440):
        pass_time(node, 60.0)
    assert dict(node.ec2.calls) == before
    assert node.health.conditions() == []


@pytest.mark.parametrize("eni_count", [1, 8])
def test_metadata_is_asked_at_most_ten_times_a_minute(tmp_path: Path, eni_count: int) -> None:
    """Whatever the number of ENIs, and all of them are read within a quarter of an hour."""
    node = FakeNode(tmp_path, ec2=FakeEc2(limits=InstanceLimits("m5.4xlarge", 8, 10)))
    node.bring_up()
    run_sandboxes(node, *(f"s{number}" for number in range(9 * (eni_count - 1))))
    assert sum(eni.instance_id != "" for eni in node.ec2.enis.values()) == eni_count
    times: list[tuple[float, int]] = []
    for _ in range(1800):
        before = node.metadata.request_count()
        node.clock.advance(1.0)
        node.cloud_reconciler.run_once()
        times.append((node.clock.monotonic(), node.metadata.request_count() - before))
    busiest = max(sum(count for at, count in times if start <= at < start + 60.0) for start, _ in times)
    assert 3 <= busiest <= REQUESTS_PER_TURN
    assert node.metadata._read == {eni.mac for eni in node.ec2.attached()}
    node.datastore.close()


def test_after_a_restart_the_first_turn_reads_three_enis_of_ours(tmp_path: Path) -> None:
    """EC2 has just shown their IDs and places, so only their addresses are read; an ENI of somebody else comes after them."""
    node = FakeNode(tmp_path, ec2=FakeEc2(limits=InstanceLimits("m5.4xlarge", 8, 10)))
    node.bring_up()
    run_sandboxes(node, *(f"s{number}" for number in range(18)))
    ours = {eni.mac for eni in node.datastore.enis()}
    assert len(ours) == 3
    other = replace(node.ec2.enis[PRIMARY], eni_id=EniId("eni-other"), mac=MacAddress("00:00:00:00:00:01"), device_index=7)
    node.datastore.close()
    node.metadata = FakeMetadata(node.ec2.attached)
    node.start()
    node.bring_up()
    node.ec2.enis[other.eni_id] = other
    before = node.metadata.request_count()
    node.cloud_reconciler.take_turn()
    assert node.metadata.request_count() - before <= REQUESTS_PER_TURN
    assert node.metadata._read == ours
    node.datastore.close()


def test_an_address_taken_away_by_hand_is_noticed_by_metadata(node: FakeNode) -> None:
    """Within a few turns: one look, a second one, then it is not given any more; one sandbox keeps its own (I2)."""
    in_use = node.datastore.attachments()[0].address
    free = max(row.address for row in node.datastore.addresses() if row.eni_id == SECOND and not row.is_in_use)
    before = described(node)
    for address in (in_use, free):
        owner = next(eni for eni in node.ec2.enis.values() if address in eni.secondary_addresses)
        node.ec2.unassign(owner.eni_id, addresses=[address], prefixes=[])
    pass_time(node, TURN_MAX_S)
    assert ConditionCode.EXTERNAL_CHANGE_ASKED in codes(node.health)
    for _ in range(4):
        pass_time(node, TURN_MAX_S)
    assert node.datastore.address(free) is None
    lost = node.datastore.address(in_use)
    assert lost is not None
    assert lost.is_lost
    assert described(node) - before <= 3
    assert not {ConditionCode.EXTERNAL_CHANGE_ASKED, ConditionCode.EXTERNAL_CHANGE_NOT_CONFIRMED} & codes(node.health)


def test_an_address_added_by_hand_becomes_free(node: FakeNode) -> None:
    """I7: metadata only makes EC2 be asked; EC2's answer makes the address free. One call, and nothing to report afterwards."""
    (added,) = node.ec2.assign_addresses(PRIMARY, count=1) if has_room(node, PRIMARY) else (IPv4Address("10.0.7.7"),)
    eni = node.ec2.enis[PRIMARY]
    node.ec2.enis[PRIMARY] = replace(eni, secondary_addresses=eni.secondary_addresses | {added})
    before = described(node)
    for _ in range(3):
        pass_time(node, TURN_MAX_S)
    row = node.datastore.address(added)
    assert row is not None
    assert row.eni_id == PRIMARY
    assert described(node) - before == 1
    assert node.health.conditions() == []


def has_room(node: FakeNode, eni_id: EniId) -> bool:
    """Whether EC2 takes one more address there."""
    return len(node.ec2.enis[eni_id].secondary_addresses) < node.ec2.limits.slots_per_eni


def test_what_we_gave_back_from_one_eni_and_ec2_gave_to_another_is_noticed(node: FakeNode) -> None:
    """A chaos run: an Assign is refused as too much after an attempt whose answer was lost; the address that it got had been given
    back from another ENI a moment before. Metadata that lags shows it where it was, not elsewhere."""
    address = IPv4Address("10.0.4.9")
    node.enis.book.record_own([address], on=PRIMARY, is_added=False)
    second = node.ec2.enis[SECOND]
    node.ec2.enis[SECOND] = replace(second, secondary_addresses=second.secondary_addresses | {address})
    for _ in range(3):
        pass_time(node, TURN_MAX_S)
    row = node.datastore.address(address)
    assert row is not None
    assert row.eni_id == SECOND


def test_growth_is_not_taken_for_other_hands(node: FakeNode) -> None:
    """Metadata that shows our own new ENI late, by minutes, causes no look."""
    node.metadata.freeze()
    before = described(node)
    run_sandboxes(node, *(f"more-{number}" for number in range(10)))
    assert len(node.ec2.enis) == 3
    for _ in range(3):
        pass_time(node, TURN_MAX_S)
    assert described(node) - before == 0
    node.metadata.frozen = None
    settle(node)
    assert described(node) - before == 0


def test_what_was_read_before_our_own_change_is_no_difference(node: FakeNode) -> None:
    """Metadata falls silent, and the pool changes: minutes later neither the old list nor an old reading is a difference."""
    before = described(node)
    node.metadata.fail = [CloudError("no")] * 1000
    released = max(row.address for row in node.datastore.addresses() if row.eni_id == SECOND and not row.is_in_use)
    node.ec2.unassign(SECOND, addresses=[released], prefixes=[])
    node.enis.book.record_own([released], on=SECOND, is_added=False)
    with node.datastore.transaction() as uow:
        uow.remove_addresses([released], reason="released")
    run_sandboxes(node, *(f"more-{number}" for number in range(10)))
    assert len(node.ec2.enis) == 3
    for _ in range(10):
        pass_time(node, TURN_MAX_S)
    assert described(node) == before
    assert node.health.conditions() == []


def test_a_failing_turn_says_nothing(node: FakeNode) -> None:
    """I11: metadata that refuses, whatever it refuses, makes no difference; one odd ENI does not keep the others from being read."""
    before = described(node)
    for _ in range(20):
        node.metadata.fail = [CloudError("no")] * 3
        pass_time(node, TURN_MAX_S)
    assert described(node) == before
    assert node.health.conditions() == []


def test_doubt_without_end_is_asked_about_less_and_less(node: FakeNode) -> None:
    """An answer that stays implausible for a day costs a look a minute at first, and one an hour in the end."""
    node.ec2.enis = {SECOND: node.ec2.enis[SECOND]}
    before = described(node)
    node.app.pool.resyncs.request(ResyncReason.OTHER, "a test")
    for _ in range(1440):
        pass_time(node, 60.0)
    assert described(node) - before <= 20 + 86400 / DOUBT_MAX_S
    assert node.datastore.eni(PRIMARY) is not None, "nothing was concluded"
    assert ConditionCode.RESYNC_NOT_BELIEVED in codes(node.health)
    assert ConditionCode.RESYNC_DOUBTS not in codes(node.health), "an answer that is not believed holds nothing back"


def test_metadata_that_stays_stuck_costs_a_look_an_hour(node: FakeNode) -> None:
    """Frozen metadata: a few looks for each distinct difference, then one an hour, and the condition says so."""
    node.metadata.freeze()
    node.ec2.unassign(SECOND, addresses=[max(node.ec2.enis[SECOND].secondary_addresses)], prefixes=[])
    node.enis.sync_with_ec2(node.node_info.identity())
    node.clock.advance(31)
    node.enis.sync_with_ec2(node.node_info.identity())
    before = described(node)
    for _ in range(int(24 * 3600 / 60)):
        pass_time(node, 60.0)
    assert 20 <= described(node) - before <= 24 * 3600 / ASK_AGAIN_S + 1 + len(ASK_PAUSES_S)
    assert ConditionCode.EXTERNAL_CHANGE_NOT_CONFIRMED in codes(node.health)


def test_metadata_is_a_witness_only_while_it_is_fresh_and_complete(node: FakeNode) -> None:
    """A view in which one ENI is old, or missing, is none: it could confirm a loss that did not happen."""
    view = node.enis.book.metadata_view()
    assert view is not None
    assert view >= {node.ec2.enis[eni_id].primary_address for eni_id in (PRIMARY, SECOND)}
    node.clock.advance(VIEW_S + 1)
    assert node.enis.book.metadata_view() is None
    for _ in range(2):
        pass_time(node, TURN_MAX_S)
    assert node.enis.book.metadata_view() is not None
    made = replace(node.ec2.enis[SECOND], eni_id=EniId("eni-hand"), mac="02:00:00:00:00:99", device_index=2)
    node.ec2.enis[made.eni_id] = made
    node.enis.book.list_metadata({eni.mac for eni in node.ec2.attached()})
    assert node.enis.book.metadata_view() is None


@pytest.mark.parametrize("eni_count", [2, 15])
def test_a_mass_loss_of_addresses_is_believed_with_metadata(tmp_path: Path, eni_count: int) -> None:
    """Links stay and all secondary addresses go: metadata is the second witness, also where one turn reads few of the ENIs."""
    limits = InstanceLimits("of a test", eni_count, 3)
    node = FakeNode(tmp_path, ec2=FakeEc2(limits=limits), settings=PoolSettings(warm_ip_target=1))
    node.bring_up()
    given = run_sandboxes(node, *(f"s{number}" for number in range(limits.slots_per_eni * eni_count - 1)))
    assert len(node.ec2.enis) == eni_count
    for _ in range(3 * eni_count):
        pass_time(node, TURN_MAX_S)
    for eni in tuple(node.ec2.enis.values()):
        node.ec2.enis[eni.eni_id] = replace(eni, secondary_addresses=frozenset())
    began = node.clock.monotonic()
    while not node.datastore.counts().lost:
        assert node.clock.monotonic() - began < MASS_LOSS_AGE_S + VIEW_S, conditions(node)
        pass_time(node, 30.0)
    assert node.clock.monotonic() - began >= MASS_LOSS_AGE_S
    assert {row.address for row in node.datastore.addresses() if row.is_lost} == set(given.values())
    assert ConditionCode.MASS_LOSS in codes(node.health)
    node.datastore.close()


def test_the_loops_freeze_on_an_event_and_end_when_told(node: FakeNode) -> None:
    """An event is acted upon while the other loop sleeps, and `stop` ends both."""
    with running(CloudLoop(node.app).loop, node.cloud_reconciler.links.loop):
        eni = detach_by_hand(node, SECOND)
        node.hostnet.events.put(LinkEvent(LinkEventKind.GONE, eni.mac))
        wait_until(lambda: bool(node.enis.routing.frozen()), what="the ENI is frozen")
        assert set(node.enis.routing.frozen()) == {SECOND}
    assert node.datastore.eni(SECOND).state is EniState.ATTACHED
