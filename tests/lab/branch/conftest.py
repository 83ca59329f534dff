"""A node on which pods with branch ENIs come and go, for the files that do not make their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.branch.ground import MODES, BranchGround, ground


@pytest.fixture(scope="module", params=list(MODES))
def made(request: pytest.FixtureRequest) -> Iterator[BranchGround]:
    """One node, in each mode."""
    with ground(request.param, nodes=("node-a",), outside=False) as found:
        yield found


@pytest.fixture
def node(made: BranchGround) -> Iterator[BranchGround]:
    """Nobody is left of the test before, and the trunk is empty."""
    yield made
    made.end_all()
    made.assert_sound()
    made.assert_no_branch_of("node-a")
    made.await_cooled()
