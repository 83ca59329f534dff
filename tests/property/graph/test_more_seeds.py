"""As `test_seeds.py`, with more seeds, for `make test-all`."""

from __future__ import annotations

import pytest

from tests.property.graph.scenario import assert_sound

pytestmark = [pytest.mark.slow, pytest.mark.heavy]


@pytest.mark.parametrize("seed", range(22, 36))
def test_nothing_is_lost_doubled_or_leaked(seed: int) -> None:
    """Whatever happens."""
    assert_sound(seed)
