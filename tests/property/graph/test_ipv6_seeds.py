"""The shipped graph with a pool of IPv6 under everything at once, on some of the seeds: others take its /80 and give it back."""

from __future__ import annotations

import pytest

from ipamd.model.family import IPV6
from tests.property.graph.scenario import assert_sound

PER_TEST = 4

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("first", [101, 105, pytest.param(109, marks=pytest.mark.heavy)])
def test_one_prefix_serves_whatever_happens(first: int) -> None:
    """No address is given twice, too soon, or from a /80 that is not there; no sandbox loses one; a quiet node makes no call."""
    assert_sound(first, PER_TEST, family=IPV6)
