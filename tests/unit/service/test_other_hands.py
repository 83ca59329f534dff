"""What other hands do to our ENIs is noticed by links and metadata, EC2 is asked a bounded number of times, and nothing is concluded
from either hint alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.model.cloud_evidence import MASS_LOSS_AGE_S
from ipamd.model.eni import EniState, InstanceLimits
from ipamd.model.errors import CloudError, KernelDumpError, PoolEmptyError
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.kernel import LinkEvent, LinkEventKind
from ipamd.model.metadata_evidence import ASK_AGAIN_S
from ipamd.model.pool_settings import PoolSettings
from ipamd.service.pool.cloud_look import DOUBT_MAX_S, LookReason
from ipamd.service.reconcile.metadata import REQUESTS_PER_TURN, VIEW_S
from tests.fakes.cloud import PRIMARY, FakeEc2, FakeMetadata
from tests.fakes.node import FakeNode
from tests.patience import PATIENCE_S
from tests.stories.other_hands import TURN_MAX_S, described, detach_by_hand, link_event, pass_time, settle
from tests.stories.stale_reads import run_sandboxes

SECOND = EniId("eni-2")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with two ENIs and two sandboxes, long after its start."""
    made = FakeNode(tmp_path)
    made.bring_up()
    run_sandboxes(made, "a", "b")
    assert set(made.ec2.enis) == {PRIMARY, SECOND}
    settle(made)
    yield made
    made.datastore.close()


def conditions(node: FakeNode) -> str:
    """What `ipamctl status` says is amiss."""
    return "\n".join(node.health.conditions())


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
    node.cloud_reconciler.metadata.take_turn()
    assert node.metadata.request_count() - before <= REQUESTS_PER_TURN
    assert node.metadata._read == ours
    node.datastore.close()


def test_a_link_that_goes_freezes_its_eni_at_once(node: FakeNode) -> None:
    """I7: from the notification on no sandbox gets an address of the ENI, those that have one keep it; EC2 is looked at once."""
    mac = detach_by_hand(node, SECOND).mac
    before = described(node)
    link_event(node, mac)
    taken = {node.add(f"new-{number}").eni_id for number in range(7)}
    assert taken == {PRIMARY}
    assert "eni-2 gives no address: other hands" in conditions(node)
    with pytest.raises(PoolEmptyError):
        node.add("one-too-many", deadline_s=0.5)
    assert described(node) == before, "the notification itself asks nobody"
    node.pool.run_once()
    assert described(node) - before == 1


def test_an_eni_detached_by_hand_is_forgotten_after_two_looks_and_replaced(node: FakeNode) -> None:
    """Two looks half a minute apart, then the ENI is gone here too and the pool has regrown on another."""
    link_event(node, detach_by_hand(node, SECOND).mac)
    node.pool.run_once()
    assert node.datastore.eni(SECOND) is not None, "one look proves nothing (I11)"
    pass_time(node, 31.0)
    pass_time(node, 1.0)
    pass_time(node, 1.0)
    assert node.datastore.eni(SECOND) is None
    assert {eni.eni_id for eni in node.datastore.enis()} == {PRIMARY, EniId("eni-3")}
    assert node.datastore.counts().free >= 9
    assert "gives no address" not in conditions(node)
    before = described(node)
    settle(node)
    assert described(node) == before, "and it is quiet again"
    assert node.health.conditions() == []
    node.assert_sound()


def test_several_enis_detached_at_once_are_replaced_before_that_is_believed(tmp_path: Path) -> None:
    """Two of three: EC2's answer is not believed for ten minutes, but their links are gone: ADDs have a new ENI after one minute, and
    nothing is asked for on those that are gone."""
    node = FakeNode(tmp_path, ec2=FakeEc2(limits=InstanceLimits("of a test", 8, 10)), settings=PoolSettings(warm_ip_target=2))
    node.bring_up()
    run_sandboxes(node, *(f"s{number}" for number in range(19)))
    settle(node)
    gone = [SECOND, EniId("eni-3")]
    assert set(node.ec2.enis) == {PRIMARY, *gone}
    for eni_id in gone:
        link_event(node, detach_by_hand(node, eni_id).mac)
    before = {eni_id: node.ec2.enis[eni_id].secondary_addresses for eni_id in gone}
    node.demand.join()
    for _ in range(14):
        pass_time(node, 5.0)
    assert node.datastore.counts().lost == 0, "nothing is concluded yet"
    assert node.add("served").eni_id == EniId("eni-4")
    for _ in range(300):
        pass_time(node, 5.0)
    assert {eni_id: node.ec2.enis[eni_id].secondary_addresses for eni_id in gone} == before
    assert node.ec2.calls["create_eni"] == 3, "one is enough for all of them"
    node.datastore.close()


