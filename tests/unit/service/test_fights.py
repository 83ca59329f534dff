"""Repairs are counted, and an object that something else changes back again and again is repaired less and less often."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ipamd.core.backoffs import REPAIR, Backoffs
from ipamd.core.health import Health
from ipamd.host.repair_backoff import CHANGERS_MAX, CONFLICT_REPAIRS, CONFLICT_WINDOW_S, SUSPECTS, UNDONE_SOON_S, RepairBackoff
from ipamd.model.conditions import ConditionCode
from ipamd.model.repairs import NODE, PUT_BACK_ALWAYS, RepairCode, RepairedObject, RepairKind, RepairReport
from tests.fakes.clock import FakeClock

RULE = RepairedObject(RepairKind.RULE, "10.0.0.5")
ROUTE = RepairedObject(RepairKind.ROUTE, "10.0.0.5")


@pytest.fixture
def clock() -> FakeClock:
    """A clock."""
    return FakeClock()


@pytest.fixture
def health(clock: FakeClock) -> Health:
    """Where conditions are told."""
    return Health(clock, ())


@pytest.fixture
def repair_backoff(clock: FakeClock, health: Health) -> RepairBackoff:
    """No repair yet."""
    return RepairBackoff(clock=clock, health=health, backoffs=Backoffs(clock))


def repaired(thing: RepairedObject) -> RepairReport:
    """One repair."""
    return RepairReport(RepairCode.ADDED, thing, f"the {thing.kind}")


def conflict(health: Health) -> Mapping[str, str]:
    """The fields of the one condition, which is a repair conflict."""
    (condition,) = health.conditions_since().values()
    (problem,) = condition.problems
    assert problem.code is ConditionCode.REPAIR_CONFLICT
    return problem.fields


def test_three_repairs_in_the_window_are_a_fight(repair_backoff: RepairBackoff, health: Health, clock: FakeClock) -> None:
    """The third repair of one object, each undone at once, holds it back, and only it; status says what, how often and where to
    look."""
    for _ in range(CONFLICT_REPAIRS):
        assert repair_backoff.backed_off() == frozenset()
        repair_backoff.count_repairs([repaired(RULE), RepairReport(RepairCode.REFUSED, ROUTE, cause="EPERM")])
        clock.advance(1)
    clock.advance(-1)
    repair_backoff.count_repairs([repaired(ROUTE)])
    assert repair_backoff.backed_off() == {RULE}
    fields = conflict(health)
    assert (fields["object"], fields["count"], fields["suspects"]) == (str(RULE), "3", SUSPECTS[RepairKind.RULE])
    assert fields["action"].startswith("left as it is for ")
    assert repair_backoff.counts() == {RepairKind.RULE: 3, RepairKind.ROUTE: 1}


def test_repairs_that_lie_apart_are_no_fight(repair_backoff: RepairBackoff, health: Health, clock: FakeClock) -> None:
    """An object that is repaired every ten minutes is repaired at once each time."""
    for _ in range(10):
        repair_backoff.count_repairs([repaired(RULE)])
        assert repair_backoff.backed_off() == frozenset()
        clock.advance(CONFLICT_WINDOW_S / 2 + 1)
    assert health.conditions() == []


def test_the_pause_doubles_up_to_its_limit(repair_backoff: RepairBackoff, clock: FakeClock) -> None:
    """10, 20, 40 s and so on up to ten minutes, although fewer repairs fall into the window in the end."""
    pauses = []
    for _ in range(9):
        for _ in range(CONFLICT_REPAIRS):
            assert repair_backoff.backed_off() == frozenset()
            repair_backoff.count_repairs([repaired(RULE)])
            clock.advance(1)
        clock.advance(-1)
        wait_s = repair_backoff.wait_s()
        assert wait_s is not None
        pauses.append(wait_s)
        clock.advance(wait_s)
        assert repair_backoff.backed_off() == frozenset()
        assert repair_backoff.wait_s() is None
    assert pauses == [REPAIR.pause_s(number + 1) for number in range(9)]


@pytest.mark.parametrize("gap_s", [UNDONE_SOON_S + 0.1, 10.0, 30.0, 60.0])
def test_what_is_undone_on_a_clock_is_repaired_each_time(
    repair_backoff: RepairBackoff, health: Health, clock: FakeClock, gap_s: float
) -> None:
    """It is named, and no pause of ours makes the outage longer than a repair takes."""
    for _ in range(100):
        repair_backoff.count_repairs([repaired(ROUTE)])
        assert (repair_backoff.backed_off(), repair_backoff.wait_s()) == (frozenset(), None)
        clock.advance(gap_s)
    assert (conflict(health)["count"], conflict(health)["action"]) == ("100", "put back each time")
    clock.advance(CONFLICT_WINDOW_S + 1)
    repair_backoff.backed_off()
    assert health.conditions() == []


def test_two_repairs_for_one_change_are_no_fight(repair_backoff: RepairBackoff, clock: FakeClock) -> None:
    """A table that is emptied while a pass repairs it is repaired twice within a second, every 30 s."""
    for _ in range(20):
        for _ in range(CONFLICT_REPAIRS - 1):
            repair_backoff.count_repairs([repaired(ROUTE)])
            assert repair_backoff.backed_off() == frozenset()
            clock.advance(0.5)
        clock.advance(30)


def test_a_fight_that_becomes_slower_is_not_paused_any_more(repair_backoff: RepairBackoff, clock: FakeClock) -> None:
    """After the pauses of a real fight the other program corrects on a clock: what it undoes is repaired at once again."""
    for _ in range(3 * CONFLICT_REPAIRS):
        repair_backoff.count_repairs([repaired(ROUTE)])
        clock.advance(repair_backoff.wait_s() or 1.0)
    for _ in range(20):
        clock.advance(30)
        repair_backoff.count_repairs([repaired(ROUTE)])
        assert repair_backoff.backed_off() == frozenset()


def test_a_fight_that_ends_is_forgotten(repair_backoff: RepairBackoff, health: Health, clock: FakeClock) -> None:
    """An object that nobody touched for the window after its pause starts over, and its condition goes."""
    for _ in range(CONFLICT_REPAIRS):
        repair_backoff.count_repairs([repaired(RULE)])
    clock.advance(CONFLICT_WINDOW_S)
    repair_backoff.backed_off()
    assert len(health.conditions()) == 1
    clock.advance(REPAIR.first_s + 1)
    assert repair_backoff.backed_off() == frozenset()
    assert health.conditions() == []
    repair_backoff.count_repairs([repaired(RULE)])
    assert repair_backoff.backed_off() == frozenset()


def test_several_repairs_of_an_object_in_one_pass_count_once(repair_backoff: RepairBackoff) -> None:
    """A link whose MTU, MAC and alias were changed together is one repair, not a fight."""
    repair_backoff.count_repairs([repaired(RULE)] * 5)
    assert repair_backoff.backed_off() == frozenset()
    assert repair_backoff.counts() == {RepairKind.RULE: 1}


TABLE = RepairedObject(RepairKind.NFT, NODE)


@pytest.mark.parametrize("thing", sorted({*PUT_BACK_ALWAYS, TABLE}), ids=str)
def test_what_no_pod_can_be_without_is_put_back_each_time(
    repair_backoff: RepairBackoff, health: Health, thing: RepairedObject
) -> None:
    """SNAT and egress, confinement, the rule to all sandboxes: named as fought over, and never left as they are (I2)."""
    for _ in range(2 * CONFLICT_REPAIRS):
        repair_backoff.count_repairs([repaired(thing)])
        assert (repair_backoff.backed_off(), repair_backoff.wait_s()) == (frozenset(), None)
    assert (conflict(health)["count"], conflict(health)["action"]) == (str(2 * CONFLICT_REPAIRS), "put back each time")


def test_a_bystander_is_not_named_for_the_culprit(repair_backoff: RepairBackoff, health: Health, clock: FakeClock) -> None:
    """Named is who changed nftables before every repair, not who happened to be the last; without anybody nobody is."""
    for number in range(CONFLICT_REPAIRS):
        repair_backoff.record_changer(f"firewalld (process {number})")
        repair_backoff.record_changer(f"bystander{number} (process 7)")
        clock.advance(1)
        repair_backoff.count_repairs([repaired(TABLE)])
        clock.advance(1)
    assert conflict(health)["culprit"].endswith(f" firewalld (process {CONFLICT_REPAIRS - 1})")
    assert "bystander" not in conflict(health)["culprit"]


def test_who_was_heard_late_is_named_all_the_same(repair_backoff: RepairBackoff, health: Health, clock: FakeClock) -> None:
    """Nobody was heard before two of the repairs, which the clock made: the one who was heard before the last is named."""
    for number in range(CONFLICT_REPAIRS):
        if number == CONFLICT_REPAIRS - 1:
            repair_backoff.record_changer("nft")
        repair_backoff.count_repairs([repaired(TABLE)])
        clock.advance(1)
    assert conflict(health)["culprit"].endswith(" nft")


def test_names_of_changers_are_bounded(repair_backoff: RepairBackoff) -> None:
    """Whoever chooses a new name for each change does not fill the memory."""
    for number in range(1000):
        repair_backoff.record_changer(f"name{number} (process 1)")
    assert len(repair_backoff._changers) == CHANGERS_MAX


def test_every_kind_says_where_to_look() -> None:
    """No kind of object is left without a hint."""
    assert set(SUSPECTS) == set(RepairKind)
