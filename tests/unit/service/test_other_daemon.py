"""Two daemons never share a node's addresses (I20): ADD is held while the other may give, and what both gave is named everywhere."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.migration.handover import ABSENCE_S, CONDITION, CONFLICT
from ipamd.model.aws_node import Allocation, agent_pod
from ipamd.model.conditions import ConditionCode
from ipamd.model.errors import ForeignStateError
from ipamd.model.finding_codes import FindingCode, Severity
from ipamd.model.freeze import FreezeCause
from ipamd.model.history_answer import HistoryQuestion
from ipamd.model.ids import ContainerId
from ipamd.model.refusals import RefusalCode
from ipamd.model.sandbox import Sandbox, SandboxState
from ipamd.pb import introspection_pb2 as pb
from ipamd.process.lifecycle import Lifecycle
from ipamd.report.audit import audit
from ipamd.report.explain import explain
from tests.conditions import codes
from tests.fakes.node import FakeNode
from tests.refusing import refused_with
from tests.unit.service.metric_values import value

READY, NOTREADY = SandboxState.READY, SandboxState.NOTREADY
AGENT = Sandbox(ContainerId("agent"), READY, "kube-system", "aws-node-x7k2p")


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    """Ready, and its file was taken over."""
    made = FakeNode(tmp_path)
    made.bring_up()
    made.aws_node.tell()
    made.aws_node.finish()
    made.health.mark_ready()
    return made


def look(node: FakeNode) -> str:
    """As the maintenance loop does every few seconds."""
    return node.app.other_daemon.check()


def status(node: FakeNode) -> pb.GetStatusReply:
    """What `ipamctl status` shows."""
    return node.app.introspection.GetStatus(pb.GetStatusRequest())


def explained(node: FakeNode, subject: str) -> str:
    """What `ipamctl explain` says of now."""
    return "\n".join(explain(node.app.introspection.sources, HistoryQuestion(subject, 50)).sentences)


def test_add_is_held_while_it_may_give_and_a_minute_longer(node: FakeNode) -> None:
    """With or without its conflist; the node's condition stays, nothing is asked of EC2, and a sentence says what to do."""
    node.aws_node.listens = "/run/aws-node/ipamd.sock"
    assert look(node)
    with refused_with(RefusalCode.HELD) as refused:
        node.add("a")
    assert "it serves /run/aws-node/ipamd.sock; remove its DaemonSet aws-node" in refused.value.details
    assert not node.health.is_ready
    assert status(node).verdict.startswith("NOT READY: aws-node: amazon-vpc-cni-k8s may give addresses of this node")
    assert {one.cause for one in node.app.context.freeze.in_force()} == {FreezeCause.AWS_NODE}
    node.clock.advance(100.0)
    node.health.require_status()
    assert look(node), "it is still there"
    node.aws_node.listens = ""
    node.clock.advance(ABSENCE_S - 1)
    assert "59 s ago" in look(node)
    node.clock.advance(1)
    assert look(node) == ""
    assert node.add("a")
    assert node.health.is_ready
    assert (CONDITION in node.health.conditions_by_subject(), node.app.context.freeze.in_force()) == (False, ())


def test_an_add_that_waits_for_an_address_gives_none_when_it_has_come(node: FakeNode) -> None:
    """It was let through before: the address cools, and nothing of it remains (I5)."""

    def come(name: str) -> None:
        if name == "attach.wired":
            node.aws_node.listens = "/run/aws-node/ipamd.sock"
            look(node)

    node.failpoint = come
    with refused_with(RefusalCode.HELD):
        node.add("a")
    assert (node.datastore.attachments(), node.wiring.wired, node.datastore.counts().cooling) == ((), {}, 1)


def test_its_own_plugin_gets_no_address_of_ours_while_it_may_give(node: FakeNode) -> None:
    """A request on the socket that we serve for its plugin ends in the same ADD, and is held as any other."""
    node.aws_node.listens = "/run/aws-node/ipamd.sock"
    look(node)
    request = replace(node.request("soon"), is_wired_by_caller=True)
    with refused_with(RefusalCode.HELD):
        node.attacher.attach_sandbox(request, deadline=Deadline.after(node.clock, 5.0), steps=StepTimer(node.clock))
    assert (node.datastore.attachments(), node.datastore.counts().cooling) == ((), 0)


def test_its_pod_in_the_runtimes_list_holds_add_between_two_runs_of_its_daemon(node: FakeNode) -> None:
    """While kubelet waits minutes to start its container again nothing of it can be seen but its sandbox."""
    node.runtime.listed["agent"] = AGENT
    node.runtime_reconciler.reconcile_once()
    node.clock.advance(600.0)
    assert "its pod kube-system/aws-node-x7k2p runs" in look(node)
    node.runtime.is_down = True  # silence is no evidence (I11)
    node.runtime_reconciler.reconcile_once()
    assert look(node)
    node.runtime.is_down = False
    del node.runtime.listed["agent"]
    node.runtime_reconciler.reconcile_once()
    assert look(node)
    node.clock.advance(ABSENCE_S)
    assert look(node) == ""


