"""The stand-in of amazon-vpc-resource-controller-k8s does what its source says: trunks, VLAN IDs, annotations, cooldowns, restarts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lab.branches.controller import (
    BRANCH_DESCRIPTION,
    FEATURE,
    TRUNK_DESCRIPTION,
    TRUNK_LABEL,
    TRUNK_TAG,
    VLAN_TAG,
    BranchController,
    Given,
)
from lab.branches.pods import MARK, NONE, POD_ENI, REQUIRED, Pod, PodStore
from lab.vpc.state import Vpc
from tests.rig import wait_until

LABEL = {TRUNK_LABEL: "true"}
COOLDOWN_S = 0.6


class Control:
    """A VPC with one m5.large, its pods and the controller."""

    def __init__(self) -> None:
        self.vpc = Vpc()
        self.subnet = self.vpc.add_subnet("10.0.0.0/24")
        self.node = self.vpc.add_instance(name="node-a", subnet_id=self.subnet.subnet_id)
        self.group = self.vpc.add_security_group("database")
        self.pods = PodStore()
        self.controller = BranchController(self.vpc, self.pods, cooldown_s=COOLDOWN_S, beat_s=0.02)

    def join(self, **said: Any) -> None:
        """The node joins, and the trunk is made."""
        self.controller.add_node("node-a", **(said or {"labels": LABEL}))
        wait_until(lambda: self.controller.trunk_of("node-a") != "", what="a trunk")

    def pod(self, name: str) -> Pod:
        """A bound pod that must have the group."""
        return self.pods.create(name, node="node-a", groups=(self.group,))

    def told(self, pod: Pod) -> dict[str, Any]:
        """The annotation, waited for."""
        wait_until(lambda: POD_ENI in self.pods.get(pod).annotations, what=f"the annotation of {pod.key}")
        (entry,) = json.loads(self.pods.get(pod).annotations[POD_ENI])
        return dict(entry)

    def given(self, pod: Pod) -> Given:
        """What the controller made for a pod."""
        found = self.controller.given(pod)
        assert found is not None
        return found


@pytest.fixture
def control() -> Iterator[Control]:
    """Started."""
    made = Control()
    made.controller.start()
    yield made
    made.controller.stop()
    made.vpc.close()
    assert made.controller.problems == []


@pytest.mark.parametrize(
    ("said", "is_made"),
    [({}, False), ({"labels": LABEL}, True), ({"labels": {TRUNK_LABEL: "false"}}, True), ({"features": (FEATURE,)}, True)],
    ids=["nothing", "label", "any value of the label", "CNINode"],
)
def test_who_gets_a_trunk(control: Control, said: dict[str, Any], is_made: bool) -> None:
    """trunk_wanted: the label with any value, or the feature."""
    control.controller.add_node("node-a", **said)
    if is_made:
        wait_until(lambda: control.controller.trunk_of("node-a") != "", what="a trunk")
        trunk = control.vpc.eni(control.controller.trunk_of("node-a"))
        assert (trunk.interface_type, trunk.description) == ("trunk", TRUNK_DESCRIPTION)
        assert control.controller.capacity("node-a") == 9, "branch_capacity of m5.large"
    else:
        seen = control.pods.version
        control.pods.wake()
        control.pods.wait(seen + 1, timeout_s=0.2)
        assert (control.controller.trunk_of("node-a"), control.controller.capacity("node-a")) == ("", 0)


def test_a_bound_pod_is_told_of_its_branch(control: Control) -> None:
    """Before that it has the limit and the mark, and no annotation; an ordinary pod has neither."""
    control.join()
    pod = control.pods.create("web", groups=(control.group,))
    assert (pod.wants_branch, pod.annotations) == (True, {MARK: REQUIRED})
    assert control.pods.create("plain", node="node-a").annotations == {MARK: NONE}
    assert control.controller.given(pod) is None
    control.pods.bind(pod, "node-a")
    entry, given = control.told(pod), control.given(pod)
    eni = control.vpc.eni(given.eni_id)
    assert entry == {
        "eniId": eni.eni_id,
        "ifAddress": eni.mac,
        "privateIp": str(eni.primary_address),
        "ipv6Addr": "",
        "vlanId": 1,
        "subnetCidr": "10.0.0.0/24",
        "subnetV6Cidr": "",
        "associationID": given.association_id,
    }
    assert (eni.description, eni.security_groups) == (BRANCH_DESCRIPTION, (control.group,))
    assert (eni.tags[VLAN_TAG], eni.tags[TRUNK_TAG]) == ("1", control.controller.trunk_of("node-a"))


def test_a_branch_cools_before_its_id_is_free(control: Control) -> None:
    """The lowest free ID is given; one that cools is not free."""
    control.join()
    first, second = control.pod("a"), control.pod("b")
    assert [control.told(pod)["vlanId"] for pod in (first, second)] == [1, 2]
    control.pods.delete(first)
    assert control.told(control.pod("c"))["vlanId"] == 3
    wait_until(lambda: control.given(first).deleted_at_s is not None, what="the first branch deleted")
    gone = control.given(first)
    assert gone.deleted_at_s is not None
    assert gone.cooling_since_s is not None
    assert gone.deleted_at_s - gone.cooling_since_s >= COOLDOWN_S
    assert gone.eni_id not in control.vpc.world.enis
    assert control.told(control.pod("d"))["vlanId"] == 1


def test_a_full_trunk_makes_a_pod_wait_one_cooldown(control: Control) -> None:
    """Used and cooling branches count together."""
    control.join()
    pods = [control.pod(f"p{number}") for number in range(9)]
    for pod in pods:
        control.told(pod)
    late = control.pod("late")
    control.pods.delete(pods[4])
    assert control.told(late)["vlanId"] == 5
    assert control.given(pods[4]).deleted_at_s is not None


def test_a_pod_whose_group_does_not_exist_gets_no_branch(control: Control) -> None:
    """EC2 refuses it; the others are served."""
    control.join()
    refused = control.pods.create("web", node="node-a", groups=("sg-unknown",))
    assert control.told(control.pod("api"))["vlanId"] == 1
    assert POD_ENI not in control.pods.get(refused).annotations
    assert control.controller.problems == []


def test_it_is_slow_forgetful_and_wrong_as_told(control: Control) -> None:
    """A pod whose annotation was forgotten is told when it is remembered."""
    control.join()
    control.controller.slow_s = 0.3
    pod = control.pod("slow")
    control.told(pod)
    assert time.monotonic() - pod.bound_at_s >= 0.3
    control.controller.slow_s = 0.0
    control.controller.forgets_annotations = True
    forgotten = control.pod("forgotten")
    wait_until(lambda: control.controller.given(forgotten) is not None, what="a branch that nobody is told of")
    assert POD_ENI not in control.pods.get(forgotten).annotations
    control.controller.forgets_annotations = False
    assert control.told(forgotten)["vlanId"] == 2
    control.controller.wrong = lambda entry: {**entry, "vlanId": 77}
    wrong = control.pod("wrong")
    assert (control.told(wrong)["vlanId"], control.given(wrong).vlan) == (77, 3)


def test_a_restart_rebuilds_what_pods_and_tags_say(control: Control) -> None:
    """Branches of no pod cool from then on; those of pods stay, and their IDs stay taken."""
    control.join()
    kept, lost = control.pod("kept"), control.pod("lost")
    for pod in (kept, lost):
        control.told(pod)
    trunk = control.controller.trunk_of("node-a")
    control.controller.stop()
    control.pods.delete(lost)
    waiting = control.pod("waiting")
    assert POD_ENI not in control.pods.get(waiting).annotations, "a dead controller serves nobody"
    control.controller.start()
    assert control.told(waiting)["vlanId"] == 3
    assert control.controller.trunk_of("node-a") == trunk
    wait_until(lambda: control.given(lost).deleted_at_s is not None, what="the lost pod's branch deleted")
    assert control.given(kept).cooling_since_s is None


def test_the_webhook_fails_open(control: Control) -> None:
    """A pod that it missed has no limit, and by the policy's mark none is required; the controller makes nothing for it."""
    control.join()
    control.pods.webhook_misses = 1
    missed, seen = control.pod("missed"), control.pod("seen")
    assert (missed.wants_branch, missed.annotations[MARK], missed.groups) == (False, NONE, (control.group,))
    control.told(seen)
    assert control.controller.given(missed) is None


def test_a_dead_trunk_serves_nobody(control: Control) -> None:
    """Somebody detached it; the pods that are there keep their branches, and a new one waits."""
    control.join()
    first = control.pod("first")
    control.told(first)
    control.vpc.hands.detach(control.controller.trunk_of("node-a"), force=True)
    second = control.pod("second")
    seen = control.pods.version
    control.pods.wait(seen, timeout_s=0.3)
    assert control.controller.given(second) is None
    assert control.vpc.eni(control.given(first).eni_id).association is not None
