"""EC2 gives an address that was taken from one of our ENIs by hand to another of our ENIs: it is not given on the first one (I7)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.eni import InstanceLimits
from ipamd.model.ids import EniId
from ipamd.model.pool_settings import PoolSettings
from tests.fakes.cloud import IDENTITY, PRIMARY, FakeEc2
from tests.fakes.node import FakeNode
from tests.stories.external_changes import pass_time, settle
from tests.stories.stale_reads import run_sandboxes


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node in prefix mode whose sandboxes are all in the first prefix, which is on the primary ENI."""
    made = FakeNode(
        tmp_path,
        ec2=FakeEc2(limits=InstanceLimits("m5.large", 3, 3)),
        settings=PoolSettings(warm_prefix_target=1, prefix_delegation=True),
    )
    made.bring_up()
    run_sandboxes(made, "a", "b")
    settle(made)
    yield made
    made.datastore.close()


def move_by_hand(node: FakeNode, prefix: IPv4Network) -> EniId:
    """Somebody takes a prefix from the primary ENI; EC2's answer to our next allocation names it, on another ENI."""
    node.ec2.unassign(PRIMARY, addresses=[], prefixes=[prefix])
    other = next(eni for eni in node.ec2.attached() if eni.eni_id != PRIMARY)
    node.ec2.enis[other.eni_id] = replace(other, prefixes=other.prefixes | {prefix})
    node.pool._provisioner.enis.add_addresses(other.eni_id, frozenset(), frozenset({prefix}), asked_count=16)
    return other.eni_id


def test_it_is_given_to_nobody_on_the_eni_that_lost_it(node: FakeNode) -> None:
    """Chaos seed 803: every running sandbox was in that prefix, so EC2's answer without it was not believed; then our own call's
    answer made the prefix a recent change, which ended the doubt, and ADDs got its addresses on the ENI that had lost them."""
    run_sandboxes(node, *(f"s{number}" for number in range(20)))
    attachment = node.datastore.attachments()[0]
    row = node.datastore.address(attachment.address)
    assert row is not None
    assert row.eni_id == PRIMARY
    assert row.prefix is not None
    move_by_hand(node, row.prefix)
    of_prefix = [node.datastore.address(address) for address in row.prefix]
    assert [one.address for one in of_prefix if one is not None and one.eni_id == PRIMARY and not one.is_lost] == []
    kept = node.datastore.address(attachment.address)
    assert kept is not None
    assert kept.is_lost
    assert kept.owner == attachment.key  # I2
    for _ in range(8):
        pass_time(node, 60.0)
    given = {one.address for one in node.datastore.attachments()}
    run_sandboxes(node, "later-1", "later-2")
    new = {one.address for one in node.datastore.attachments()} - given
    assert new
    assert not any(is_given_where_it_left(node, address) for address in new)


def is_given_where_it_left(node: FakeNode, address: IPv4Address) -> bool:
    """Whether a sandbox has an address on an ENI that does not have it at EC2."""
    row = node.datastore.address(address)
    assert row is not None
    eni = node.ec2.enis[row.eni_id]
    return not any(address in prefix for prefix in eni.prefixes) and address not in eni.secondary_addresses


def test_a_describe_that_lags_gives_it_back_to_nobody(node: FakeNode) -> None:
    """EC2's answer to our call put it on one ENI, and a Describe shows it on the other one still: it is neither healed nor recorded
    there, not even by the recovery of a lost answer, because a sandbox would get it there (I7)."""
    stale, known = node.ec2.attached(), node.datastore.eni(PRIMARY)
    assert known is not None
    (prefix,) = {row.prefix for row in node.datastore.addresses() if row.is_in_use}
    assert prefix is not None
    node.enis.lose_elsewhere(EniId("eni-new"), set(), {prefix})

    def usable() -> int:
        rows = map(node.datastore.address, prefix)
        return sum(row is not None and not row.is_lost for row in rows)

    for _ in range(2):  # the second time its free addresses are forgotten
        node.ec2.answers = [stale]
        node.enis.sync_with_ec2(IDENTITY)
        node.enis.record(known, node.ec2.enis[PRIMARY])
        assert usable() == 0
        node.enis.lose_elsewhere(EniId("eni-newer"), set(), {prefix})
    node.clock.advance(RECENT_S)
    node.enis.sync_with_ec2(IDENTITY)
    assert usable() == len(list(prefix)), "then it is EC2's word"


def test_old_addresses_in_an_answer_are_no_recent_change(node: FakeNode) -> None:
    """Chaos seed 803 again: EC2's answer to Assign named all prefixes of the ENI. One of the old ones, taken away by hand a moment
    later, passed for lag of EC2 for five minutes, and ADDs got its addresses (I7)."""
    old = next(iter(node.ec2.enis[PRIMARY].prefixes))
    new = IPv4Network("10.0.200.16/28")
    node.provisioner.enis.add_addresses(PRIMARY, frozenset(), frozenset({old, new}), asked_count=16)
    added = node.enis.book.added()
    assert set(new) <= added.keys()
    assert not set(old) & added.keys()
    node.ec2.unassign(PRIMARY, addresses=[], prefixes=[old])
    for _ in range(3):
        pass_time(node, 75.0)
    rows = [node.datastore.address(address) for address in old]
    free = {row.address for row in rows if row is not None and row.is_free}
    assert free <= node.datastore.withheld(), "two looks, and nobody gets one of them"


def test_a_reread_eni_is_no_recent_change(node: FakeNode) -> None:
    """The recovery of a lost answer reads the whole ENI: what was recorded before stays as old as it is."""
    described = node.ec2.describe_eni(PRIMARY)
    known = node.datastore.eni(PRIMARY)
    assert known is not None
    node.enis.record(known, described)
    assert node.enis.book.added() == {}


def test_what_a_sandbox_keeps_elsewhere_takes_a_slot(tmp_path: Path) -> None:
    """Other hands took an address from a sandbox's ENI, and EC2 gave it to the other one, which is full then: nothing is asked for
    that has no room (I13). Once the sandbox is gone the address is the pool's."""
    node = FakeNode(tmp_path, ec2=FakeEc2(limits=InstanceLimits("m5.large", 2, 4)), settings=PoolSettings(warm_ip_target=1))
    node.bring_up()
    given = run_sandboxes(node, *(f"s{number}" for number in range(4)))
    settle(node)
    (other,) = (eni for eni in node.ec2.attached() if eni.eni_id != PRIMARY)
    moved, primary = given["s0"], node.ec2.enis[PRIMARY]
    assert (len(primary.secondary_addresses), len(other.secondary_addresses)) == (3, 2)
    node.ec2.enis[PRIMARY] = replace(primary, secondary_addresses=primary.secondary_addresses - {moved})
    node.ec2.enis[other.eni_id] = replace(other, secondary_addresses=other.secondary_addresses | {moved})
    for _ in range(20):
        pass_time(node, 60.0)
    run_sandboxes(node, "s4", "s5")
    before = node.ec2.calls["assign_addresses"]
    for _ in range(20):
        pass_time(node, 600.0)
    assert node.ec2.calls["assign_addresses"] == before
    assert node.datastore.counts().free == 0
    node.delete("s0")
    for _ in range(4):
        node.cool()
        pass_time(node, 60.0)
    row = node.datastore.address(moved)
    assert row is not None
    assert (row.eni_id, row.is_free) == (other.eni_id, True)
    node.datastore.close()
