"""amazon-vpc-cni-k8s #2497 (2023): metadata showed an ENI that was gone, for days, and every reconciliation asked EC2 in vain.

Two of eighty nodes counted `InvalidNetworkInterfaceID.NotFound` without end: metadata listed three ENIs, the instance had two. AWS
found a defect: changes in quick succession freeze the metadata of an instance. #359 saw a deleted ENI in metadata for 105 minutes.

Here metadata is a hint: a difference makes EC2 be looked at, four times in the first hour and then once an hour while it lasts
(`ipamd/model/metadata_evidence.py`), and EC2's answer alone decides (I7). Bound: 30 Describe calls in a day of frozen metadata (fake),
nothing added or removed because of it.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from ipamd.model.ids import EniId
from tests.fakes.node import FakeNode
from tests.stories.external_changes import described, detach_by_hand, link_event, pass_time, settle
from tests.stories.mutations import Mutate
from tests.stories.stale_reads import run_sandboxes

DAY = timedelta(days=1)
SECOND = EniId("eni-2")


def play(node: FakeNode) -> None:
    """An ENI goes, metadata stays as it was; a day passes."""
    run_sandboxes(node, "s0")
    settle(node)
    node.metadata.freeze()
    link_event(node, detach_by_hand(node, SECOND).mac)
    for _ in range(3):
        pass_time(node, 60.0)
    assert node.datastore.eni(SECOND) is None, "EC2 decides, whatever metadata shows"
    before, addresses = described(node), node.datastore.addresses()
    for _ in range(int(DAY.total_seconds() / 60)):
        pass_time(node, 60.0)
    assert node.datastore.eni(SECOND) is None
    assert node.datastore.addresses() == addresses
    assert described(node) - before <= 30, f"{described(node) - before} Describe calls in a day of frozen metadata"
    assert any(f"{SECOND} is shown and not recorded" in sentence for sentence in node.health.conditions())


def test_frozen_metadata_costs_a_call_an_hour(node: FakeNode) -> None:
    """The difference is reported, EC2 is asked now and then, and nothing changes."""
    play(node)


def test_without_memory_of_what_was_asked_every_turn_costs_a_call(node: FakeNode, mutate: Mutate) -> None:
    """As in #2497: the same question again and again."""
    mutate("no-pause-between-questions")
    with pytest.raises(AssertionError, match="Describe calls in a day"):
        play(node)
