"""amazon-vpc-cni-k8s #3833 (2026, open): ENIs were attached and never used, and the node could get no others.

On m6a.large nodes (3 ENIs) the daemon created and attached two ENIs within seconds of the node's birth; the step that takes an
attached ENI into its records never happened. The pool had the nine addresses of the primary ENI. Every later attempt was create,
attach, AttachmentLimitExceeded, delete, again and again; pods hung in ContainerCreating until the node was replaced.

Here: an ENI is an open intent from before it is asked for until it is in the datastore (I9): whatever fails in between,
`EniProvisioner.recover_due` takes it up, and until then it counts as one that may exist. If an attach is refused, the pool asks
EC2 what hangs on the instance (`OperationRunner.adopt_enis`): an ENI that came by another hand is adopted or counted, and EC2's
refusal teaches how many it attaches (`Limits`) (docs/pool.md, The pool). Bound: 60 s (fake), the longest pause after an error.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from ipamd.model.blocked import Blocked
from ipamd.model.cloud import DescribedEni
from ipamd.model.errors import KernelDumpError
from ipamd.model.ids import EniId, MacAddress
from tests.fakes.cloud import INSTANCE, SUBNET
from tests.fakes.node import FakeNode
from tests.stories.mutations import Mutate

BOUND_S = 60


def known_and_attached(node: FakeNode) -> tuple[int, int]:
    """ENIs in the datastore, and attached at EC2."""
    return len(node.datastore.enis()), sum(eni.instance_id == INSTANCE for eni in node.ec2.enis.values())


def let_the_pool_work(node: FakeNode) -> None:
    """One cycle a second for as long as the bound is."""
    for _ in range(BOUND_S):
        node.clock.advance(1)
        node.pool.cycle()


def play(node: FakeNode) -> None:
    """Taking an attached ENI in fails, twice; 27 pods are wanted."""
    node.wiring.fail["survey"] = [KernelDumpError("interrupted"), KernelDumpError("interrupted")]
    for number in range(9):
        node.add(f"s{number}")
        node.pool.cycle()
    let_the_pool_work(node)
    known, attached = known_and_attached(node)
    assert known == attached, f"{attached - known} ENIs are attached and not used"
    assert node.datastore.counts().free >= 9, "the warm target is reached"
    for number in range(9, 18):
        node.add(f"s{number}")
        node.pool.cycle()
    let_the_pool_work(node)
    for number in range(18, 27):
        node.add(f"s{number}")
    assert node.datastore.counts().assigned == 27
    assert all(eni.instance_id == INSTANCE for eni in node.ec2.enis.values()), "I9: no ENI lies about"
    assert node.datastore.open_intents() == ()
    node.assert_sound()


def test_an_attached_eni_is_taken_into_use_whatever_failed_in_between(node: FakeNode) -> None:
    """27 pods fit on 3 x 9, and every ENI that we attached carries some (I9)."""
    play(node)


def test_attached_enis_are_orphaned_without_intents_taken_up(node: FakeNode, mutate: Mutate) -> None:
    """If the daemon did not continue interrupted operations, the node would stay at nine addresses."""
    mutate("intents-not-taken-up")
    with pytest.raises(AssertionError, match="attached and not used"):
        play(node)
    assert known_and_attached(node) == (1, 2), "and its device index stands in the way of every other"


def attach_by_another_hand(node: FakeNode, number: int, *, tags: dict[str, str]) -> EniId:
    """Somebody attaches an ENI to this instance while the daemon runs."""
    eni_id = EniId(f"eni-foreign-{number}")
    node.ec2.enis[eni_id] = replace(
        DescribedEni(eni_id, MacAddress(f"06:00:00:00:00:{number:02x}"), SUBNET, IPv4Address(f"10.0.15.{10 * number}")),
        secondary_addresses=frozenset(IPv4Address(f"10.0.15.{10 * number + n}") for n in range(1, 4)),
        status="in-use",
        attachment_id=f"attach-{eni_id}",
        attachment_status="attached",
        instance_id=INSTANCE,
        device_index=number,
        tags=tags,
    )
    return eni_id


def play_foreign(node: FakeNode, *, tags: dict[str, str]) -> int:
    """Two ENIs are attached by another hand, then the pool wants to grow; returns how many addresses are free after an hour."""
    for number in (1, 2):
        attach_by_another_hand(node, number, tags=tags)
    for number in range(9):
        node.add(f"s{number}")
    for _ in range(60):
        node.clock.advance(60)
        node.pool.cycle()
    creations = node.ec2.calls["create_eni"]
    assert creations <= 1, f"{creations} ENIs were created, refused and deleted in an hour"
    assert known_and_attached(node) == (3, 3)
    node.assert_sound()
    return node.datastore.counts().free


def test_enis_of_another_hand_are_adopted_not_looped_over(node: FakeNode) -> None:
    """Untagged ENIs are used, as amazon-vpc-cni-k8s does: one refused attach, then their 2 x 9 slots serve."""
    assert play_foreign(node, tags={}) >= 9


def test_enis_that_are_not_to_be_managed_are_counted_not_looped_over(node: FakeNode) -> None:
    """Tagged no_manage they give nothing, and the pool knows that the instance is full (I14)."""
    assert play_foreign(node, tags={"node.k8s.amazonaws.com/no_manage": "true"}) == 0
    assert node.demand.status.kind is Blocked.NODE_FULL


def test_an_eni_of_another_hand_takes_its_place_only(node: FakeNode) -> None:
    """One ENI with no_manage as device 1: the pool attaches its own as device 2, and is refused once at most."""
    attach_by_another_hand(node, 1, tags={"node.k8s.amazonaws.com/no_manage": "true"})
    for number in range(18):
        node.add(f"s{number}")
        node.pool.cycle()
        node.clock.advance(BOUND_S)
    assert node.ec2.calls["create_eni"] <= 2
    assert sorted(eni.device_index for eni in node.datastore.enis() if eni.managed) == [0, 2]
    node.assert_sound()


def test_the_pool_loops_over_them_without_asking_ec2(node: FakeNode, mutate: Mutate) -> None:
    """If the daemon did not look at EC2 after a refused attach, it would create, attach in vain and delete for ever."""
    mutate("no-adoption-after-refusal")
    with pytest.raises(AssertionError, match="created, refused and deleted"):
        play_foreign(node, tags={})
