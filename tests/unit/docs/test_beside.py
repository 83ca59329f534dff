"""docs/beside.md: each neighbour has a test that exists, or says that it has none."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NONE, NOT_TRIED = "no test", "no"


def test_each_neighbour_has_a_test_or_says_that_it_has_none() -> None:
    """Whoever was tried names the tests, which are there; whoever was not says so in both columns."""
    table, _, _ = (ROOT / "docs" / "beside.md").read_text().partition("\n## ")
    rows = re.findall(r"^\| (?!Neighbour|---)(.+) \|$", table, re.M)
    assert len(rows) > 15
    for row in rows:
        name, _, _, tried, test = row.split(" | ")
        paths = re.findall(r"`(tests/[\w/]+\.py)`", test)
        assert bool(paths) != (test == NONE), name
        assert (tried == NOT_TRIED) == (test == NONE), name
        for path in paths:
            assert (ROOT / path).exists(), f"{name}: {path}"
