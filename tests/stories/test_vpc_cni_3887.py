"""amazon-vpc-cni-k8s #3887 (2026, open): after a restart a pod got an address that EC2 no longer had on the node.

The integration test of amazon-vpc-cni-k8s found it. The daemon had given addresses back to EC2; instance metadata still listed them;
the daemon restarted, read metadata and took one of them in again. ADD and host routing succeeded, and the pod (a CoreDNS replica)
never got a reply from the VPC.

Here: an address is assignable only if EC2 itself confirmed it (I7). At start one Describe (`EniService.sync_with_ec2`) holds back
what it does not show, before ADD is served; metadata is only ever a reason to ask EC2. Bound: before the first ADD, 0 s
(fake).
"""

from __future__ import annotations

import pytest

from tests.fakes.cloud import PRIMARY
from tests.fakes.node import FakeNode
from tests.stories.mutations import Mutate
from tests.stories.stale_reads import run_sandboxes


def play(node: FakeNode) -> None:
    """Two addresses went back to EC2, the daemon restarts, and as many pods come as it has addresses."""
    run_sandboxes(node, "s0")
    released = sorted(row.address for row in node.datastore.addresses() if row.eni_id == PRIMARY and row.owner is None)[:2]
    node.ec2.unassign(PRIMARY, addresses=released, prefixes=[])
    node.crash()
    began = node.clock.monotonic()
    node.bring_up()
    assert node.clock.monotonic() == began
    given = run_sandboxes(node, *[f"t{number}" for number in range(9)])
    dead = set(released) & set(given.values())
    assert not dead, f"sandboxes got addresses that EC2 does not have on this node: {dead}"
    node.assert_sound()


def test_no_sandbox_gets_an_address_that_ec2_took_back(node: FakeNode) -> None:
    """The datastore knew them, metadata would list them, EC2 does not: they are held before ADD is served (I7)."""
    play(node)


def test_a_sandbox_gets_a_dead_address_without_ec2s_word(node: FakeNode, mutate: Mutate) -> None:
    """With stale metadata for a source, as amazon-vpc-cni-k8s reads it at start, the same restart hands a dead address out."""
    run_sandboxes(node, "before")
    mutate("metadata-believed", shown=tuple(node.ec2.enis.values()))
    with pytest.raises(AssertionError, match="EC2 does not have"):
        play(node)
