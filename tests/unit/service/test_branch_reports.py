"""What is told of branch ENIs: status, explain, audit, attachments, metrics, the log line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.core.deadline import Deadline
from ipamd.eni.legs.branches import SETTLED_S
from ipamd.ipamctl.verbs.attachments import ATTACHMENTS
from ipamd.ipamctl.verbs.capacity import CAPACITY
from ipamd.ipamctl.verbs.status import STATUS
from ipamd.model.errors import CloudError, InvalidRequestError
from ipamd.model.finding_codes import FindingCode
from ipamd.model.history_answer import HistoryQuestion
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.kernel import VlanLink
from ipamd.model.legs.branch_evidence import VLAN_TAG
from ipamd.model.legs.finding_codes import LegFindingCode
from ipamd.model.pod_facts import GroupRequirement
from ipamd.pb import cni_pb2
from ipamd.report.audit import AuditReport, audit
from ipamd.report.explain import explain
from tests.fakes.cloud import IDENTITY
from tests.fakes.node import FakeNode
from tests.unit.service.branches import TRUNK_ENI, attach, branch_eni, node_with_trunk
from tests.unit.service.metric_values import value
from tests.unit.service.test_what_if import ask

BRANCH_CODES = {
    LegFindingCode.BRANCH_CONTRADICTED,
    LegFindingCode.BRANCH_CUT_OFF,
    LegFindingCode.BRANCH_UNCONFIRMED,
    LegFindingCode.BRANCH_DIFFERS,
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with a trunk, and pods with branch ENIs 3 and 4, which EC2 shows."""
    made = node_with_trunk(tmp_path)
    for vlan in (3, 4):
        eni = branch_eni(vlan)
        made.ec2.enis[eni.eni_id] = eni
        attach(made, vlan)
    yield made
    made.datastore.close()


def contradict(node: FakeNode, vlan: int, said: str) -> None:
    """EC2 has said so twice."""
    with node.datastore.transaction() as uow:
        uow.record_contradiction(node.key(f"sandbox-{vlan}"), contradiction=said)


def audited(node: FakeNode) -> AuditReport:
    """The audit's report."""
    return audit(node.app.introspection.sources)


def explained(node: FakeNode, subject: str) -> str:
    """The sentences."""
    return "\n".join(explain(node.app.introspection.sources, HistoryQuestion(subject, 10)).sentences)


def test_status_has_a_line(node: FakeNode) -> None:
    """Mode, sandboxes of what the trunk carries, the trunk; then what EC2 contradicts; nothing of it without the setting."""
    line = next(line for line in STATUS.render(ask(node, "GetStatus")).splitlines() if line.startswith("branches"))
    assert line == f"branches strict: 2, on trunk {TRUNK_ENI.eni_id}"
    contradict(node, 3, "its MAC is another")
    node.pool.limits = replace(node.ec2.limits, trunk_capacity=9)
    del node.ec2.enis[TRUNK_ENI.eni_id]
    node.look_twice()
    line = next(line for line in STATUS.render(ask(node, "GetStatus")).splitlines() if line.startswith("branches"))
    assert line == "branches strict: 2 of 9, no trunk ENI is attached; EC2 contradicts 1"


def test_status_says_nothing_without_the_setting(tmp_path: Path) -> None:
    """Nor do the metrics have samples."""
    plain = FakeNode(tmp_path)
    plain.bring_up()
    assert "branches" not in STATUS.render(ask(plain, "GetStatus"))
    families = {
        one.name: one.samples for one in plain.app.metrics.registry.collect() if "branch" in one.name or "trunk" in one.name
    }
    assert len(families) == 5
    assert not any(families.values())
    plain.datastore.close()


def test_attachments_have_the_vlan(node: FakeNode) -> None:
    """A column that is there only if one has it."""
    node.add("a")
    text = ATTACHMENTS.render(ask(node, "ListAttachments"))
    assert "VLAN" in text.splitlines()[0]
    assert [row["vlan"] for row in ask(node, "ListAttachments")["attachments"]] in ([3, 4, 0], [0, 3, 4])


