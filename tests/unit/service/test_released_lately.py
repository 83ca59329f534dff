"""A datastore that is lost takes with it what was released to EC2; the history on the node's disk still knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.eni.book import EniBook
from ipamd.eni.earlier_changes import remember_released
from ipamd.eni.operations import OperationLog
from ipamd.model.cloud import DescribedEni
from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.errors import CloudError, ThrottledError
from ipamd.model.family import IpAddress
from ipamd.model.history import HistoryRecord
from ipamd.model.ids import EniId
from ipamd.model.intent import Unassign
from ipamd.ports.history import NoHistory
from tests.fakes.cloud import IDENTITY, PRIMARY
from tests.fakes.node import FakeNode
from tests.unit.service.test_release import SMALL, fill_and_empty, run_down

GIVEN_UP = EniId("eni-3")


def refused(kind: type[CloudError] = CloudError) -> CloudError:
    """EC2 answered, and did nothing."""
    error = kind("refused")
    error.may_have_happened = False
    return error


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with small IP targets."""
    made = FakeNode(tmp_path, settings=SMALL)
    made.bring_up()
    yield made
    made.datastore.close()


@pytest.mark.parametrize("passed_s", [5.0, RECENT_S + 5.0])
def test_a_stale_answer_after_a_loss_gives_nothing_back_to_us(node: FakeNode, passed_s: float) -> None:
    """Two ENIs and some addresses are released, the datastore is deleted, and EC2 shows all of them as they were: nothing of it is
    recorded, so nobody gets it (I7). After RECENT_S it is EC2's word, as ever."""
    fill_and_empty(node, 22)
    stale = node.ec2.attached()
    run_down(node)
    left = {eni.eni_id: eni.secondary_addresses for eni in node.ec2.attached()}
    gone = {address for eni in stale for address in eni.secondary_addresses - left.get(eni.eni_id, frozenset())}
    assert len(gone) > 9
    node.history.write()
    node.clock.advance(passed_s)
    node.ec2.answers = [stale]
    node.crash(keep_datastore=False)
    node.bring_up()
    recorded = {row.address for row in node.datastore.addresses()}
    assert recorded & gone == (set() if passed_s < RECENT_S else gone)
    assert frozenset().union(*left.values()) <= recorded


@pytest.mark.parametrize("others_take_it", [False, True])
def test_an_address_that_went_by_another_eni_is_not_where_it_was(node: FakeNode, *, others_take_it: bool) -> None:
    """An address left the primary ENI, by a call of ours or by other hands, came with a new ENI of ours, and went with it. Describe
    still shows it where it was at first: it is recorded there neither by this process nor by the next one (I7)."""
    stale = node.ec2.attached()
    address, other = min(node.ec2.enis[PRIMARY].secondary_addresses), EniId("eni-other")
    kept = min(node.ec2.enis[PRIMARY].secondary_addresses - {address})
    if not others_take_it:
        with node.datastore.transaction() as uow:
            uow.remove_addresses([address], reason="EC2 took it back")
        node.enis.book.record_own([address], on=PRIMARY, is_added=False)
    node.enis.lose_elsewhere(other, [address], [])
    node.enis.book.record_own([other, address], on=other, is_added=False)
    node.ec2.unassign(PRIMARY, addresses=[address], prefixes=())

    def recorded() -> set[IpAddress]:
        node.ec2.answers = [stale]
        node.enis.sync_with_ec2(node.node_info.learn_identity())
        return {row.address for row in node.datastore.addresses()}

    assert (address in recorded(), kept in recorded()) == (False, True)
    node.crash()
    node.bring_up()
    assert (address in recorded(), kept in recorded()) == (False, True)
    node.clock.advance(RECENT_S)
    assert address in recorded(), "then it is EC2's word"


