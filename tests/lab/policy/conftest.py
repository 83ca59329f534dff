"""One node with a policy agent for the tests of a file; each removes the pods that it made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.policy.policed import Policed, policed


@pytest.fixture(scope="module")
def node() -> Iterator[Policed]:
    """A node in strict mode."""
    with policed() as made:
        yield made
        made.rig.assert_sound(expected=0)
