"""The conditions about what EC2 shows end with the objects that they name, and with an audit that agrees."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

from ipamd.model.address import AddressState
from ipamd.model.ids import EniId
from ipamd.pb import introspection_pb2 as pb
from tests.fakes.cloud import IDENTITY, PRIMARY
from tests.fakes.node import FakeNode
from tests.unit.service.cloud_comparison import OTHER, fill, foreign


def subjects(node: FakeNode) -> set[str]:
    """Subjects of the conditions that are reported now."""
    return set(node.health.conditions_by_subject())


def move(node: FakeNode, address: IPv4Address, *, source: EniId, target: EniId) -> None:
    """Another hand moves an address from one ENI to another one."""
    node.ec2.unassign(source, addresses=[address], prefixes=[])
    eni = node.ec2.enis[target]
    node.ec2.enis[target] = replace(eni, secondary_addresses=eni.secondary_addresses | {address})


def pass_minutes(node: FakeNode, count: int) -> None:
    """What the loops of cloud, pool and host do in so many minutes, twice a minute."""
    for _ in range(2 * count):
        node.clock.advance(30)
        node.cooldown.sweep()
        node.cooldown.free_cooled()
        node.cloud_reconciler.run_once()
        node.pool.run_once()
        node.host_reconciler.reconcile()


def test_a_lost_address_is_no_difference_once_its_pod_is_deleted(node: FakeNode) -> None:
    """An ENI was detached by hand; its pods are deleted as docs/troubleshooting.md says: no condition about EC2 is left."""
    made = fill(node, 1)[0]
    node.ec2.unassign(made.eni_id, addresses=[made.address], prefixes=[])
    node.look_twice()
    assert {"ec2 differences", "lost addresses"} <= subjects(node)
    node.delete("s0")
    node.cool()
    node.host_reconciler.reconcile()
    assert not {"ec2 differences", "lost addresses"} & subjects(node)


def test_only_the_objects_that_are_left_are_named(node: FakeNode) -> None:
    """One of two pods with lost addresses is deleted: the condition goes on, and names the other."""
    first, second, *_ = fill(node, 5)
    for made in (first, second):
        node.ec2.unassign(made.eni_id, addresses=[made.address], prefixes=[])
    node.look_twice()
    assert {str(first.address), str(second.address)} <= named(node)
    node.delete(first.key.container_id)
    node.cool()
    node.host_reconciler.reconcile()
    assert str(second.address) in named(node)
    assert str(first.address) not in named(node)


def named(node: FakeNode) -> set[str]:
    """Words of the condition."""
    return set(node.health.conditions_by_subject().get("ec2 differences", "").split())


def test_what_moved_to_another_eni_is_recorded_there_once_its_pod_is_deleted(node: FakeNode) -> None:
    """EC2 is looked at as soon as the row that was in the way is gone, and not an hour later."""
    made = fill(node, 1)[0]
    target = OTHER if made.eni_id == PRIMARY else PRIMARY
    pass_minutes(node, 10)
    move(node, made.address, source=made.eni_id, target=target)
    pass_minutes(node, 10)
    assert "ec2 differences" in subjects(node)
    node.runtime.listed.pop("s0")
    node.delete("s0")
    pass_minutes(node, 3)
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.eni_id == target
    assert "ec2 differences" not in subjects(node)


def test_an_eni_is_recorded_once_the_pod_with_its_primary_address_is_deleted(node: FakeNode) -> None:
    """A pod's address became another ENI's primary one: the row that is in the way goes, and EC2 is looked at then."""
    made = fill(node, 1)[0]
    pass_minutes(node, 10)
    node.ec2.unassign(made.eni_id, addresses=[made.address], prefixes=[])
    taker = foreign("eni-9", 2, primary_address=made.address)
    node.ec2.enis[taker.eni_id] = taker
    pass_minutes(node, 15)
    assert "ec2 differences" in subjects(node)
    node.runtime.listed.pop("s0")
    node.delete("s0")
    pass_minutes(node, 3)
    assert node.datastore.eni(taker.eni_id) is not None
    assert "ec2 differences" not in subjects(node)


def test_an_audit_that_agrees_ends_the_difference(node: FakeNode) -> None:
    """An operator put it right at EC2, and the next look would be an hour away."""
    fill(node, 1)
    eni = node.ec2.enis[OTHER]
    node.ec2.enis[OTHER] = replace(eni, problem="its entry lacks a field", primary_address=None)
    node.enis.sync_with_ec2(IDENTITY)
    assert "ec2 differences" in subjects(node)
    node.app.introspection.Audit(pb.AuditRequest())
    assert "ec2 differences" in subjects(node), "it lasts"
    node.ec2.enis[OTHER] = eni
    node.app.introspection.Audit(pb.AuditRequest(skip_ec2=True))
    assert "ec2 differences" in subjects(node), "EC2 was not asked"
    node.app.introspection.Audit(pb.AuditRequest())
    assert "ec2 differences" not in subjects(node)


def test_an_audit_of_a_plausible_answer_ends_the_doubt(node: FakeNode) -> None:
    """EC2's answers are plausible again: an audit shows it, and the next look is not an hour away."""
    fill(node, 2)
    whole = dict(node.ec2.enis)
    for eni_id, eni in whole.items():
        node.ec2.enis[eni_id] = replace(eni, secondary_addresses=frozenset())
    node.enis.sync_with_ec2(IDENTITY)
    assert "ec2 answer" in subjects(node)
    node.ec2.enis.update(whole)
    node.app.introspection.Audit(pb.AuditRequest())
    node.pool.run_once()
    assert "ec2 answer" not in subjects(node)


def test_another_look_is_no_condition_once_another_comparison_left_no_doubt(node: FakeNode) -> None:
    """A call of ours compared meanwhile, and nothing is in doubt: no look is due that could end the condition."""
    fill(node, 1)
    pass_minutes(node, 10)
    free = max(row.address for row in node.datastore.addresses(state=AddressState.FREE))
    eni_id = next(row.eni_id for row in node.datastore.addresses() if row.address == free)
    eni = node.ec2.enis[eni_id]
    node.ec2.enis[eni_id] = replace(eni, secondary_addresses=eni.secondary_addresses - {free})
    for _ in range(6):
        node.clock.advance(30)
        node.cloud_reconciler.run_once()
        node.pool.run_once()
        if "resync" in subjects(node):
            break
    assert "resync" in subjects(node)
    node.ec2.enis[eni_id] = eni
    node.enis.sync_with_ec2(IDENTITY)
    assert "resync" not in subjects(node)
