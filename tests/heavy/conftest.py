"""Everything here is heavy: `make test` leaves it out; a test names the tool that it lacks.

A file says what it needs with `pytestmark = needs("buildah", ...)` (tests/heavy/tools.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.heavy)