@pytest.mark.parametrize(("count", "told"), [(9, "; 9 branch ENIs"), (0, "; no trunk ENI, so no branch ENIs"), (None, "\n")])
def test_capacity_says_how_many(node: FakeNode, count: int | None, told: str) -> None:
    """What the type's trunk carries; nothing where that is not known."""
    node.pool.set_limits(replace(node.ec2.limits, trunk_capacity=count), settings=node.settings)
    node.pool.cycle()
    assert f"EC2's answer{told}" in CAPACITY.render(ask(node, "Capacity") | {"limits_source": "ec2"})


@pytest.mark.parametrize("subject", ["10.0.4.3", "default/pod-3", "pod-3", "sandbox-3", "eni-00000000000000003"])
def test_a_branch_pod_is_explained(node: FakeNode, subject: str) -> None:
    """By its address, pod, container or ENI: who has it, how it is wired, what EC2 says."""
    subject = branch_eni(3).eni_id if subject.startswith("eni-") else subject
    said = explained(node, subject)
    assert "sandbox sandbox-3/eth0 (default/pod-3) has 10.0.4.3" in said
    assert "link vlan.eth.3; EC2 has not been asked" in said
    contradict(node, 3, "")
    assert "EC2 agrees" in explained(node, subject)
    contradict(node, 3, "its MAC is another")
    assert "EC2 contradicts: its MAC is another, so it has no network until EC2 agrees" in explained(node, subject)


def test_the_trunk_is_explained(node: FakeNode) -> None:
    """And an ENI that is neither is not known."""
    assert "trunk ENI, which carries 2 branch ENIs" in explained(node, TRUNK_ENI.eni_id)
    with pytest.raises(InvalidRequestError):
        explained(node, "eni-0123456789abcdef0")


def test_a_node_in_order_has_no_finding_of_branches(node: FakeNode) -> None:
    """Rows, kernel and EC2 agree; EC2 is asked once for all branches, and not at all for none."""
    assert [one for one in audited(node).findings if "vlan" in one.subject or one.code in BRANCH_CODES] == []
    assert node.ec2.calls["find_enis"] == 1
    for vlan in (3, 4):
        node.delete(f"sandbox-{vlan}")
    audited(node)
    assert node.ec2.calls["find_enis"] == 1


def test_the_audit_compares_branches_with_ec2(node: FakeNode) -> None:
    """One answer is a difference that is not confirmed; a silent EC2 is named, and nothing is concluded from it (I11)."""
    node.ec2.enis[branch_eni(3).eni_id] = branch_eni(3, mac=MacAddress("02:00:00:00:09:09"))
    del node.ec2.enis[branch_eni(4).eni_id]
    found = {one.subject: one for one in audited(node).findings if one.code is LegFindingCode.BRANCH_DIFFERS}
    assert "02:00:00:00:09:09" in found["10.0.4.3"].fields["objection"]
    assert found["10.0.4.4"].fields["objection"] == "not shown"
    assert {one.severity for one in found.values()} == {"difference"}
    node.ec2.fail["find_enis"] = [CloudError("EC2 is away")]
    report = audited(node)
    assert "EC2: EC2 is away" in report.silent
    assert not [one for one in report.findings if one.code is LegFindingCode.BRANCH_DIFFERS]


def test_a_contradiction_is_a_violation(node: FakeNode) -> None:
    """With pod, ENI and what differs; that its links are down is no finding of its own."""
    contradict(node, 3, f"its tag {VLAN_TAG} is 9, not 3")
    node.host_reconciler.reconcile()
    assert node.wiring.down
    found = [one for one in audited(node).findings if one.subject == "10.0.4.3" and one.severity != "pending"]
    assert [one.severity for one in found] == ["violation"]
    assert (found[0].code, found[0].fields["eni"]) == (LegFindingCode.BRANCH_CUT_OFF, branch_eni(3).eni_id)
    assert "default/pod-3" in found[0].fields["sandbox"]
    assert VLAN_TAG in found[0].fields["objection"]
    status = ask(node, "GetStatus")
    assert status["cut_off_count"] == 1


