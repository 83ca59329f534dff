"""An ENI that an AWS service manages (EC2's Operator.Managed) takes its place on the instance, and is otherwise left alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.model.eni_tags import INSTANCE_TAG, TRUNK
from ipamd.model.ids import EniId
from ipamd.model.intent import Delete, DeleteReason
from ipamd.model.leaked_eni import why_kept
from tests.fakes.cloud import IDENTITY, INSTANCE, PRIMARY
from tests.fakes.node import FakeNode
from tests.stories.external_changes import TURN_MAX_S, pass_time
from tests.stories.stale_reads import run_sandboxes

SERVICE = "eks.amazonaws.com"
CHANGES = ("delete_eni", "detach_eni", "unassign", "set_security_groups", "set_delete_on_termination", "assign_addresses")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with two ENIs and sandboxes on both."""
    made = FakeNode(tmp_path)
    made.bring_up()
    run_sandboxes(made, "a", "b")
    yield made
    made.datastore.close()


def secondary(node: FakeNode) -> EniId:
    """The ENI beside the primary one."""
    return next(eni_id for eni_id in node.ec2.enis if eni_id != PRIMARY)


def test_it_gives_no_address_and_its_place_is_taken(node: FakeNode) -> None:
    """One that somebody attached with our own tag: its addresses are nobody's, its slot counts, and people can see why."""
    foreign = EniId("eni-service")
    model = node.ec2.enis[secondary(node)]
    addresses = frozenset({IPv4Address("10.0.7.1"), IPv4Address("10.0.7.2")})
    node.ec2.enis[foreign] = replace(
        model,
        eni_id=foreign,
        device_index=2,
        attachment_id="attach-service",
        primary_address=IPv4Address("10.0.7.0"),
        secondary_addresses=addresses,
        tags={INSTANCE_TAG: INSTANCE},
        operator=SERVICE,
    )
    node.enis.sync_with_ec2(IDENTITY)
    row = node.datastore.eni(foreign)
    assert row is not None
    assert (row.managed, row.created_by_us) == (False, False)
    assert SERVICE in row.excluded
    assert not any(node.datastore.address(address) for address in addresses)
    assert node.pool.snapshot().unmanaged_eni_count == 1
    before = node.ec2.calls.copy()
    pass_time(node, TURN_MAX_S)
    assert not [api for api in CHANGES if (node.ec2.calls - before)[api]]


def test_one_that_a_service_took_over_is_neither_emptied_nor_deleted(node: FakeNode) -> None:
    """Its sandboxes keep their addresses (I2), its free ones are given to nobody, and an open deletion ends."""
    eni_id = secondary(node)
    node.ec2.manage(eni_id, SERVICE)
    node.enis.sync_with_ec2(IDENTITY)
    row = node.datastore.eni(eni_id)
    assert row is not None
    assert not row.gives_addresses
    assert not row.created_by_us
    node.provisioner.steps.run(node.provisioner.steps._log.open(Delete(eni_id, DeleteReason.RELEASED)), identity=IDENTITY)
    assert eni_id in node.ec2.enis
    assert node.ec2.enis[eni_id].attachment_status == "attached"
    assert not node.datastore.open_intents()
    assert node.ec2.calls["detach_eni"] == node.ec2.calls["delete_eni"] == 0
    node.ec2.manage(eni_id, "")
    node.enis.sync_with_ec2(IDENTITY)
    row = node.datastore.eni(eni_id)
    assert row is not None
    assert (row.managed, row.created_by_us, row.excluded) == (True, True, "")


@pytest.mark.parametrize("operator", ["", SERVICE])
def test_a_trunk_is_the_trunk_whoever_manages_it(node: FakeNode, operator: str) -> None:
    """Whether EC2 counts trunk ENIs as managed is not known."""
    trunk = EniId("eni-trunk")
    model = node.ec2.enis[secondary(node)]
    node.ec2.enis[trunk] = replace(
        model,
        eni_id=trunk,
        device_index=2,
        primary_address=IPv4Address("10.0.7.0"),
        secondary_addresses=frozenset(),
        interface_type=TRUNK,
        operator=operator,
    )
    node.enis.sync_with_ec2(IDENTITY)
    found = node.enis.book.trunk()
    assert found is not None
    assert found[0] == trunk


def test_a_detached_one_is_never_leaked(node: FakeNode) -> None:
    """Neither for the node's own search nor for the sweeper."""
    made = replace(node.ec2.enis[secondary(node)], status="available", attachment_id="", instance_id="", operator=SERVICE)
    now = datetime.now(UTC) + timedelta(days=30)
    assert SERVICE in why_kept(made, now=now, min_age=timedelta(0))
    assert why_kept(replace(made, operator=""), now=now, min_age=timedelta(0)) == ""
