"""amazon-vpc-cni-k8s #964 (2020): pods on secondary ENIs kept the security groups that their node had at its start.

An operator gave the instances another security group. EC2 changed that of the primary ENI; the ENIs that the CNI had attached, and
those it attached afterwards, kept the old one, so pods were filtered by their place on the node (fixed in 1.7.2, pull request 1098).

Here: the node's identity has one home, which instance metadata refreshes (`ipamd/node_info.py`): before an ENI is created, and about
every minute. `ipamd/eni/security_groups.py` gives every managed secondary ENI the new groups, with one call an ENI and
change. Metadata tells of the change: an idle node asks EC2 nothing for it (I13). ENIs that are not managed keep theirs (#2470).
Bound: the next ENI at once; the existing ones 75 s after metadata shows the change (fake).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.core.backoffs import DENIED
from ipamd.model.errors import CloudDeniedError, CloudError
from ipamd.model.ids import EniId
from tests.fakes.cloud import IDENTITY, PRIMARY
from tests.fakes.node import FakeNode
from tests.stories.external_changes import TURN_MAX_S, pass_time
from tests.stories.mutations import Mutate
from tests.stories.stale_reads import run_sandboxes

OLD, NEW = ("sg-1",), ("sg-1", "sg-2")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with two ENIs, some sandboxes, and room for a third ENI."""
    made = FakeNode(tmp_path)
    made.bring_up()
    run_sandboxes(made, "a", "b")
    assert len(made.ec2.enis) == 2
    yield made
    made.datastore.close()


def change_the_primary_groups(node: FakeNode, groups: tuple[str, ...] = NEW) -> None:
    """What an operator does to the instance: EC2 changes the primary ENI, and metadata shows it."""
    node.ec2.enis[PRIMARY] = replace(node.ec2.enis[PRIMARY], security_group_ids=groups)
    node.metadata.told = replace(IDENTITY, security_group_ids=groups)


def groups_of(node: FakeNode) -> dict[EniId, tuple[str, ...]]:
    """ENI -> security groups, as EC2 has them."""
    return {eni.eni_id: eni.security_group_ids for eni in node.ec2.enis.values()}


def grow(node: FakeNode) -> EniId:
    """Sandboxes until the pool has created a third ENI; returns that one."""
    before = set(node.ec2.enis)
    run_sandboxes(node, *(f"more-{number}" for number in range(10)))
    (created,) = set(node.ec2.enis) - before
    return created


def play(node: FakeNode) -> None:
    """The groups change; a minute later every ENI has the new ones."""
    change_the_primary_groups(node)
    pass_time(node, TURN_MAX_S)
    assert set(groups_of(node).values()) == {NEW}, f"an ENI kept its groups: {groups_of(node)}"


def test_existing_enis_follow_the_primary_one(node: FakeNode) -> None:
    """One call for the secondary ENI, none for the primary, and none again while nothing changes (I13)."""
    node.provisioner.leaked_enis.disable()  # its one look comes a minute or two after the start
    before = node.ec2.calls.copy()
    play(node)
    pass_time(node, TURN_MAX_S)
    pass_time(node, TURN_MAX_S)
    assert node.ec2.calls - before == {"set_security_groups": 1}


def test_the_next_eni_has_the_new_groups(node: FakeNode) -> None:
    """Metadata is asked before an ENI is created, so nobody waits for the minute to pass; the others follow at once."""
    change_the_primary_groups(node)
    before = node.ec2.calls["set_security_groups"]
    created = grow(node)
    assert groups_of(node)[created] == NEW
    node.pool.run_once()
    assert set(groups_of(node).values()) == {NEW}
    assert node.ec2.calls["set_security_groups"] - before == 1, "the new ENI was created with them"


