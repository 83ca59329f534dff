"""The shipped graph under everything at once. `test_more_seeds.py` plays others, `make randomised SEEDS=1-2000` more."""

from __future__ import annotations

import pytest

from tests.property.graph.scenario import STATES, assert_sound

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(1, 22))
def test_nothing_is_lost_doubled_or_leaked(seed: int) -> None:
    """Whatever happens."""
    assert_sound(seed)


def test_every_lasting_state_is_played() -> None:
    """By these seeds alone."""
    assert {STATES[seed % len(STATES)] for seed in range(1, 22)} == set(STATES)
