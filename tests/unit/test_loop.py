"""The one loop: what happens to it, and how often it takes turns and how long it sleeps then."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from ipamd.core.backoffs import NODE
from ipamd.core.health import Health
from ipamd.core.loop import FAILED_MAX_S, Loop
from ipamd.model.errors import BusyError, DatastoreError
from tests.fakes.clock import FakeClock
from tests.loops import running
from tests.patience import PATIENCE_S
from tests.rig import wait_until

FAIL = DatastoreError("the disk refused")


class Played:
    """A loop whose turns are played, and whose sleeps let a fake clock go on; it stops when the play is over.

    Each turn returns a number, or raises. `sleeps`: what it would have slept between turns, `pauses`: within one.
    """

    def __init__(self, *turns: float | Exception | None, woken: int = 0, **options: float) -> None:
        self.clock = FakeClock()
        self.health = Health(self.clock, ())
        self.turns = list(turns)
        self.woken = woken
        self.taken = 0
        self.sleeps: list[float | None] = []
        self.pauses: list[float] = []
        self.said: list[list[str]] = []
        self.loop = Loop("it", self.turn, health=self.health, clock=self.clock, changed=self, **options)
        self.loop.pause = self.pause  # type: ignore[method-assign]
        self.loop.run()

    def turn(self) -> float | None:
        """The next of the play."""
        self.said.append(self.health.conditions())
        self.taken += 1
        found = self.turns.pop(0)
        if not self.turns:
            self.loop.stop()
        if isinstance(found, Exception):
            raise found
        return found

    def pause(self, seconds: float) -> bool:
        """No announcement ends it."""
        self.pauses.append(seconds)
        self.clock.advance(seconds)
        return self.loop.is_stopped

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep, or be woken at once."""
        if self.loop.is_stopped:
            return True
        self.sleeps.append(timeout)
        self.woken -= 1
        return self.woken >= 0

    def set(self) -> None:
        """Nobody sleeps."""

    def clear(self) -> None:
        """Nothing is kept."""


@pytest.mark.parametrize(
    ("turns", "options", "sleeps", "pauses"),
    [
        pytest.param((5.0, None, 0.0, 1.0), {}, [5.0, None, 0.0], [0.0], id="sleeps as long as the turn says, or until woken"),
        pytest.param(
            (9.0, 9.0, 9.0), {"woken": 1, "settle_s": 0.2}, [9.0, 9.0], [0.2, 0.2], id="woken: it lets others announce too"
        ),
        pytest.param(
            (FAIL,) * 6,
            {},
            [0.0] * 5,
            [NODE.first_s, 2 * NODE.first_s, 4 * NODE.first_s, 8 * NODE.first_s, FAILED_MAX_S, 0.0],
            id="failures: the pause doubles, and an announcement does not end it",
        ),
        pytest.param((FAIL, FAIL, 3.0, FAIL, 1.0), {}, [0.0, 0.0, 3.0, 0.0], [0.5, 1.0, 0.5, 0.0], id="a success starts over"),
        pytest.param(
            (FAIL, FAIL, FAIL, 1.0), {"failed_max_s": 1.0}, [0.0] * 3, [0.5, 1.0, 1.0, 0.0], id="a longest pause of its own"
        ),
        pytest.param((BusyError("held"), 1.0), {}, [0.0], [0.5, 0.0], id="what is in use is tried again"),
    ],
)
def test_turns_and_sleeps(
    turns: tuple[float | Exception | None, ...], options: dict[str, float], sleeps: list[float | None], pauses: list[float]
) -> None:
    """What the turns do -> how long the loop sleeps between them, and pauses after a failure or an announcement."""
    played = Played(*turns, **options)  # type: ignore[arg-type]
    assert (played.taken, played.sleeps, played.pauses) == (len(turns), sleeps, pauses)


def test_a_failure_is_a_condition_until_a_turn_succeeds_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """With the loop's name; what another operation holds is none, and the error is in the status."""
    said = ["it: the disk refused; retried"]
    with caplog.at_level(logging.INFO):
        played = Played(BusyError("held"), FAIL, FAIL, 1.0, 1.0)
    assert played.said == [[], [], said, said, []]
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        f"condition subject=it text={said[0]}"
    ]
    error = played.health.last_error
    assert error is not None
    assert (error.subject, error.message) == ("it", "the disk refused")


def test_a_defect_is_counted_and_logged_with_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    """An error that is none of our tree."""
    played = Played(KeyError("x"), 1.0)
    assert played.health.defects
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.exc_info is not None for record in told] == [True]


def test_a_turn_that_worked_for_long_has_not_failed_before() -> None:
    """A stream that breaks once a day is opened again after the first pause."""
    clock = FakeClock()
    pauses: list[float] = []

    def turn() -> float:
        clock.advance(FAILED_MAX_S + 1)
        raise FAIL

    loop = Loop("it", turn, health=Health(clock, ()), clock=clock)
    loop.pause = lambda seconds: bool(pauses.append(seconds))  # type: ignore[method-assign]
    for _ in range(4):
        loop.take_turn()
    assert pauses == [NODE.first_s] * 4


@pytest.mark.parametrize("way", ["sleeping", "failing", "blocked", "before it runs"])
def test_it_stops_at_once(way: str) -> None:
    """Whatever it does; and what its last turn says no longer counts."""
    clock, taken, blocked = FakeClock(), threading.Event(), threading.Event()
    health = Health(clock, ())

    def turn() -> float | None:
        taken.set()
        if way == "failing":
            raise FAIL
        if way == "blocked":
            blocked.wait(PATIENCE_S)
            raise FAIL
        return None

    loop = Loop("it", turn, health=health, clock=clock, cancel=blocked.set)
    if way == "before it runs":
        loop.stop()
        loop.run()
        assert not taken.is_set()
        return
    with running(loop):
        wait_until(taken.is_set, what="its turn")
    assert bool(health.conditions()) == (way == "failing")


def test_what_is_announced_during_a_turn_is_not_lost() -> None:
    """The turn may have looked already."""
    clock, taken = FakeClock(), []
    act: Callable[[], None]

    def turn() -> None:
        taken.append(1)
        if len(taken) == 1:
            act()

    loop = Loop("it", turn, health=Health(clock, ()), clock=clock)
    act = loop.wake
    with running(loop):
        wait_until(lambda: len(taken) == 2, what="a second turn")