def test_a_new_eni_that_loses_its_link_is_not_waited_for(tmp_path: Path) -> None:
    """Describe may lag behind our attach for minutes, but not if the link was there and is gone: two looks are enough."""
    node = FakeNode(tmp_path)
    node.bring_up()
    run_sandboxes(node, "a")
    link_event(node, detach_by_hand(node, SECOND).mac)
    node.pool.run_once()
    pass_time(node, 31.0)
    pass_time(node, 1.0)
    assert node.datastore.eni(SECOND) is None
    node.datastore.close()


def test_a_link_that_comes_back_thaws_after_ec2_was_asked(node: FakeNode) -> None:
    """A link that goes and returns (a driver, a namespace): frozen meanwhile, set up again once EC2 has shown the ENI since."""
    mac = node.ec2.enis[SECOND].mac
    node.hostnet.unplugged.add(mac)
    link_event(node, mac)
    node.pool.run_once()
    pass_time(node, 31.0)
    assert node.enis.routing.frozen(), "EC2 still shows the ENI, and its link is away"
    node.hostnet.enis.pop(SECOND, None)
    node.hostnet.unplugged.clear()
    link_event(node, mac, LinkEventKind.SEEN)
    node.cloud_reconciler.run_once()
    assert node.enis.routing.frozen(), "nobody has shown the ENI since"
    pass_time(node, 1.0)
    assert not node.enis.routing.frozen()
    assert SECOND in node.hostnet.enis, "its routing was set up again"
    eni = node.datastore.eni(SECOND)
    assert eni is not None
    assert eni.host_ready
    assert node.health.conditions() == []


def test_metadata_thaws_when_ec2_does_not_answer(node: FakeNode) -> None:
    """EC2 is throttled for an hour: the link is back and metadata shows the ENI, so its addresses are given again."""
    mac = node.ec2.enis[SECOND].mac
    node.hostnet.unplugged.add(mac)
    node.ec2.fail["describe_enis"] = [CloudError("throttled")] * 50
    link_event(node, mac)
    node.pool.run_once()
    node.hostnet.unplugged.clear()
    link_event(node, mac, LinkEventKind.SEEN)
    pass_time(node, 1.0)
    assert node.enis.routing.frozen()
    pass_time(node, TURN_MAX_S)
    assert not node.enis.routing.frozen()
    assert "did not answer" in conditions(node)


def test_a_look_that_ec2_refuses_stays_due(node: FakeNode) -> None:
    """With pauses that double, until EC2 answers; then the condition goes."""
    node.ec2.fail["describe_enis"] = [CloudError("throttled")] * 4
    before = described(node)
    link_event(node, detach_by_hand(node, SECOND).mac)
    node.pool.run_once()
    for _ in range(60):
        pass_time(node, 1.0)
    assert described(node) - before in range(5, 8), "after 1, 2, 4 and 8 s, and the second look"
    assert "did not answer" not in conditions(node)


def test_a_lost_notification_is_made_up_for(node: FakeNode) -> None:
    """I11: MISSED compares everything, and so does the clock if no notification comes at all."""
    mac = node.ec2.enis[SECOND].mac
    node.hostnet.unplugged.add(mac)
    link_event(node, "", LinkEventKind.MISSED)
    assert set(node.enis.routing.frozen()) == {SECOND}
    node.hostnet.unplugged.clear()
    pass_time(node, 30.0)
    assert not node.enis.routing.frozen()
    node.hostnet.unplugged.add(mac)
    pass_time(node, 30.0)
    assert set(node.enis.routing.frozen()) == {SECOND}


