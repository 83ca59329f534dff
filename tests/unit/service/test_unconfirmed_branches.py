"""An annotation is a stranger's claim: in standard mode a sandbox has no routes until EC2 has named its branch ENI (I1, I19)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.eni.legs.branches import ABSENT, FRUITLESS_SPACING_S, REPORTED_AFTER_S, SPACING_S
from ipamd.model.attachment import UNCONFIRMED, Attachment
from ipamd.model.cloud import DescribedEni
from ipamd.model.cloud_evidence import DOUBT_AGAIN_S
from ipamd.model.cni_request import AttachRequest, SandboxNames
from ipamd.model.errors import CloudDeniedError, CloudError, IpamError, UplinkPendingError
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.legs import first_leg
from ipamd.model.legs.branch_errors import BranchAnnotationError
from ipamd.model.legs.branch_evidence import TRUNK_TAG, VLAN_TAG
from ipamd.model.legs.refusals import BranchRefusalCode
from ipamd.settings import NetworkConfig
from tests.fakes.node import FakeNode
from tests.fakes.pod_facts import annotation
from tests.refusing import refused_with
from tests.unit.service.branches import TRUNK_ENI, branch_eni


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node in standard mode, with its trunk."""
    made = node_in("standard", tmp_path)
    yield made
    made.datastore.close()


def node_in(mode: str, path: Path) -> FakeNode:
    """A node in a mode."""
    made = FakeNode(path, network=NetworkConfig(pod_eni=True, pod_groups_mode=mode))
    made.ec2.enis[TRUNK_ENI.eni_id] = TRUNK_ENI
    made.bring_up()
    return made


def told(vlan: int, **changes: object) -> str:
    """The annotation of the branch ENI of a VLAN, as the controller writes it."""
    eni = branch_eni(vlan)
    fields = {"eniId": eni.eni_id, "ifAddress": eni.mac, "privateIp": str(eni.primary_address), "subnetCidr": "10.0.0.0/20"}
    return annotation(vlan, **{**fields, **changes})  # type: ignore[arg-type]  # fields of the annotation


def request(node: FakeNode, sandbox: str, pod: str) -> AttachRequest:
    """An ADD of a pod."""
    return replace(node.request(sandbox), names=SandboxNames("default", pod, f"uid-{pod}"))


def add(node: FakeNode, sandbox: str, text: str, *, pod: str = "") -> Attachment:
    """ADD of a pod with an annotation."""
    node.pod_facts.put(sandbox, text)
    steps, deadline = StepTimer(node.clock), Deadline.after(node.clock, 60.0)
    made = node.attacher.attach_sandbox(request(node, sandbox, pod or sandbox), deadline=deadline, steps=steps)
    node.runtime.run(sandbox)
    return made


def turn(node: FakeNode, seconds: float = 0.0) -> None:
    """The pool's thread is woken, and the host network's for what it marked."""
    node.clock.advance(seconds)
    node.pool.run_once()
    node.clock.advance(1.0)
    node.host_reconciler.run_due(is_by_clock=False)


def row(node: FakeNode, attachment: Attachment) -> Attachment:
    """The record as it is now."""
    found = node.datastore.attachment(attachment.key)
    assert found is not None
    return found


def is_led(node: FakeNode, attachment: Attachment) -> bool:
    """Whether the node has a route to it, and its links are up."""
    return attachment.address in node.wiring.routes and node.wiring.down.isdisjoint(first_leg(attachment.wiring).links)


def test_ec2s_word_gives_the_routes(node: FakeNode) -> None:
    """The ADD has replied; the pool's next turn asks once for all that wait, and the routes come."""
    node.ec2.enis |= {(eni := branch_eni(vlan)).eni_id: eni for vlan in (1, 2, 3)}
    made = [add(node, f"sandbox-{vlan}", told(vlan)) for vlan in (1, 2, 3)]
    assert not any(is_led(node, one) for one in made)
    assert all(row(node, one).is_unconfirmed for one in made)
    assert node.host_reconciler.cut_off() == {str(one.key) for one in made}
    assert node.ec2.calls["find_enis"] == 0
    turn(node)
    assert node.ec2.calls["find_enis"] == 1
    assert all(is_led(node, one) for one in made)
    assert [row(node, one).contradiction for one in made] == ["", "", ""]
    assert not node.host_reconciler.cut_off()
    assert not node.datastore.audit()
    for _ in range(24):
        turn(node, 3600.0)
    assert node.ec2.calls["find_enis"] == 1


