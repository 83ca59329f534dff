"""What the stories share: a node of fakes that serves. Stories that need real processes open a rig of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.node import FakeNode
from tests.families import family_for, network_of
from tests.stories.mutations import BY_NAME, Mutate


@pytest.fixture
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FakeNode]:
    """An m5.large (3 ENIs, 9 addresses for sandboxes on each; or one /80) that serves."""
    made = FakeNode(tmp_path, network=network_of(family_for(request)))
    made.bring_up()
    yield made
    made.datastore.close()


@pytest.fixture
def mutate(monkeypatch: pytest.MonkeyPatch) -> Mutate:
    """Plant a mutation of the list by its name, until the test ends."""

    def plant(name: str, **given: object) -> None:
        BY_NAME[name].apply(monkeypatch, **given)

    return plant
