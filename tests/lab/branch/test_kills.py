"""Pods with branch ENIs under a real runtime: SIGKILL of the daemon at each step in the kernel, a lost datastore, a dead sandbox.

kubelet's part is played by `lab/branches/kubelet.py`: a sandbox has the pod's annotations of its time, and a failed one is made anew.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from lab.branches.controller import Given
from lab.branches.ground import Branches
from lab.branches.pods import Pod
from lab.lab import Lab
from lab.node.errors import SandboxError
from lab.node.kernel_view import KernelView
from lab.vpc.model import Address
from tests import aws_node
from tests.lab.branch.ground import MODES, MODULE
from tests.patience import PATIENCE_S
from tests.rig import Rig, wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.containerd, pytest.mark.slow]


class Runtime:
    """One node with containerd, a trunk and a daemon; a host that hears the pods."""

    def __init__(self, lab: Lab, branches: Branches, rig: Rig) -> None:
        self.lab, self.branches, self.rig = lab, branches, rig
        self.kubelet = branches.kubelets["node-a"]
        self.group = lab.vpc.default_group_id

    def pod(self, name: str, *, has_groups: bool = True) -> Pod:
        """A pod of the node."""
        return self.branches.pods.create(name, node="node-a", groups=(self.group,) if has_groups else ())

    def run(self, name: str, *, has_groups: bool = True) -> Pod:
        """The same with a sandbox, and the address that it must have."""
        pod = self.pod(name, has_groups=has_groups)
        self.kubelet.run(pod)
        if has_groups:
            assert str(self.address(pod)) in self.given(pod).addresses, "I19"
            wait_until(lambda: self.kubelet.sandbox(pod) in self.wired_to_branches(), what="EC2 has confirmed its branch")
        return pod

    def given(self, pod: Pod) -> Given:
        """What the controller made for it."""
        found = self.branches.controller.given(pod)
        assert found is not None
        return found

    def address(self, pod: Pod) -> Address:
        """What the runtime was told."""
        found = self.rig.node.cri.status(self.kubelet.sandbox(pod)).address
        assert found is not None
        return found

    def is_heard(self, pod: Pod) -> bool:
        """Whether a host of the VPC has its answer."""
        address = self.address(pod)
        return self.lab.ping(source="host-a", targets=[address], timeout_s=PATIENCE_S)[address]

    def kernel(self) -> KernelView:
        """The node's."""
        return self.rig.kernel()

    def wired_to_branches(self) -> dict[str, str | None]:
        """Sandbox -> the address that the node routes to its branch ENI's veth."""
        return {name: veth.address for name, veth in self.kernel().wired_to_branches.items()}

    def lose_datastore(self) -> None:
        """Kill the daemon, and delete its database."""
        self.rig.kill()
        assert self.rig.driver.lose_datastore()

    def assert_only(self, *pods: Pod) -> None:
        """These sandboxes are wired and recorded, each to its own branch, and nothing else of branches is there."""
        wait_until(
            lambda: (self.rig.status() or {"veths_pending_deletion_count": 1})["veths_pending_deletion_count"] == 0,
            what="no veth is left to delete",
        )
        expected = {self.kubelet.sandbox(pod): self.address(pod) for pod in pods}
        wait_until(lambda: self.rig.attachments() == expected, what="the rows of those that live")
        wired = {name: str(address) for name, address in expected.items()}
        wait_until(lambda: self.wired_to_branches() == wired, what="their routes, which wait for EC2 in standard mode")
        kernel = self.kernel()
        assert not kernel.wired, "I19"
        links = {link.vlan: link.mac for link in kernel.vlans if not link.is_dying}
        assert links == {self.given(pod).vlan: self.given(pod).mac for pod in pods}
        assert all(self.is_heard(pod) for pod in pods)

    def end_all(self) -> None:
        """Every pod."""
        for pod in self.branches.pods.pods():
            self.kubelet.end(pod)
        for sandbox in self.rig.node.cri.list():
            self.rig.node.cri.stop(sandbox.sandbox_id)
            self.rig.node.cri.remove(sandbox.sandbox_id)


@contextmanager
def runtime(mode: str) -> Iterator[Runtime]:
    """Build it; everything is gone afterwards."""
    with (
        Lab(name=f"branch-kills-{mode}", nodes=["node-a"], hosts=["host-a"]) as lab,
        Branches(lab, nodes=["node-a"], cooldown_s=0.3) as branches,
    ):
        rig = Rig(lab, lab.node("node-a"), env=MODES[mode] | {"VPC_IPAMD_CRI_SOCKET": ""}, module=MODULE)
        rig.start()
        yield Runtime(lab, branches, rig)
        assert lab.fabric.problems == []
        assert branches.controller.problems == []


