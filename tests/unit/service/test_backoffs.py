"""The one backoffs of pauses: what was put off is due after its schedule's pause, and whatever succeeded begins anew."""

from __future__ import annotations

import pytest

from ipamd.core.backoffs import CONTRADICTION, CREDENTIALS, DENIED, EC2, LIMIT, NODE, REPAIR, ROOM, Backoffs, Schedule, soonest_s
from ipamd.model.metadata_evidence import ASK_PAUSES_S
from tests.fakes.clock import FakeClock

SCHEDULES = (NODE, EC2, REPAIR, ROOM, DENIED, CREDENTIALS, LIMIT)
KEY, OTHER = ("eni", "eni-1"), ("eni", "eni-2")


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda one: one.name)
def test_pauses_double_up_to_the_longest(schedule: Schedule) -> None:
    """The first, twice that, and so on; a loop that fails for weeks still gets the longest."""
    pauses = [schedule.pause_s(count) for count in range(1, 5000)]
    assert pauses[:2] == [schedule.first_s, min(2 * schedule.first_s, schedule.longest_s)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == schedule.longest_s


def test_links_and_metadata_have_the_same_pauses() -> None:
    """What contradicts a row for long is asked about as seldom, whichever source it is."""
    pauses = [CONTRADICTION.pause_s(count) for count in range(1, 5000)]
    assert pauses == [*ASK_PAUSES_S, *ASK_PAUSES_S[-1:] * (4999 - len(ASK_PAUSES_S))]


def test_an_idle_hour_has_six_tries_of_an_ec2_call_at_most() -> None:
    """Whatever EC2 refuses while nobody waits: no schedule of its calls ends below ten minutes (I13). Without credentials
    it is not called."""
    assert all(one.longest_s >= 600.0 for one in (EC2, ROOM, DENIED, LIMIT))


@pytest.mark.parametrize(
    ("events", "left_s", "next_pause_s"),
    [
        ("", 0.0, 120.0),
        ("f", 120.0, 240.0),
        ("ff", 240.0, 480.0),
        ("ffff", 960.0, 1920.0),
        ("f" * 20, 3600.0, 3600.0),
        ("ffc", 0.0, 120.0),
        ("ffs", 240.0, 120.0),
        ("s", 0.0, 120.0),
        ("p", 7.0, 120.0),
        ("ffp", 7.0, 120.0),
        ("h", 0.0, 120.0),
        ("fh", 120.0, 240.0),
        ("ffffh", 600.0, 1920.0),
    ],
)
def test_what_becomes_of_a_pause(events: str, left_s: float, next_pause_s: float) -> None:
    """f: it failed; c: it succeeded; s: something of it succeeded; p: it was put on the backoffs in 7 s; h: something new waits for
    it."""
    clock = FakeClock()
    backoffs = Backoffs(clock)
    does = {
        "f": lambda: backoffs.back_off(KEY, ROOM),
        "c": lambda: backoffs.clear(KEY),
        "s": lambda: backoffs.shorten(KEY),
        "p": lambda: backoffs.put(KEY, in_s=7.0),
        "h": lambda: backoffs.hasten(KEY),
    }
    for event in events:
        does[event]()
    assert backoffs.left_s(KEY) == left_s
    assert backoffs.is_due(KEY) == (left_s == 0.0)
    assert backoffs.next_s("eni") == (left_s or None)
    clock.advance(left_s)
    assert backoffs.is_due(KEY)
    assert backoffs.back_off(KEY, ROOM) == next_pause_s


def test_a_waiting_add_shortens_a_pause() -> None:
    """An idle node asks in an hour; while an ADD waits ten minutes after the refusal are enough."""
    clock, waiting = FakeClock(), [False]
    backoffs = Backoffs(clock, is_urgent=lambda: waiting[0])
    for _ in range(9):
        backoffs.back_off(KEY, ROOM)
    clock.advance(590)
    assert backoffs.left_s(KEY) == 3010.0
    waiting[0] = True
    assert backoffs.left_s(KEY) == backoffs.next_s() == 10.0
    clock.advance(10)
    assert backoffs.is_due(KEY)
    assert backoffs.next_s("eni") is None
    waiting[0] = False
    assert not backoffs.is_due(KEY)


def test_each_object_has_a_pause_of_its_own() -> None:
    """Another object is due; the soonest of all is the first; those that are gone are cleared together."""
    backoffs = Backoffs(FakeClock())
    backoffs.back_off(KEY, ROOM)
    backoffs.back_off(OTHER, DENIED)
    backoffs.back_off(("loop",), NODE)
    assert backoffs.is_due(("eni", "eni-3"))
    assert (backoffs.next_s(), backoffs.next_s("eni"), backoffs.next_s("group")) == (0.5, 120.0, None)
    backoffs.retain("eni", {"eni-2"})
    assert backoffs.keys("eni") == (OTHER,)
    backoffs.clear(OTHER, ("loop",))
    assert backoffs.keys() == ()


def test_the_soonest_of_waits() -> None:
    """None waits for nothing by the clock."""
    assert (soonest_s([3.0, None, 2.0]), soonest_s([None]), soonest_s([])) == (2.0, None, None)
