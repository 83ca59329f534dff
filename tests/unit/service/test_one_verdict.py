"""Every path that frees an address does what the one verdict says, and `ipamctl explain` shows it (I2, I11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ipamd.model.address import AddressState
from ipamd.model.evidence import Evidence, Judgement, Verdict, judge
from ipamd.model.history import HistoryQuestion
from ipamd.report.explain import explain
from ipamd.sandbox import judge as sandbox_judge
from ipamd.sandbox.judge import LIST_INTERVAL_S
from tests.fakes.node import FakeNode
from tests.unit.service.one_judge import collect, list_for, quarantine_one, vanish

# One judge


def reap_path(node: FakeNode) -> bool:
    """A sandbox that is gone for every witness, and three lists; returns whether it is kept."""
    vanish(node, node.add("a"))
    node.clock.advance(600)
    return list_for(node, 180) == 0


def gc_path(node: FakeNode) -> bool:
    """A sandbox that is gone for every witness, and a GC; returns whether it is kept."""
    vanish(node, node.add("a"))
    node.clock.advance(600)
    return collect(node, "pod") == ([], ["a"])


def quarantine_path(node: FakeNode) -> bool:
    """A quarantined address whose wiring is gone; returns whether it is still held."""
    made = node.add("a")
    node.crash(keep_datastore=False)
    node.bring_up()
    vanish(node, made)
    node.host_reconciler.reconcile()
    row = node.datastore.address(made.address)
    return row is not None and row.state is AddressState.QUARANTINED


def start_path(node: FakeNode) -> bool:
    """The remainder of an ADD that died, and a start; returns whether it is there."""
    made = node.add("a")
    spec = node.wiring.wired[made.host_veth]
    node.delete("a")
    node.cool()
    node.wiring.wired["enilost"] = replace(spec, key=node.key("lost"), host_veth="enilost")
    node.crash()
    node.bring_up()
    return "enilost" in node.wiring.wired


def explain_path(node: FakeNode) -> bool:
    """`ipamctl explain` of a sandbox that is gone for every witness; returns whether it says "kept"."""
    vanish(node, node.add("a"))
    node.clock.advance(600)
    for _ in range(2):
        node.judge.look(node.datastore.attachments(), {"pod"}, unrecorded=())
        node.clock.advance(LIST_INTERVAL_S)
    node.runtime_reconciler._seen, node.runtime_reconciler._reachable = frozenset({"pod"}), True
    told = explain(node.app.introspection.sources, HistoryQuestion("a", 50)).sentences
    return any("without a DEL it is kept" in sentence for sentence in told)


PATHS = [reap_path, gc_path, quarantine_path, start_path, explain_path]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_every_path_does_what_the_one_verdict_says(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, path: Callable[[FakeNode], bool]
) -> None:
    """Whoever frees, removes or explains has asked `model/evidence.py: judge`; if it says keep, nothing is freed or removed."""
    node.add("pod")
    node.runtime.run("pod")
    asked: list[Verdict] = []

    def keeping(evidence: Evidence) -> Judgement:
        asked.append(judge(evidence).verdict)
        return Judgement(Verdict.KEEP, ("the test says so",))

    monkeypatch.setattr(sandbox_judge, "judge", keeping)
    assert path(node), "this path decides by itself"
    assert {Verdict.REAP, Verdict.UNWIRE_THEN_REAP} & set(asked)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_every_path_ends_without_that(node: FakeNode, path: Callable[[FakeNode], bool]) -> None:
    """The same five, judged by the real verdict: freed, removed, or explained as to be reaped."""
    node.add("pod")
    node.runtime.run("pod")
    assert not path(node)


def test_explain_shows_the_verdict_and_its_sources(node: FakeNode) -> None:
    """What an operator reads is what the reaper would do now, with its reasons."""
    node.add("pod")
    node.runtime.run("pod")
    vanish(node, node.add("a"))
    list_for(node, 600)
    node.runtime.is_down = True
    node.add("b")
    node.runtime_reconciler.reconcile_once()
    told = explain(node.app.introspection.sources, HistoryQuestion("b", 50)).sentences
    assert any("without a DEL it is kept" in sentence and "the runtime has not given" in sentence for sentence in told)
    assert any("sources: runtime unknown" in sentence for sentence in told)


def test_explain_shows_the_verdict_on_a_quarantined_address(node: FakeNode) -> None:
    """Who it is held for, and what would be done now."""
    made = quarantine_one(node, "a")
    list_for(node, 60)
    told = explain(node.app.introspection.sources, HistoryQuestion(str(made.address), 50)).sentences
    assert any(f"{made.host_veth} of sandbox {made.key}: keep: wired, but the runtime" in sentence for sentence in told)
    assert node.datastore.counts().quarantined == 1
