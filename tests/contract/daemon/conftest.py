"""One daemon for the tests that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.families import lab_family_for
from tests.rig import Rig, rig


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A node with a daemon, shared by a module; every test removes what it attached."""
    with rig(family=lab_family_for(request)) as made:
        yield made
        made.assert_sound(expected=0)
