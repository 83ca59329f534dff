"""containerd/nri #63 (2023): a sandbox that is being created is missing in the first list.

A plugin that connects to the runtime while RunPodSandbox is under way gets a list without that sandbox and no event for it
either: it lives, and the plugin never hears of it. Whoever takes the first list for the whole truth takes its address away.

What prevents it here: one list proves nothing. After a lost datastore a wired sandbox that the list does not name is
quarantined, wiring and all (`sandbox/startup.py: _resolve_veth`), and `sandbox/runtime.py` lists for ever:
as soon as the sandbox is listed, `sandbox/quarantine.py: resolve` makes its row (I2, I11). A restart in
between changes nothing of that: what was in doubt stays in doubt (`sandbox/judge.py: _record_of`), though the new datastore
is intact by then and "no row" would else mean "no promise".

Bound: one list interval (10 s, fake) after the sandbox became listable.
"""

from __future__ import annotations

import pytest

from ipamd.model.address import AddressState
from ipamd.sandbox.runtime import RELIST_WITHOUT_EVENTS_S
from tests.fakes.node import FakeNode
from tests.families import in_both
from tests.stories.mutations import Mutate


def play(node: FakeNode, *, restart_count: int = 0) -> None:
    """The datastore is lost while kubelet still waits for RunPodSandbox; its sandbox is not listable yet."""
    made = node.add("in-creation")
    node.add("listed")
    node.runtime.run("listed")
    node.crash(keep_datastore=False)
    node.bring_up()
    for _ in range(restart_count):
        node.crash()
        node.bring_up()
    assert made.host_veth in node.wiring.wired, "a living sandbox lost its network"
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state is AddressState.QUARANTINED
    assert made.address not in {node.add(f"next{number}").address for number in range(7)}

    node.runtime_reconciler.reconcile_once()
    assert node.datastore.attachment(made.key) is None, "still nothing to go by"
    node.runtime.run("in-creation")
    node.clock.advance(RELIST_WITHOUT_EVENTS_S)
    node.runtime_reconciler.reconcile_once()
    known = node.datastore.attachment(made.key)
    assert known is not None, "listed, wired, and still unknown to us"
    assert known.address == made.address
    assert node.delete("in-creation")
    assert made.host_veth not in node.wiring.wired
    node.assert_sound()


@in_both("node")
@pytest.mark.parametrize("restart_count", [0, 1])
def test_a_sandbox_missing_in_the_first_list_keeps_its_address(node: FakeNode, restart_count: int) -> None:
    """Held back while unlisted, adopted within a list interval once listed, restarts in between or not (I2)."""
    play(node, restart_count=restart_count)


@in_both("node")
def test_it_loses_its_network_without_the_doubt(node: FakeNode, mutate: Mutate) -> None:
    """A daemon that takes its young datastore for the whole truth removes the wiring of a living sandbox at the next start."""
    mutate("rowless-links-removed")
    with pytest.raises(AssertionError, match="lost its network"):
        play(node, restart_count=1)


@in_both("node")
def test_it_is_never_heard_of_without_listing_again(node: FakeNode, mutate: Mutate) -> None:
    """Without a second look at what is quarantined the sandbox stays unknown, as for the NRI plugin."""
    mutate("quarantine-not-resolved")
    with pytest.raises(AssertionError, match="still unknown"):
        play(node)
