"""antrea #8239 (2026, fixed by PR 8309): a failed ADD gives its lock back, and only then undoes what it did.

The agent's ADD released the container's lock before its rollback ran. A second request for the same container could come in
between, succeed, and then have its interface and address taken away by the rollback of the first. (The issue itself could not
be looked up; its fix could. The first test of that fix passed without the fix too, which is why each story here has a second
test.)

What prevents it here: `sandbox/attach.py: attach_sandbox` holds the sandbox's lock through `_roll_back` (I5), and the
retry that came meanwhile waits for its turn (`core/deadline.py`).

Bound: 0 fake seconds: the retry answers as soon as the rollback has ended, with an address that the rollback does not touch.
"""

from __future__ import annotations

import pytest

from ipamd.model.attachment import Attachment, WiringSpec
from ipamd.model.errors import WiringError
from tests.fakes.kernel import FakeWiring
from tests.fakes.node import FakeNode
from tests.families import in_both
from tests.stories.concurrent import Concurrent, queued_on
from tests.stories.mutations import Mutate


def play(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses an ADD; while it is undone, the runtime's retry is already there."""
    retry: Concurrent[Attachment] = Concurrent(lambda: node.add("a"), is_waiting=queued_on(node, "a"))
    undo = FakeWiring.unwire

    def unwire(self: FakeWiring, spec: WiringSpec) -> None:
        monkeypatch.setattr(FakeWiring, "unwire", undo)
        retry.begin()
        undo(self, spec)

    monkeypatch.setattr(FakeWiring, "unwire", unwire)
    node.wiring.fail["wire"] = [WiringError("refused")]
    with pytest.raises(WiringError):
        node.add("a")
    made = retry.end()
    assert made is not None, f"the retry did not get its turn: {retry.error}"
    assert node.wiring.wired[made.host_veth].address == made.address
    assert node.wiring.routes[made.address] == made.host_veth
    assert node.datastore.attachments() == (made,)
    assert node.datastore.counts().cooling == 1, "the first one's address cools, the second one's does not"
    node.assert_sound()


@in_both("node")
def test_a_rollback_ends_before_the_retry_begins(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry that comes during the rollback is whole afterwards (I5)."""
    play(node, monkeypatch)


@in_both("node")
def test_the_retry_fails_without_the_lock(node: FakeNode, monkeypatch: pytest.MonkeyPatch, mutate: Mutate) -> None:
    """Without the lock the retry meets the half-undone first ADD.

    What it would lose to the rollback in antrea it is refused here: the reservation by key is the second line (I1), and the
    runtime gets an internal error instead of a sandbox.
    """
    mutate("no-sandbox-locks")
    with pytest.raises(AssertionError, match="did not get its turn"):
        play(node, monkeypatch)
