"""Nothing stays held, frozen, lost or counted for ever because nobody looks at EC2 again, and a sandbox follows its ENI."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.datastore.unit_of_work import SqlUnitOfWork
from ipamd.eni.resync import EniSyncResult
from ipamd.model.attachment import Attachment
from ipamd.model.cloud import DescribedEni
from ipamd.model.eni import Eni, EniState, InstanceLimits
from ipamd.model.errors import CloudError, DatastoreError
from ipamd.model.ids import EniId, MacAddress, SubnetId
from ipamd.model.kernel import LinkEventKind
from ipamd.model.metadata_evidence import ASK_AGAIN_S
from tests.fakes.cloud import IDENTITY, INSTANCE, PRIMARY, SUBNET, FakeEc2
from tests.fakes.node import FakeNode
from tests.patience import PATIENCE_S
from tests.stories.external_changes import described, detach_by_hand, link_event, pass_time, settle
from tests.stories.stale_reads import run_sandboxes

SECOND = EniId("eni-2")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with two ENIs and sandboxes, long after its start."""
    made = FakeNode(tmp_path)
    made.bring_up()
    run_sandboxes(made, "a", "b")
    settle(made)
    yield made
    made.datastore.close()


def recorded(node: FakeNode) -> Eni:
    """The second ENI as recorded."""
    found = node.datastore.eni(SECOND)
    assert found is not None
    return found


def run_on_second(node: FakeNode) -> Attachment:
    """Fill the primary ENI until a sandbox has an address of the second one; returns that sandbox."""
    for number in range(20):
        made = node.add(f"s{number}")
        if made.eni_id == SECOND:
            settle(node)
            return made
    raise AssertionError("no sandbox is on the second ENI")


def unrecorded(name: str, **differs: object) -> DescribedEni:
    """An ENI that another hand attached as device 2."""
    eni = DescribedEni(
        EniId(name),
        MacAddress("02:00:00:00:00:99"),
        SUBNET,
        IPv4Address("10.0.1.1"),
        status="in-use",
        attachment_id=f"attach-{name}",
        attachment_status="attached",
        instance_id=INSTANCE,
        device_index=2,
    )
    return replace(eni, **differs)  # type: ignore[arg-type]  # what differs is a test's own


def hours(node: FakeNode, count: float) -> None:
    """Time passes for every loop, minute by minute."""
    for _ in range(int(count * 60)):
        pass_time(node, 60.0)


def test_an_eni_that_is_attached_again_gets_its_sandboxes_back(node: FakeNode) -> None:
    """Detached by hand, believed, and attached again while a sandbox has an address of it: its link is reason enough to ask EC2."""
    made = run_on_second(node)
    before = detach_by_hand(node, SECOND)
    link_event(node, before.mac)
    settle(node)
    assert recorded(node).state is EniState.DETACHING
    node.metadata.freeze()
    node.ec2.enis[SECOND] = replace(before, device_index=5)
    link_event(node, before.mac, LinkEventKind.SEEN)
    for _ in range(3):
        pass_time(node, 1.0)
    eni = recorded(node)
    assert (eni.state, eni.host_ready, eni.device_index) == (EniState.ATTACHED, True, 5)
    row = node.datastore.address(made.address)
    assert row is not None
    assert not row.is_lost
    assert not node.enis.routing.frozen()


def test_a_sandbox_follows_its_eni_to_another_route_table(node: FakeNode) -> None:
    """The table's number is made of the device index: record and rule follow, or its traffic would leave by nobody's table (I2)."""
    made = run_on_second(node)
    node.ec2.enis[SECOND] = replace(node.ec2.enis[SECOND], device_index=5)
    node.enis.sync_with_ec2(IDENTITY)
    eni = recorded(node)
    assert node.hostnet.enis[SECOND].route_table == eni.route_table != made.route_table
    node.host_reconciler.reconcile()
    assert node.wiring.rules[made.address] == eni.route_table
    now = node.datastore.attachment(made.key)
    assert now == replace(made, route_table=eni.route_table)
    assert node.datastore.audit() == []
    node.crash()
    assert node.datastore.attachment(made.key) == now, "also on disk"
    node.bring_up()
    assert node.host_reconciler.reconcile() == []


