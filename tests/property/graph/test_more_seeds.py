"""As `test_seeds.py`, with more seeds: a file of its own, so that another worker plays them."""

from __future__ import annotations

import pytest

from tests.property.graph.scenario import assert_sound

HEAVY_FROM = 31

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.heavy if seed >= HEAVY_FROM else ()) for seed in range(22, 43)]
)
def test_nothing_is_lost_doubled_or_leaked(seed: int) -> None:
    """Whatever happens."""
    assert_sound(seed)
