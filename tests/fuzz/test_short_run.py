"""A short run of every target with its whole corpus: what `make fuzz` does in minutes, in seconds."""

from __future__ import annotations

import pytest

from fuzz import runner, scale


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(scale.CASES))
def test_no_finding(name: str) -> None:
    """No traceback, no invalid document, nothing late, memory bounded, references equal; former findings stay mended."""
    work = runner.shares({name: scale.counts("short")[name]}, jobs=1)
    (outcome,) = runner.run(work, seed=1, jobs=1, tell=lambda line: None)
    told = [f"{found.label}: {found.kind}: {found.message}\n{found.replay()}" for found in outcome.findings]
    assert told == [], "\n\n".join(told)
