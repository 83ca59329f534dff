"""The state of the stage `cri` while the start waits for the runtime's first list, and after it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.core.health import StageState
from ipamd.datastore.open import OpenOutcome
from ipamd.process.lifecycle import RUNTIME_PATIENCE_S, Lifecycle
from ipamd.report.verdict import facts, verdict
from tests.fakes.node import FakeNode


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node before its start, whose runtime does not answer."""
    made = FakeNode(tmp_path)
    made.runtime.is_down = True
    yield made
    made.datastore.close()


def stage_state(node: FakeNode) -> StageState:
    """The present state of the stage."""
    return next(stage.state for stage in node.health.stages() if stage.name == "cri")


def first_list(node: FakeNode, monkeypatch: pytest.MonkeyPatch, *, is_answered: bool) -> tuple[StageState, float]:
    """Wait for the list. Returns: the stage's state after the runtime has failed to answer once, and how long the start waits."""
    runtime = node.app.runtime
    assert runtime is not None
    seen: list[tuple[StageState, float]] = []

    def wait(is_done: Callable[[], bool], *, patience_s: float) -> None:
        runtime.turn()
        assert not is_done()
        seen.append((stage_state(node), patience_s))
        assert "CRI" in verdict(facts(node.app.introspection.sources))
        node.runtime.is_down = not is_answered
        runtime.turn()
        assert is_done() == is_answered

    life = Lifecycle(node.app, end=print)
    monkeypatch.setattr(runtime.loop, "start", lambda: None)
    monkeypatch.setattr(life, "_await", wait)
    assert (life._first_list() is not None) == is_answered
    return seen[0]


def test_a_lost_datastore_waits_in_a_running_stage(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as it takes; nothing goes on without the list."""
    assert first_list(node, monkeypatch, is_answered=True) == (StageState.RUNNING, math.inf)
    assert stage_state(node) is StageState.DONE


def test_an_intact_datastore_goes_on_without_the_list(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage is degraded only then."""
    opened = node.app.adapters.opened
    report = replace(opened.report, outcome=OpenOutcome.INTACT, problems=(), was_restored=True)
    node.app.adapters.opened = replace(opened, report=report)
    assert first_list(node, monkeypatch, is_answered=False) == (StageState.RUNNING, RUNTIME_PATIENCE_S)
    assert stage_state(node) is StageState.DEGRADED
    assert "CRI" in verdict(facts(node.app.introspection.sources))
