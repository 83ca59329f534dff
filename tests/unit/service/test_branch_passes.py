"""Which notifications about branch ENIs ask for a pass over the host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.host.notifications import scope_of
from ipamd.host.triggers import PassScope
from ipamd.model.cniresult import recorded_spec
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.family import read_address
from ipamd.model.kernel import ChangeKind, HostChange
from ipamd.model.kernel_numbers import STRICT_TABLE
from ipamd.model.wiring_comparison import wiring_differences
from tests.fakes.node import FakeNode
from tests.unit.service.branches import TRUNK_ENI, attach, node_with_trunk


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    """A node that serves, with its trunk."""
    return node_with_trunk(tmp_path)


def test_a_vlan_link_is_compared_with_its_record(node: FakeNode) -> None:
    """Gone, down, with another MAC or alias: at once. In order, dying, or nobody's, as an ADD's is before its row: not at all."""
    attach(node, 5)
    (link,) = node.wiring.survey().vlans

    def scope(vlan: object, *, is_gone: bool = False) -> PassScope | None:
        return scope_of(HostChange(ChangeKind.VLAN_LINK, vlan=vlan, is_gone=is_gone), node.datastore)  # type: ignore[arg-type]

    assert scope(link) is None
    assert scope(link, is_gone=True) is PassScope.EVERYTHING
    for damage in ({"is_up": False}, {"mac": "02:00:00:00:00:77"}, {"alias": "", "address": None}):
        assert scope(replace(link, **damage)) is PassScope.EVERYTHING, damage  # type: ignore[arg-type]
    assert scope(replace(link, is_up=False, is_dying=True)) is None
    assert scope(replace(link, name="vlan.eth.6", vlan=6), is_gone=True) is None


def test_the_tables_of_branches_are_watched(node: FakeNode) -> None:
    """Those of sandboxes that live, and that of reverse lookups; what looks like a branch's table and is nobody's is not."""
    spec = recorded_spec(attach(node, 5))
    elsewhere = read_address("198.51.100.0")
    for table, is_watched in ((spec.route_table, True), (STRICT_TABLE, True), (106, False)):
        change = HostChange(ChangeKind.ROUTE, address=elsewhere, length=24, table=table, is_gone=True)
        assert (scope_of(change, node.datastore) is not None) is is_watched, table


def test_a_sandbox_in_order_has_no_difference(node: FakeNode) -> None:
    """In both modes; without the VLAN link it has one, which is repaired."""
    for vlan, is_strict in ((5, True), (6, False)):
        spec = recorded_spec(attach(node, vlan, is_strict=is_strict))
        seen = node.wiring.survey()
        assert wiring_differences(spec, seen) == []
        (difference,) = wiring_differences(spec, replace(seen, vlans=()))
        assert (difference.code, difference.fields) == (DifferenceCode.UPLINK_MISSING, {"link": f"vlan.eth.{vlan}"})
        assert difference.is_absence


def test_a_repair_that_needs_the_trunk_has_ec2_asked(node: FakeNode) -> None:
    """It was gone and is back: once in a growing pause, and only for a sandbox that is damaged; then the VLAN link is made again."""
    attach(node, 5, is_strict=False)
    node.enis.book.observe(TRUNK_ENI.eni_id, trunk_mac=None)
    node.enis._resyncs.changed.clear()

    def is_asked() -> bool:
        node.host_reconciler.reconcile()
        asked = node.enis._resyncs.changed.is_set()
        node.enis._resyncs.changed.clear()
        return asked

    assert not is_asked()
    node.wiring.vlans.clear()
    assert [is_asked(), is_asked()] == [True, False]
    assert node.wiring.vlans == {}
    node.enis.book.observe(TRUNK_ENI.eni_id, trunk_mac=TRUNK_ENI.mac)
    assert not is_asked()
    assert set(node.wiring.vlans) == {5}
