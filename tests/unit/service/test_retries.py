"""Callers that cancel, retry or are overtaken at every step of an ADD, and lists that are taken in the middle of an ADD.

The real runtime's part of these stories is in tests/lab/runtime/test_retries.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.attachment import Attachment
from ipamd.model.errors import DeadlineError, TombstonedError
from ipamd.sandbox.judge import LIST_INTERVAL_S
from tests.fakes.node import FakeNode
from tests.rig import wait_until

STEPS = ("attach.reserved", "wire", "attach.wired", "attach.committed")
BEFORE_COMMIT = STEPS[:3]


@dataclass
class Caller:
    """Who asked for an ADD, and may leave while it is at work."""

    has_left: bool = False
    met: list[Attachment] = field(default_factory=list)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for those who wait behind the ADD."""
    with ThreadPoolExecutor(max_workers=4) as threads:
        yield threads


def at(node: FakeNode, step: str, act: Callable[[], object]) -> None:
    """Do something once, in the ADD's own thread, when it reaches a step."""
    left = [act]

    def reached(name: str) -> None:
        if name == step and left:
            left.pop()()

    node.failpoint = reached
    node.wiring.before_wire = lambda spec: reached("wire")


def add(node: FakeNode, name: str, caller: Caller) -> Attachment:
    """ADD for a caller that may leave."""
    return node.attacher.attach_sandbox(
        node.request(name),
        deadline=Deadline.after(node.clock, 60.0, is_cancelled=lambda: caller.has_left),
        steps=StepTimer(node.clock),
    )


def submit_behind(node: FakeNode, pool: ThreadPoolExecutor, work: Callable[[], object]) -> Future[object]:
    """Start something that has to wait for the key, and return when it waits."""
    before = sum(holder.waiting_count for holder in node.locks.holders())
    future = pool.submit(work)
    wait_until(lambda: sum(holder.waiting_count for holder in node.locks.holders()) > before, what="waiting behind the ADD")
    return future


def nothing_of(node: FakeNode, name: str) -> None:
    """No row, veth, route or reservation of a sandbox is left."""
    assert node.datastore.attachment(node.key(name)) is None
    assert not any(spec.key == node.key(name) for spec in node.wiring.wired.values())
    assert node.datastore.counts().reserved == 0
    node.assert_sound()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("caller_leaves", [False, True])
def test_a_del_that_overtakes_its_add_is_final(node: FakeNode, pool: ThreadPoolExecutor, step: str, caller_leaves: bool) -> None:
    """Whatever the ADD was doing, and whether its caller still listens: nothing is left, and a later ADD is refused (I4)."""
    caller, dels = Caller(), []

    def overtake() -> None:
        caller.has_left = caller_leaves
        dels.append(submit_behind(node, pool, lambda: node.delete("a")))

    at(node, step, overtake)
    if caller_leaves and step in BEFORE_COMMIT:
        with pytest.raises(DeadlineError):
            add(node, "a", caller)
    else:
        add(node, "a", caller)
    dels[0].result(10)
    nothing_of(node, "a")
    with pytest.raises(TombstonedError):
        node.add("a")
    node.cool()
    assert node.datastore.counts().cooling == 0


def test_an_operation_says_that_its_caller_has_left(node: FakeNode) -> None:
    """Who looks at a sandbox in work is told whether anybody waits for the answer."""
    caller, seen = Caller(), []

    def leave() -> None:
        seen.append([holder.caller_left for holder in node.locks.holders()])
        caller.has_left = True
        seen.append([holder.caller_left for holder in node.locks.holders()])

    at(node, "attach.wired", leave)
    with pytest.raises(DeadlineError):
        add(node, "a", caller)
    assert seen == [[False], [True]]
    nothing_of(node, "a")


def test_a_del_before_its_add_is_final(node: FakeNode) -> None:
    """It overtook the ADD on the way: there is nothing to free, and it counts all the same."""
    assert not node.delete("a")
    with pytest.raises(TombstonedError):
        node.add("a")
    nothing_of(node, "a")


@pytest.mark.parametrize("step", STEPS)
def test_a_retry_with_the_same_id_gets_one_whole_result(node: FakeNode, pool: ThreadPoolExecutor, step: str) -> None:
    """The first caller leaves and asks again while its ADD is at work: the kept result, or a new one, never two (I1, I5)."""
    caller, retries = Caller(), []

    def leave_and_come_back() -> None:
        caller.has_left = True
        retries.append(submit_behind(node, pool, lambda: node.add("a")))

    at(node, step, leave_and_come_back)
    first: Attachment | None = None
    try:
        first = add(node, "a", caller)
    except DeadlineError:
        assert step in BEFORE_COMMIT
    second = retries[0].result(10)
    assert isinstance(second, Attachment)
    if first is not None:
        assert second == first, "what was committed is kept for who comes back"
    assert len(node.wiring.wired) == 1
    assert node.datastore.attachments() == (second,)
    assert node.datastore.counts().reserved == 0
    node.assert_sound()


@pytest.mark.parametrize("step", STEPS)
def test_a_retry_with_a_new_id_waits_for_nobody(node: FakeNode, step: str) -> None:
    """A retried RunPodSandbox is another sandbox: it is served while the first is at work, with an address of its own."""
    caller, second = Caller(), []

    def leave_and_start_anew() -> None:
        caller.has_left = True
        second.append(node.add("a-again"))

    at(node, step, leave_and_start_anew)
    try:
        first = add(node, "a", caller)
        assert first.address != second[0].address
    except DeadlineError:
        assert step in BEFORE_COMMIT
        nothing_of(node, "a")
    assert node.datastore.attachment(node.key("a-again")) == second[0]
    node.assert_sound()


def test_a_result_that_nobody_comes_back_for_is_released(node: FakeNode) -> None:
    """The caller left after the commit, the runtime dropped the namespace and never lists the sandbox: free within 6 minutes."""
    kept = node.add("nobody")
    node.add("alive")
    node.runtime.run("alive")
    spent = 0.0
    while node.datastore.attachment(kept.key) is not None:
        if spent == 60:
            node.wiring.netns.pop(kept.netns)
            node.wiring.wired.pop(kept.host_veth)  # its pair ends with the namespace
        if spent == 100:
            del node.wiring.routes[kept.address]  # the kernel drops the route with the link
        node.runtime_reconciler.reconcile_once()
        node.clock.advance(LIST_INTERVAL_S)
        spent += LIST_INTERVAL_S
        assert spent <= 360, "6 minutes are the bound"
    node.cool()
    assert node.datastore.address(kept.address) is not None
    assert node.datastore.attachment(node.key("alive")) is not None
    node.assert_sound()


def test_an_add_during_a_list_is_not_judged_by_it(node: FakeNode) -> None:
    """The datastore is read before the runtime: what was made in between is absent from nothing (whereabouts #162)."""
    node.add("old")
    node.runtime.run("old")
    made: list[Attachment] = []

    def meanwhile() -> None:
        node.runtime.before_list = lambda: None
        made.append(node.add("new"))

    node.runtime.before_list = meanwhile
    node.runtime_reconciler.reconcile_once()
    assert node.judge.judge_attachment(made[0], listed={}, survey=None)[0].absent_look_count == 0
    node.runtime_reconciler.reconcile_once()
    assert node.judge.judge_attachment(made[0], listed={}, survey=None)[0].absent_look_count == 1
    node.runtime.run("new")
    node.runtime_reconciler.reconcile_once()
    assert node.judge.judge_attachment(made[0], listed={}, survey=None)[0].absent_look_count == 0
