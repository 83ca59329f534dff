"""A store in a directory of its own, filled with one ENI of four addresses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ipamd.datastore.store import SqlDatastore
from tests.unit.datastore.support import FakeClock, fill, open_at


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store is; its directory is not made yet."""
    return tmp_path / "run" / "state.db"


@pytest.fixture
def clock() -> FakeClock:
    """A clock that only the test moves."""
    return FakeClock()


@pytest.fixture
def store(path: Path, clock: FakeClock) -> Iterator[SqlDatastore]:
    """One ENI, four free addresses 10.0.0.100 to 10.0.0.103."""
    store = open_at(path, clock=clock).datastore
    fill(store)
    yield store
    store.close()