def test_an_interrupted_list_of_links_is_no_evidence(node: FakeNode) -> None:
    """I11: without a list the notification freezes its own ENI and no other."""
    node.hostnet.fail["links"] = [KernelDumpError("interrupted")] * 2
    node.cloud_reconciler.links.compare()
    assert not node.enis.routing.frozen()
    link_event(node, node.ec2.enis[SECOND].mac)
    assert set(node.enis.routing.frozen()) == {SECOND}
    node.hostnet.fail["links"] = [KernelDumpError("interrupted")]
    link_event(node, node.ec2.enis[PRIMARY].mac, LinkEventKind.SEEN)
    assert set(node.enis.routing.frozen()) == {SECOND}


def test_a_list_without_the_primary_enis_link_is_not_believed(node: FakeNode) -> None:
    """I11: a list of another namespace freezes nothing; an ENI's own notification still does."""
    node.hostnet.unplugged = {eni.mac for eni in node.ec2.attached()}
    pass_time(node, 30.0)
    assert not node.enis.routing.frozen()
    link_event(node, node.ec2.enis[SECOND].mac)
    assert set(node.enis.routing.frozen()) == {SECOND}


def test_links_of_others_are_of_no_concern(node: FakeNode) -> None:
    """A link that is no recorded ENI's comes and goes without a dump."""
    node.hostnet.fail["links"] = [KernelDumpError("must not be asked")]
    link_event(node, "02:00:00:00:00:77")
    assert node.hostnet.fail["links"]


def test_an_address_taken_away_by_hand_is_noticed_by_metadata(node: FakeNode) -> None:
    """Within a few turns: one look, a second one, then it is not given any more; one sandbox keeps its own (I2)."""
    in_use = node.datastore.attachments()[0].address
    free = max(row.address for row in node.datastore.addresses() if row.eni_id == SECOND and not row.is_in_use)
    before = described(node)
    for address in (in_use, free):
        owner = next(eni for eni in node.ec2.enis.values() if address in eni.secondary_addresses)
        node.ec2.unassign(owner.eni_id, addresses=[address], prefixes=[])
    pass_time(node, TURN_MAX_S)
    assert "other hands" in conditions(node)
    for _ in range(4):
        pass_time(node, TURN_MAX_S)
    assert node.datastore.address(free) is None
    lost = node.datastore.address(in_use)
    assert lost is not None
    assert lost.is_lost
    assert described(node) - before <= 3
    assert "other hands" not in conditions(node)


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
    node.enis.recent_changes.note_removed(addresses=[address], on=PRIMARY)
    second = node.ec2.enis[SECOND]
    node.ec2.enis[SECOND] = replace(second, secondary_addresses=second.secondary_addresses | {address})
    for _ in range(3):
        pass_time(node, TURN_MAX_S)
    row = node.datastore.address(address)
    assert row is not None
    assert row.eni_id == SECOND


def test_an_eni_attached_by_hand_is_recorded(node: FakeNode) -> None:
    """It is in metadata and nowhere else: EC2 is asked once, and the rule for foreign ENIs applies."""
    made = replace(
        node.ec2.enis[SECOND],
        eni_id=EniId("eni-hand"),
        mac="02:00:00:00:00:99",
        device_index=2,
        primary_address=IPv4Address("10.0.6.10"),
        secondary_addresses=frozenset(),
        tags={"node.k8s.amazonaws.com/no_manage": "true"},
    )
    node.ec2.enis[made.eni_id] = made
    before = described(node)
    for _ in range(3):
        pass_time(node, TURN_MAX_S)
    eni = node.datastore.eni(made.eni_id)
    assert eni is not None
    assert not eni.managed
    assert described(node) - before == 1
    assert node.health.conditions() == []


def test_a_managed_eni_attached_by_hand_gives_addresses(node: FakeNode) -> None:
    """By the existing rule for ENIs without our tags: EC2 confirms it, its routing is set up, and its addresses are free (I7)."""
    added = frozenset({IPv4Address("10.0.6.11"), IPv4Address("10.0.6.12")})
    made = replace(
        node.ec2.enis[SECOND],
        eni_id=EniId("eni-hand"),
        mac=MacAddress("02:00:00:00:00:99"),
        device_index=2,
        primary_address=IPv4Address("10.0.6.10"),
        secondary_addresses=added,
    )
    node.ec2.enis[made.eni_id] = made
    before = described(node)
    pass_time(node, TURN_MAX_S)
    assert described(node) - before == 1
    eni = node.datastore.eni(made.eni_id)
    assert eni is not None
    assert eni.host_ready
    assert made.eni_id in node.hostnet.enis
    assert {row.address for row in node.datastore.addresses() if row.eni_id == made.eni_id} >= added


