"""A pod that is begun again and again is bounded by its names, and what it holds is no demand; its names free nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.attachment import Attachment
from ipamd.model.blocked import Blocked
from ipamd.model.cni_request import AttachRequest, SandboxNames
from ipamd.model.errors import PoolEmptyError, UndeletedSandboxesError, cause_of
from ipamd.model.ids import parse_key
from ipamd.model.refusals import RefusalCode
from ipamd.model.repeats import Repeats
from ipamd.process.adapters import Adapters
from ipamd.sandbox.repeated_adds import EARLIER_MAX
from ipamd.sandbox.runtime import RELIST_REPEATED_S, RELIST_WITHOUT_EVENTS_S
from tests.fakes.node import FakeNode


def attach(node: FakeNode, request: AttachRequest) -> Attachment:
    """ADD, which waits for nothing."""
    return node.attacher.attach_sandbox(request, deadline=Deadline.after(node.clock, 0.5), steps=StepTimer(node.clock))


def leave_behind(node: FakeNode, *names: str, pod: str = "victim") -> None:
    """Sandboxes of one pod, of which none is deleted."""
    for name in names:
        node.add(name, pod=pod)


def fill(node: FakeNode, count: int) -> None:
    """Other pods, all alive; the pool grows with them."""
    for number in range(count):
        node.pool.cycle()
        node.add(f"other-{number}")
        node.runtime.run(f"other-{number}")
        node.clock.advance(60)
    node.pool.cycle()


def test_the_error_is_typed() -> None:
    """The runtime may try again, and metrics name the cause."""
    error = UndeletedSandboxesError("x")
    assert (error.cni_code, error.retryable, cause_of(error)) == (11, True, "undeleted-sandboxes")


def test_a_pod_gets_no_third_sandbox_beside_two(node: FakeNode) -> None:
    """The refusal names the pod and counts; nothing is taken by it, and other pods are served."""
    leave_behind(node, "a", "b")
    before = node.datastore.counts()
    with pytest.raises(UndeletedSandboxesError) as refused:
        node.add("c", pod="victim")
    assert refused.value.refusal == RefusalCode.TOO_MANY_SANDBOXES
    assert (refused.value.fields["pod"], refused.value.fields["count"]) == ("default/victim", f"{EARLIER_MAX} sandboxes")
    assert node.datastore.counts() == before
    assert node.add("d", pod="another")
    node.delete("a")
    assert node.add("e", pod="victim")


@pytest.mark.parametrize(
    "names",
    [
        SandboxNames("default", "victim", "another-uid"),
        SandboxNames("other", "victim", "uid"),
        SandboxNames("default", "another", "uid"),
        SandboxNames(),
    ],
    ids=["uid", "namespace", "name", "no names"],
)
def test_another_pod_is_not_bounded(node: FakeNode, names: SandboxNames) -> None:
    """Namespace, name and UID must be the same: a successor of the same name is another pod."""
    leave_behind(node, "a", "b")
    assert attach(node, replace(node.request("c"), names=names))


def test_sandboxes_without_names_are_not_bounded(node: FakeNode) -> None:
    """Nobody knows whose they are."""
    leave_behind(node, *"abcd", pod="")


def test_interfaces_of_one_sandbox_are_one(node: FakeNode) -> None:
    """A meta plugin asks for several; and a repeated ADD is answered as ever."""
    leave_behind(node, "a")
    for ifname in ("net1", "net2", "net3"):
        request = replace(node.request("a", pod="victim"), key=parse_key("a", ifname))
        attach(node, request)
    leave_behind(node, "b")
    assert node.add("a", pod="victim") == node.datastore.attachment(node.key("a"))


class WithoutCri(FakeNode):
    """A node whose daemon asks no runtime."""

    def connected(self, adapters: Adapters) -> Adapters:
        return replace(adapters, runtime=None)

    def _name_parts(self) -> None:
        app = self.app
        self.datastore, self.health, self.demand = app.context.datastore, app.context.health, app.context.demand
        self.attacher, self.enis, self.pool, self.startup = app.sandbox.attach, app.pool.enis, app.pool.maintainer, app.startup


@pytest.fixture
def without_cri(tmp_path: Path) -> Iterator[FakeNode]:
    """One."""
    (tmp_path / "without").mkdir()
    made = WithoutCri(tmp_path / "without")
    made.bring_up()
    yield made
    made.datastore.close()


def test_without_cri_no_pod_is_bounded(without_cri: FakeNode) -> None:
    """Nobody finds out there that a sandbox is gone: two of them would keep their pod away for ever."""
    leave_behind(without_cri, *"abcd")


def test_a_full_node_names_the_pod_and_advises_nothing_else(node: FakeNode) -> None:
    """The addresses that are lacking are held by sandboxes that were never deleted (I14)."""
    fill(node, 25)
    leave_behind(node, "a", "b")
    node.pool.cycle()
    with pytest.raises(UndeletedSandboxesError) as refused:
        attach(node, node.request("late"))
    assert refused.value.refusal == RefusalCode.ADDRESSES_UNDELETED
    assert (refused.value.fields["pods"], refused.value.fields["count"]) == ("default/victim", "1 earlier sandbox")
    assert node.app.pool_empty == {Blocked.UNDELETED: 1}
    assert node.demand.status.kind is Blocked.UNDELETED
    assert "larger" not in f"{refused.value} {node.demand.status.shortage()} {node.demand.status.step()}"


def test_a_full_node_without_such_sandboxes_says_what_it_said(node: FakeNode) -> None:
    """The same shortage, with other causes."""
    fill(node, 27)
    with pytest.raises(PoolEmptyError):
        attach(node, node.request("late"))
    assert node.app.pool_empty == {Blocked.NODE_FULL: 1}


def test_a_second_interface_is_no_earlier_sandbox(node: FakeNode) -> None:
    """It finds the node full, and nothing was left behind."""
    fill(node, 26)
    node.add("a", pod="victim")
    with pytest.raises(PoolEmptyError):
        attach(node, replace(node.request("a", pod="victim"), key=parse_key("a", "net1")))


def test_the_pool_does_not_grow_for_a_repeated_add(node: FakeNode) -> None:
    """It finds the pool empty, and the pool may grow: it waits for what its earlier sandbox has; another pod is demand."""
    leave_behind(node, "a")
    for number in range(node.datastore.counts().free):
        node.add(f"other-{number}")
    calls = dict(node.ec2.calls)
    with pytest.raises(UndeletedSandboxesError):
        attach(node, node.request("b", pod="victim"))
    assert node.demand.waiting()[0] == 0
    assert dict(node.ec2.calls) == calls
    with pytest.raises(PoolEmptyError):
        attach(node, node.request("late"))


@pytest.mark.parametrize("is_deleted", [False, True])
def test_what_comes_back_is_counted(node: FakeNode, is_deleted: bool) -> None:
    """Recorded or cooling, but for the present sandbox; an address that is free again, or another pod's, is no repeat."""
    repeats = node.app.repeated_adds.repeats
    assert repeats() == Repeats(0, 0)
    leave_behind(node, "a")
    assert repeats() == Repeats(0, 0)
    if is_deleted:
        node.delete("a")
        assert repeats() == Repeats(0, 0)
    leave_behind(node, "b")
    assert repeats() == (Repeats(0, 1) if is_deleted else Repeats(1, 0))
    node.delete("b")
    assert repeats() == Repeats(0, 1)
    node.cool()
    assert repeats() == Repeats(0, 0)


