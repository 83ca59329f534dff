"""kill -9 between every two effects of an ADD, a DEL and a start with branch ENIs, on an owned clock: whoever comes afterwards, VLAN
link, the veth and the row are all there or all gone, and the pod's next sandbox gets its branch ENI (I1, I2, I4, I5, I19).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.model.errors import UplinkPendingError, WiringError
from ipamd.model.pod_facts import GroupRequirement
from ipamd.model.sandbox import SandboxState
from ipamd.settings import NetworkConfig
from tests.crash.test_simulated import KilledHere, kill_at
from tests.fakes.node import FakeNode
from tests.fakes.pod_facts import annotation
from tests.unit.service.test_branches import add, branch, made, restart

POD = "web-0"


@pytest.fixture(params=["strict", "standard"])
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FakeNode]:
    """In each mode; the control plane has told the pod VLAN 2, whatever its sandbox."""
    one = made(tmp_path, mode=request.param, network=NetworkConfig())
    for sandbox in ("a", "b"):
        one.pod_facts.put(sandbox, annotation(2), is_marked=True)
    yield one
    one.assert_sound()
    assert set(one.wiring.vlans) == {a.uplink.vlan for a in one.datastore.attachments() if a.uplink}, "no VLAN link leaks"
    assert set(one.wiring.wired) == {a.host_veth for a in one.datastore.attachments()}
    one.datastore.close()


def killed(node: FakeNode, at: str, act: Callable[[], object]) -> None:
    """Do something that the daemon dies in; no rollback runs, and the next one is not started yet."""
    node.failpoint = kill_at(at)
    node.attacher._roll_back = lambda *_, **__: None  # type: ignore[method-assign]
    with pytest.raises(KilledHere):
        act()
    node.crash()


def same_again(node: FakeNode) -> None:
    """The runtime repeats the ADD."""
    add(node, "a", pod=POD)


def deleted_then_next(node: FakeNode) -> None:
    """Its DEL, and the pod's next sandbox, at once."""
    node.delete("a")
    add(node, "b", pod=POD)


def next_at_once(node: FakeNode) -> None:
    """The pod's next sandbox comes without a DEL: it gets the branch ENI, unless the first one was promised it."""
    if node.datastore.attachment(node.key("a")) is None:
        add(node, "b", pod=POD)
        return
    with pytest.raises(UplinkPendingError):
        add(node, "b", pod=POD)


def nobody(node: FakeNode) -> None:
    """Only the cooldown works."""
    node.cooldown.work()


IN_ADD = (
    "branch.marked",
    "branch.claimed",
    "attach.wired",
    "datastore.before-commit",
    "datastore.after-commit",
    "attach.committed",
)
LATER = (same_again, deleted_then_next, next_at_once, nobody)


@pytest.mark.parametrize("later", LATER, ids=lambda one: one.__name__)
@pytest.mark.parametrize("at", IN_ADD)
def test_in_an_add(node: FakeNode, at: str, later: Callable[[FakeNode], None]) -> None:
    """What was not promised is gone before anything else is given; what was is there."""
    if at.startswith("datastore"):
        node.pod_facts.put("a", annotation(2))  # the first transaction is that of the attachment
    killed(node, at, lambda: add(node, "a", pod=POD))
    node.bring_up()
    assert bool(node.datastore.attachment(node.key("a"))) == (at in ("attach.committed", "datastore.after-commit"))
    later(node)


@pytest.mark.parametrize("later", [same_again, deleted_then_next], ids=lambda one: one.__name__)
def test_in_a_rollback(node: FakeNode, later: Callable[[FakeNode], None]) -> None:
    """Wired, refused, unwired, and killed before that is told."""

    def refuse(name: str) -> None:
        if name == "attach.wired":
            raise WiringError("no", details="a test")
        kill_at("attach.unwired")(name)

    node.failpoint = refuse
    with pytest.raises(KilledHere):
        add(node, "a", pod=POD)
    restart(node)
    later(node)


IN_DEL = ("detach.retired", "datastore.before-commit", "datastore.after-commit", "detach.committed")


@pytest.mark.parametrize("later", [deleted_then_next, next_at_once], ids=lambda one: one.__name__)
@pytest.mark.parametrize("at", IN_DEL)
def test_in_a_del(node: FakeNode, at: str, later: Callable[[FakeNode], None]) -> None:
    """The runtime repeats it; or it was done, and what is left of the links does not stop the next sandbox."""
    add(node, "a", pod=POD)
    killed(node, at, lambda: node.delete("a"))
    node.bring_up()
    is_done = at in ("datastore.after-commit", "detach.committed")
    assert node.datastore.is_tombstoned(node.key("a")) == is_done
    later(node)
    node.delete("a")
    node.cooldown.work()


def test_in_a_sweep(node: FakeNode) -> None:
    """The links are gone, and nobody was told."""
    add(node, "a", pod=POD)
    node.delete("a")
    killed(node, "cooling.swept", node.cooldown.work)
    node.bring_up()
    add(node, "b", pod=POD)


def test_between_the_names_of_record_and_link(node: FakeNode) -> None:
    """A StatefulSet's next pod takes the name: killed when the record has the first one's own name, and its link the pod's."""
    first = add(node, "a", pod=POD)
    node.runtime.run("a", state=SandboxState.NOTREADY)
    node.pod_facts.put("b", annotation(3))
    killed(node, "rename.recorded", lambda: add(node, "b", pod=POD))
    node.bring_up()
    second = add(node, "b", pod=POD)
    assert second.host_veth == first.host_veth
    assert node.delete("a")
    node.cooldown.work()


@pytest.mark.parametrize("at", ["adopt.adopted", "restore.veth-settled"])
def test_while_a_lost_datastore_is_rebuilt(node: FakeNode, at: str) -> None:
    """Killed in the middle of it: the next start finishes."""
    one, other = add(node, "a", pod=POD), branch(node, "c", 4)
    node.crash(keep_datastore=False)
    killed(node, at, node.bring_up)
    node.bring_up()
    found = {a.key: a.uplink for a in node.datastore.attachments()}
    assert found == {one.key: one.uplink, other.key: other.uplink}


@pytest.mark.parametrize("at", ["restore.leftover-removed", "adopt.vlan-removed"])
def test_while_a_start_removes_what_is_left(node: FakeNode, at: str) -> None:
    """A veth of an ADD that was not promised, or a VLAN link alone: the next start finds the rest."""
    if at == "adopt.vlan-removed":
        node.wiring.leave_vlan(7, IPv4Address("10.0.129.77"))
        node.wiring.leave_vlan(9, IPv4Address("10.0.129.79"))
        node.wiring.leave_vlan(11, None, is_ours=True)
        node.crash()
    else:
        killed(node, "attach.wired", lambda: add(node, "a", pod=POD))
    killed(node, at, node.bring_up)
    node.bring_up()
    assert node.wiring.vlans == {}
    add(node, "b", pod=POD)


def test_a_mark_that_was_seen(node: FakeNode) -> None:
    """Killed once it is recorded: a pod without mark is known to be older afterwards, whatever the daemon saw itself."""
    killed(node, "branch.marked", lambda: add(node, "a", pod=POD))
    assert node.datastore.are_pods_marked()
    node.bring_up()
    node.pod_facts.put("d", requirement=GroupRequirement.NO)
    assert add(node, "d").uplink is None
