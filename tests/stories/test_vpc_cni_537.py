"""amazon-vpc-cni-k8s #537 (2019): an ENI was to be deleted while it was attached, and stayed for good.

The issue itself is in none of our sources; told from the fix that names it (their pull request 538, "Detach ENI before deleting")
and from the code before and after. A new ENI was created and attached; then the request that marks it for deletion with the
instance failed. The daemon gave the ENI up and deleted it at once, without a detach. EC2 refuses that as long as an ENI is
attached, so every try failed. The ENI stayed on the instance: unknown to the pool, unmarked, and in the place of another one.

Here: `OperationRunner._look` asks EC2 how the ENI is attached and detaches it first; until it is gone the intent stays open
(I9). If EC2 shows the attachment only after the deletion was refused, the ENI is taken into use instead, and marked
(`OperationRunner._ensure_delete_on_termination`). Bound: 61 s (fake), the longest pause after an error.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ipamd.model.cloud import DescribedEni
from ipamd.model.errors import CloudError
from ipamd.model.ids import EniId
from tests.fakes.cloud import INSTANCE
from tests.fakes.node import FakeNode
from tests.stories.mutations import Mutate

BOUND_S = 61


def assert_nothing_lies_about(node: FakeNode) -> None:
    """What hangs on the instance is what the pool knows, marked; what does not is deleted."""
    known = {eni.eni_id for eni in node.datastore.enis()}
    there = set(node.ec2.enis)
    assert there == known, f"{sorted(there - known)} stayed on the instance, unknown to the pool"
    assert all(eni.instance_id == INSTANCE for eni in node.ec2.enis.values())
    assert all(eni.delete_on_termination for eni in node.ec2.enis.values()), "not marked: it outlives the instance"
    assert node.datastore.open_intents() == ()
    node.assert_sound()


def play(node: FakeNode) -> None:
    """The second ENI is attached and cannot be marked; 27 pods, all that 3 ENIs hold, are wanted in the end."""
    refused = CloudError("InvalidParameterValue")
    refused.may_have_happened = False
    node.ec2.fail["set_delete_on_termination"] = [refused]
    node.add("s0")
    for _ in range(BOUND_S):
        node.pool.cycle()
        node.clock.advance(1)
    assert_nothing_lies_about(node)
    for number in range(1, 27):
        node.add(f"s{number}")
        node.pool.cycle()
        node.clock.advance(1)
    assert node.datastore.counts().assigned == 27
    assert_nothing_lies_about(node)


def show_the_next_attachment_late(node: FakeNode) -> None:
    """The first Describe after the attach still shows the ENI as free (EC2's eventual consistency)."""
    real, looks = node.ec2.describe_eni, []

    def describe(eni_id: EniId) -> DescribedEni:
        told = real(eni_id)
        if told.attachment_id and not looks:
            looks.append(eni_id)
            return replace(told, status="available", attachment_id="", attachment_status="", instance_id="", device_index=-1)
        return told

    node.ec2.describe_eni = describe  # type: ignore[method-assign]


def test_an_eni_that_is_given_up_is_detached_before_it_is_deleted(node: FakeNode) -> None:
    """Its place on the instance is free again, and another one takes it (I9)."""
    play(node)
    assert node.ec2.calls["detach_eni"] == 1


def test_an_attachment_that_ec2_shows_late_is_taken_into_use(node: FakeNode) -> None:
    """The deletion is refused, and then EC2 shows what hangs there: it serves, and is marked after all (I9)."""
    show_the_next_attachment_late(node)
    play(node)
    assert (node.ec2.calls["detach_eni"], node.ec2.calls["delete_eni"]) == (0, 1)


def test_it_outlives_the_node_without_the_mark(node: FakeNode, mutate: Mutate) -> None:
    """Taken in but not marked, EC2 would keep it when the instance ends."""
    mutate("eni-not-marked")
    show_the_next_attachment_late(node)
    with pytest.raises(AssertionError, match="not marked"):
        play(node)


def test_it_stays_for_good_without_the_detach(node: FakeNode, mutate: Mutate) -> None:
    """Deleting alone is refused however often it is tried, as in amazon-vpc-cni-k8s before 1.5.2."""
    mutate("detach-does-nothing")
    with pytest.raises(AssertionError, match="stayed on the instance"):
        play(node)
