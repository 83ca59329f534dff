"""The shipped graph with a pool of IPv6 under everything at once, on some of the seeds: others take its /80 and give it back."""

from __future__ import annotations

import pytest

from ipamd.model.family import IPV6
from tests.property.graph.scenario import assert_sound

HEAVY_FROM = 104

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.heavy if seed >= HEAVY_FROM else ()) for seed in range(101, 109)]
)
def test_one_prefix_serves_whatever_happens(seed: int) -> None:
    """No address is given twice, too soon, or from a /80 that is not there; no sandbox loses one; a quiet node makes no call."""
    assert_sound(seed, family=IPV6)
