"""The lives of pods with branch ENIs on a node, by packets: one after another, late, and through a restart.

`test_full_trunk.py` and `test_wrong_annotations.py` have more: a node asks EC2 once a second at most, so one file of them all took
six minutes, and most of it was waiting.

Source of the traps: amazon-vpc-cni-k8s issues 1374, 1375, 1644, 3066 and 3777.
"""

from __future__ import annotations

import pytest

from lab.branches.pods import POD_ENI
from tests.lab.branch.ground import TRY_LATER, BranchGround
from tests.rig import wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.slow]


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