@pytest.mark.parametrize(
    ("namespace", "name", "state", "is_it"),
    [
        ("kube-system", "aws-node-x7k2p", READY, True),
        ("kube-system", "aws-node-x7k2p", NOTREADY, False),
        ("kube-system", "aws-node-termination-handler-x7k2p", READY, False),
        ("default", "aws-node-x7k2p", READY, False),
    ],
)
def test_whose_pod_it_is(namespace: str, name: str, state: SandboxState, is_it: bool) -> None:
    """By the names that a DaemonSet gives."""
    assert bool(agent_pod([Sandbox(ContainerId("x"), state, namespace, name)])) is is_it


def test_what_cannot_be_told_holds_add(node: FakeNode) -> None:
    """A disk that does not say who wrote last is no proof that nobody did (I11)."""

    def refuse(*, pod: str) -> None:
        raise ForeignStateError("its file cannot be looked at", details="Input/output error")

    node.aws_node.last_sign = refuse  # type: ignore[method-assign,assignment]
    assert "Input/output error" in look(node)
    with refused_with(RefusalCode.HELD):
        node.add("a")


def test_what_both_gave_is_named_by_everything_that_tells(node: FakeNode) -> None:
    """Its file names another sandbox for an address of ours: status, audit, explain of both pods, and a metric that must stay 0."""
    ours = node.add("ours")
    theirs = Allocation(node.key("theirs"), ours.address, "shop", "cart-0")
    same = node.add("same")
    assert value(node, "ipamd_aws_node_conflicting_addresses") == 0
    node.aws_node.listens = "/run/aws-node/ipamd.sock"
    node.aws_node.tell(theirs, Allocation(same.key, same.address, "default", "same"))
    look(node)
    told = f"{ours.address} was given to sandbox {ours.key} (default/ours) by us, and to theirs/eth0 (shop/cart-0)"
    assert told in "\n".join(status(node).degraded)
    assert codes(node.health, CONFLICT) == {ConditionCode.GIVEN_TWICE}
    violations = [one for one in audit(node.app.introspection.sources).findings if one.severity is Severity.VIOLATION]
    assert [(one.code, one.subject) for one in violations] == [(FindingCode.GIVEN_TWICE, str(ours.address))]
    assert violations[0].fields["pair"].startswith(told)
    for subject in (str(ours.address), "default/ours", "shop/cart-0", "cart-0", "theirs"):
        assert told in explained(node, subject), subject
    assert told not in explained(node, str(same.address))
    assert value(node, "ipamd_aws_node_conflicting_addresses") == 1
    node.delete("ours")
    look(node)
    assert CONFLICT not in node.health.conditions_by_subject()
    assert value(node, "ipamd_aws_node_conflicting_addresses") == 0


def test_a_file_that_we_took_over_or_wrote_is_compared_with_nothing(node: FakeNode) -> None:
    """A stale entry of a dead sandbox is in it, whose address was given anew since; an exported node is the other's."""
    ours = node.add("ours")
    stale = Allocation(node.key("dead"), ours.address, "default", "dead")
    node.aws_node.tell(stale)
    node.aws_node.finish()
    assert node.app.other_daemon.given_twice() == ()
    node.aws_node.tell(stale)
    assert len(node.app.other_daemon.given_twice()) == 1
    node.aws_node.begin_export()
    assert (node.app.other_daemon.given_twice(), look(node)) == ((), "")


def test_a_damaged_file_names_nothing_and_is_the_last_error(node: FakeNode) -> None:
    """What reports go on: nothing is concluded from it (I11)."""
    node.aws_node.tell()
    node.aws_node.refusal = ForeignStateError("ipam.json cannot be used: it is not JSON")
    assert node.app.other_daemon.given_twice() == ()
    last = node.health.last_error
    assert last is not None
    assert "not JSON" in last.message


def test_a_hold_is_logged_once(node: FakeNode, caplog: pytest.LogCaptureFixture) -> None:
    """Looks are made every few seconds."""
    caplog.set_level(logging.INFO, logger="ipamd.core.health")
    node.aws_node.listens = "/run/aws-node/ipamd.sock"
    for _ in range(3):
        look(node)
        node.clock.advance(5)
    node.aws_node.listens = ""
    node.clock.advance(ABSENCE_S)
    for _ in range(3):
        look(node)
    said = [record.message for record in caplog.records if " text=aws-node:" in record.message]
    assert [sentence.startswith("condition ended ") for sentence in said] == [False, True]


def test_a_hold_ends_though_the_start_took_its_condition_away(tmp_path: Path) -> None:
    """The last look of the start sees a sign of it, and holds ADD; the start then reports its own step of that name as over."""
    node = FakeNode(tmp_path)
    node.bring_up()
    node.aws_node.tell()
    node.clock.advance(ABSENCE_S - 5)
    life = Lifecycle(node.app, end=lambda _: None)
    life._until_done("aws-node", life._handover.finish)
    assert node.health.are_adds_blocked
    node.clock.advance(10)
    node.app.other_daemon.check()
    assert not node.health.are_adds_blocked
    assert node.app.context.freeze.reason == ""