def test_a_lost_address_of_a_sandbox_is_not_found_again_by_a_late_answer(node: FakeNode) -> None:
    """EC2 gave a sandbox's address to a new ENI of ours, after other hands had taken it. A Describe that lags shows it where it was:
    the next process does not believe that either, so that nobody is given it after the sandbox (I7)."""
    stale = node.ec2.attached()
    address = node.add("pod").address
    node.enis.lose_elsewhere(EniId("eni-other"), [address], [])
    node.ec2.answers = [stale]
    node.crash()
    node.bring_up()
    row = node.datastore.address(address)
    assert row is not None
    assert row.is_lost


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_release_that_was_asked_for_is_remembered_after_a_loss(node: FakeNode, is_refused: bool) -> None:
    """EC2 took addresses back, and before its answer came the datastore was lost, and the intent with it: what a Describe that lags
    shows of them is nobody's (I7). A release that EC2 refused took nothing."""
    stale = node.ec2.attached()
    eni_id, named = PRIMARY, frozenset(sorted(node.ec2.enis[PRIMARY].secondary_addresses)[:3])
    operations = OperationLog(node.app.context)
    intent = operations.open(Unassign(eni_id, named, frozenset()))
    if is_refused:
        operations.close(intent, "not done")
    else:
        node.ec2.unassign(eni_id, addresses=named, prefixes=())
    node.clock.advance(5.0)
    node.history.write()
    node.ec2.answers = [stale]
    node.crash(keep_datastore=False)
    node.bring_up()
    assert {row.address for row in node.datastore.addresses()} & named == (named if is_refused else set())
    node.clock.advance(RECENT_S)
    assert node.enis.book.not_on(eni_id) == set(), "then it is EC2's word"


def give_up(node: FakeNode, **answers: CloudError | None) -> tuple[DescribedEni, ...]:
    """A new ENI is attached, cannot be marked, and is given up; `answers`: of its detach and its deletion, the second tries of which
    fail. Returns: what EC2 shows from the detach on, which lags."""
    shown: list[tuple[DescribedEni, ...]] = []
    detach = node.ec2.detach_eni

    def noted(attachment_id: str) -> None:
        shown.append(node.ec2.attached())
        node.ec2.answers = shown * 9
        detach(attachment_id)

    node.ec2.detach_eni = noted  # type: ignore[method-assign]
    node.ec2.fail = {"set_delete_on_termination": [refused()]}
    node.ec2.fail |= {method: [error, error] for method, error in answers.items() if error is not None}
    for number in range(16):
        node.add(f"pod{number}")
        node.pool.cycle()
    assert GIVEN_UP in {eni.eni_id for eni in shown[0]}
    return shown[0]


@pytest.mark.parametrize("error", [None, refused(ThrottledError), CloudError("no answer")])
@pytest.mark.parametrize("life", ["the same", "the next", "the next, after a loss"])
def test_an_eni_that_was_given_up_is_not_taken_back(node: FakeNode, error: CloudError | None, life: str) -> None:
    """It is detached, and deleted or not yet. A Describe that lags shows it attached: no pod gets an address of it (I7)."""
    stale = give_up(node, delete_eni=error)
    if life != "the same":
        node.history.write()
        node.crash(keep_datastore="loss" not in life)
        node.ec2.answers = [stale]
        node.bring_up()
    node.ec2.answers = [stale]
    node.enis.sync_with_ec2(IDENTITY)
    assert node.datastore.eni(GIVEN_UP) is None
    node.clock.advance(RECENT_S)
    node.ec2.answers, node.ec2.fail = [], {}
    for _ in range(3):
        node.pool.cycle()
        node.clock.advance(60)
    if "loss" not in life:  # else it is leaked
        assert GIVEN_UP not in node.ec2.enis


def test_an_eni_whose_detach_was_not_answered_is_not_taken_back(node: FakeNode) -> None:
    """Nobody knows whether EC2 does it: it is detached and deleted, by the next process too (I7, I9)."""
    stale = give_up(node, detach_eni=CloudError("no answer"))
    node.crash()
    node.ec2.answers, node.ec2.fail = [stale], {}
    node.bring_up()
    assert (GIVEN_UP in node.ec2.enis, node.datastore.eni(GIVEN_UP), node.ec2.calls["delete_eni"]) == (False, None, 1)


def test_an_eni_whose_detach_ec2_refuses_is_taken_back(node: FakeNode) -> None:
    """It is attached, and serves."""
    give_up(node, detach_eni=refused(ThrottledError))
    assert node.datastore.eni(GIVEN_UP) is not None
    node.ec2.answers, node.ec2.fail = [], {}
    node.clock.advance(60)
    node.pool.cycle()
    assert node.ec2.enis[GIVEN_UP].delete_on_termination
    assert (node.datastore.open_intents(), node.ec2.calls["delete_eni"]) == ((), 0)
    node.assert_sound()


