"""Its daemon comes back beside ours and gives an address: ours says so, and takes over what it gave once it has gone."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from tests import aws_node
from tests.aws_node import Pod
from tests.lab.migration.conftest import Migrated, migrated
from tests.rig import wait_until

pytestmark = pytest.mark.privileged


def free_place(node: Migrated) -> tuple[IPv4Address, int]:
    """An address of the node that nobody has, and its ENI's route table."""
    taken = set(node.rig.attachments().values())
    for eni in node.rig.lab.vpc.enis_of(node.rig.node.instance_id):
        for address in sorted(eni.secondary_addresses):
            if address not in taken:
                index = eni.attachment.device_index if eni.attachment is not None else 0
                return address, 254 if index == 0 else index + 1
    raise AssertionError("the node is full")


def test_what_it_gave_beside_us_is_taken_over_when_it_has_gone() -> None:
    """Its pod keeps network and address; a restart of ours makes the rows anew, and its DEL is ours from then on."""
    with migrated(1, start=True) as node:
        rig = node.rig
        address, table = free_place(node)
        pod = Pod("beside", address, table)
        with socket.socket(socket.AF_UNIX) as theirs:
            path = Path(f"{rig.node.root}/run/aws-node/ipamd.sock")
            theirs.bind(str(path))
            theirs.listen()
            aws_node.wire(rig.node, [pod])
            node.runtime.run_pod(pod.container_id, pod.name)
            aws_node.write_file(rig.node, [*node.pods, pod])
            aws_node.write_conflist(rig.node)
            said = rig.driver.wait_status(
                lambda s: any("has come back" in one for one in s["lacks"]), what="two daemons", timeout_s=30
            )
            assert said["ready"]
            assert rig.daemon is not None
        path.unlink()
        aws_node.write_conflist(rig.node)  # the keeper looks at once
        assert rig.daemon.wait(40) == 1  # its supervisor starts it again
        rig.start()
        assert rig.attachments() == {one.container_id: one.address for one in [*node.pods, pod]}
        assert rig.lab.ping(source="host-a", targets=[address]) == {address: True}
        assert rig.cni("DEL", pod.container_id, netns=pod.netns).ok
        wait_until(lambda: not node.sh(f"ip -o link show {pod.veth} || true"), what="its link goes", timeout_s=10)
        rig.assert_sound(expected=1)
