"""amazon-vpc-cni-k8s #3066 (2024): the sandbox of a pod with security groups is begun before its branch ENI is known, and fails.

The controller annotates a pod after it is bound; kubelet begins at once. The plugin looks for the annotation, finds none, and fails
the sandbox; an event says "failed to assign an IP address to container", and the runtime makes another one 0.7 s later. Worse would be
to take the pod for an ordinary one: it would run with an address of the pool and the node's groups.

What prevents it here: who must have groups is known apart from which branch ENI it is, and an ADD waits for the latter
(`ipamd/sandbox/legs/branch.py`, I19). A source that tells nothing new refuses it with the cause and code 11.

Bound: as late as the controller, within the deadline of the ADD.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ipamd.core.health import Phase
from ipamd.model.legs.refusals import BranchRefusalCode
from ipamd.model.pod_facts import GroupRequirement
from ipamd.sandbox.legs import branch as hook
from tests.fakes.cloud import IDENTITY
from tests.fakes.node import FakeNode
from tests.fakes.pod_facts import annotation
from tests.refusing import refused_with
from tests.stories.branches import add
from tests.stories.mutations import Mutate
from tests.unit.service.branches import TRUNK_ENI, node_with_trunk


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A pod that must have groups, of which nothing else is known yet."""
    made = node_with_trunk(tmp_path)
    made.pod_facts.put("a", requirement=GroupRequirement.YES)
    yield made
    made.datastore.close()


def test_the_add_waits_until_it_is_told(node: FakeNode) -> None:
    """Its first sandbox has the branch ENI, though it was begun before."""
    node.pod_facts.meanwhile = lambda: node.pod_facts.put("a", annotation(2))
    assert add(node, "a", pod="web-0").uplink is not None
    assert node.pod_facts.waits


def test_where_waiting_tells_nothing_it_is_refused_with_the_cause(node: FakeNode) -> None:
    """By annotations of the sandbox, which never change: code 11, and no address of the pool is spent."""
    node.pod_facts.tells_later = False
    before = node.datastore.counts()
    with refused_with(BranchRefusalCode.BRANCH_PENDING):
        add(node, "a", pod="web-0")
    assert node.datastore.counts() == before


@pytest.mark.parametrize("tells_later", [True, False], ids=["kubelet", "annotations"])
@pytest.mark.parametrize("is_trunk_there", [True, False], ids=["trunk", "no trunk"])
def test_an_add_waits_for_the_first_answer_of_ec2(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, *, is_trunk_there: bool, tells_later: bool
) -> None:
    """After a restart nobody knows the trunk: that is no reason to refuse a pod, and to say that there is none."""
    node.crash()
    node.node_info.learn_identity()
    node.health.enter(Phase.SERVING)
    node.pool.set_limits(node.ec2.limits, settings=node.settings)
    node.pod_facts.put("a", annotation(2))
    node.pod_facts.tells_later = tells_later
    if not is_trunk_there:
        del node.ec2.enis[TRUNK_ENI.eni_id]
    looks: list[object] = []

    def answer(_s: float = 0.0) -> None:
        looks.append(len(looks) == 2 and node.enis.sync_with_ec2(IDENTITY))
        assert len(looks) < 9
        node.pool.run_once()

    node.pod_facts.meanwhile = answer
    monkeypatch.setattr(hook.time, "sleep", answer)
    if is_trunk_there:
        assert add(node, "a", pod="web-0").uplink is not None
    else:
        with refused_with(BranchRefusalCode.NO_TRUNK):
            add(node, "a", pod="web-0")
    assert 3 <= len(looks) <= 5


def test_while_ec2_is_silent_the_refusal_says_so(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the caller's time is up, and nothing is left of it."""
    node.crash()
    node.health.enter(Phase.SERVING)
    node.pod_facts.put("a", annotation(2))
    node.pod_facts.tells_later = False
    monkeypatch.setattr(hook.time, "sleep", node.clock.advance)
    with refused_with(BranchRefusalCode.BRANCH_PENDING):
        add(node, "a", pod="web-0", deadline_s=10.0)
    assert node.datastore.attachments() == ()


def test_it_gets_an_address_of_the_pool_where_that_is_missing(node: FakeNode, mutate: Mutate) -> None:
    """One that goes by the annotation alone cannot tell it from an ordinary pod."""
    mutate("groups-not-required")
    assert add(node, "a", pod="web-0").uplink is None
