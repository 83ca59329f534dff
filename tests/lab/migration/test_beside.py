"""Its daemon beside ours, in both orders, restarting, late and rewriting its file: ours gives nothing, and names what both gave."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest

from tests import aws_node
from tests.aws_node import Pod
from tests.lab.migration.conftest import Migrated, migrated
from tests.rig import wait_until

pytestmark = pytest.mark.privileged

AGENT_POD = "aws-node-x7k2p"
THEIRS = f"/var{aws_node.SOCKET}"


def free_place(node: Migrated) -> tuple[IPv4Address, int]:
    """An address of the node that nobody has, and its ENI's route table."""
    taken = set(node.rig.attachments().values())
    for eni in node.rig.lab.vpc.enis_of(node.rig.node.instance_id):
        for address in sorted(eni.secondary_addresses):
            if address not in taken:
                index = eni.attachment.device_index if eni.attachment is not None else 0
                return address, 254 if index == 0 else index + 1
    raise AssertionError("the node is full")


def assert_held(node: Migrated, name: str) -> None:
    """An ADD gets no address, is to be tried again, and its event says what to do."""
    refused = node.rig.add(name)
    assert refused.code == 11, refused.body
    assert refused.body is not None
    assert "remove its DaemonSet aws-node" in refused.body["details"], refused.body


def wait_lacks(node: Migrated, words: str) -> None:
    """Until `ipamctl status` says so."""
    node.rig.driver.wait_status(lambda s: any(words in one for one in s["degraded"]), what=words, timeout_s=120)


@pytest.mark.slow
@pytest.mark.heavy
def test_a_daemon_that_restarts_beside_ours_is_not_taken_for_one_that_has_gone() -> None:
    """Ours waits; the other crashes, is away, comes back and crashes again: no ADD, and its conflist stays, until it is away for a
    minute. It left its socket behind, and once its sandbox alone tells that it is about to come back (I20).
    """
    with migrated(1) as node:
        rig = node.rig
        node.agent.start()
        rig.start(wait=False)
        wait_lacks(node, f"it serves {THEIRS}")
        for away_s in (20.0, 50.0):
            node.agent.kill()
            node.pass_time(away_s)
            wait_lacks(node, "s ago; remove its DaemonSet")
            assert_held(node, f"after-{away_s:.0f}")
            node.agent.start()
            wait_lacks(node, f"it serves {THEIRS}; remove")
            assert node.sh("ls /etc/cni/net.d").split() == ["10-aws.conflist"]
        node.agent.kill()
        rig.kill()  # ours restarts too: the note remembers
        rig.start(wait=False)
        wait_lacks(node, "s ago; remove its DaemonSet")
        assert_held(node, "after-ours")
        node.runtime.run_pod("agent", AGENT_POD, namespace="kube-system")
        node.pass_time()
        wait_lacks(node, f"its pod kube-system/{AGENT_POD} runs")
        assert_held(node, "its-pod-runs")
        node.runtime.stop_pod("agent")
        wait_lacks(node, f"{AGENT_POD} runs, ")  # some seconds ago
        node.pass_time()
        rig.wait_ready()
        assert rig.add("ours").ok
        assert rig.attachments().keys() == {node.pods[0].container_id, "ours"}
        saved = ["10-aws.conflist.vpc-ipamd-saved", "10-vpc-ipamd.conflist"]
        wait_until(lambda: node.sh("ls /etc/cni/net.d").split() == saved, what="its conflist is renamed")
        rig.kill()
        rig.start()  # a roll waits for nothing: its last sign is more than a minute old
        assert rig.add("rolled").ok


def test_what_its_daemon_gives_beside_ours_is_named_and_taken_over_when_it_has_gone() -> None:
    """It comes before its conflist, gives a free address and one that a pod of ours has, and rewrites its file, late. ADD is held at
    once; status, audit and explain name both pods; the free one is ours from the next start on, and its DEL too.
    """
    with migrated(1, start=True) as node:
        rig = node.rig
        given = rig.add("ours")
        assert given.ok, given.body
        node.runtime.run_pod("ours", "ours")
        address, table = free_place(node)
        beside, twice = Pod("beside", address, table), Pod("twice", given.address, table)
        node.agent.start()
        wait_lacks(node, f"it serves {THEIRS}")
        assert_held(node, "while-it-serves")
        assert not rig.driver.status()["ready"]
        aws_node.wire(rig.node, [beside])
        node.runtime.run_pod(beside.container_id, beside.name)
        aws_node.write_file(rig.node, [*node.pods, beside, twice])
        aws_node.write_conflist(rig.node)
        wait_lacks(node, "aws-node conflict: ")
        audited = rig.driver.ipamctl("audit")
        assert audited.returncode == 1
        assert "default/twice" in audited.stdout
        for subject in (str(given.address), "ours", "default/twice", twice.container_id):
            told = rig.driver.ipamctl("explain", subject).stdout
            assert f"{given.address} was given to sandbox ours/eth0" in told, (subject, told)
            assert twice.container_id in told, (subject, told)
        rig.kill()  # while it serves our rows stay: who asks is told the same after a restart
        rig.start(wait=False)
        wait_lacks(node, "aws-node conflict: ")
        assert rig.driver.ipamctl("audit").returncode == 1
        assert twice.container_id in rig.driver.ipamctl("explain", "default/twice").stdout
        aws_node.write_file(rig.node, [*node.pods, beside])  # that pod was deleted
        rig.driver.wait_status(
            lambda s: not any("aws-node conflict" in one for one in s["degraded"]), what="it has ended", timeout_s=120
        )
        assert "10-aws.conflist" in node.sh("ls /etc/cni/net.d").split()
        node.agent.kill()
        assert_held(node, "a-moment-later")
        assert rig.daemon is not None
        assert rig.daemon.poll() is None, "it may come back"
        node.pass_time()
        assert rig.daemon.wait(40) == 1  # its supervisor starts it again
        rig.start()
        wanted = {one.container_id: one.address for one in [*node.pods, beside]} | {"ours": given.address}
        assert rig.attachments() == wanted
        assert rig.lab.ping(source="host-a", targets=[address]) == {address: True}
        assert rig.cni("DEL", beside.container_id, netns=beside.netns).ok
        wait_until(lambda: not node.sh(f"ip -o link show {beside.veth} || true"), what="its link goes")
        rig.assert_sound(expected=2)
