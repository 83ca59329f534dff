"""amazon-vpc-cni-k8s #2896 (2024, open): a node refused pods for half a minute with room for more addresses.

Under a load of short-lived pods more and more addresses were in cooldown. The pool's arithmetic counted them as available: 23 in
all, 19 assigned, 4 cooling, WARM_IP_TARGET=2 satisfied on paper, nothing free in fact. The daemon asked EC2 for none, and every
ADD failed until the cooldown was over.

Here: cooling is not free (I8): `model/plan.deficit_count` counts the free ones only, and ADDs that wait on top. The settings and
figures are those of the report. Bound: the ADD is answered within 2 s (fake), not after the 30 s of cooldown.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ipamd.model.errors import PoolEmptyError
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.refusals import RefusalCode
from tests.errors import refused_add
from tests.fakes.node import FakeNode
from tests.stories.mutations import Mutate
from tests.stories.stale_reads import give_the_threads_their_turn

BOUND_S = 2.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """WARM_IP_TARGET=2, MINIMUM_IP_TARGET=23, WARM_ENI_TARGET=0; the pool loop has its turn whenever an ADD waits."""
    made = FakeNode(tmp_path, settings=PoolSettings(warm_eni_target=0, warm_ip_target=2, minimum_ip_target=23))
    made.bring_up()
    give_the_threads_their_turn(made)
    yield made
    made.datastore.close()


def play(node: FakeNode) -> None:
    """A burst takes all 23 addresses, four pods end at once, and the next pod comes."""
    for number in range(23):
        node.add(f"s{number}")
    for number in range(4):
        node.delete(f"s{number}")
    node.cooldown.sweep()
    counts = node.datastore.counts()
    assert (counts.total, counts.assigned, counts.cooling, counts.free) == (23, 19, 4, 0), "the report's figures"
    began = node.clock.monotonic()
    node.pool.cycle()
    node.add("the-next-pod", deadline_s=10.0)
    assert node.clock.monotonic() - began <= BOUND_S
    assert node.datastore.counts().cooling == 4, "and nothing was taken out of its cooldown for it (I8)"
    node.assert_sound()


def test_cooling_addresses_do_not_keep_the_pool_from_growing(node: FakeNode) -> None:
    """The pool grows past what is cooling, at once (I8)."""
    play(node)


def test_pods_are_refused_when_cooling_counts_as_available(node: FakeNode, mutate: Mutate) -> None:
    """With the arithmetic of amazon-vpc-cni-k8s (total less assigned) the same pod is refused, with places left at EC2."""
    mutate("cooling-is-available")
    with pytest.raises(PoolEmptyError, check=refused_add(RefusalCode.NO_ADDRESS)):
        play(node)
    assert node.datastore.counts().total == 23
