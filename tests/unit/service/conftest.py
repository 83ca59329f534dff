"""A node of fakes around a real datastore, brought up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.node import FakeNode


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """An m5.large (3 ENIs, 9 slots each) that serves."""
    made = FakeNode(tmp_path)
    made.bring_up()
    yield made
    made.datastore.close()
