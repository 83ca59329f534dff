"""A page that is served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.node import FakeNode
from tests.page import Shown, shown
from tests.stories.stale_reads import run_sandboxes


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with two sandboxes."""
    made = FakeNode(tmp_path)
    made.bring_up()
    run_sandboxes(made, "a", "b")
    yield made
    made.datastore.close()


@pytest.fixture
def page(node: FakeNode) -> Iterator[Shown]:
    """Its page on loopback, without a token."""
    with shown(node) as made:
        yield made
