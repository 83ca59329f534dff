"""No AWS settings of the machine leak in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import aws_environment
from tests.lab.inventory.account import InventoryAccount, an_account


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment has keys, and nothing else of AWS."""
    aws_environment.clean(monkeypatch)


@pytest.fixture
def account() -> Iterator[InventoryAccount]:
    """An empty VPC."""
    with an_account() as made:
        yield made
