"""The lives of pods with branch ENIs on a node, by packets: one after another, late, too many, told wrongly, and without their trunk.

Source of the traps: amazon-vpc-cni-k8s issues 1374, 1375, 1644, 2163, 3066, 3777 and 3854.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from lab.branches.pods import POD_ENI
from tests.lab.branch.ground import COOLDOWN_S, MODES, BranchGround, ground
from tests.patience import PATIENCE_S
from tests.rig import wait_until

pytestmark = pytest.mark.privileged

TRY_LATER = 11
MOST = 9
"""Branches of an m5.large."""


@pytest.fixture(scope="module", params=list(MODES))
def made(request: pytest.FixtureRequest) -> Iterator[BranchGround]:
    """One node, in each mode."""
    with ground(request.param, nodes=("node-a",), outside=False) as found:
        yield found


@pytest.fixture
def node(made: BranchGround) -> Iterator[BranchGround]:
    """Nobody is left of the test before, and the trunk is empty."""
    yield made
    made.end_all()
    made.assert_sound()
    made.assert_no_branch_of("node-a")
    made.await_cooled()


def test_a_pods_next_sandbox_has_its_branch(node: BranchGround) -> None:
    """kubelet makes a pod's sandbox anew: the annotation is the same, and so are ENI, VLAN ID and address."""
    first = node.run("web-0")
    assert node.delete(first).ok
    assert not node.rig.kernel().wired_to_branches
    name, reply = node.add(first.pod)
    assert reply.ok, reply.body
    second = node.sandboxes[name]
    assert (second.address, second.given) == (first.address, first.given)
    assert node.is_heard("host-a", second.name)
    node.assert_sound()


def test_a_restart_that_ec2_answers_late_refuses_no_pod(node: BranchGround) -> None:
    """A daemon whose datastore is whole serves before EC2 has answered; which its trunk is only EC2 tells: the ADD waits for it."""
    pod = node.pod("web-0")
    node.lab.faults.apply({"apis": {"DescribeNetworkInterfaces": {"latency_s": 3.0}}})
    try:
        node.rig.restart()
        name, reply = node.add(pod)
    finally:
        node.lab.faults.apply({"apis": {}})
    assert reply.ok, reply.body
    assert node.sandboxes[name].given == node.branches.controller.given(pod)
    assert node.is_heard("host-a", name)


def test_a_pod_of_the_same_name_has_a_branch_of_its_own(node: BranchGround) -> None:
    """A stateful set's next pod comes while the branch of its predecessor cools, and once again when that has cooled: each time by a
    link of its own; a repeated DEL of the first takes nothing from the third, which has its VLAN ID (#1644).
    """
    first = node.run("web-0")
    node.end(first)
    second = node.run("web-0")
    assert first.given is not None
    assert second.given is not None
    assert second.given.vlan != first.given.vlan
    node.end(second)
    node.await_cooled()
    third = node.run("web-0")
    assert third.given is not None
    assert third.given.vlan == first.given.vlan
    late = node.rig.cni("DEL", first.name, pod="web-0", netns="")
    assert late.ok, late.body
    assert node.is_heard("host-a", third.name)
    node.assert_sound()


def test_a_link_of_a_sandbox_whose_del_never_came(node: BranchGround) -> None:
    """Its namespace is gone, its branch was given to another pod by then: as long as nobody says that it is dead the next one waits,
    and is served at once when its DEL comes (#1374).
    """
    first = node.run("web-0")
    assert first.given is not None
    node.branches.pods.delete(first.pod)
    node.await_cooled()
    pod = node.pod("api-0")
    given = node.branches.controller.given(pod)
    assert given is not None
    assert given.vlan == first.given.vlan
    _, refused = node.add(pod)
    assert not refused.ok
    assert node.rig.kernel().wired_to_branches.keys() == {first.name}
    assert node.delete(first).ok
    name, reply = node.add(pod)
    assert reply.ok, reply.body
    assert node.is_heard("host-a", name)
    node.assert_sound()


def test_del_of_a_pod_that_is_gone_succeeds(node: BranchGround) -> None:
    """Pod and branch are gone at the API and at EC2 before the DEL comes (#3777); and so is one that was never there."""
    first = node.run("web-0")
    node.branches.pods.delete(first.pod)
    node.await_cooled()
    assert node.delete(first).ok
    assert node.rig.cni("DEL", "never-there", pod="web-9", netns="").ok


