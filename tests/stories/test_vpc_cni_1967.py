"""amazon-vpc-cni-k8s #1967 (2022, evidenced again 2026): the daemon deleted an ENI that pods were using.

After a restart instance metadata did not show an attached ENI for a while. The daemon took it for detached, struck it and its
pods from the records by force, found it again later as an ENI without pods, counted it as surplus, detached it and deleted it.
The pods went on running, and passed their probes, with addresses that no ENI had any more.

Here: an ENI that is missing from EC2's own answers is kept as long as a sandbox has an address on it (`EniService._lose`; I2), and its
routing with it; an answer that fails removes nothing (I11); only what the datastore knows as unused may ever be
freed. Bound: at the very restart, and still so after ten minutes of pool cycles (fake), ten times the one-minute
grace.
"""

from __future__ import annotations

import pytest

from ipamd.model.errors import CloudError
from tests.fakes.cloud import IDENTITY
from tests.fakes.node import FakeNode
from tests.stories.mutations import Mutate
from tests.stories.stale_reads import assert_each_its_own, ec2_tells, recorded, run_sandboxes

TEN_MINUTES_S = 600


def play(node: FakeNode) -> None:
    """Twelve sandboxes on two ENIs; at a restart the answer lacks the second ENI; ten minutes later it is back."""
    given = run_sandboxes(node, *[f"s{number}" for number in range(12)])
    in_use = {row.eni_id for row in node.datastore.attachments()}
    missing = (in_use - {IDENTITY.primary_eni_id}).pop()
    node.crash()
    with ec2_tells(node.ec2, [eni for eni in node.ec2.enis.values() if eni.eni_id != missing]):
        node.bring_up()
    assert recorded(node) == given, "running sandboxes were removed from the records"
    assert missing in node.hostnet.enis, "the routing of a used ENI was torn down"
    for _ in range(60):
        node.clock.advance(TEN_MINUTES_S / 60)
        node.pool.cycle()
        node.runtime_reconciler.reconcile_once()
    node.crash()
    node.bring_up()
    given |= run_sandboxes(node, "t0", "t1", "t2")
    assert recorded(node) == given
    assert_each_its_own(node)
    assert node.ec2.calls["detach_eni"] == node.ec2.calls["delete_eni"] == node.ec2.calls["unassign"] == 0
    node.assert_sound()


def test_an_eni_in_use_is_kept_whatever_the_answer_lacks(node: FakeNode) -> None:
    """No sandbox, route or ENI is lost to an incomplete answer (I2)."""
    play(node)


def test_no_answer_removes_nothing(node: FakeNode) -> None:
    """A Describe that fails leaves every ENI and address as it was (I11)."""
    given = run_sandboxes(node, *[f"s{number}" for number in range(12)])
    before = node.datastore.enis(), node.datastore.addresses()
    node.ec2.fail["describe_enis"] = [CloudError("connection reset in page 2")]
    with pytest.raises(CloudError):
        node.enis.sync_with_ec2(IDENTITY)
    assert (node.datastore.enis(), node.datastore.addresses()) == before
    assert recorded(node) == given


def test_sandboxes_are_struck_without_the_rule_of_use(node: FakeNode, mutate: Mutate) -> None:
    """With the force removal of amazon-vpc-cni-k8s in its place, three running sandboxes lose record and routing."""
    mutate("sandboxes-of-absent-enis-removed")
    with pytest.raises(AssertionError, match="removed from the records"):
        play(node)
    assert len(recorded(node)) == 9
