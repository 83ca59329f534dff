"""Repairs are counted, and an object that something else changes back again and again is repaired less and less often."""

from __future__ import annotations

import pytest

from ipamd.core.agenda import REPAIR, Agenda
from ipamd.core.health import Health
from ipamd.host.repair_backoff import CHANGERS_KEPT, FIGHT_REPAIRS, FIGHT_WINDOW_S, SUSPECTS, Fights
from ipamd.model.kernel import NODE, PUT_BACK_ALWAYS, Repaired, RepairedObject, RepairKind
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
def fights(clock: FakeClock, health: Health) -> Fights:
    """No repair yet."""
    return Fights(clock=clock, health=health, agenda=Agenda(clock))


def repaired(thing: RepairedObject) -> Repaired:
    """One repair."""
    return Repaired(f"{thing} was missing: added", thing)


def test_three_repairs_in_the_window_are_a_fight(fights: Fights, health: Health, clock: FakeClock) -> None:
    """The third repair of one object within ten minutes holds it back, and only it; status says what, how often and where to look."""
    for _ in range(FIGHT_REPAIRS):
        assert fights.held() == frozenset()
        fights.count_repairs([repaired(RULE), "something else could not be repaired"])
        clock.advance(30)
    clock.advance(-30)
    fights.count_repairs([repaired(ROUTE)])
    assert fights.held() == {RULE}
    (told,) = health.conditions()
    assert "rule of 10.0.0.5 was repaired 3 times" in told
    assert SUSPECTS[RepairKind.RULE] in told
    assert fights.counts() == {RepairKind.RULE: 3, RepairKind.ROUTE: 1}


def test_repairs_that_lie_apart_are_no_fight(fights: Fights, health: Health, clock: FakeClock) -> None:
    """An object that is repaired every ten minutes is repaired at once each time."""
    for _ in range(10):
        fights.count_repairs([repaired(RULE)])
        assert fights.held() == frozenset()
        clock.advance(FIGHT_WINDOW_S / 2 + 1)
    assert health.conditions() == []


def test_the_pause_doubles_up_to_its_limit(fights: Fights, clock: FakeClock) -> None:
    """10, 20, 40 s and so on up to ten minutes, although fewer than three repairs then fall into the window."""
    for _ in range(FIGHT_REPAIRS - 1):
        fights.count_repairs([repaired(RULE)])
    pauses = []
    for _ in range(9):
        fights.count_repairs([repaired(RULE)])
        wait_s = fights.wait_s()
        assert wait_s is not None
        pauses.append(wait_s)
        clock.advance(wait_s)
        assert fights.held() == frozenset()
        assert fights.wait_s() is None
    assert pauses == [REPAIR.pause_s(number + 1) for number in range(9)]


def test_a_fight_that_ends_is_forgotten(fights: Fights, health: Health, clock: FakeClock) -> None:
    """An object that nobody touched for the window after its pause starts over, and its condition goes."""
    for _ in range(FIGHT_REPAIRS):
        fights.count_repairs([repaired(RULE)])
    clock.advance(FIGHT_WINDOW_S)
    fights.held()
    assert len(health.conditions()) == 1
    clock.advance(REPAIR.first_s + 1)
    assert fights.held() == frozenset()
    assert health.conditions() == []
    fights.count_repairs([repaired(RULE)])
    assert fights.held() == frozenset()


def test_several_repairs_of_an_object_in_one_pass_count_once(fights: Fights) -> None:
    """A link whose MTU, MAC and alias were changed together is one repair, not a fight."""
    fights.count_repairs([repaired(RULE)] * 5)
    assert fights.held() == frozenset()
    assert fights.counts() == {RepairKind.RULE: 1}


TABLE = RepairedObject(RepairKind.NFT, NODE)


@pytest.mark.parametrize("thing", sorted({*PUT_BACK_ALWAYS, TABLE}), ids=str)
def test_what_no_pod_can_be_without_is_put_back_each_time(fights: Fights, health: Health, thing: RepairedObject) -> None:
    """SNAT and egress, confinement, the rule to all sandboxes: named as fought over, and never left as they are (I2)."""
    for _ in range(2 * FIGHT_REPAIRS):
        fights.count_repairs([repaired(thing)])
        assert (fights.held(), fights.wait_s()) == (frozenset(), None)
    (told,) = health.conditions()
    assert f"was repaired {2 * FIGHT_REPAIRS} times" in told
    assert "put back each time" in told


def test_a_bystander_is_not_named_for_the_culprit(fights: Fights, health: Health, clock: FakeClock) -> None:
    """Named is who changed nftables before every repair, not who happened to be the last; without anybody nobody is."""
    for number in range(FIGHT_REPAIRS):
        fights.record_changer(f"firewalld (process {number})")
        fights.record_changer(f"bystander{number} (process 7)")
        clock.advance(1)
        fights.count_repairs([repaired(TABLE)])
        clock.advance(1)
    (told,) = health.conditions()
    assert told.endswith(f"; nftables was changed before, probably by firewalld (process {FIGHT_REPAIRS - 1})")


def test_who_was_heard_late_is_named_all_the_same(fights: Fights, health: Health, clock: FakeClock) -> None:
    """Nobody was heard before two of the repairs, which the clock made: the one who was heard before the last is named."""
    for number in range(FIGHT_REPAIRS):
        if number == FIGHT_REPAIRS - 1:
            fights.record_changer("nft")
        fights.count_repairs([repaired(TABLE)])
        clock.advance(1)
    (told,) = health.conditions()
    assert told.endswith("; nftables was changed before, probably by nft")


def test_names_of_changers_are_bounded(fights: Fights) -> None:
    """Whoever chooses a new name for each change does not fill the memory."""
    for number in range(1000):
        fights.record_changer(f"name{number} (process 1)")
    assert len(fights._changers) == CHANGERS_KEPT


def test_every_kind_says_where_to_look() -> None:
    """No kind of object is left without a hint."""
    assert set(SUSPECTS) == set(RepairKind)