def test_an_eni_that_is_kept_is_recorded_after_a_loss(node: FakeNode) -> None:
    """EC2 refused to detach it: it serves again, and the history says so."""
    fill_and_empty(node, 22)
    there = {eni.eni_id for eni in node.ec2.attached()}
    node.ec2.fail["detach_eni"] = [refused() for _ in range(20)]
    run_down(node)
    assert node.ec2.failed["detach_eni"]
    node.history.write()
    node.crash(keep_datastore=False)
    node.bring_up()
    assert {eni.eni_id for eni in node.datastore.enis()} == there


def test_an_eni_that_was_released_and_not_deleted_is_not_taken_back(node: FakeNode) -> None:
    """A later try found it detached, and its row went. A Describe that lags shows it attached: it stays nobody's (I7)."""
    fill_and_empty(node, 22)
    stale = node.ec2.attached()
    node.ec2.fail["delete_eni"] = [CloudError("no answer") for _ in range(9)]
    run_down(node)
    node.clock.advance(60)
    node.provisioner.recover_due()
    (gone,) = node.ec2.enis.keys() - {eni.eni_id for eni in node.datastore.enis()}
    node.ec2.answers = [stale]
    node.enis.sync_with_ec2(IDENTITY)
    assert node.datastore.eni(gone) is None


def told(node: FakeNode, *records: tuple[str, str, float]) -> EniBook:
    """What is remembered of a history with (event, address, seconds ago)."""
    now = node.clock.now()
    node.history.enqueue(
        [
            HistoryRecord(now - timedelta(seconds=ago_s), event, address=address, eni_id="eni-1")
            for event, address, ago_s in records
        ]
    )
    node.history.write()
    changes = EniBook(node.app.context)
    remember_released(changes, node.history.read_since, node.clock)
    return changes


@pytest.mark.parametrize("keeps", [True, False], ids=["datastore kept", "datastore lost"])
@pytest.mark.parametrize("is_asked", [False, True], ids=["nobody asked", "asked, and no answer"])
@pytest.mark.parametrize("what", ["addresses", "ENI"])
def test_what_ec2_alone_took_away_it_may_give_back(node: FakeNode, what: str, *, is_asked: bool, keeps: bool) -> None:
    """Two looks lack it, the next process sees it again: it serves. Had a call of ours been under way, it would be a lag."""
    fill_and_empty(node, 10)
    node.clock.advance(RECENT_S)
    eni_id, true = next((key, eni) for key, eni in node.ec2.enis.items() if (key == PRIMARY) == (what == "addresses"))
    taken = frozenset(sorted(true.secondary_addresses)[:2]) if what == "addresses" else true.secondary_addresses
    operations = OperationLog(node.app.context)
    intent = operations.open(Unassign(eni_id, taken, frozenset())) if is_asked else None
    less = replace(true, secondary_addresses=true.secondary_addresses - taken)
    others = tuple(eni for eni in node.ec2.attached() if eni.eni_id != eni_id)
    look_until_settled(node, (less, *others) if what == "addresses" else others)
    assert taken.isdisjoint(row.address for row in node.datastore.addresses())
    if intent:
        operations.close(intent, "not done")
    node.history.write()
    node.ec2.answers = []
    node.crash(keep_datastore=keeps)
    node.bring_up()
    there = {row.address for row in node.datastore.addresses()} & taken
    assert there == (set() if is_asked else taken)


def look_until_settled(node: FakeNode, answer: tuple[DescribedEni, ...]) -> None:
    """Compare with the same answer of EC2 until nothing is in doubt."""
    result = None
    while result is None or result.again_s is not None:
        node.clock.advance(result.again_s if result else 0.0)
        node.ec2.answers = [answer]
        result = node.enis.sync_with_ec2(IDENTITY)


