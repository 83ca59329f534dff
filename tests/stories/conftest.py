"""What the stories share: a node of fakes that serves. Stories that need real processes open a rig of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.node import FakeNode


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """An m5.large (3 ENIs, 9 addresses for sandboxes on each) that serves."""
    made = FakeNode(tmp_path)
    made.bring_up()
    yield made
    made.datastore.close()
