"""containerd PR 12923 (2026): a DEL that never comes.

containerd died after the CNI ADD had succeeded and before the result was on its disk. After its restart it found the sandbox,
and because it had no CNI result for it, it stopped and removed the sandbox without ever executing DEL. Whoever waits for DEL
alone leaks one address for every such sandbox, until the node takes no pod any more.

What prevents it here: `sandbox/runtime.py` lists sandboxes for ever, and `model/evidence.py: judge` frees an
attachment when the runtime, the network namespace and the host veth all say that it is gone (docs/datastore.md, Sources;
I2, I11). While containerd is down nothing is freed, and what it lists, NOTREADY too, is kept.

Bound: 6 minutes (fake) from the sandboxes' end to the last address given back, and their cooldown; no human, no restart.
"""

from __future__ import annotations

import pytest

from ipamd.model.sandbox import SandboxState
from ipamd.sandbox.runtime import RELIST_WITHOUT_EVENTS_S
from tests.fakes.node import FakeNode
from tests.families import in_both
from tests.stories.mutations import Mutate

BOUND_S = 360
NODE_FULL = 27


def look(node: FakeNode, seconds: float) -> None:
    """Time passes, and the runtime reconciler looks as often as it does."""
    for _ in range(int(seconds / RELIST_WITHOUT_EVENTS_S)):
        node.runtime_reconciler.reconcile_once()
        node.clock.advance(RELIST_WITHOUT_EVENTS_S)


def play(node: FakeNode) -> None:
    """A full node loses all its sandboxes to a runtime that forgets the DELs."""
    made = []
    for number in range(NODE_FULL):
        made.append(node.add(f"s{number}"))
        node.pool.cycle()
    node.runtime.is_down = True
    look(node, 120)
    for attachment in made:
        node.runtime.run(attachment.key.container_id, state=SandboxState.NOTREADY)
    node.runtime.is_down = False
    look(node, 600)
    assert len(node.datastore.attachments()) == NODE_FULL, "silence and NOTREADY free nothing"

    for attachment in made:  # StopPodSandbox and RemovePodSandbox, without a DEL
        node.vanish(attachment)
    look(node, BOUND_S)
    assert len(node.datastore.attachments()) == 0, f"{BOUND_S} s later addresses are still held by nobody"
    node.cool()
    node.add("the-next-pod")
    node.assert_sound()


@in_both("node")
def test_addresses_come_back_without_a_del(node: FakeNode) -> None:
    """A full node whose sandboxes vanish without DEL takes pods again within 6 minutes (I2, I11)."""
    play(node)


@in_both("node")
def test_addresses_leak_without_reaping(node: FakeNode, mutate: Mutate) -> None:
    """With the verdict switched off the story ends as it did in the field: the addresses stay with the dead."""
    mutate("no-reaping")
    with pytest.raises(AssertionError, match="still held by nobody"):
        play(node)
