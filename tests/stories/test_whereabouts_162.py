"""whereabouts #162, #140, #207 (2021-2022): a list that is older than what it judges.

The reconciler listed pods first and read the allocations second. A pod that came to be in between was in the second and not in
the first, so its allocation was "orphaned", freed, and given to another pod: two pods with one address.

What prevents it here: `service/reconcile/runtime.py: look` reads the datastore first and lists second, so that every attachment
it judges is older than its list. The verb GC brings a list that the runtime made before we hear of it; `service/sandbox/gc.py:
GC_MIN_AGE` keeps attachments out of its reach that may be younger than the list (I2).

Bound: none to wait for: the young sandbox is never touched; what is really gone goes with the first GC after 60 s (fake).
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from ipamd.model.sandbox import Sandbox
from ipamd.service.reconcile.runtime import RuntimeReconciler
from ipamd.service.request import Deadline, Steps
from ipamd.service.sandbox import gc
from tests.fakes.node import FakeNode
from tests.fakes.runtime import FakeRuntime


def collect(node: FakeNode, *valid: str) -> None:
    """GC with a runtime's list of valid attachments."""
    keys = frozenset(node.key(name) for name in valid)
    deadline, steps = Deadline.after(node.clock, 30), Steps(node.clock)
    node.collector.collect(keys, network_name="vpc-ipamd", deadline=deadline, steps=steps)


def play_gc(node: FakeNode) -> None:
    """The runtime lists its attachments, a sandbox comes to be, and then GC arrives with the list."""
    node.add("gone")
    node.add("old")
    node.runtime.run("old")
    node.clock.advance(120)
    valid = ["old"]  # the runtime looks here
    young = node.add("young")  # not listed by CRI either: RunPodSandbox has not returned
    collect(node, *valid)
    assert node.datastore.attachment(young.key) == young, "the address of a sandbox in creation was freed"
    assert node.datastore.attachment(node.key("gone")) is None, "what is really gone goes"
    node.cool()
    node.pool.cycle()
    assert node.add("next").address != young.address
    node.assert_sound()


def play_follow(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox comes to be while the runtime's list is on its way."""
    node.add("old")
    node.runtime.run("old")
    made = FakeRuntime.sandboxes

    def sandboxes(self: FakeRuntime) -> tuple[Sandbox, ...]:
        monkeypatch.setattr(FakeRuntime, "sandboxes", made)
        listed = made(self)
        node.add("young")
        return listed

    monkeypatch.setattr(FakeRuntime, "sandboxes", sandboxes)
    node.runtime_reconciler.reconcile_once()
    young = node.datastore.attachment(node.key("young"))
    assert young is not None
    evidence = node.runtime_reconciler.evidence(young, {}, node.wiring.survey())
    assert evidence.absent_list_count == 0, "a list from before its birth counts against it"
    node.runtime.run("young")
    node.runtime_reconciler.reconcile_once()
    node.assert_sound()


def test_gc_spares_what_is_younger_than_its_list(node: FakeNode) -> None:
    """A sandbox that was made after the runtime listed its attachments survives the GC with that list (I2)."""
    play_gc(node)


def test_gc_frees_a_sandbox_in_creation_without_the_age(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a least age GC takes the address of a sandbox that is just coming up."""
    monkeypatch.setattr(gc, "GC_MIN_AGE", timedelta(0))
    with pytest.raises(AssertionError, match="in creation was freed"):
        play_gc(node)


def test_a_list_does_not_judge_what_came_after_it(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Datastore first, list second: an attachment made while listing is not counted absent."""
    play_follow(node, monkeypatch)


def test_the_young_are_suspected_when_the_order_is_turned(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the datastore read after the list, as whereabouts did, the young one collects its first absence at birth."""
    real = RuntimeReconciler._count_absences
    turned = lambda self, attachments, listed: real(self, self._datastore.attachments(), listed)  # noqa: E731
    monkeypatch.setattr(RuntimeReconciler, "_count_absences", turned)
    with pytest.raises(AssertionError, match="counts against it"):
        play_follow(node, monkeypatch)
