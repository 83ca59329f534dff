"""Skips everything here unless VPC_IPAMD_HEAVY=1, and names the tool that a test lacks.

A file says what it needs with `pytestmark = needs("buildah", ...)` (tests/heavy/tools.py).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder as skipped where they are not asked for."""
    if os.environ.get("VPC_IPAMD_HEAVY") == "1":
        return
    skipped = pytest.mark.skip(reason="heavy tools: `make test-all` runs it (VPC_IPAMD_HEAVY=1)")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(skipped)
