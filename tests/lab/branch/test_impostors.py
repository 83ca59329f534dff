"""Who writes another's branch ENI into his pod's annotation gets nothing by it, by packets; an honest pod works soon after its ADD."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lab.branches.pods import POD_ENI
from tests.lab.branch.ground import MODES, BranchGround, ground
from tests.rig import wait_until

pytestmark = pytest.mark.privileged

NO_SUCH_ENI = {"host-b": "eni-0123456789abcdef0", "node-b": "eni-0123456789abcdef1"}
LIST = "DescribeNetworkInterfaces"


@pytest.fixture(scope="module", params=list(MODES))
def made(request: pytest.FixtureRequest) -> Iterator[BranchGround]:
    """Two nodes, in each mode."""
    with ground(request.param, outside=False) as found:
        found.mode = request.param
        yield found


@pytest.fixture
def node(node: BranchGround) -> Iterator[BranchGround]:
    """The node of the folder; controller and EC2 are honest again before it is cleared."""
    yield node
    node.branches.controller.wrong = None
    node.lab.faults.clear()


@contextmanager
def telling(node: BranchGround, **lies: object) -> Iterator[None]:
    """Have each pod that is told its branch ENI told something else."""
    node.branches.controller.wrong = lambda entry: {**entry, **lies}
    try:
        yield
    finally:
        node.branches.controller.wrong = None


def await_looks(node: BranchGround, count: int) -> None:
    """Wait until EC2 has been asked so many times more."""
    wanted = node.lab.vpc.call_counts()[LIST] + count
    wait_until(lambda: node.lab.vpc.call_counts()[LIST] >= wanted, what=f"{count} lists of ENIs")


def condition(node: BranchGround) -> str:
    """What the daemon says of branch ENIs."""
    status: dict[str, Any] = node.rig.status() or {}
    return " ".join(str(one) for one in status.get("conditions", ()) if one["subject"] == "branch")


@pytest.mark.parametrize(
    ("victim", "restarts"), [("host-b", (False,)), pytest.param("node-b", (False, True), marks=pytest.mark.slow)]
)
def test_an_address_that_others_have_stays_theirs(node: BranchGround, victim: str, restarts: tuple[bool, ...]) -> None:
    """The impostor names an ENI that does not exist and the address of a host of the VPC, or of a node in the trunk's subnet: this
    node goes on sending to its owner, over looks at EC2 and a restart, and the impostor neither sends nor is reached."""
    pool, address = node.run("plain", groups=()), str(node.addresses[victim])
    lies = {"eniId": NO_SUCH_ENI[victim], "privateIp": address, "subnetCidr": "10.0.0.0/16"}
    with telling(node, **lies, ifAddress="02:00:00:00:66:66", vlanId=77):
        pod = node.pod("impostor")
        name, reply = node.add(pod)
    assert reply.ok, reply.body
    for is_restarted in restarts:
        if is_restarted:
            node.rig.restart()
        if node.mode == "standard":
            assert node.unconfirmed_count() == 1
            await_looks(node, 1)
        for client in ("node-a", pool.name, "host-a"):
            assert node.is_heard(client, victim), client
        assert not node.is_heard(name, "host-a", expected=False)
    node.rig.cni("DEL", name, pod=pod.name, uid=pod.uid)
    node.servers.remove(name)
    node.rig.node.remove_netns(name)
    del node.sandboxes[name]


def test_a_copy_of_a_live_pods_annotation_is_refused(node: BranchGround) -> None:
    """In both modes, with both pods named; the pod itself goes on."""
    victim = node.run("victim")
    told = json.loads(node.branches.pods.get(victim.pod).annotations[POD_ENI])[0]
    for lies in (told, told | {"vlanId": 77}):
        with telling(node, **lies):
            _, refused = node.add(node.pod("copy"))
        assert not refused.ok
        assert "victim" in str(refused.body)
        assert "copy" in str(refused.body)
        for pod in node.branches.pods.pods():
            if pod.name == "copy":
                node.branches.pods.delete(pod)
    assert node.is_heard("host-a", victim.name)


def test_a_pod_has_its_routes_when_ec2_answers(node: BranchGround) -> None:
    """EC2 is silent for a while: the ADD replies, in standard mode nobody reaches the pod, and an answer is all that it needs. Branch
    ENIs that EC2 hides by default are confirmed like others."""
    pod = node.pod("web-0")
    given = node.branches.controller.given(pod)
    assert given is not None
    node.lab.vpc.hands.manage(given.eni_id, "eks.amazonaws.com")
    node.lab.faults.apply({"apis": {LIST: {"error": {"code": "Unavailable", "status": 503, "count": 1000}}}})
    name, reply = node.add(pod, awaits=False)
    assert reply.ok, reply.body
    if node.mode == "standard":
        assert not node.is_heard("host-a", name, expected=False)
        assert not node.is_heard(name, "host-a", expected=False)
        wait_until(lambda: given.eni_id in condition(node), what="the condition names the ENI")
    node.lab.faults.clear()
    wait_until(lambda: node.unconfirmed_count() == 0, what="EC2 confirms it")
    wait_until(lambda: node.is_heard("host-a", name, expected=False), what="it is reached")


def test_a_trunk_that_ec2_hides_by_default_is_found(node: BranchGround) -> None:
    """Whether EC2 counts trunks as managed is not known: if it does, a new process must find it all the same."""
    trunk = node.branches.controller.trunk_of("node-a")
    node.lab.vpc.hands.manage(trunk, "eks.amazonaws.com")
    try:
        node.rig.restart()
        sandbox = node.run("web-0")
        assert node.is_heard("host-a", sandbox.name)
        node.end(sandbox)
    finally:
        node.lab.vpc.hands.manage(trunk, "")
