"""The shipped graph with branch ENIs and a policy agent, under everything at once: who tells of pods is silent at times, the control
plane is late, strangers write annotations, the agent is away, refuses and forgets.
"""

from __future__ import annotations

import pytest

from tests.property.graph.scenario import assert_sound

LIGHT = (4, 5)
"""Of either mode one that is short; all others are heavy."""

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=() if seed in LIGHT else pytest.mark.heavy) for seed in range(1, 13)])
def test_who_must_have_groups_has_them_and_nobody_is_unfiltered(seed: int) -> None:
    """Besides all that holds without: I19 and I21; each VLAN link is a living pod's; an idle node makes no call."""
    assert_sound(seed, has_branches=True)
