"""A chaos run of two minutes with one seed, as part of the tests; longer ones by hand (`make chaos`)."""

from __future__ import annotations

import json

import pytest

from lab.chaos.__main__ import BUILD, main

SEED, MINUTES = 72, 2
"""Of the first hundred seeds the one whose two minutes have every kind of event, and most of the cloud's faults."""


@pytest.mark.privileged
@pytest.mark.containerd
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_minutes_of_chaos_break_no_invariant() -> None:
    """I1-I9 hold under kills, cloud faults and clock steps, as seen from outside the daemon; then nothing is left."""
    output = BUILD / "chaos.json"
    status = main(["--seed", str(SEED), "--minutes", str(MINUTES), "--output", str(output), "--quiet"])
    report = json.loads(output.read_text())
    assert (status, report["violations"], report["lab_error_count"]) == (0, [], 0)
    assert report["operations"]["pod run"] > 30
    assert sum(report["kills"].values()) > 5
    assert sum(report["faults"].values()) > 5