def test_a_change_while_no_daemon_ran_is_seen_at_start(node: FakeNode) -> None:
    """The Describe of the start tells which ENI differs; an ENI that does not costs no call."""
    change_the_primary_groups(node)
    node.crash()
    node.bring_up()
    before = node.ec2.calls["set_security_groups"]
    node.pool.run_once()
    assert set(groups_of(node).values()) == {NEW}
    assert node.ec2.calls["set_security_groups"] - before == 1
    node.crash()
    node.bring_up()
    node.pool.run_once()
    assert node.ec2.calls["set_security_groups"] - before == 1


def test_an_unmanaged_eni_keeps_its_groups(node: FakeNode) -> None:
    """What an operator attached for something else is not ours to change (#2470)."""
    foreign = EniId("eni-foreign")
    secondary = next(eni for eni in node.ec2.enis.values() if eni.eni_id != PRIMARY)
    node.ec2.enis[foreign] = replace(
        secondary,
        eni_id=foreign,
        device_index=2,
        secondary_addresses=frozenset(),
        primary_address=IDENTITY.primary_address + 500,
        tags={"node.k8s.amazonaws.com/no_manage": "true"},
        security_group_ids=("sg-own",),
    )
    node.enis.sync_with_ec2(IDENTITY)
    change_the_primary_groups(node)
    pass_time(node, TURN_MAX_S)
    assert groups_of(node)[foreign] == ("sg-own",)


def test_a_refused_change_is_said_and_tried_again(node: FakeNode) -> None:
    """A role without the permission: a condition names it, the pool goes on, and EC2 is asked again ever more rarely."""
    node.ec2.fail["set_security_groups"] = [CloudDeniedError("ModifyNetworkInterfaceAttribute is denied")] * 100
    change_the_primary_groups(node)
    pass_time(node, TURN_MAX_S)
    assert any("security groups" in sentence and "denied" in sentence for sentence in node.health.conditions())
    grow(node)
    for _ in range(24 * 60):
        pass_time(node, 60.0)
    assert 20 <= node.ec2.calls["set_security_groups"] <= 30, "after ten minutes at first, then once an hour, for a day"
    node.ec2.fail["set_security_groups"].clear()
    pass_time(node, DENIED.longest_s)
    assert set(groups_of(node).values()) == {NEW}
    assert not any("security groups" in sentence for sentence in node.health.conditions())


def test_a_refusal_is_forgotten_when_the_groups_change_back(node: FakeNode) -> None:
    """The operator takes the change back: nothing is left to retry, so an idle pool has no clock (I13)."""
    node.ec2.fail["set_security_groups"] = [CloudDeniedError("ModifyNetworkInterfaceAttribute is denied")]
    change_the_primary_groups(node)
    pass_time(node, TURN_MAX_S)
    assert node.pool.security_groups.next_retry_s() is not None
    change_the_primary_groups(node, OLD)
    pass_time(node, TURN_MAX_S)
    assert node.pool.security_groups.next_retry_s() is None
    assert not any("security groups" in sentence for sentence in node.health.conditions())


def test_silent_metadata_delays_no_growth(node: FakeNode) -> None:
    """An ENI is created with what metadata said last; one silence is not waited for again at the next ENI (I11)."""
    node.metadata.fail = [CloudError("metadata is silent")] * 9
    asked = node.metadata.call_count
    grow(node)
    assert set(groups_of(node).values()) == {OLD}
    assert node.metadata.call_count - asked == 1
    node.node_info.refresh_identity()
    assert node.metadata.call_count - asked == 1


def test_enis_keep_their_groups_when_nobody_follows(node: FakeNode, mutate: Mutate) -> None:
    """Without following, an existing ENI keeps the old groups for good: the story as it was."""
    mutate("groups-not-followed")
    with pytest.raises(AssertionError, match="kept its groups"):
        play(node)


def test_the_next_eni_is_stale_when_the_identity_is_read_once(node: FakeNode, mutate: Mutate) -> None:
    """With an identity that is read at start and never again, even a new ENI gets the old groups."""
    mutate("identity-read-once")
    change_the_primary_groups(node)
    created = grow(node)
    assert groups_of(node)[created] == OLD
