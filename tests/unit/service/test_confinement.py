"""What confines sandboxes is put in place without EC2 or identity, put back when it is gone, and named when it cannot be."""

from __future__ import annotations

from ipamd.model.finding_codes import FindingCode
from ipamd.model.kernel import DROP_REASONS
from ipamd.model.repairs import CONFINEMENT, NODE, RepairCode, RepairReport
from ipamd.report.audit import audit
from tests.fakes.node import FakeNode

REFUSED = RepairReport(RepairCode.REFUSED, CONFINEMENT, cause="no nft_fib")


def test_it_is_put_in_place_without_an_identity(node: FakeNode) -> None:
    """Metadata has not answered yet: the drop needs no answer, and is put back all the same."""
    node.hostnet.is_confined = False
    reconciler = node.app.host_network
    reconciler._identity = lambda: None  # metadata is away
    assert [(one.code, one.object) for one in reconciler.reconcile()] == [(RepairCode.ADDED, CONFINEMENT)]
    assert node.hostnet.is_confined
    assert reconciler.reconcile() == []


def test_a_refusal_is_a_condition_until_it_ends(node: FakeNode) -> None:
    """The node serves, and says that sandboxes are not confined; the condition goes with the refusal."""
    reconciler, health = node.app.host_network, node.app.context.health
    node.hostnet.is_confined, node.hostnet.confine_refusals = False, [REFUSED]
    reconciler.reconcile()
    assert "confinement" in health.conditions_by_subject()
    node.hostnet.confine_refusals = []
    reconciler.reconcile()
    assert "confinement" not in health.conditions_by_subject()


def test_the_audit_names_what_is_missing(node: FakeNode) -> None:
    """A difference that the reconciler repairs; after that the audit is clean."""
    node.hostnet.is_confined = False
    sources = node.app.introspection.sources
    found = [each for each in audit(sources, ask_ec2=False).findings if each.subject == NODE]
    assert [each.code for each in found] == [FindingCode.ROUTING_REPAIRED]
    node.app.host_network.reconcile()
    assert not [each for each in audit(sources, ask_ec2=False).findings if each.subject == NODE]


def test_dropped_packets_are_in_the_metrics(node: FakeNode) -> None:
    """Each reason has a series from the start; the gauge tells whether the drop is verified."""
    registry = node.app.metrics.registry
    node.hostnet.dropped = {"source": 7}
    found = {reason: registry.get_sample_value("ipamd_dropped_packets_total", {"reason": reason}) for reason in DROP_REASONS}
    assert found == {reason: 7 if reason == "source" else 0 for reason in DROP_REASONS}
    assert registry.get_sample_value("ipamd_source_check_enforced") == 1
    node.hostnet.is_confined = False
    assert registry.get_sample_value("ipamd_source_check_enforced") == 0


def test_a_change_of_nftables_looks_at_no_veth_while_the_drop_is_in_place(node: FakeNode) -> None:
    """kube-proxy changes its tables all the time: nothing is confined anew, also where extra sources are allowed."""
    reconciler = node.app.host_network
    node.hostnet.has_extra_sources = True
    assert reconciler._reconcile_table() == []
    assert node.hostnet.confine_count == 0
    node.hostnet.is_confined = False
    reconciler._reconcile_table()
    assert node.hostnet.is_confined
