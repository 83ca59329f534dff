"""As `test_seeds.py`, with as many seeds again: a file of its own, so that another worker plays them."""

from __future__ import annotations

import pytest

from tests.property.graph.scenario import assert_sound

PER_TEST = 3

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("first", range(22, 43, PER_TEST))
def test_nothing_is_lost_doubled_or_leaked(first: int) -> None:
    """Whatever happens."""
    assert_sound(first, PER_TEST)
