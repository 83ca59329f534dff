"""As `test_seeds.py`, for another worker."""

from __future__ import annotations

import pytest

from tests.property.graph.scenario import assert_sound

PER_TEST = 5


@pytest.mark.parametrize("first", range(21, 41, PER_TEST))
def test_nothing_is_lost_doubled_or_leaked(first: int) -> None:
    """Whatever happens."""
    assert_sound(first, PER_TEST)