LIES: dict[str, Callable[[DescribedEni], DescribedEni | None]] = {
    "no such ENI": lambda eni: None,
    "another MAC": lambda eni: replace(eni, mac=MacAddress("02:00:00:00:09:09")),
    "another address": lambda eni: replace(eni, primary_address=IPv4Address("10.0.4.99")),
    "another VLAN": lambda eni: replace(eni, tags={**eni.tags, VLAN_TAG: "77"}),
    "another node's trunk": lambda eni: replace(eni, tags={**eni.tags, TRUNK_TAG: "eni-0000000000000beef"}),
    "no branch ENI": lambda eni: replace(eni, tags={}),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_impostor_gets_no_route(node: FakeNode, lie: str) -> None:
    """However long it waits, over passes of the host network and a restart; the condition names it and what EC2 says."""
    eni = LIES[lie](branch_eni(5))
    node.ec2.enis |= {eni.eni_id: eni} if eni else {}
    impostor = add(node, "sandbox-5", told(5))
    for seconds in (0.0, 1.0, 5.0, DOUBT_AGAIN_S, DOUBT_AGAIN_S, 3600.0):
        turn(node, seconds)
        node.host_reconciler.reconcile()
        assert not is_led(node, impostor)
    said = node.health.conditions_by_subject()["branch"]
    assert "default/sandbox-5" in said
    assert branch_eni(5).eni_id in said
    assert row(node, impostor).objection
    node.crash()
    node.bring_up()
    node.host_reconciler.reconcile()
    assert row(node, impostor).is_unconfirmed
    assert not is_led(node, impostor)
    assert not node.datastore.audit()


def test_a_lost_datastore_gives_no_route_either(node: FakeNode) -> None:
    """The kernel has no route to it, so nobody has confirmed it; one that was confirmed stays led to, whatever EC2 does (I2, I11)."""
    node.ec2.enis[branch_eni(1).eni_id] = branch_eni(1)
    honest = add(node, "sandbox-1", told(1))
    turn(node)
    impostor = add(node, "sandbox-5", told(5))
    node.ec2.fail["find_enis"] = [CloudError("gone")] * 50
    node.crash(keep_datastore=False)
    node.bring_up()
    node.host_reconciler.reconcile()
    turn(node)
    assert row(node, honest).contradiction is None
    assert is_led(node, honest)
    assert row(node, impostor).is_unconfirmed
    assert not is_led(node, impostor)


@pytest.mark.parametrize("error", [CloudError("gone"), CloudDeniedError("no")])
def test_no_route_without_an_answer(node: FakeNode, error: IpamError) -> None:
    """The ADD replies all the same (I12); the condition names the pod and the refusal, and ends with the answer that comes."""
    node.ec2.enis[branch_eni(5).eni_id] = branch_eni(5)
    node.ec2.fail["find_enis"] = [error] * 3
    made = add(node, "sandbox-5", told(5))
    turn(node)
    assert not is_led(node, made)
    said = node.health.conditions_by_subject()["branch"]
    assert "default/sandbox-5" in said
    assert str(error) in said
    for _ in range(4):
        turn(node, 3600.0)
    assert is_led(node, made)
    assert "branch" not in node.health.conditions_by_subject()


def test_after_a_long_outage_a_pod_waits_a_minute_at_most(node: FakeNode) -> None:
    """The pauses after EC2's errors grow, but not as on a node where nobody waits."""
    node.ec2.enis[branch_eni(5).eni_id] = branch_eni(5)
    node.ec2.fail["find_enis"] = [CloudError("gone")] * 1000
    made = add(node, "sandbox-5", told(5))
    for _ in range(240):
        turn(node, 30.0)
    node.ec2.fail["find_enis"].clear()
    for _ in range(2):
        turn(node, 30.0)
    assert is_led(node, made)


def test_a_late_answer_is_felt_for_seconds(node: FakeNode) -> None:
    """EC2 lags behind the controller by some seconds: it is asked by the pauses of the table, and no condition comes of it."""
    made = add(node, "sandbox-5", told(5))
    turn(node)
    node.ec2.enis[branch_eni(5).eni_id] = branch_eni(5)
    waited_s = 0.0
    while not is_led(node, made):
        turn(node, 1.0)
        waited_s += 2.0
        assert "branch" not in node.health.conditions_by_subject()
    assert waited_s <= FRUITLESS_SPACING_S + 3.0
    assert waited_s < REPORTED_AFTER_S


def test_a_crash_loop_of_forgeries_costs_few_calls(node: FakeNode) -> None:
    """A new pod every two seconds for ten minutes: with one ENI ID the pauses grow, with an ID each there is one call in five seconds;
    an honest pod among them has its routes within those."""
    for number in range(300):
        made = add(node, f"same-{number}", told(7), pod="loop")
        turn(node, 1.0)
        node.delete(str(made.key.container_id))
        node.cooldown.work()
    assert node.ec2.calls["find_enis"] <= 12
    before = node.ec2.calls["find_enis"]
    for number in range(300):
        made = add(node, f"new-{number}", told(8, eniId=f"eni-1{number:016x}"))
        turn(node, 1.0)
        node.delete(str(made.key.container_id))
        node.cooldown.work()
    assert node.ec2.calls["find_enis"] - before <= 600.0 / FRUITLESS_SPACING_S + 2
    node.ec2.enis[branch_eni(9).eni_id] = branch_eni(9)
    honest = add(node, "honest", told(9))
    for _ in range(int(FRUITLESS_SPACING_S)):
        turn(node, SPACING_S)
    assert is_led(node, honest)


@pytest.mark.parametrize("mode", ["strict", "standard"])
def test_of_two_claims_the_later_is_refused(tmp_path: Path, mode: str) -> None:
    """A copy of a live pod's annotation is refused with both named, whole or changed; so it is after that pod's DEL, and after a
    restart; the pod itself has its ENI in its next sandbox. Nothing happens to the live one."""
    node = node_in(mode, tmp_path)
    node.ec2.enis[branch_eni(1).eni_id] = branch_eni(1)
    victim = add(node, "victim-0", told(1), pod="victim")
    for seconds in (0.0, 20.0):
        turn(node, seconds)
    before = node.wiring.survey()
    for text in (told(1), told(1, vlanId=44), told(1, privateIp="10.0.4.77"), told(1, subnetCidr="10.0.0.0/16")):
        with pytest.raises(BranchAnnotationError) as refused:
            add(node, "copy", text, pod="copy")
        assert "default/victim" in str(refused.value)
        assert "default/copy" in str(refused.value)
    assert node.wiring.survey() == before
    assert row(node, victim).contradiction == ""
    with pytest.raises(UplinkPendingError):
        add(node, "victim-1", told(1), pod="victim")
    node.crash()
    node.bring_up()
    node.delete("victim-0")
    node.cooldown.work()
    with refused_with(BranchRefusalCode.BRANCH_CLAIMED_TWICE):
        add(node, "copy-2", told(1), pod="copy")
    assert add(node, "victim-2", told(1), pod="victim").eni_id == branch_eni(1).eni_id
    node.datastore.close()


def test_check_fails_while_it_waits(node: FakeNode) -> None:
    """It has no network: the refusal says what it waits for."""
    made = add(node, "sandbox-5", told(5))
    with pytest.raises(IpamError):
        node.checker.check_sandbox(request(node, "sandbox-5", "sandbox-5"), deadline=Deadline.after(node.clock, 1.0))
    assert row(node, made).contradiction == UNCONFIRMED
    assert node.delete("sandbox-5")
    turn(node, 20.0)
    assert node.ec2.calls["find_enis"] == 0
    assert "branch" not in node.health.conditions_by_subject()


def test_absence_is_said_after_two_answers(node: FakeNode) -> None:
    """Before, it only waits."""
    made = add(node, "sandbox-5", told(5))
    turn(node)
    assert row(node, made).objection == ""
    for _ in range(8):
        turn(node, 20.0)
    assert row(node, made).contradiction == f"{UNCONFIRMED}: {ABSENT}"
    assert EniId(branch_eni(5).eni_id) in node.health.conditions_by_subject()["branch"]
