"""amazon-vpc-cni-k8s #712 (P0, 2019): a restart of the daemon leaked every address of the node.

A team on CRI-O saw pods fail for lack of addresses on nodes that were far below their pod limit; the daemon held addresses for
pods that were long dead. After a restart it had rebuilt its state from the Kubernetes API, which names application containers.
CNI names sandboxes. The two IDs are never equal, so that no DEL which came after the restart found its address again.

Here: the key is CNI_CONTAINERID, the sandbox's ID, wherever a record is kept (`model/ids.py`, `model/attachment.encode_alias`); a
restart reads it from the datastore, and if that is lost `QuarantineService` reads it from the kernel's alias and asks CRI for
*sandboxes* (I2, I3, I12). Bound: all addresses free again within cooldown + 1 s (31 s, fake) of the DELs.
"""

from __future__ import annotations

import pytest

from tests.fakes.node import COOLDOWN_S, FakeNode
from tests.families import in_both
from tests.stories.mutations import Mutate
from tests.stories.stale_reads import run_sandboxes

BOUND_S = COOLDOWN_S + 1
NAMES = [f"sandbox-{number}" for number in range(6)]


def play(node: FakeNode, *, keep_datastore: bool) -> None:
    """Six sandboxes run, the daemon restarts, then all six are deleted: no address may stay behind."""
    run_sandboxes(node, *NAMES)
    node.crash(keep_datastore=keep_datastore)
    node.bring_up()
    assert node.datastore.counts().assigned == len(NAMES)
    began = node.clock.monotonic()
    for name in NAMES:
        node.delete(name)
        del node.runtime.listed[name]
    node.cool()
    counts = node.datastore.counts()
    assert (counts.assigned, counts.cooling) == (0, 0), f"leaked: {counts}"
    assert node.clock.monotonic() - began <= BOUND_S
    assert not node.wiring.wired
    node.assert_sound()


@in_both("node")
@pytest.mark.parametrize("keep_datastore", [True, False], ids=["datastore-intact", "datastore-lost"])
def test_a_restart_leaks_no_address(node: FakeNode, keep_datastore: bool) -> None:
    """Every DEL after a restart finds what its ADD made, also when the datastore had to be rebuilt (I3)."""
    play(node, keep_datastore=keep_datastore)


@in_both("node")
def test_every_address_leaks_without_sandbox_ids(node: FakeNode, mutate: Mutate) -> None:
    """Rebuilt under the application containers' IDs, as it was done then: six DELs succeed and six addresses stay taken."""
    mutate("rows-named-after-applications")
    with pytest.raises(AssertionError, match="leaked"):
        play(node, keep_datastore=False)
    assert node.datastore.counts().assigned == len(NAMES)