@pytest.fixture(scope="module", params=["strict", pytest.param("standard", marks=pytest.mark.heavy)])
def made(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    """In each mode: strict, which has all the rules, with `make test`; the other with `make test-all`."""
    with runtime(request.param) as found:
        yield found


@pytest.fixture
def node(made: Runtime) -> Iterator[Runtime]:
    """Nobody is left of the test before."""
    yield made
    made.end_all()
    made.assert_only()


def test_a_pod_starts_by_its_second_sandbox_at_the_latest_told(node: Runtime) -> None:
    """By annotations alone the first sandbox may fail; kubelet's next one has the branch, and the pod is heard (#3066)."""
    pod = node.run("web-0")
    assert all("code" in words or "network" in words for _, words in node.kubelet.refusals)
    node.assert_only(pod)
    node.kubelet.end_sandbox(pod)
    node.kubelet.run(pod)
    node.assert_only(pod)


IN_ADD = (
    "branch.claimed",
    "kernel.create-veth",
    "kernel.name-and",
    "kernel.add-route",
    "attach.wired",
    "attach.committed",
)
"""Where an ADD is killed, in its order."""


@pytest.mark.parametrize("at", IN_ADD)
def test_killed_in_an_add(node: Runtime, at: str) -> None:
    """The runtime waits for the next daemon: one sandbox is there, with the pod's branch, and nothing of the first attempt."""
    pod = node.pod("web-0")
    wait_until(lambda: node.branches.controller.given(pod) is not None, what="its branch")
    node.rig.restart(env={"VPC_IPAMD_FAILPOINT": at})
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(node.kubelet.run, pod)  # its plugin waits for the next daemon (I17)
        wait_until(lambda: node.rig.daemon is not None and node.rig.daemon.poll() is not None, what=f"death at {at}")
        assert node.rig.daemon is not None
        assert node.rig.daemon.returncode == -signal.SIGKILL
        node.rig.start()
        running.result(PATIENCE_S)
    node.assert_only(pod)


def test_killed_in_an_add_of_a_pod_that_ends(node: Runtime) -> None:
    """Nobody asks for its VLAN ID again: the next start removes the link that was made, and not named yet."""
    pod = node.pod("web-0")
    wait_until(lambda: node.branches.controller.given(pod) is not None, what="its branch")
    node.rig.restart(env={"VPC_IPAMD_FAILPOINT": "kernel.name-and"})
    with pytest.raises(SandboxError):
        node.kubelet.attempt(pod, timeout_s=2.0)
    wait_until(lambda: node.rig.daemon is not None and node.rig.daemon.poll() is not None, what="its death")
    assert [link.vlan for link in node.kernel().vlans] == [node.given(pod).vlan]
    node.branches.pods.delete(pod)
    node.rig.start()
    node.assert_only()


@pytest.mark.parametrize("at", ["detach.retired", "detach.committed", "cooling.swept"])
def test_killed_in_a_del(node: Runtime, at: str) -> None:
    """The DEL is done once the next daemon serves, and the pod's next sandbox has its branch."""
    pod = node.run("web-0")
    node.rig.restart(env={"VPC_IPAMD_FAILPOINT": at})
    node.kubelet.end_sandbox(pod)
    wait_until(lambda: node.rig.daemon is not None and node.rig.daemon.poll() is not None, what=f"death at {at}")
    node.rig.start()
    node.assert_only()
    node.kubelet.run(pod)
    node.assert_only(pod)


def test_a_lost_datastore_is_rebuilt(node: Runtime) -> None:
    """From the aliases of both links, while the pods are heard; the next pod's VLAN ID is its own."""
    pods = [node.run(f"web-{number}") for number in range(3)]
    node.lose_datastore()
    assert all(node.is_heard(pod) for pod in pods)
    node.rig.start()
    node.assert_only(*pods)
    node.assert_only(*pods, node.run("web-9"))


def test_a_runtime_that_lists_nothing_at_two_starts_takes_nothing(node: Runtime) -> None:
    """The datastore was lost too, so nothing but the kernel speaks for the pods: they are heard, and adopted when they are listed."""
    pods = [node.run(f"web-{number}") for number in range(2)]
    node.lose_datastore()
    empty = aws_node.Runtime(node.rig.node)
    try:
        for _ in range(2):
            node.rig.start(env={"VPC_IPAMD_CRI_SOCKET": aws_node.CRI_SOCKET})
            assert all(node.is_heard(pod) for pod in pods)
            node.rig.kill()
    finally:
        empty.close()
    node.rig.start()
    node.assert_only(*pods)


def test_a_lost_datastore_and_a_del_of_that_time(node: Runtime) -> None:
    """The DEL waits in the spool; the sandbox that it ended leaves nothing, though no row tells of it."""
    kept, ended = node.run("kept"), node.run("ended")
    node.lose_datastore()
    node.kubelet.end(ended)
    node.rig.start()
    node.assert_only(kept)


def test_a_late_del_takes_its_own_link_only(node: Runtime) -> None:
    """A sandbox dies; the next pod of its name is there, with a branch of its own, before the DEL comes (#1644, #1375)."""
    first = node.run("web-0")
    sandbox = node.kubelet.sandbox(first)
    node.rig.node.run(
        ["sh", "-c", "kill -9 $(cat /run/containerd/io.containerd.runtime.v2.task/k8s.io/" + sandbox + "/init.pid)"]
    )
    wait_until(lambda: not node.rig.node.cri.status(sandbox).is_ready, what="the runtime knows that it is dead")
    node.branches.pods.delete(first)
    second = node.run("web-0")
    assert node.is_heard(second)
    node.kubelet.end_sandbox(first)
    assert node.is_heard(second)
    node.assert_only(second)


def test_pods_of_both_kinds_and_a_dead_daemon(node: Runtime) -> None:
    """While the daemon is away nobody starts; afterwards each has what it must have."""
    node.rig.kill()
    pods = [node.pod("web-0"), node.pod("plain", has_groups=False)]
    for pod in pods:
        with pytest.raises(SandboxError):
            node.kubelet.attempt(pod, timeout_s=2.0)
    node.rig.start()
    for pod in pods:
        node.kubelet.run(pod)
    assert str(node.address(pods[0])) in node.given(pods[0]).addresses
    assert node.rig.eni_of(node.address(pods[1])) is not None
    assert all(node.is_heard(pod) for pod in pods)
