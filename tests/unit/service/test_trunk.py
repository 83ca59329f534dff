"""The trunk ENI: it is known while it is attached, a place is left for it until then, and nothing of ours touches it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.model.blocked import Blocked
from ipamd.model.cloud import DescribedEni
from ipamd.model.conditions import ConditionCode
from ipamd.model.eni import InstanceLimits
from ipamd.model.eni_tags import INSTANCE_TAG, is_created_by_us
from ipamd.model.errors import CloudError, UplinkPendingError
from ipamd.model.ids import EniId, InstanceId, MacAddress
from ipamd.model.leaked_eni import why_kept
from ipamd.model.pool_settings import PoolSettings
from tests.conditions import codes
from tests.fakes.cloud import IDENTITY, INSTANCE, SUBNET, FakeEc2
from tests.fakes.node import FakeNode

M5_LARGE = InstanceLimits("m5.large", 3, 10, trunk_capacity=9)
TRUNK = DescribedEni(
    EniId("eni-0000000000000000f"),
    MacAddress("02:00:00:00:00:ff"),
    SUBNET,
    IPv4Address("10.0.0.200"),
    status="in-use",
    interface_type="trunk",
    description="trunk-eni",
    tags={INSTANCE_TAG: INSTANCE},
    attachment_id="attach-trunk",
    attachment_status="attached",
    instance_id=INSTANCE,
    device_index=2,
    delete_on_termination=False,
)
"""As amazon-vpc-resource-controller-k8s makes it: with the tag of our own ENIs, at the highest index, and for a moment without
DeleteOnTermination (pkg/aws/ec2/api/helper.go, CreateAndAttachNetworkInterface)."""


def made(path: Path, *, limits: InstanceLimits = M5_LARGE, trunk: bool = False, **targets: int | bool) -> FakeNode:
    """A node with security groups for pods that serves; its trunk is attached if `trunk`."""
    ec2 = FakeEc2(limits=limits)
    ec2.enis |= {TRUNK.eni_id: TRUNK} if trunk else {}
    settings = PoolSettings(leaves_trunk_place=True, **targets)  # type: ignore[arg-type]  # numbers and flags
    node = FakeNode(path, settings=settings, ec2=ec2)
    node.bring_up()
    return node


def test_one_place_is_left_free_until_the_trunk_is_there(tmp_path: Path) -> None:
    """20 addresses would need all three ENIs: two are made, the node says that it is full and why, and a trunk fits."""
    node = made(tmp_path, minimum_ip_target=20)
    assert len(node.ec2.attached()) == 2
    refusal = node.pool.cycle()
    assert refusal is not None
    assert refusal.blocked is not None
    assert refusal.blocked.kind is Blocked.NODE_FULL
    assert "one place left for the trunk ENI" in refusal.blocked.reason
    assert codes(node.health, "trunk") == {ConditionCode.TRUNK_MISSING}
    node.ec2.enis[TRUNK.eni_id] = TRUNK
    node.enis.sync_with_ec2(IDENTITY)
    node.pool.cycle()
    assert "trunk" not in node.health.conditions_by_subject()
    assert len(node.ec2.attached()) == 3
    node.datastore.close()


@pytest.mark.parametrize(("branch_count", "eni_count"), [(9, 2), (None, 2), (0, 3)])
def test_only_a_type_that_can_have_a_trunk_leaves_a_place(tmp_path: Path, branch_count: int | None, eni_count: int) -> None:
    """One that the table does not know may have one; a type without trunk keeps its addresses, and says nothing."""
    node = made(tmp_path, limits=replace(M5_LARGE, trunk_capacity=branch_count), minimum_ip_target=27)
    assert len(node.ec2.attached()) == eni_count
    assert ("trunk" in node.health.conditions_by_subject()) is (eni_count == 2)
    node.datastore.close()


def test_a_full_node_says_that_no_place_is_free(tmp_path: Path) -> None:
    """Turned on on a node whose ENIs are all there, nothing is taken from anybody: the condition says what to do."""
    ec2 = FakeEc2(limits=M5_LARGE)
    node = FakeNode(tmp_path, settings=PoolSettings(minimum_ip_target=27), ec2=ec2)
    node.bring_up()
    assert len(ec2.attached()) == 3
    node.pool.set_limits(M5_LARGE, settings=PoolSettings(minimum_ip_target=27, leaves_trunk_place=True))
    node.pool.cycle()
    assert len(ec2.attached()) == 3
    assert codes(node.health, "trunk") == {ConditionCode.TRUNK_WITHOUT_PLACE}
    node.datastore.close()


def test_the_trunk_is_known_while_it_is_attached(tmp_path: Path) -> None:
    """Its MAC by memory, or a refusal that says how to ask for one; one answer that lacks it proves nothing, two do (I11)."""
    node = made(tmp_path)
    assert not node.enis.trunk_mac(), "EC2 is asked"
    node.pool.run_once()
    with pytest.raises(UplinkPendingError) as refused:
        node.enis.trunk_mac()
    assert "vpc.amazonaws.com/has-trunk-attached" in str(refused.value)
    node.ec2.enis[TRUNK.eni_id] = TRUNK
    node.enis.sync_with_ec2(IDENTITY)
    assert node.enis.trunk_mac() == TRUNK.mac
    del node.ec2.enis[TRUNK.eni_id]
    node.enis.sync_with_ec2(IDENTITY)
    assert node.enis.trunk_mac() == TRUNK.mac
    node.look_twice()
    assert not node.enis.trunk_mac(), "EC2 is asked again"
    node.pool.run_once()
    with pytest.raises(UplinkPendingError):
        node.enis.trunk_mac()
    node.datastore.close()


def test_a_pod_that_needs_the_trunk_has_ec2_looked_at(tmp_path: Path) -> None:
    """A node gets its trunk after it joined: an ADD finds it before metadata tells of it. With pauses that double (I13)."""
    node = made(tmp_path)
    node.pool.cycle()
    before = node.ec2.calls["describe_enis"]
    assert [node.enis.trunk_mac() for _ in range(3)] == ["", "", ""]
    node.pool.run_once()
    with pytest.raises(UplinkPendingError):
        node.enis.trunk_mac()
    assert node.ec2.calls["describe_enis"] == before + 1
    node.ec2.enis[TRUNK.eni_id] = TRUNK
    node.clock.advance(1.0)
    assert not node.enis.trunk_mac()
    node.pool.run_once()
    assert node.enis.trunk_mac() == TRUNK.mac
    before = node.ec2.calls["describe_enis"]
    for _ in range(600):
        node.enis.book.observe(TRUNK.eni_id, trunk_mac=None)
        node.ec2.enis.pop(TRUNK.eni_id, None)
        with suppress(UplinkPendingError):
            assert not node.enis.trunk_mac()
        node.enis.resync_due()
        node.clock.advance(1.0)
    assert 5 < node.ec2.calls["describe_enis"] - before < 15
    node.datastore.close()


def test_while_ec2_is_asked_nobody_says_that_there_is_none(tmp_path: Path) -> None:
    """A look takes seconds: an ADD that polls meanwhile waits, and asks for no second look. After a refusal nothing is asked for a
    while, and then it is as far as EC2 has told."""
    node = made(tmp_path)
    node.pool.cycle()
    answer, said = node.ec2.describe_enis, []

    def slow(instance_id: InstanceId) -> tuple[DescribedEni, ...]:
        for _ in range(3):
            said.append(node.enis.trunk_mac())
            node.clock.advance(1.1)
        return answer(instance_id)

    node.ec2.describe_enis = slow  # type: ignore[method-assign]
    node.ec2.enis[TRUNK.eni_id] = TRUNK
    before = node.ec2.calls["describe_enis"]
    assert not node.enis.trunk_mac()
    node.pool.run_once()
    node.pool.run_once()
    assert (said, node.enis.trunk_mac()) == (["", "", ""], TRUNK.mac)
    assert node.ec2.calls["describe_enis"] == before + 1
    node.enis.book.observe(TRUNK.eni_id, trunk_mac=None)
    node.ec2.fail["describe_enis"] = [CloudError("no answer")]
    node.clock.advance(60.0)
    assert not node.enis.trunk_mac()
    node.pool.run_once()
    with pytest.raises(UplinkPendingError):
        node.enis.trunk_mac()
    node.datastore.close()


def test_a_trunk_that_is_being_attached_is_none_yet(tmp_path: Path) -> None:
    """Its link is not there: a sandbox that is led to it would have no network."""
    node = made(tmp_path)
    node.ec2.enis[TRUNK.eni_id] = replace(TRUNK, attachment_status="attaching")
    node.enis.sync_with_ec2(IDENTITY)
    assert node.enis.book.trunk() is None
    node.datastore.close()


def test_nothing_of_ours_touches_the_trunk(tmp_path: Path) -> None:
    """Though it carries our ENIs' tag: none of its attributes is set, nothing is asked on it or given from it, it is never deleted."""
    node = made(tmp_path, trunk=True, minimum_ip_target=12)
    before = dict(node.ec2.enis)[TRUNK.eni_id]
    for name in "abcdefghijkl":
        node.add(name)
    node.clock.advance(86400.0)
    for name in "abcdefghijkl":
        node.delete(name)
    node.clock.advance(86400.0)
    for _ in range(20):
        node.enis.sync_with_ec2(IDENTITY)
        node.cool()
        node.pool.run_once()
        node.clock.advance(3600.0)
    assert node.ec2.enis[TRUNK.eni_id] == before
    row = node.datastore.eni(TRUNK.eni_id)
    assert row is not None
    assert (row.managed, row.created_by_us, row.host_ready) == (False, False, False)
    assert not any(one.eni_id == TRUNK.eni_id for one in node.datastore.addresses())
    assert TRUNK.eni_id not in {EniId(str(one.payload.get("eni_id"))) for one in node.datastore.open_intents()}
    node.datastore.close()


def test_a_detached_trunk_or_branch_is_no_leaked_eni() -> None:
    """The control plane made it with our tag, and deletes it itself."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for kind in ("trunk", "branch"):
        left = replace(
            TRUNK,
            interface_type=kind,
            description=f"{kind}-eni",
            status="available",
            attachment_id="",
            attachment_status="",
            instance_id=INSTANCE[:0],
        )
        assert not is_created_by_us(left, IDENTITY)
        assert why_kept(left, now=now, min_age=timedelta(minutes=5))
