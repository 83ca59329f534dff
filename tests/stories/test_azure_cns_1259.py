"""Azure azure-container-networking #1259 (CNS, 2022): one restart of the daemon, and several pods share an address.

After the CNS daemon set restarted, it no longer knew which addresses running pods had and gave them to new pods. Clusters lost
all connectivity on the same day in several places; restarting every node was the cure.

What prevents it here: the rows survive the restart (`datastore/`, committed before ADD answers; I5). If they are lost as well,
the kernel is asked before any address is free: `eni/enis.py: _admit` quarantines each address that is new to us and
wired, and `sandbox/startup.py: reconcile_kernel` adopts or holds what it finds (I1, I2). Neither needs the API server
(I12).

Bound: 0 fake seconds after ready: the first ADD already gets an address that nobody has, and so does every later one.
"""

from __future__ import annotations

import pytest

from tests.fakes.node import FakeNode
from tests.families import in_both
from tests.stories.mutations import Mutate

NODE_FULL = 27


def play(node: FakeNode, *, is_datastore_kept: bool) -> None:
    """The daemon restarts under five running pods, and pods come to be right after it, until the node is full."""
    running = {made.key: made for made in (node.add(f"running{number}") for number in range(5))}
    for key in running:
        node.runtime.run(key.container_id)
    node.crash(keep_datastore=is_datastore_kept)
    node.bring_up()
    fresh = [node.add("fresh-at-once")]
    node.cool()  # after a lost datastore an address cools once before it is given (I8)
    for number in range(NODE_FULL - 5 - 1):
        fresh.append(node.add(f"fresh{number}"))
        node.pool.cycle()
    taken = {made.address for made in running.values()}
    assert not taken & {made.address for made in fresh}, "two pods have one address"
    assert {a.key: a.address for a in node.datastore.attachments() if a.key in running} == {
        key: made.address for key, made in running.items()
    }
    for made in [*running.values(), *fresh]:
        assert node.wiring.routes[made.address] == made.host_veth, "the route leads to its owner"
    node.assert_sound()


@in_both("node")
@pytest.mark.parametrize("is_datastore_kept", [True, False])
def test_a_restart_gives_no_address_twice(node: FakeNode, is_datastore_kept: bool) -> None:
    """With the datastore or without it, addresses of running sandboxes stay theirs (I1, I2)."""
    play(node, is_datastore_kept=is_datastore_kept)


def test_two_pods_share_an_address_without_the_kernels_word(node: FakeNode, mutate: Mutate) -> None:
    """A daemon that lost its rows and does not look at the kernel does what CNS did."""
    mutate("kernel-shows-nothing")
    with pytest.raises(AssertionError, match="two pods have one address"):
        play(node, is_datastore_kept=False)
