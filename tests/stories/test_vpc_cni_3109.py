"""amazon-vpc-cni-k8s #3109 (2024): 64 addresses in use by 59 pods, and nothing ever noticed.

A DEL was lost or failed (the runtime gave up, the daemon was away); the daemon compares its records with the node only when it
starts, so that the addresses of long-gone pods stayed taken until somebody restarted it. New pods failed for lack of addresses.
The proposed cure (their pull request 3113) looked at one source, the veth, and was not taken.

Here: `RuntimeReconciler.reconcile_once` compares for ever, and `model/evidence.judge` frees only what every source gives up:
absent from two complete CRI lists, older than five minutes, network namespace gone, host veth gone (I2, I11). Bound: 6 min (360
s, fake) after the sandbox died without a DEL; a living one is never touched.
"""

from __future__ import annotations

import pytest

from ipamd.sandbox.runtime import RELIST_WITHOUT_EVENTS_S
from tests.fakes.node import FakeNode
from tests.families import in_both
from tests.stories.mutations import Mutate
from tests.stories.stale_reads import assert_each_its_own, recorded, run_sandboxes

BOUND_S = 360.0
LOST = ("s0", "s1", "s2", "s3", "s4")


def play(node: FakeNode) -> None:
    """Nine sandboxes; five die without a DEL; the daemon is not restarted."""
    given = run_sandboxes(node, *[f"s{number}" for number in range(9)])
    for name in LOST:
        made = node.datastore.attachment(node.key(name))
        assert made is not None
        node.vanish(made)
    living = {name: address for name, address in given.items() if name not in LOST}
    spent = 0.0
    while recorded(node) != living:
        assert spent < BOUND_S, f"after {spent:.0f} s the dead still hold {len(recorded(node)) - len(living)} addresses"
        node.clock.advance(RELIST_WITHOUT_EVENTS_S)
        spent += RELIST_WITHOUT_EVENTS_S
        node.runtime_reconciler.reconcile_once()
    node.cool()
    assert node.datastore.counts().cooling == 0
    assert_each_its_own(node)
    node.assert_sound()


@in_both("node")
def test_what_no_del_came_for_is_freed(node: FakeNode) -> None:
    """Within six minutes the dead have given their addresses back, without a restart, and the living have theirs (I2)."""
    play(node)


@in_both("node")
def test_the_dead_hold_their_addresses_without_the_verdict(node: FakeNode, mutate: Mutate) -> None:
    """With nobody to judge them between two starts, as in amazon-vpc-cni-k8s, they hold them past the bound and for ever."""
    mutate("no-reaping")
    with pytest.raises(AssertionError, match="the dead still hold 5"):
        play(node)
