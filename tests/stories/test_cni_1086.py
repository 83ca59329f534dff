"""containernetworking/cni #1086 (2024, open): GC with the list of one runtime, on a node where two share a network.

The verb GC hands a plugin the attachments that the runtime counts as valid, and lets it remove the rest. Where several runtimes use
one network configuration, no runtime knows all attachments: its list lacks those of the others, and what is in use is cleaned up. The
maintainers asked for a switch that turns GC off for such a configuration.

What prevents it here: the list is a declaration, one witness more that can only name absence (`sandbox/detach.py`). The one
verdict (`model/evidence.py: judge`) frees what the list lacks only if network namespace and host veth are gone too, CRI does not
list it, and it is older than five minutes (I2, I11). A container that CRI never lists keeps its address as long as it lives
(docs/adr/0001).

Bound: none to wait for; 24 hours (fake) of GC every minute by a runtime that does not know the other's containers.
"""

from __future__ import annotations

import pytest

from tests.fakes.node import FakeNode
from tests.families import in_both
from tests.stories.mutations import Mutate

DAY_S = 24 * 3600
EVERY_S = 60.0


def play(node: FakeNode, *, seconds: float) -> None:
    """Two runtimes on one node; the one that speaks CRI calls GC every minute, and knows its own sandbox only."""
    node.add("pod")
    node.runtime.run("pod")
    other, gone = (node.add(name, pod="") for name in ("other", "gone"))  # the other runtime speaks no CRI and names no pods
    node.vanish(gone)
    for _ in range(int(seconds / EVERY_S)):
        node.clock.advance(EVERY_S)
        node.runtime_reconciler.reconcile_once()
        node.collect("pod")
        assert node.datastore.attachment(other.key) == other, "the other runtime's living container lost its address"
        assert other.host_veth in node.wiring.wired
    assert node.datastore.attachment(gone.key) is None, "what is gone is freed"
    node.cool()
    node.assert_sound()


@in_both("node")
def test_gc_of_one_runtime_frees_nothing_of_the_other(node: FakeNode) -> None:
    """What lives is kept for a day of GCs that do not name it; what is gone goes (I2)."""
    play(node, seconds=DAY_S)


@in_both("node")
def test_the_other_runtimes_containers_are_cut_off_if_the_list_is_proof(node: FakeNode, mutate: Mutate) -> None:
    """With the list taken at its word, as the specification allows, the first GC ends the other runtime's network."""
    mutate("gc-list-believed")
    with pytest.raises(AssertionError, match="lost its address"):
        play(node, seconds=600)
