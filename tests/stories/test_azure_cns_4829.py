"""Azure azure-container-networking #4829 (CNS, 2026): a clean-up DEL crosses the ADD that it belongs to.

A runtime that gives up on an ADD sends DEL while the ADD still runs. In CNS the two were sequences without a common lock over
two stores, in opposite order: DEL found no entry yet, ADD assigned the address and wrote its owner, DEL then freed the address in
memory. Memory said "free", the file said "owned by a container that is gone"; the address went to another pod, and the next
restart could not tell whose it was.

What prevents it here: one lock per sandbox, first come first served (`core/deadline.py: KeyLocks.hold`), around the whole of
ADD and the whole of DEL; one transaction for attachment, address and tombstone; and a tombstone that refuses the late ADD
(I1, I4). Behind the lock stands a constraint: no attachment beside a tombstone (`datastore/schema.py`).

Bound: 0 fake seconds: whatever the order, nothing of the sandbox is left when both have answered, and the address cools once.
"""

from __future__ import annotations

import pytest

from ipamd.core.deadline import Deadline
from ipamd.model.attachment import Attachment
from ipamd.model.errors import InvariantError, TombstonedError
from ipamd.model.failures import FailureCode
from tests.errors import failed
from tests.fakes.node import FakeNode
from tests.families import in_both
from tests.stories.concurrent import AtStep, Concurrent, queued_on
from tests.stories.mutations import Mutate


def nothing_is_left(node: FakeNode) -> None:
    """Both have answered."""
    assert node.datastore.attachments() == (), "a deleted sandbox holds an address"
    assert not node.wiring.wired
    assert not node.wiring.routes
    assert node.datastore.counts().reserved == 0
    node.cool()
    assert node.datastore.counts().cooling == 0
    node.assert_sound()


def play_crossing(node: FakeNode) -> None:
    """DEL has looked and found nothing; before it goes on, the ADD runs."""
    add: Concurrent[Attachment] = Concurrent(lambda: node.add("a"), is_waiting=queued_on(node, "a"))
    deadline = Deadline.after(node.clock, 30)
    node.detacher.detach_sandbox(node.key("a"), deadline=deadline, steps=AtStep(node.clock, "leftover", add.begin), reason="DEL")
    add.end()
    nothing_is_left(node)
    assert isinstance(add.error, TombstonedError), "the late ADD is told so"


def play_overtaking(node: FakeNode) -> None:
    """ADD is in the kernel; before it commits, its DEL comes."""
    delete: Concurrent[bool] = Concurrent(lambda: node.delete("a"), is_waiting=queued_on(node, "a"))
    deadline = Deadline.after(node.clock, 60)
    node.attacher.attach_sandbox(node.request("a"), deadline=deadline, steps=AtStep(node.clock, "commit", delete.begin))
    assert delete.end() is True, "it came second and found what ADD had made"
    nothing_is_left(node)


@in_both("node")
@pytest.mark.parametrize("play", [play_crossing, play_overtaking])
def test_add_and_del_of_one_sandbox_take_turns(node: FakeNode, play) -> None:
    """In either order nothing of the sandbox is left, in memory, on disk or in the kernel (I4)."""
    play(node)


@in_both("node")
def test_an_add_is_promised_to_a_deleted_sandbox_without_the_lock(node: FakeNode, mutate: Mutate) -> None:
    """Without turns the ADD is answered with an address that its DEL took at once: DEL looks again in its own transaction."""
    mutate("no-sandbox-locks")
    with pytest.raises(AssertionError, match="the late ADD is told so"):
        play_crossing(node)
    nothing_is_left(node)


@in_both("node")
def test_a_dead_sandbox_keeps_an_address_without_lock_and_second_look(node: FakeNode, mutate: Mutate) -> None:
    """With neither, the crossing ends as in the field: recorded as owned by a sandbox whose DEL was answered."""
    mutate("no-sandbox-locks")
    mutate("no-second-look-for-row")
    with pytest.raises(AssertionError, match="a deleted sandbox holds an address"):
        play_crossing(node)


@in_both("node")
def test_the_overtaken_add_is_refused_by_the_constraint_without_the_lock(node: FakeNode, mutate: Mutate) -> None:
    """In the other order the second line holds: the commit is refused, the ADD undone, and nothing leaks (I4, I5)."""
    mutate("no-sandbox-locks")
    with pytest.raises(InvariantError, check=failed(FailureCode.DELETED_BEFORE)):
        play_overtaking(node)
    nothing_is_left(node)