def test_an_add_of_the_same_pod_has_the_runtime_listed(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is served, and when it is refused; the first sandbox of a pod causes no list."""
    lists: list[int] = []
    monkeypatch.setattr(node.runtime_reconciler, "list_soon", lambda: lists.append(1))
    node.add("a", pod="victim")
    assert len(lists) == 0
    node.add("b", pod="victim")
    assert len(lists) == 1
    with pytest.raises(UndeletedSandboxesError):
        node.add("c", pod="victim")
    assert len(lists) == 2


def test_the_second_list_comes_early_only_for_such_pods(node: FakeNode) -> None:
    """Once each: a sandbox that stays absent and is kept causes no more of them."""
    node.add("a", pod="victim")
    node.runtime_reconciler.reconcile_once()
    assert node.runtime_reconciler.interval_s() == RELIST_WITHOUT_EVENTS_S
    node.add("b", pod="victim")
    node.runtime.run("b")
    node.clock.advance(RELIST_REPEATED_S)
    node.runtime_reconciler.reconcile_once()
    assert node.runtime_reconciler.interval_s() == RELIST_WITHOUT_EVENTS_S  # it is absent for the second time
    node.add("c", pod="another")
    node.add("d", pod="another")
    node.runtime_reconciler.reconcile_once()
    assert node.runtime_reconciler.interval_s() == RELIST_REPEATED_S
    node.clock.advance(RELIST_REPEATED_S)
    node.runtime_reconciler.reconcile_once()
    assert node.runtime_reconciler.interval_s() == RELIST_WITHOUT_EVENTS_S
