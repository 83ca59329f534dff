"""The shipped graph under everything at once, some seeds of it. `python -m tests.property.graph --seeds 1-2000` plays more."""

from __future__ import annotations

import pytest

from tests.property.graph.planted import PLANTED
from tests.property.graph.scenario import STATES, run, told

SEEDS = range(1, 41)
PER_TEST = 5
"""A test plays so many: a few tests, so that the workers share them."""


@pytest.mark.parametrize("first", SEEDS[::PER_TEST])
def test_nothing_is_lost_doubled_or_leaked(first: int) -> None:
    """I1, I2, I6 to I9, I11 and I13, whatever happens; and no state that lasts costs more than six calls of a kind an hour."""
    for seed in range(first, first + PER_TEST):
        outcome = run(seed)
        assert not outcome.problems, told(outcome)
        assert outcome.kills > 3, "the storm kills"


def test_every_lasting_state_is_played() -> None:
    """The seeds of this file reach each of them."""
    assert {STATES[seed % len(STATES)] for seed in SEEDS} == set(STATES)


def test_a_seed_is_one_order_of_events() -> None:
    """Else what a seed found could not be found again."""
    assert run(3, is_short=True).trace == run(3, is_short=True).trace


@pytest.mark.parametrize("invariant", PLANTED)
def test_a_planted_bug_is_found(invariant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge is no use if it never says no."""
    PLANTED[invariant](monkeypatch)
    found = []
    for seed in range(1, 16):
        found = [one for one in run(seed, is_short=True).problems if f"{invariant}:" in one]
        if found:
            return
    pytest.fail(f"a bug against {invariant} was not found within 15 seeds")