@pytest.mark.parametrize("keeps", [True, False], ids=["datastore kept", "datastore lost"])
def test_what_a_call_of_ours_was_given_since_is_not_where_it_was(node: FakeNode, *, keeps: bool) -> None:
    """Others took it from one ENI, our call was given it on another: a Describe that lags shows it on the first (I7)."""
    fill_and_empty(node, 22)
    node.clock.advance(RECENT_S)
    stale, true = node.ec2.attached(), node.ec2.enis[PRIMARY]
    moved = min(true.secondary_addresses)
    other = next(eni.eni_id for eni in stale if eni.eni_id != PRIMARY)
    less = replace(true, secondary_addresses=true.secondary_addresses - {moved})
    look_until_settled(node, (less, *(eni for eni in stale if eni.eni_id != PRIMARY)))
    node.enis.add_addresses(other, frozenset({moved}), frozenset(), asked_count=1)
    node.history.write()
    node.ec2.answers = [stale]
    node.crash(keep_datastore=keeps)
    node.bring_up()
    row = node.datastore.address(moved)
    assert row is None or row.eni_id == other


def test_a_release_that_was_closed_lately_is_ours(node: FakeNode) -> None:
    """It was opened long ago, EC2 did it and its answer was lost, and a retry found nothing left: EC2 may show it for a while."""
    fill_and_empty(node, 10)
    node.clock.advance(RECENT_S)
    true = node.ec2.enis[PRIMARY]
    taken = frozenset(sorted(true.secondary_addresses)[:2])
    operations = OperationLog(node.app.context)
    intent = operations.open(Unassign(PRIMARY, taken, frozenset()))
    node.clock.advance(RECENT_S + 5)
    less = replace(true, secondary_addresses=true.secondary_addresses - taken)
    look_until_settled(node, (less, *(eni for eni in node.ec2.attached() if eni.eni_id != PRIMARY)))
    operations.close(intent, "nothing of it is left to release")
    node.ec2.answers = []
    node.crash()
    node.bring_up()
    assert taken.isdisjoint(row.address for row in node.datastore.addresses())


def test_what_came_back_since_is_ours(node: FakeNode) -> None:
    """The last word about an address counts, and for as long as it is fresh; a name that is no address is left out."""
    changes = told(
        node,
        ("removed", "10.0.0.77", 20),
        ("added", "10.0.0.77", 10),
        ("removed", "10.0.0.78", RECENT_S - 50),
        ("removed", "10.0.0.79", RECENT_S + 1),
        ("removed", "nothing", 1),
        ("intent-opened", "", 1),
        ("intent-closed", "", 1),
    )
    assert {(str(address), eni_id) for address, eni_id in changes.removed()} == {("10.0.0.78", "eni-1")}
    node.clock.advance(51)
    assert changes.removed() == set()


def test_a_clock_that_was_set_back_hides_nothing(node: FakeNode) -> None:
    """What seems to be of the future was a moment ago."""
    assert len(told(node, ("removed", "10.0.0.78", -3600)).removed()) == 1


def test_without_a_history_nothing_is_remembered(node: FakeNode) -> None:
    """It is off, or cannot be read: the start goes on."""
    changes = EniBook(node.app.context)
    remember_released(changes, NoHistory().read_since, node.clock)
    assert changes.removed() == set()


def test_an_address_that_moved_is_on_its_last_eni_only(node: FakeNode) -> None:
    """It was removed from one ENI, added to a second, and then to a third: Describe may still show it on both others, and on an ENI
    that never had it. After the last change's time, it is EC2's word."""
    address, third = IPv4Address("10.0.0.77"), EniId("eni-third")
    book, second = EniBook(node.app.context), EniId("eni-second")
    others = {second, *(eni.eni_id for eni in node.datastore.enis())}
    for eni_id in (second, third):
        book.record_own([eni_id], on=eni_id, is_added=True)
    book.record_own([address], on=PRIMARY, is_added=False)
    book.record_own([address], on=second, is_added=True)
    node.clock.advance(1.0)
    book.record_own([address], on=third, is_added=True)
    assert {eni_id for key, eni_id in book.removed() if key == address} == others
    assert (set(book.added()), set(book.added_enis())) == ({address, second, third}, {second, third})
    assert address in book.not_on(second)
    assert address not in book.not_on(third)
    node.clock.advance(RECENT_S - 0.5)
    assert {eni_id for key, eni_id in book.removed() if key == address} == others
    node.clock.advance(1.0)
    assert (book.added(), book.removed()) == ({}, set())
