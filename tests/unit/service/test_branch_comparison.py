"""Branch ENIs against EC2: asked once for each new sandbox, contradicted by two answers, cut off in strict mode until one agrees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.eni.legs.branches import ABSENT, SETTLED_S
from ipamd.model.cloud import DescribedEni
from ipamd.model.cloud_evidence import DOUBT_AGAIN_S
from ipamd.model.errors import CloudDeniedError, CloudError, ThrottledError
from ipamd.model.ids import MacAddress
from ipamd.model.legs.branch_evidence import TRUNK_TAG, VLAN_TAG
from ipamd.pb import introspection_pb2 as pb
from tests.fakes.node import FakeNode
from tests.unit.service.branches import TRUNK_ENI, attach, branch_eni, node_with_trunk


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with security groups for pods, and its trunk."""
    made = node_with_trunk(tmp_path)
    yield made
    made.datastore.close()


def turn(node: FakeNode, seconds: float = 0.0) -> None:
    """The pool's thread is woken, and the host network's for what it marked."""
    node.clock.advance(seconds)
    node.pool.run_once()
    node.clock.advance(1.0)
    node.host_reconciler.run_due(is_by_clock=False)


def contradicted(node: FakeNode, vlan: int) -> str | None:
    """What is on record against a sandbox."""
    found = node.datastore.attachment(node.key(f"sandbox-{vlan}"))
    assert found is not None
    return found.contradiction


def test_what_agrees_is_asked_once_in_one_call(node: FakeNode) -> None:
    """Three sandboxes, one Describe; then none for a day (I13), nor after a restart."""
    node.ec2.enis |= {(eni := branch_eni(vlan)).eni_id: eni for vlan in (1, 2, 3)}
    for vlan in (1, 2, 3):
        attach(node, vlan)
    turn(node)
    assert node.ec2.calls["find_enis"] == 0
    wait_s = node.pool._pause_s()
    assert wait_s is not None
    assert wait_s <= SETTLED_S
    turn(node, SETTLED_S)
    assert [contradicted(node, vlan) for vlan in (1, 2, 3)] == ["", "", ""]
    for _ in range(24):
        turn(node, 3600.0)
    assert node.ec2.calls["find_enis"] == 1
    node.crash()
    node.bring_up()
    turn(node, 3600.0)
    assert node.ec2.calls["find_enis"] == 1