def test_another_table_gives_no_address_before_it_is_set_up(node: FakeNode) -> None:
    """I7: the ENI moved to another device index, and the kernel refuses its routing: it is not ready meanwhile."""
    node.ec2.enis[SECOND] = replace(node.ec2.enis[SECOND], device_index=5)
    node.hostnet.fail["setup_eni"] = [DatastoreError("the kernel refuses")]
    node.enis.sync_with_ec2(IDENTITY)
    assert not recorded(node).host_ready
    node.host_reconciler.reconcile()
    assert recorded(node).host_ready


def test_a_loss_that_ec2_takes_back_heals(node: FakeNode) -> None:
    """Two answers lag although the link was there all the time: metadata still shows the ENI, so EC2 is asked once more."""
    run_on_second(node)
    lagging = tuple(eni for eni in node.ec2.attached() if eni.eni_id != SECOND)
    node.ec2.answers = [lagging] * 2
    node.enis.sync_with_ec2(IDENTITY)
    node.clock.advance(31.0)
    node.enis.sync_with_ec2(IDENTITY)
    assert recorded(node).state is EniState.DETACHING
    before = described(node)
    settle(node)
    assert recorded(node).state is EniState.ATTACHED
    assert recorded(node).host_ready
    assert node.datastore.counts().lost == 0
    assert described(node) == before + 1


def test_metadata_that_stays_stuck_on_a_detached_eni_costs_a_call_an_hour(node: FakeNode) -> None:
    """I13: a sandbox keeps the record of the detached ENI, and metadata shows the ENI all day."""
    run_on_second(node)
    node.metadata.freeze()
    link_event(node, detach_by_hand(node, SECOND).mac)
    settle(node)
    before = described(node)
    hours(node, 12)
    assert recorded(node).state is EniState.DETACHING
    assert described(node) - before <= 12


def test_what_a_refused_call_put_in_doubt_is_looked_at_again(node: FakeNode) -> None:
    """The Describe after a refused allocation lags: what it lacked is held for one more look, not until something else happens."""
    victim = next(row.address for row in node.datastore.addresses() if row.eni_id == SECOND)
    full = node.ec2.attached()
    node.ec2.answers = [tuple(replace(eni, secondary_addresses=eni.secondary_addresses - {victim}) for eni in full)]
    node.provisioner.steps.adopt_changes(IDENTITY)
    assert node.datastore.counts().withheld == 1
    pass_time(node, 31.0)
    pass_time(node, 1.0)
    assert node.datastore.counts().withheld == 0


def test_the_place_of_an_unrecorded_eni_is_free_when_it_goes(node: FakeNode) -> None:
    """An EFA-only ENI takes a place; somebody detaches it: metadata does not show it any more, and EC2 is asked."""
    efa = unrecorded("eni-efa", primary_address=None, interface_type="efa-only")
    node.ec2.enis[efa.eni_id] = efa
    settle(node)
    assert node.enis.book.unrecorded_enis() == {efa.eni_id: (0, 2)}
    before = described(node)
    hours(node, 12)
    assert described(node) == before, "while it stays nobody asks (I13)"
    del node.ec2.enis[efa.eni_id]
    settle(node)
    assert not node.enis.book.unrecorded_enis()
    assert described(node) == before + 1


