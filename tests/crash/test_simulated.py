"""Crashes at points that take minutes or rare answers to reach: on an owned clock, with a kill that unwinds nothing.

Here a crash is an exception that no code of ours catches, followed by a new process over the same disk, kernel and EC2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ipamd.model.address import AddressState
from ipamd.service.sandbox_judge import LIST_INTERVAL_S
from tests.fakes.cloud import INSTANCE
from tests.fakes.node import FakeNode
from tests.unit.service.test_provisioner_deletions import refuse_attach_and_delete


class KilledHere(BaseException):
    """The process is gone: not an Exception, so that no loop goes on after it."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node that serves."""
    made = FakeNode(tmp_path)
    made.bring_up()
    yield made
    made.datastore.close()


def kill_at(wanted: str) -> Callable[[str], None]:
    """A failpoint that kills at one name."""

    def reached(name: str) -> None:
        if name == wanted:
            raise KilledHere(name)

    return reached


def vanish(node: FakeNode, name: str) -> None:
    """A sandbox dies and no DEL comes."""
    made = node.datastore.attachment(node.key(name))
    assert made is not None
    del node.wiring.netns[made.netns]
    node.wiring.wired.pop(made.host_veth, None)


def look_often(node: FakeNode) -> None:
    """Four lists, an interval apart."""
    for _ in range(4):
        node.runtime_reconciler.reconcile_once()
        node.clock.advance(LIST_INTERVAL_S)


@pytest.mark.parametrize("name", ["reap.judged", "reap.done"])
def test_a_crash_while_reaping_frees_once(node: FakeNode, name: str) -> None:
    """Killed before or after the reap: afterwards the dead sandbox is freed exactly once, the live one never (I1, I2)."""
    live = node.add("live")
    node.runtime.run("live")
    dead = node.add("dead")
    vanish(node, "dead")
    node.clock.advance(3600)
    node.failpoint = kill_at(name)
    with pytest.raises(KilledHere):
        look_often(node)
    node.crash()
    node.bring_up()
    look_often(node)
    assert [a.key for a in node.datastore.attachments()] == [live.key]
    node.cool()
    row = node.datastore.address(dead.address)
    assert row is not None
    assert row.state is AddressState.FREE
    node.assert_sound()


@pytest.mark.parametrize("name", ["adopt.leftover-removed", "adopt.settled"])
def test_a_crash_while_settling_a_quarantine_settles_it_later(node: FakeNode, name: str) -> None:
    """Killed between removing a leftover and freeing its address: the next look finishes, nothing is given early (I1)."""
    made = node.add("gone")
    node.crash(keep_datastore=False)
    node.bring_up()
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state is AddressState.QUARANTINED
    look_often(node)
    node.clock.advance(3600)
    node.failpoint = kill_at(name)
    with pytest.raises(KilledHere):
        look_often(node)
    node.crash()
    node.bring_up()
    look_often(node)
    node.clock.advance(3600)  # a new process counts absences from its own lists
    look_often(node)
    node.cool()
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state is AddressState.FREE
    assert not node.wiring.wired
    node.assert_sound()


@pytest.mark.parametrize("name", ["attach.reserved", "attach.wired", "attach.committed"])
@pytest.mark.parametrize("later", ["same sandbox again", "its DEL", "nobody comes back"])
def test_whoever_comes_back_after_a_crash_in_add(node: FakeNode, name: str, later: str) -> None:
    """After kill -9 in an ADD: the same sandbox gets its address, its DEL frees it, and silence is reaped (I3, I5)."""
    node.failpoint = kill_at(name)
    # A real SIGKILL runs no handler: what the rollback would undo stays, as it does in the kernel.
    node.attacher._roll_back = lambda *_, **__: None  # type: ignore[method-assign]
    with pytest.raises(KilledHere):
        node.add("a")
    node.crash()
    node.bring_up()
    promised = node.datastore.attachment(node.key("a"))
    assert (promised is not None) == (name == "attach.committed")
    assert len(node.wiring.wired) == (1 if promised else 0), "unpromised wiring is gone before anything is given"
    if later == "same sandbox again":
        again = node.add("a")
        assert promised is None or again == promised
        node.runtime.run("a")
    elif later == "its DEL":
        node.delete("a")
    elif promised is not None:
        vanish(node, "a")
        node.clock.advance(301)
        look_often(node)
        assert node.datastore.attachments() == ()
    node.assert_sound()


@pytest.mark.parametrize("name", ["growth.marked", "growth.intent-closed"])
def test_a_crash_while_an_eni_is_taken_in_after_all_keeps_it(node: FakeNode, name: str) -> None:
    """Killed before or after its intent is closed: the ENI stays, is known, and ends with its instance (I2, I9)."""
    node.add("a")
    refuse_attach_and_delete(node, times=1)
    node.failpoint = kill_at(name)
    with pytest.raises(KilledHere):
        node.pool.cycle()
    node.crash()
    node.bring_up()
    node.pool.cycle()
    assert set(node.ec2.enis) == {eni.eni_id for eni in node.datastore.enis()}
    assert [eni for eni in node.ec2.enis.values() if eni.instance_id != INSTANCE or not eni.delete_on_termination] == []
    assert node.datastore.open_intents() == ()
    node.assert_sound()
