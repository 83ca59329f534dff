"""whereabouts #162, #140, #207 (2021-2022): a list that is older than what it judges.

The reconciler listed pods first and read the allocations second. A pod that came to be in between was in the second and not in
the first, so its allocation was "orphaned", freed, and given to another pod: two pods with one address.

What prevents it here: `sandbox/runtime.py: reconcile_once` reads the datastore first and lists second, so that every
attachment it judges is older than its list. The verb GC brings a list that the runtime made before we hear of it; for
`model/evidence.py: judge` it is a declaration only: what is younger than five minutes, or has a namespace or a veth, is kept (I2).

Bound: none to wait for: the young sandbox is never touched; what is really gone goes with the first GC after 5 min (fake).
"""

from __future__ import annotations

import pytest

from ipamd.model.sandbox import Sandbox
from tests.fakes.node import FakeNode
from tests.fakes.runtime import FakeRuntime
from tests.families import in_both
from tests.stories.mutations import Mutate


def play_gc(node: FakeNode) -> None:
    """The runtime lists its attachments, a sandbox comes to be, and then GC arrives with the list."""
    gone = node.add("gone")
    node.add("old")
    node.runtime.run("old")
    node.vanish(gone)
    node.clock.advance(301)
    valid = ["old"]  # the runtime looks here
    young = node.add("young")  # not listed by CRI either: RunPodSandbox has not returned
    node.collect(*valid)
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
    evidence, _ = node.judge.judge_attachment(young, listed={}, survey=node.wiring.survey())
    assert evidence.absent_look_count == 0, "a list from before its birth counts against it"
    node.runtime.run("young")
    node.runtime_reconciler.reconcile_once()
    node.assert_sound()


@in_both("node")
def test_gc_spares_what_is_younger_than_its_list(node: FakeNode) -> None:
    """A sandbox that was made after the runtime listed its attachments survives the GC with that list (I2)."""
    play_gc(node)


@in_both("node")
def test_gc_frees_a_sandbox_in_creation_if_its_list_is_proof(node: FakeNode, mutate: Mutate) -> None:
    """If what neither GC nor CRI lists were gone, GC would take the address of a sandbox that is just coming up."""
    mutate("gc-list-believed")
    with pytest.raises(AssertionError, match="in creation was freed"):
        play_gc(node)


@in_both("node")
def test_a_list_does_not_judge_what_came_after_it(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Datastore first, list second: an attachment made while listing is not counted absent."""
    play_follow(node, monkeypatch)


@in_both("node")
def test_the_young_are_suspected_when_the_order_is_turned(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, mutate: Mutate
) -> None:
    """With the datastore read after the list, as whereabouts did, the young one collects its first absence at birth."""
    mutate("records-read-after-list")
    with pytest.raises(AssertionError, match="counts against it"):
        play_follow(node, monkeypatch)