def test_an_eni_whose_subnet_was_not_told_is_recorded_later(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """DescribeSubnets is throttled once: the ENI is not left out until the next restart."""
    other = unrecorded("eni-9", subnet_id=SubnetId("subnet-2"))
    real, refusals = node.ec2.subnet_cidr, [CloudError("throttled")]

    def told(subnet_id: SubnetId) -> object:
        if refusals:
            raise refusals.pop()
        return real(subnet_id)

    monkeypatch.setattr(node.ec2, "subnet_cidr", told)
    node.ec2.enis[other.eni_id] = other
    settle(node)
    assert node.datastore.eni(other.eni_id) is not None


def test_a_contradiction_is_looked_at_again_every_hour(node: FakeNode) -> None:
    """An ENI's primary address is a sandbox's own: it is recorded within the hour after that sandbox has left."""
    made = next(iter(node.datastore.attachments()))
    node.ec2.unassign(PRIMARY, addresses=[made.address], prefixes=[])
    other = unrecorded("eni-9", primary_address=made.address)
    node.ec2.enis[other.eni_id] = other
    hours(node, 6)
    before = described(node)
    hours(node, 12)
    assert described(node) - before <= 12
    assert node.datastore.eni(other.eni_id) is None
    node.delete(made.key.container_id)
    node.cool()
    hours(node, ASK_AGAIN_S / 3600 + 0.1)
    assert node.datastore.eni(other.eni_id) is not None
    node.assert_sound()


def test_an_eni_with_the_primary_address_of_one_that_sandboxes_keep_takes_a_place(node: FakeNode) -> None:
    """An ENI is taken from a running sandbox, and EC2 gives its primary address to another one: that is said in words, waits, and is
    recorded within the hour after the sandbox has left."""
    made = run_on_second(node)
    gone = detach_by_hand(node, SECOND)
    link_event(node, gone.mac)
    settle(node)
    assert recorded(node).state is EniState.DETACHING
    fresh = IPv4Address("10.0.1.2")
    other = unrecorded("eni-9", device_index=1, primary_address=gone.primary_address, secondary_addresses=frozenset({fresh}))
    node.ec2.enis[other.eni_id] = other
    kept = node.enis.sync_with_ec2(IDENTITY).contradictions
    assert any(f"still recorded as that of {SECOND}" in str(difference) for difference in kept)
    assert node.enis.book.unrecorded_enis() == {other.eni_id: (0, 1)}
    node.delete(made.key.container_id)
    node.cool()
    hours(node, ASK_AGAIN_S / 3600 + 0.1)
    assert node.datastore.eni(SECOND) is None
    assert node.datastore.address(fresh) is not None
    node.assert_sound()


def test_a_look_that_a_defect_ended_stays_due(node: FakeNode) -> None:
    """An error that is none of ours ends the pool's turn, but not the look: the detached ENI would keep its place for ever."""
    node.metadata.freeze()
    defect = ValueError("a defect")
    node.ec2.fail["describe_enis"] = [defect]  # type: ignore[list-item]  # none of our tree
    link_event(node, detach_by_hand(node, SECOND).mac)
    with pytest.raises(ValueError, check=lambda error: error is defect):
        node.pool.run_once()
    for _ in range(5):
        pass_time(node, 31.0)
    assert node.datastore.eni(SECOND) is None


def test_a_new_doubt_does_not_wait_as_long_as_an_old_one(node: FakeNode) -> None:
    """An ENI of others is stuck in *detaching* for hours; another one is detached by hand: that takes half a minute, not an hour."""
    stuck = unrecorded("eni-9", attachment_status="detaching")
    node.ec2.enis[stuck.eni_id] = stuck
    hours(node, 8)
    node.metadata.freeze()
    link_event(node, detach_by_hand(node, SECOND).mac)
    for _ in range(4):
        pass_time(node, 31.0)
    assert node.datastore.eni(SECOND) is None


def test_metadata_is_a_witness_on_nodes_with_many_enis(tmp_path: Path) -> None:
    """15 ENIs are read in some nine minutes: the second witness of a mass loss must not be silent there."""
    node = FakeNode(tmp_path, ec2=FakeEc2(limits=InstanceLimits("m5.24xlarge", 15, 10)))
    node.bring_up()
    run_sandboxes(node, *(f"s{number}" for number in range(9 * 13 + 1)))
    assert len(node.ec2.attached()) == 15
    known = []
    for _ in range(720):
        node.clock.advance(5.0)
        node.cloud_reconciler.run_once()
        known.append(node.enis.book.metadata_view() is not None)
    assert known[360:].count(True) >= 300
    node.datastore.close()


def test_a_freeze_that_the_disk_refused_is_tried_again(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """I7: the disk is full at the moment when the link goes; the ENI gives no address once the disk takes writes again."""
    mac = detach_by_hand(node, SECOND).mac

    def refuse(*_: object, **__: object) -> None:
        raise DatastoreError("the disk is full")

    with monkeypatch.context() as full:
        full.setattr(SqlUnitOfWork, "put_eni", refuse)
        with pytest.raises(DatastoreError):
            link_event(node, mac)
    node.cloud_reconciler.run_once()
    assert not recorded(node).host_ready


def test_an_eni_that_is_frozen_while_its_set_up_commits_is_frozen(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """I7: the link goes after the set-up has looked and before its COMMIT; the freeze must not believe that nothing is to be done."""
    node.enis.routing.freeze(SECOND)
    node.enis.routing.thaw(SECOND)
    threads: list[threading.Thread] = []

    def freeze_now(name: str) -> None:
        if name == "datastore.before-commit" and not threads:
            threads.append(threading.Thread(target=node.enis.routing.freeze, args=(SECOND,)))
            threads[0].start()
            while not node.enis.routing.frozen():
                threads[0].join(0.01)

    monkeypatch.setattr(node.datastore, "_failpoint", freeze_now)
    node.enis.routing.set_up(recorded(node))
    threads[0].join(PATIENCE_S)
    assert not recorded(node).host_ready


def test_an_eni_that_cannot_be_forgotten_does_not_stop_the_repair(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk refuses to forget a departed ENI: the routes of all sandboxes are repaired all the same, and it is forgotten later."""
    last = run_on_second(node)
    damaged = next(one for one in node.datastore.attachments() if one.eni_id == PRIMARY)
    link_event(node, detach_by_hand(node, SECOND).mac)
    settle(node)
    node.delete(last.key.container_id)
    node.cool()
    node.wiring.routes.pop(damaged.address)

    def refuse(*_: object, **__: object) -> None:
        raise DatastoreError("the disk is full")

    with monkeypatch.context() as full:
        full.setattr(SqlUnitOfWork, "remove_eni", refuse)
        node.host_reconciler.reconcile()
    assert damaged.address in node.wiring.routes
    assert recorded(node).state is EniState.DETACHING
    node.host_reconciler.reconcile()
    assert node.datastore.eni(SECOND) is None


def test_comparisons_in_quick_succession_do_not_use_up_the_patience(node: FakeNode) -> None:
    """Chaos seed 803: a creation that was tried again compared every few seconds; by counting looks the next one was an hour away, and
    the second look at an ENI that was gone came too late for the node (I7)."""
    look = node.app.pool.resyncs
    doubted = EniSyncResult(implausible="it lacks 3 of 5 attached ENIs", again_s=60.0, missing=frozenset({SECOND}))
    for _ in range(40):
        look.record_result(doubted)
        node.clock.advance(5.0)
    assert (look.wait_s() or 0.0) <= 60.0
    node.clock.advance(3600.0)
    look.record_result(doubted)
    assert (look.wait_s() or 0.0) > 600.0, "doubt that lasts is looked at less and less"
    look.record_result(EniSyncResult(lost_count=32, again_s=30.0, missing=frozenset({SECOND})))
    assert (look.wait_s() or 0.0) <= 30.0, "a mass loss was believed: what is left needs a second look soon"