CONTRADICTIONS: dict[str, Callable[[DescribedEni], DescribedEni]] = {
    "MAC": lambda eni: replace(eni, mac=MacAddress("02:00:00:00:09:09")),
    "address": lambda eni: replace(eni, primary_address=IPv4Address("10.0.4.99")),
    VLAN_TAG: lambda eni: replace(eni, tags={**eni.tags, VLAN_TAG: "77"}),
    TRUNK_TAG: lambda eni: replace(eni, tags={**eni.tags, TRUNK_TAG: "eni-0000000000000beef"}),
    f"{VLAN_TAG} is not there": lambda eni: replace(eni, tags={}),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_a_contradiction_counts_after_two_answers(node: FakeNode, what: str) -> None:
    """The first changes nothing; the second is a condition with pod, ENI and difference, and the sandbox's links go down."""
    eni = CONTRADICTIONS[what](branch_eni(5))
    node.ec2.enis[eni.eni_id] = eni
    one = attach(node, 5)
    turn(node)
    turn(node, SETTLED_S)
    assert contradicted(node, 5) is None
    assert not node.wiring.down
    turn(node, DOUBT_AGAIN_S)
    said = node.health.conditions_by_subject()["branch"]
    assert f"default/pod-5 has {eni.eni_id}" in said
    assert what in said
    assert node.wiring.down == {one.host_veth, "vlan.eth.5"}
    assert node.host_reconciler.cut_off() == {str(one.key)}
    assert not node.datastore.audit()


def test_an_answer_that_agrees_brings_the_sandbox_back(node: FakeNode) -> None:
    """One is enough; meanwhile no pass of the host network brings it up, and no restart forgets that it is cut off."""
    node.ec2.enis[branch_eni(5).eni_id] = branch_eni(5, tags={})
    one = attach(node, 5)
    for seconds in (0.0, SETTLED_S, DOUBT_AGAIN_S):
        turn(node, seconds)
    assert node.wiring.down
    for _ in range(3):
        node.host_reconciler.reconcile()
    assert node.wiring.down == {one.host_veth, "vlan.eth.5"}
    node.wiring.down.clear()  # somebody sets them up by hand
    node.host_reconciler.reconcile()
    assert node.wiring.down == {one.host_veth, "vlan.eth.5"}
    node.crash()
    node.bring_up()
    node.host_reconciler.reconcile()
    assert node.wiring.down == {one.host_veth, "vlan.eth.5"}
    node.ec2.enis[branch_eni(5).eni_id] = branch_eni(5)
    for _ in range(3):
        turn(node, DOUBT_AGAIN_S)
    assert contradicted(node, 5) == ""
    assert not node.wiring.down
    assert not node.host_reconciler.cut_off()
    assert "branch" not in node.health.conditions_by_subject()


def test_standard_mode_is_told_and_not_cut_off(node: FakeNode) -> None:
    """Its own node reaches it past the groups anyway."""
    node.ec2.enis[branch_eni(5).eni_id] = branch_eni(5, mac=MacAddress("02:00:00:00:09:09"))
    attach(node, 5, is_strict=False)
    for seconds in (0.0, SETTLED_S, DOUBT_AGAIN_S):
        turn(node, seconds)
    assert contradicted(node, 5)
    assert "cut off" not in node.health.conditions_by_subject()["branch"]
    assert not node.wiring.down


def test_two_answers_that_differ_are_no_two(node: FakeNode) -> None:
    """One that lags and one that is right conclude nothing; the contradiction must be the same."""
    attach(node, 5)
    turn(node)
    for tags, seconds in (({}, SETTLED_S), ({VLAN_TAG: "6", TRUNK_TAG: TRUNK_ENI.eni_id}, DOUBT_AGAIN_S)):
        node.ec2.enis[branch_eni(5).eni_id] = branch_eni(5, tags=tags)
        turn(node, seconds)
        assert contradicted(node, 5) is None
    node.ec2.enis[branch_eni(5).eni_id] = branch_eni(5)
    turn(node, DOUBT_AGAIN_S)
    assert contradicted(node, 5) == ""


def test_absence_counts_after_two_answers_that_show_the_trunk(node: FakeNode) -> None:
    """The second is a minute later; then EC2 is asked by the pauses of the table, two times an hour in the end (I11, I13)."""
    one = attach(node, 5)
    turn(node)
    turn(node, SETTLED_S)
    assert contradicted(node, 5) is None
    turn(node, DOUBT_AGAIN_S)
    assert contradicted(node, 5) == ABSENT
    assert node.host_reconciler.cut_off() == {str(one.key)}
    for _ in range(24):
        turn(node, 1800.0)
    calls = node.ec2.calls["find_enis"]
    for _ in range(24):
        turn(node, 1800.0)
    assert node.ec2.calls["find_enis"] - calls <= 24
    node.ec2.enis[branch_eni(5).eni_id] = branch_eni(5)
    turn(node, 1800.0)
    assert not node.host_reconciler.cut_off()


def test_an_answer_without_the_trunk_is_no_evidence_of_absence(node: FakeNode) -> None:
    """A partial answer lacks more than what was asked about: nothing is concluded, and EC2 is asked again (I11)."""
    attach(node, 5)
    turn(node)
    trunk = node.ec2.enis.pop(TRUNK_ENI.eni_id)
    for _ in range(10):
        turn(node, DOUBT_AGAIN_S)
    assert contradicted(node, 5) is None
    assert "branch" not in node.health.conditions_by_subject()
    node.ec2.enis |= {TRUNK_ENI.eni_id: trunk, branch_eni(5).eni_id: branch_eni(5)}
    turn(node, 1800.0)
    assert contradicted(node, 5) == ""


def test_retry_asks_soon_about_what_ec2_did_not_show(node: FakeNode) -> None:
    """After an hour EC2 is asked about it twice an hour; `ipamctl retry` asks as for a new sandbox."""
    attach(node, 5)
    for _ in range(60):
        turn(node, DOUBT_AGAIN_S)
    assert contradicted(node, 5) == ABSENT
    node.ec2.enis[branch_eni(5).eni_id] = branch_eni(5)
    node.app.introspection.Retry(pb.RetryRequest())
    turn(node, 0.0)
    turn(node, SETTLED_S)
    assert contradicted(node, 5) == ""


@pytest.mark.parametrize("error", [ThrottledError("slow down"), CloudDeniedError("no"), CloudError("gone")])
def test_a_call_that_fails_says_nothing_and_is_made_again(node: FakeNode, error: CloudError) -> None:
    """After a pause, and the pool goes on meanwhile."""
    node.ec2.enis[branch_eni(5).eni_id] = branch_eni(5)
    attach(node, 5)
    turn(node)
    node.ec2.fail["find_enis"] = [error]
    node.clock.advance(SETTLED_S)
    node.pool.run_once()
    node.pool.run_once()
    assert node.ec2.calls["find_enis"] == 1
    assert contradicted(node, 5) is None
    turn(node, 700.0)
    assert contradicted(node, 5) == ""


def test_a_sandbox_that_is_gone_is_not_asked_for(node: FakeNode) -> None:
    """Its DEL came before the question: no call, no memory of it."""
    one = attach(node, 5)
    turn(node)
    node.delete(one.key.container_id)
    turn(node, SETTLED_S)
    assert node.ec2.calls["find_enis"] == 0
    assert node.app.context.backoffs.keys("branch") == ()


def test_a_cut_off_sandbox_can_be_deleted(node: FakeNode) -> None:
    """DEL needs neither its links up nor EC2."""
    node.ec2.enis[branch_eni(5).eni_id] = branch_eni(5, tags={})
    one = attach(node, 5)
    for seconds in (0.0, SETTLED_S, DOUBT_AGAIN_S):
        turn(node, seconds)
    node.delete("sandbox-5")
    assert node.datastore.attachment(one.key) is None
    turn(node)
    assert "branch" not in node.health.conditions_by_subject()
    assert not node.host_reconciler.cut_off()


def test_without_the_setting_nothing_is_imported_or_asked(tmp_path: Path) -> None:
    """A node without security groups for pods has nobody who compares."""
    node = FakeNode(tmp_path)
    node.bring_up()
    assert node.pool._leg_comparison is None
    node.datastore.close()


def test_one_answer_without_it_does_not_end_the_questions_about_a_contradicted_one(node: FakeNode) -> None:
    """I11: its sandbox is cut off until EC2 agrees, so EC2 is asked for as long as it does not, whatever one answer lacks."""
    eni_id = branch_eni(5).eni_id
    node.ec2.enis[eni_id] = branch_eni(5, tags={})
    attach(node, 5)
    for seconds in (0.0, SETTLED_S, DOUBT_AGAIN_S):
        turn(node, seconds)
    assert node.wiring.down
    for _ in range(10):
        turn(node, DOUBT_AGAIN_S)
    del node.ec2.enis[eni_id]  # a Describe that lags, or is partial
    asked = node.ec2.calls["find_enis"]
    while node.ec2.calls["find_enis"] == asked:
        turn(node, DOUBT_AGAIN_S)
    node.ec2.enis[eni_id] = branch_eni(5)
    for _ in range(3):
        turn(node, 3600.0)
    assert contradicted(node, 5) == ""
    assert not node.wiring.down
