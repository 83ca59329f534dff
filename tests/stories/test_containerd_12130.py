"""containerd #12130: a clean-up that runs out of time, and a network namespace that nobody owns any more.

The thread itself could not be looked up; this is what its title says, a clean-up that timed out, so that no DEL
ever comes. RunPodSandbox fails after its CNI ADD succeeded. The clean-up behind it has a deadline of its own; on a loaded node
it passes before DEL was executed. The runtime forgets the sandbox, and what it made stays behind: a mounted namespace with our
veth in it. The namespace "lives", so that waiting for its end means waiting for ever, and each such failure costs an address.

What prevents it here: `model/evidence.py: _is_leak`. What the runtime has not listed for an hour, in complete lists, is
a leak even if its namespace is there: the veth goes first, then the address is freed (I4: never the other way round).
A sandbox that is listed keeps its address whatever the hour.

Bound: 1 hour and 1 minute (fake) after the failure, and the cooldown.
"""

from __future__ import annotations

import pytest

from ipamd.model import evidence
from ipamd.sandbox.runtime import RELIST_WITH_EVENTS_S
from tests.fakes.node import FakeNode
from tests.families import in_both

BOUND_S = 3660


def play(node: FakeNode) -> None:
    """One sandbox is forgotten by its runtime with its namespace mounted; its neighbour lives on."""
    leaked = node.add("forgotten")
    alive = node.add("alive")
    node.runtime.run("alive")
    spent = 0.0
    while spent < BOUND_S:
        node.runtime_reconciler.reconcile_once()
        assert node.datastore.attachment(leaked.key) or spent >= 3600, "before the hour it may be a sandbox in creation"
        node.clock.advance(RELIST_WITH_EVENTS_S)
        spent += RELIST_WITH_EVENTS_S
    node.runtime_reconciler.reconcile_once()
    assert leaked.netns in node.wiring.netns, "the namespace itself is not ours to remove"
    assert node.datastore.attachment(leaked.key) is None, f"{BOUND_S} s later the address is still held by nobody"
    assert leaked.host_veth not in node.wiring.wired
    assert leaked.address not in node.wiring.routes
    assert node.datastore.attachment(alive.key) == alive
    row = node.datastore.address(leaked.address)
    assert row is not None
    assert row.state == "cooling", "the link goes before the address is free"
    node.cool()
    assert not node.wiring.dying
    node.assert_sound()


@in_both("node")
def test_a_leaked_namespace_gives_its_address_back_after_an_hour(node: FakeNode) -> None:
    """Absent for an hour, namespace and veth still there: unwired, then freed (I2, I4)."""
    play(node)


@in_both("node")
def test_the_address_leaks_for_ever_without_the_hour(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that rule a mounted namespace keeps its address for as long as the node is up."""
    monkeypatch.setattr(evidence, "_is_leak", lambda seen: False)
    with pytest.raises(AssertionError, match="still held by nobody"):
        play(node)