def test_a_pod_whose_annotation_is_late_gets_no_address_until_then(node: BranchGround) -> None:
    """Refused with 11, and nothing of it is left; its next sandbox has the branch (#3066). A pod of the pool is served meanwhile."""
    node.branches.controller.forgets_annotations = True
    pod = node.branches.pods.create("web-0", node="node-a", groups=(node.group,))
    try:
        _, refused = node.add(pod)
        assert (refused.ok, refused.code) == (False, TRY_LATER), refused.body
        kernel = node.rig.kernel()
        assert not kernel.wired, "I19"
        assert not kernel.wired_to_branches
        pooled = node.run("plain", groups=())
        assert node.is_heard("host-a", pooled.name)
    finally:
        node.branches.controller.forgets_annotations = False
    wait_until(lambda: POD_ENI in node.branches.pods.get(pod).annotations, what="the annotation")
    name, reply = node.add(pod)
    assert reply.ok, reply.body
    assert node.sandboxes[name].given is not None
    node.assert_sound()


def test_a_full_trunk_waits_one_cooldown(node: BranchGround) -> None:
    """Nine pods, the tenth is told when one has gone and cooled; until then it has no address."""
    running = [node.run(f"web-{number}") for number in range(MOST)]
    late = node.branches.pods.create("late", node="node-a", groups=(node.group,))
    _, refused = node.add(late)
    assert (refused.ok, refused.code) == (False, TRY_LATER), refused.body
    node.end(running[4])
    ended_s = time.monotonic()
    wait_until(lambda: POD_ENI in node.branches.pods.get(late).annotations, what="its annotation")
    assert time.monotonic() - ended_s >= COOLDOWN_S * 0.9
    name, reply = node.add(late)
    assert reply.ok, reply.body
    assert (node.sandboxes[name].given or running[0].given) is not None
    assert all(node.is_heard("host-a", one.name) for one in node.sandboxes.values())
    node.assert_sound()


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


def test_a_trunk_that_goes_takes_the_branches_along_and_they_come_back(node: BranchGround) -> None:
    """Somebody detaches it: pods of the pool are served, a new one with groups is refused; when it is back everybody is heard."""
    first, pooled = node.run("web-0"), node.run("plain", groups=())
    trunk = node.branches.wait_trunk("node-a")
    node.lab.vpc.hands.detach(trunk.eni_id, force=True)
    node.lab.settle()
    assert not node.is_heard("host-a", first.name, expected=False)
    assert node.is_heard("host-a", pooled.name)
    node.lab.vpc.hands.attach_existing(trunk.eni_id, node.rig.node.instance_id)
    node.lab.settle()
    wait_until(lambda: node.is_heard("host-a", first.name), what="it is heard again", timeout_s=90)
    node.assert_sound()
    second = node.run("web-1")
    assert node.is_heard("host-a", second.name)


def test_an_add_under_way_and_its_del(node: BranchGround) -> None:
    """Many at once, of both kinds: each gets what it must have, and nothing is left."""
    names = [f"web-{number}" for number in range(5)]
    pods = [node.pod(name) for name in names] + [node.pod(f"plain-{number}", groups=()) for number in range(4)]
    with ThreadPoolExecutor(len(pods)) as pool:
        replies = list(pool.map(node.add, pods))
    assert all(reply.ok for _, reply in replies), [reply.body for _, reply in replies]
    assert [node.sandboxes[name].given is not None for name, _ in replies] == [True] * 5 + [False] * 4
    assert all(node.is_heard("host-a", name) for name, _ in replies)
    node.assert_sound()


def test_a_restart_changes_nothing_for_those_that_are_there(node: BranchGround) -> None:
    """SIGKILL and a new daemon: who is wired is heard meanwhile and afterwards, and a repeated ADD is told the same."""
    first, pooled = node.run("web-0"), node.run("plain", groups=())
    node.rig.kill()
    assert node.is_heard("host-a", first.name)
    node.rig.start()
    assert all(node.is_heard("host-a", one.name) for one in (first, pooled))
    again = node.rig.cni("ADD", first.name, pod="web-0", uid=first.pod.uid, conf=node.conf(first.pod))
    assert again.any_address == first.address
    node.assert_sound()


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
