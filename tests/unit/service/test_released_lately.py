"""A datastore that is lost takes with it what was released to EC2; the history on the node's disk still knows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from ipamd.eni.book import EniBook, remember_released
from ipamd.eni.operations import OperationLog
from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.family import IpAddress
from ipamd.model.history import HistoryRecord
from ipamd.model.ids import EniId
from ipamd.model.intent import Unassign
from ipamd.ports import NoHistory
from tests.fakes.cloud import PRIMARY
from tests.fakes.node import FakeNode
from tests.unit.service.test_release import SMALL, fill_and_empty, run_down


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
