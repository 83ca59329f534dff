"""Adapters that talk to a hostile server, and an environment without AWS settings of the machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import aws_environment
from tests.contract.cloud.server import HostileServer, hostile


@pytest.fixture
def server() -> Iterator[HostileServer]:
    """A server whose script the test sets."""
    with hostile() as made:
        yield made


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    aws_environment.clean(monkeypatch)
