"""Fifty pods of amazon-vpc-cni-k8s are taken over: addresses and packets stay, and each DEL removes what the other had wired."""

from __future__ import annotations

import pytest

from lab.vpc.family import Family
from tests import aws_node
from tests.families import EACH_FAMILY_HEAVY_IPV6
from tests.lab.migration.conftest import assert_killed, migrated
from tests.rig import wait_until

pytestmark = pytest.mark.privileged

COUNT = 50


@pytest.mark.slow
@EACH_FAMILY_HEAVY_IPV6
def test_fifty_pods_come_over_and_go_one_by_one(family: Family) -> None:
    """Row 12 and its acceptance: 50 addresses kept, no packet lost, each DEL cleans the other's wiring, and what is for egress too."""
    with migrated(COUNT, instance_type="m5.4xlarge", family=family) as node:
        with_egress = [pod for pod in node.pods if pod.other is not None]
        assert node.reach_outside(with_egress)
        aws_node.chains(node.rig.node)
        node.rig.node.run(["iptables-nft", "-t", "nat", "-A", "POSTROUTING", "-s", "192.0.2.1", "-j", "RETURN"])
        with node.flow() as flow:
            wait_until(lambda: flow.sent >= 5, what="packets before")
            if with_egress:  # killed between the halves of a sandbox first
                node.rig.start(wait=False, env={"VPC_IPAMD_FAILPOINT": "import.second:9"})
                assert_killed(node.rig)
            node.rig.start()
            sent = flow.sent
            wait_until(lambda: flow.sent >= sent + 5, what="packets afterwards")
            lost = flow.stop()
        assert lost == set()
        assert node.sh("ls /etc/cni/net.d").split() == ["10-aws.conflist.vpc-ipamd-saved", "10-vpc-ipamd.conflist"]
        chains = ("AWS", "CNI-E4")
        wait_until(lambda: not any(one in node.sh("iptables-nft-save") for one in chains), what="its chains are removed")
        assert node.reach_outside(with_egress)
        assert "192.0.2.1" in node.sh("iptables-nft-save -t nat"), "only its own"
        wanted = {pod.container_id: pod.address for pod in node.pods}
        assert node.rig.attachments() == wanted
        node.rig.assert_sound(expected=COUNT)
        checked = node.rig.cni("CHECK", node.pods[-1].container_id, netns=node.pods[-1].netns)
        assert checked.ok, checked.body
        new = node.rig.add("new-pod")
        assert new.ok, new.body
        assert new.any_address not in wanted.values()
        assert node.rig.delete("new-pod").ok
        for pod in node.pods:
            assert node.rig.cni("DEL", pod.container_id, netns=pod.netns).ok
        node.rig.assert_sound(expected=0)
        assert not node.sh("ip -o link show type veth | grep -E 'eni|veth'")
        assert not node.sh("for one in -4 -6; do ip $one rule show prio 512; ip $one rule show prio 1536; done")
        routes = node.sh("for one in -4 -6; do ip $one route show table all type unicast; done").splitlines()
        assert not {str(one) for pod in node.pods for one in (pod.address, pod.other)} & {route.split()[0] for route in routes}
