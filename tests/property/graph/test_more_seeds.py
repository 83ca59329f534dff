"""As `test_seeds.py`, with more seeds: a file of its own, so that another worker plays them."""

from __future__ import annotations

import pytest

from tests.property.graph.scenario import assert_sound

PER_TEST, HEAVY_FROM = 3, 34

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "first", [pytest.param(first, marks=pytest.mark.heavy if first >= HEAVY_FROM else ()) for first in range(22, 43, PER_TEST)]
)
def test_nothing_is_lost_doubled_or_leaked(first: int) -> None:
    """Whatever happens."""
    assert_sound(first, PER_TEST)
