"""Ages of objects with a wall time: no step of the wall clock makes anything older than it is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from ipamd.model.ages import Ages

START = datetime(2026, 1, 1, tzinfo=UTC)


class Clocks:
    """Both clocks, and a history of what was made when."""

    def __init__(self) -> None:
        self.now, self.now_s = START, 100.0
        self.made: dict[int, datetime] = {}
        self.born_s: dict[int, float] = {}
        self.ages: Ages[int] = Ages()

    def look(self) -> None:
        """Record what there is."""
        self.ages.look(self.made, now=self.now, now_s=self.now_s)

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self.now += timedelta(seconds=seconds)
        self.now_s += seconds

    def make(self) -> int:
        """Something comes to be."""
        number = len(self.made)
        self.made[number], self.born_s[number] = self.now, self.now_s
        return number


def test_what_is_found_at_the_first_look_has_its_wall_age() -> None:
    """A row of an earlier process: its wall time is all there is."""
    clocks = Clocks()
    first = clocks.make()
    clocks.advance(400)
    clocks.look()
    clocks.now += timedelta(days=3)
    clocks.advance(10)
    clocks.look()
    assert clocks.ages.age_s(first, now_s=clocks.now_s) == 410


def test_without_steps_ages_are_exact() -> None:
    """What is made between two looks has its true age at once, and no more than that later."""
    clocks = Clocks()
    clocks.look()
    clocks.advance(50)
    number = clocks.make()
    clocks.advance(70)
    clocks.look()
    clocks.advance(5)
    assert clocks.ages.age_s(number, now_s=clocks.now_s) == 75


def test_what_a_look_lacks_is_forgotten_and_what_is_made_again_is_new() -> None:
    """A key that is used again with another time starts over."""
    clocks = Clocks()
    number = clocks.make()
    clocks.advance(500)
    clocks.look()
    assert number in clocks.ages
    clocks.made[number] = clocks.now
    clocks.look()
    assert clocks.ages.age_s(number, now_s=clocks.now_s) == 0
    clocks.made.clear()
    clocks.look()
    assert number not in clocks.ages
    assert clocks.ages.age_s(number, now_s=clocks.now_s) == 0.0


STEPS = st.one_of(
    st.tuples(st.just("advance"), st.integers(0, 1000)),
    st.tuples(st.just("step"), st.integers(-100_000, 100_000)),
    st.tuples(st.sampled_from(["make", "look"]), st.just(0)),
)


@given(st.lists(STEPS, max_size=30))
def test_nothing_is_ever_older_than_it_is(steps: list[tuple[str, int]]) -> None:
    """Whatever is done to the wall clock while a process runs, an age is at most the true one, and it grows with time."""
    clocks = Clocks()
    clocks.look()
    for what, seconds in steps:
        if what == "advance":
            clocks.advance(seconds)
        elif what == "step":
            clocks.now += timedelta(seconds=seconds)
        elif what == "make":
            clocks.make()
        else:
            clocks.look()
    clocks.look()
    at_look_s = clocks.now_s
    clocks.advance(60)
    for number, born_s in clocks.born_s.items():
        age_s = clocks.ages.age_s(number, now_s=clocks.now_s)
        assert age_s + 1e-6 >= 60
        assert age_s <= clocks.now_s - born_s + 1e-6
        assert at_look_s >= born_s
