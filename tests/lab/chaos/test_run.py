"""A chaos run of two minutes with one seed, as part of the tests; longer ones by hand (`make chaos`)."""

from __future__ import annotations

import json

import pytest

from lab.chaos.__main__ import BUILD, main

SEED, MINUTES = 25, 2
"""Of the first hundred seeds the one whose two minutes have every kind of event, and most faults and deeds of other hands
(`python -m lab.chaos.seeds`)."""


@pytest.mark.privileged
@pytest.mark.containerd
@pytest.mark.slow
@pytest.mark.timeout(420)
def test_two_minutes_of_chaos_break_no_invariant() -> None:
    """I1-I9 hold under kills, a cloud that fails and lies, other hands and clock steps, seen from outside; then nothing is left."""
    output = BUILD / "chaos.json"
    status = main(["--seed", str(SEED), "--minutes", str(MINUTES), "--output", str(output), "--quiet"])
    report = json.loads(output.read_text())
    assert (status, report["violations"], report["lab_error_count"]) == (0, [], 0)
    assert report["operations"]["pod run"] > 30
    assert sum(report["kills"].values()) > 5
    assert sum(report["faults"].values()) > 5
