"""Every path that frees an address does what the one verdict says, and `ipamctl explain` shows it (I2, I11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ipamd.model.address import AddressState
from ipamd.model.evidence import Evidence, Judgement, SandboxVerdict, judge
from ipamd.model.finding_codes import FindingCode
from ipamd.model.history_answer import HistoryQuestion
from ipamd.model.verdict_reasons import ReasonCode, VerdictReason
from ipamd.report.audit import audit
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
        node.judge.record_list(node.datastore.attachments(), {"pod"}, unrecorded=())
        node.clock.advance(LIST_INTERVAL_S)
    reconciler = node.runtime_reconciler
    reconciler._believed, reconciler._believed_monotonic_s = frozenset({"pod"}), node.clock.monotonic()
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
    asked: list[SandboxVerdict] = []

    def keeping(evidence: Evidence) -> Judgement:
        asked.append(judge(evidence).verdict)
        return Judgement(SandboxVerdict.KEEP, (VerdictReason(ReasonCode.LISTED),))

    monkeypatch.setattr(sandbox_judge, "judge", keeping)
    assert path(node), "this path decides by itself"
    assert {SandboxVerdict.REAP, SandboxVerdict.UNWIRE_THEN_REAP} & set(asked)


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


def explained(node: FakeNode, subject: str) -> str:
    """What `ipamctl explain` answers, as one text."""
    return "\n".join(explain(node.app.introspection.sources, HistoryQuestion(subject, 50)).sentences)


def test_explain_does_not_judge_by_a_list_that_was_refused(node: FakeNode) -> None:
    """A list with none of several wired sandboxes is no evidence for whoever reads either (I11)."""
    made = [node.add(name) for name in ("a", "b", "c")]
    for attachment in made:
        node.runtime.run(attachment.key.container_id)
    node.runtime_reconciler.reconcile_once()
    assert "runtime present" in explained(node, "a")
    node.clock.advance(100_000)
    node.runtime.listed.clear()
    node.runtime_reconciler.reconcile_once()
    assert "runtime unknown (0 lists without it)" in explained(node, "a")
    assert "the runtime has not given a complete list" in explained(node, "a")
    node.runtime.run("a")
    node.runtime_reconciler.reconcile_once()
    assert "runtime present" in explained(node, "a")
    assert "runtime absent (1 lists without it)" in explained(node, "b")


def test_explain_does_not_judge_by_a_list_that_is_older_than_the_sandbox(node: FakeNode) -> None:
    """It cannot have it."""
    node.add("a")
    node.runtime.run("a")
    node.runtime_reconciler.reconcile_once()
    node.clock.advance(1)
    node.add("b")
    node.clock.advance(1)
    assert "runtime unknown" in explained(node, "b")
    node.runtime_reconciler.reconcile_once()
    assert "runtime absent" in explained(node, "b")


def test_explain_of_a_quarantined_address_does_not_judge_by_a_list_that_was_refused(node: FakeNode) -> None:
    """The runtime is silent, as for the pass that settles quarantine."""
    made = quarantine_one(node, "a")
    node.add("c")
    node.clock.advance(100_000)
    node.runtime.listed.clear()
    node.runtime_reconciler.reconcile_once()
    assert "wired, and the runtime is silent" in explained(node, str(made.address))


def test_audit_names_a_list_that_is_refused_and_concludes_nothing_from_it(node: FakeNode) -> None:
    """Not one finding for each sandbox, but the runtime among the silent sources."""
    for name in ("a", "b", "c"):
        node.add(name)
    node.clock.advance(100_000)
    report = audit(node.app.introspection.sources, ask_ec2=False)
    assert not [finding for finding in report.findings if finding.code is FindingCode.NOT_LISTED]
    assert [line for line in report.silent if line.startswith("runtime: its list is not plausible")]
    node.runtime.run("a")
    report = audit(node.app.introspection.sources, ask_ec2=False)
    assert len([finding for finding in report.findings if finding.code is FindingCode.NOT_LISTED]) == 2
    assert not [line for line in report.silent if line.startswith("runtime")]


def test_explain_shows_the_verdict_on_a_quarantined_address(node: FakeNode) -> None:
    """Who it is held for, and what would be done now."""
    made = quarantine_one(node, "a")
    list_for(node, 60)
    told = explain(node.app.introspection.sources, HistoryQuestion(str(made.address), 50)).sentences
    assert any(f"{made.host_veth} of sandbox {made.key}: keep: wired, but the runtime" in sentence for sentence in told)
    assert node.datastore.counts().quarantined == 1
