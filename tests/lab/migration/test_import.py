"""Fifty pods of amazon-vpc-cni-k8s are taken over: addresses and packets stay, and each DEL removes what the other had wired."""

from __future__ import annotations

import pytest

from tests import aws_node
from tests.lab.migration.conftest import migrated
from tests.rig import wait_until

pytestmark = pytest.mark.privileged

COUNT = 50


def test_fifty_pods_come_over_and_go_one_by_one() -> None:
    """Row 12 and its acceptance: 50 addresses kept, no packet lost, each DEL cleans the other's wiring."""
    with migrated(COUNT, instance_type="m5.4xlarge") as node:
        aws_node.chains(node.rig.node)
        node.rig.node.run(["iptables-nft", "-t", "nat", "-A", "POSTROUTING", "-s", "192.0.2.1", "-j", "RETURN"])
        with node.flow() as flow:
            wait_until(lambda: flow.sent >= 5, what="packets before")
            node.rig.start()
            sent = flow.sent
            wait_until(lambda: flow.sent >= sent + 5, what="packets afterwards")
            lost = flow.stop()
        assert lost == set()
        assert node.sh("ls /etc/cni/net.d").split() == ["10-aws.conflist.vpc-ipamd-saved", "10-vpc-ipamd.conflist"]
        wait_until(lambda: "AWS" not in node.sh("iptables-nft-save"), what="its chains are removed")
        assert "192.0.2.1" in node.sh("iptables-nft-save -t nat"), "only its own"
        wanted = {pod.container_id: pod.address for pod in node.pods}
        assert node.rig.attachments() == wanted
        node.rig.assert_sound(expected=COUNT)
        checked = node.rig.cni("CHECK", node.pods[-1].container_id, netns=node.pods[-1].netns)
        assert checked.ok, checked.body
        new = node.rig.add("new-pod")
        assert new.ok, new.body
        assert new.address not in wanted.values()
        assert node.rig.delete("new-pod").ok
        for pod in node.pods:
            assert node.rig.cni("DEL", pod.container_id, netns=pod.netns).ok
        node.rig.assert_sound(expected=0)
        assert not node.sh("ip -o link show type veth | grep eni")
        assert not node.sh("ip rule show prio 512; ip rule show prio 1536")
        routes = node.sh("ip route show table all type unicast").splitlines()
        assert not {str(pod.address) for pod in node.pods} & {route.split()[0] for route in routes}