def test_an_eni_without_ipv4_is_asked_about_at_most_once(node: FakeNode) -> None:
    """EFA-only and IPv6-only ENIs are shown by EC2 and metadata and recorded nowhere: no difference, once EC2 has shown it."""
    bare = replace(
        node.ec2.enis[SECOND],
        eni_id=EniId("eni-efa"),
        mac="02:00:00:00:00:98",
        device_index=2,
        primary_address=None,
        secondary_addresses=frozenset(),
        interface_type="efa-only",
    )
    node.ec2.enis[bare.eni_id] = bare
    before = described(node)
    for _ in range(90):
        pass_time(node, TURN_MAX_S)
    assert described(node) - before == 1
    assert node.health.conditions() == []


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
    node.enis.recent_changes.note_removed(addresses=[released])
    with node.datastore.transaction() as uow:
        uow.remove_addresses([released], reason="given back")
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
    """An answer that stays implausible for two days costs a look a minute at first, and one an hour in the end."""
    node.ec2.enis = {SECOND: node.ec2.enis[SECOND]}
    before = described(node)
    node.app.pool.look.request(LookReason.OTHER, "a test")
    for _ in range(2 * 1440):
        pass_time(node, 60.0)
    assert described(node) - before <= 20 + 2 * 86400 / DOUBT_MAX_S
    assert node.datastore.eni(PRIMARY) is not None, "nothing was concluded"
    assert "is asked again" in conditions(node)
    assert "is not given" not in conditions(node), "an answer that is not believed holds nothing back"


def test_metadata_that_stays_stuck_costs_a_look_an_hour(node: FakeNode) -> None:
    """Frozen metadata: one look for each distinct difference, then one an hour, and the condition says so."""
    node.metadata.freeze()
    node.ec2.unassign(SECOND, addresses=[max(node.ec2.enis[SECOND].secondary_addresses)], prefixes=[])
    node.enis.sync_with_ec2(node.node_info.identity())
    node.clock.advance(31)
    node.enis.sync_with_ec2(node.node_info.identity())
    before = described(node)
    for _ in range(int(24 * 3600 / 60)):
        pass_time(node, 60.0)
    assert 20 <= described(node) - before <= 24 * 3600 / ASK_AGAIN_S + 2
    assert "is shown and not recorded; EC2 does not say so, it is asked again every hour" in conditions(node)


def test_metadata_is_a_witness_only_while_it_is_fresh_and_complete(node: FakeNode) -> None:
    """A view in which one ENI is old, or missing, is none: it could confirm a loss that did not happen."""
    watch = node.cloud_reconciler.metadata
    view = watch.view()
    assert view is not None
    assert {eni.eni_id for eni in view} == {PRIMARY, SECOND}
    node.clock.advance(VIEW_S + 1)
    assert watch.view() is None
    for _ in range(2):
        pass_time(node, TURN_MAX_S)
    assert watch.view() is not None
    made = replace(node.ec2.enis[SECOND], eni_id=EniId("eni-hand"), mac="02:00:00:00:00:99", device_index=2)
    node.ec2.enis[made.eni_id] = made
    watch._listed |= {made.mac}
    assert watch.view() is None


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
    assert "confirmed by kernel or metadata" in conditions(node)
    node.datastore.close()


def test_the_threads_freeze_on_an_event_and_end_when_told(node: FakeNode) -> None:
    """The thread bodies: an event is acted upon while the other loop sleeps, and `stop` ends both."""
    threads = [threading.Thread(target=body) for body in (node.cloud_reconciler.run, node.cloud_reconciler.run_links)]
    for thread in threads:
        thread.start()
    eni = detach_by_hand(node, SECOND)
    node.hostnet.events.put(LinkEvent(LinkEventKind.GONE, eni.mac))
    deadline = threading.Event()
    for _ in range(int(PATIENCE_S * 100)):
        if node.enis.routing.frozen():
            break
        deadline.wait(0.01)
    assert set(node.enis.routing.frozen()) == {SECOND}
    node.cloud_reconciler.stop()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert node.datastore.eni(SECOND).state is EniState.ATTACHED
