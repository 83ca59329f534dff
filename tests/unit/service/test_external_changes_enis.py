"""ENIs that other hands attach: asked about once, recorded by the rule for foreign ENIs, or left alone where they have no IPv4."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from ipamd.eni.resync import ResyncReason
from ipamd.model.cloud import DescribedEni
from ipamd.model.errors import CloudDeniedError
from ipamd.model.ids import EniId, MacAddress
from tests.fakes.metadata import metadata_eni
from tests.fakes.node import FakeNode
from tests.stories.external_changes import TURN_MAX_S, described, pass_time
from tests.unit.service.external_changes import SECOND, settled_node
from tests.unit.service.test_leaked_enis import leak


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with two ENIs and two sandboxes, long after its start."""
    with settled_node(tmp_path) as made:
        yield made


def attach_by_hand(node: FakeNode, name: str, **differing: Any) -> DescribedEni:
    """Another hand attaches an ENI at the place 2, without secondary addresses, which differs in what is named."""
    made = replace(
        node.ec2.enis[SECOND],
        eni_id=EniId(name),
        mac=MacAddress("02:00:00:00:00:99"),
        device_index=2,
        **{"primary_address": IPv4Address("10.0.6.10"), "secondary_addresses": frozenset(), **differing},
    )
    node.ec2.enis[made.eni_id] = made
    return made


def test_an_eni_attached_by_hand_is_recorded(node: FakeNode) -> None:
    """It is in metadata and nowhere else: EC2 is asked once, and the rule for foreign ENIs applies."""
    made = attach_by_hand(node, "eni-hand", tags={"node.k8s.amazonaws.com/no_manage": "true"})
    before = described(node)
    for _ in range(3):
        pass_time(node, TURN_MAX_S)
    eni = node.datastore.eni(made.eni_id)
    assert eni is not None
    assert not eni.managed
    assert described(node) - before == 1
    assert node.health.conditions() == []


def test_a_managed_eni_attached_by_hand_gives_addresses(node: FakeNode) -> None:
    """By the existing rule for ENIs without our tags: EC2 confirms it, its routing is set up, and its addresses are free (I7)."""
    added = frozenset({IPv4Address("10.0.6.11"), IPv4Address("10.0.6.12")})
    made = attach_by_hand(node, "eni-hand", secondary_addresses=added)
    before = described(node)
    pass_time(node, TURN_MAX_S)
    assert described(node) - before == 1
    eni = node.datastore.eni(made.eni_id)
    assert eni is not None
    assert eni.host_ready
    assert made.eni_id in node.hostnet.enis
    assert {row.address for row in node.datastore.addresses() if row.eni_id == made.eni_id} >= added


def test_an_eni_without_ipv4_is_asked_about_at_most_once(node: FakeNode) -> None:
    """EFA-only and IPv6-only ENIs are shown by EC2 and metadata and recorded nowhere: no difference, once EC2 has shown it."""
    attach_by_hand(node, "eni-efa", primary_address=None, interface_type="efa-only")
    before = described(node)
    for _ in range(90):
        pass_time(node, TURN_MAX_S)
    assert described(node) - before == 1
    assert node.health.conditions() == []


@pytest.mark.parametrize(("is_behind", "turns"), [(False, 1), (True, 60)])
def test_an_eni_whose_primary_address_ec2_shows_late_is_recorded(node: FakeNode, is_behind: bool, turns: int) -> None:
    """A comparison, as of a start, shows it bare; metadata shows its address, so EC2 is asked, and again while it lags, less and
    less often."""
    node.metadata.freeze()
    made = attach_by_hand(node, "eni-hand", primary_address=None, tags={"node.k8s.amazonaws.com/no_manage": "true"})
    node.app.pool.resyncs.request(ResyncReason.OTHER, "the start's")
    pass_time(node, TURN_MAX_S)
    assert node.datastore.eni(made.eni_id) is None
    late = replace(made, primary_address=IPv4Address("10.0.6.10"))
    node.metadata.frozen = node.metadata.shown() | {made.mac: metadata_eni(late)}
    before = described(node)
    if is_behind:
        for _ in range(5):
            pass_time(node, TURN_MAX_S)
        assert described(node) - before == 2, "at once, and a minute later: the answer may have lagged"
        assert "eni-hand" in "; ".join(node.health.conditions())
    node.ec2.enis[made.eni_id], node.metadata.frozen = late, None
    for _ in range(turns):
        pass_time(node, TURN_MAX_S)
    assert node.datastore.eni(made.eni_id) is not None
    assert node.health.conditions() == []


def test_a_leaked_eni_that_may_not_be_deleted_hides_nothing_that_others_attach(tmp_path: Path) -> None:
    """Its deletion is open for as long as IAM denies it; what instance metadata shows besides is news."""
    node = FakeNode(tmp_path)
    node.bring_up()
    node.add("a")
    node.pool.cycle()
    leak(node)
    node.ec2.fail["delete_eni"] = [CloudDeniedError("no") for _ in range(1000)]
    for _ in range(40):
        pass_time(node, TURN_MAX_S)
    assert any(not one.is_settled for one in node.datastore.open_intents())
    theirs = attach_by_hand(node, "eni-theirs", tags={"node.k8s.amazonaws.com/no_manage": "true"})
    for _ in range(200):
        pass_time(node, TURN_MAX_S)
    assert node.datastore.eni(theirs.eni_id) is not None