def test_a_vlan_link_that_no_sandbox_has_is_told(node: FakeNode) -> None:
    """With what its alias says; one that is about to be deleted is none."""
    stray = VlanLink("vlan.eth.77", 900, 77, "02:00:00:00:00:77", "", 2, False, True, IPv4Address("10.0.4.77"), EniId("eni-77"))
    node.wiring.vlans[77] = stray
    found = [one for one in audited(node).findings if one.subject == "vlan.eth.77"]
    assert [(one.code, one.fields) for one in found] == [
        (FindingCode.VLAN_LINK_UNKNOWN, {"eni": "eni-77", "address": "10.0.4.77"})
    ]
    node.wiring.vlans[77] = replace(stray, is_dying=True)
    assert not [one for one in audited(node).findings if one.subject == "vlan.eth.77"]


def test_the_metrics_count_them(node: FakeNode) -> None:
    """Sandboxes, contradictions, the trunk."""
    contradict(node, 3, "its MAC is another")
    assert value(node, "ipamd_branch_sandboxes") == 2
    assert value(node, "ipamd_mismatched_branch_enis") == 1
    assert value(node, "ipamd_trunk_attached") == 1
    del node.ec2.enis[TRUNK_ENI.eni_id]
    node.look_twice()
    node.enis.sync_with_ec2(IDENTITY)
    assert value(node, "ipamd_trunk_attached") == 0


def test_an_add_is_told_and_compared(node: FakeNode, caplog: pytest.LogCaptureFixture) -> None:
    """By a real ADD: one log line with the branch ENI and the wait, and the pool's thread is woken to compare it with EC2."""
    eni, caught = (
        branch_eni(9),
        cni_pb2.ExecRequest(
            protocol_min=1,
            protocol_max=1,
            verb="ADD",
            container_id="c9",
            ifname="eth0",
            netns=node.wiring.make_netns("/run/netns/c9"),
        ),
    )
    caught.config = b'{"cniVersion": "1.0.0", "name": "vpc-ipamd", "type": "vpc-cni"}'
    caught.args = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-9;K8S_POD_UID=u9"
    told = {
        "eniId": eni.eni_id,
        "ifAddress": eni.mac,
        "privateIp": str(eni.primary_address),
        "vlanId": 9,
        "subnetCidr": "10.0.0.0/20",
    }
    node.pod_facts.put("c9", json.dumps([told]))
    node.ec2.enis[eni.eni_id] = eni
    node.pool.run_once()
    node.demand.triggered.clear()
    with caplog.at_level("INFO"):
        reply = node.app.cni.execute(caught, Deadline.after(node.clock, 60.0))
    assert not reply.error.code, reply.error
    (line,) = [record.args for record in caplog.records if record.msg == "request"]
    assert isinstance(line, dict)
    assert (line["pod"], line["address"], line["eni"]) == ("default/pod-9", "10.0.4.9", eni.eni_id)
    assert "branch" in line["steps_ms"]
    assert node.was_triggered()
    node.pool.run_once()
    node.clock.advance(SETTLED_S)
    node.pool.run_once()
    recorded = node.datastore.attachment(node.key("c9"))
    assert recorded is not None
    assert recorded.contradiction == ""


def test_what_waits_is_told(node: FakeNode) -> None:
    """An ADD that the control plane has not answered is refused with the cause that the metrics have."""
    caught = cni_pb2.ExecRequest(
        protocol_min=1,
        protocol_max=1,
        verb="ADD",
        container_id="c9",
        ifname="eth0",
        netns=node.wiring.make_netns("/run/netns/c9"),
    )
    caught.config = b'{"cniVersion": "1.0.0", "name": "vpc-ipamd", "type": "vpc-cni"}'
    caught.args = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-9;K8S_POD_UID=u9"
    node.pod_facts.put("c9", "", requirement=GroupRequirement.YES)
    assert node.app.cni.execute(caught, Deadline.after(node.clock, 60.0)).error.code == 11
    assert value(node, "ipamd_refusals_total", verb="ADD", cause="branch-pending") == 1
    assert value(node, "ipamd_request_step_duration_seconds_count", verb="ADD", step="branch") == 1
    assert value(node, "ipamd_waiting_branch_adds") == 0
