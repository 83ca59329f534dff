"""Pods whose annotations are wrong, missing or forged, and a kubelet that is asked instead: nobody loses anything.

Source of the traps: amazon-vpc-cni-k8s issues 2163 and 3854.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from lab.branches.pods import POD_ENI
from tests.lab.branch.ground import TRY_LATER, BranchGround, ground
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.privileged, pytest.mark.slow]


@pytest.mark.parametrize("what", ["another's VLAN ID", "another's address", "an address of the pool", "the node's address"])
def test_an_annotation_that_tells_what_others_have_is_refused(node: BranchGround, what: str) -> None:
    """The webhook that guards it fails open (3854): whatever it says, nobody loses anything, and the pod gets no address."""
    other, pooled = node.run("web-0"), node.run("plain", groups=())
    assert other.given is not None
    wrong = {
        "another's VLAN ID": {"vlanId": other.given.vlan},
        "another's address": {"privateIp": str(other.address)},
        "an address of the pool": {"privateIp": str(pooled.address)},
        "the node's address": {"privateIp": str(node.addresses["node-a"])},
    }[what]
    node.branches.controller.wrong = lambda entry: entry | wrong
    try:
        _, refused = node.add(node.pod("victim"))
    finally:
        node.branches.controller.wrong = None
    assert not refused.ok
    assert all(node.is_heard("host-a", name) for name in (other.name, pooled.name, "node-a"))
    node.assert_sound()


def test_a_pod_that_the_webhook_missed_is_an_ordinary_one(node: BranchGround) -> None:
    """It has no limit, and the mark says that none is required: nobody on the node can know of its groups (#2163)."""
    node.branches.pods.webhook_misses = 1
    pod = node.pod("missed")
    name, reply = node.add(pod)
    assert reply.ok, reply.body
    assert node.sandboxes[name].given is None
    assert node.rig.eni_of(reply.any_address) is not None


KUBELET = {"VPC_IPAMD_POD_SECURITY_GROUP_SOURCE": "kubelet"}


@pytest.fixture(scope="module")
def asked() -> Iterator[BranchGround]:
    """A node whose daemon asks kubelet."""
    with ground("strict", nodes=("node-a",), outside=False, env=KUBELET) as found:
        yield found


def test_by_kubelet_one_add_waits_for_the_annotation(asked: BranchGround) -> None:
    """The controller is slow: the first sandbox has its branch, though its own annotations do not tell it. Nobody else waits."""
    asked.branches.controller.slow_s = 1.5
    pod = asked.branches.pods.create("web-0", node="node-a", groups=(asked.group,))
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(asked.add, pod)
        pooled = asked.run("plain", groups=())
        assert not waiting.done()
        name, reply = waiting.result(PATIENCE_S)
    asked.branches.controller.slow_s = 0.0
    assert reply.ok, reply.body
    assert time.monotonic() - began >= 1.4
    assert asked.sandboxes[name].given is not None
    assert all(asked.is_heard("host-a", one) for one in (name, pooled.name))
    asked.assert_sound()
    asked.end_all()
    asked.assert_sound()


@pytest.mark.parametrize("how", ["dead", "starting", "silent about pods without a sandbox"])
def test_without_kubelets_answer_nobody_gets_an_address(asked: BranchGround, how: str) -> None:
    """I19: a pod may be one that must have groups. With kubelet's answer it is served."""
    service = asked.branches.services["node-a"]
    pod = asked.pod("plain", groups=())
    if how == "dead":
        service.stop()
    service.is_starting, service.lists_without_sandbox = how == "starting", how != "silent about pods without a sandbox"
    try:
        _, refused = asked.add(pod)
    finally:
        service.is_starting, service.lists_without_sandbox = False, True
        if how == "dead":
            service.start()
    assert (refused.ok, refused.code) == (False, TRY_LATER), refused.body
    assert not asked.rig.kernel().wired
    name, reply = asked.add(pod)
    assert reply.ok, reply.body
    assert asked.sandboxes[name].given is None
    asked.end_all()
    asked.assert_sound()


def test_kubelet_is_believed_and_not_the_sandboxs_annotations(asked: BranchGround) -> None:
    """A pod's own annotation names a branch ENI, and no container limits the resource: it gets none."""
    victim = asked.run("web-0")
    told = json.loads(asked.branches.pods.get(victim.pod).annotations[POD_ENI])
    forger = asked.branches.pods.create("forger", node="node-a", annotations={POD_ENI: json.dumps(told)})
    name, reply = asked.add(forger)
    assert not reply.ok or asked.sandboxes[name].given is None
    assert asked.is_heard("host-a", victim.name)
    asked.end_all()
    asked.assert_sound()
