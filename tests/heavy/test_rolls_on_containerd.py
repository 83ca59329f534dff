"""Eight restarts under load on a real containerd, as the two of tests/lab/runtime/test_rolls.py: more than a minute each."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lab.runtime.conftest import DIRECTORIES
from tests.lab.runtime.rolls import assert_not_noticed

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.containerd,
]

ROLLS = 8
"""As many as surely fit into the minute that STATUS bridges in ten, on a busy machine too. `make bench`, group rolls, does 20."""


@pytest.mark.parametrize("version", ["1.7", "2"])
def test_eight_restarts_under_load_change_no_condition(version: str) -> None:
    """No NetworkReady turns false, and no sandbox needs a second call."""
    if not os.access(Path(DIRECTORIES[version]) / "containerd", os.X_OK):
        pytest.skip(f"containerd {version} is not here: `tools/fetch_containerd.sh {version}`")
    assert_not_noticed(version, rolls=ROLLS)
