"""A pod in strict mode whose VLAN link goes while no daemon runs: nothing of it leaves by the node's own ENI."""

from __future__ import annotations

import pytest

from lab.vpc.family import IPV4, IPV6, Family
from tests.lab.branch.ground import ground
from tests.rig import wait_until

pytestmark = pytest.mark.privileged

CASES = {
    "ipv4": (IPV4, {}),
    "ipv4-extra-sources": (IPV4, {"VPC_IPAMD_EXTRA_SOURCE_CIDRS": "10.0.0.0/8"}),
    "ipv6": (IPV6, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_leaves_by_the_nodes_eni(case: str) -> None:
    """Counted on the node; the next daemon makes the link again, and the pod is heard."""
    family: Family
    family, env = CASES[case]
    with ground("strict", env=env, nodes=("node-a",), family=family, outside=False) as node:
        pod = node.run("web-0")
        assert node.is_heard(pod.name, "host-a")
        assert pod.given is not None
        node.rig.kill()
        node.ip("node-a", "link", "del", f"vlan.eth.{pod.given.vlan}")
        word = "ip6" if family is IPV6 else "ip"
        rule = f'oifname != "vlan*" {word} saddr {pod.address} counter'
        tool = node.rig.node.netns.tool
        tool(["nft", "add table inet watch"])
        tool(["nft", "add chain inet watch out { type filter hook postrouting priority -300; }"])
        tool(["nft", f"add rule inet watch out {rule}"])
        for other in ("host-a", "node-a"):
            assert not node.is_heard(pod.name, other, expected=False)
        assert "packets 0 " in tool(["nft", "list", "chain", "inet", "watch", "out"])
        tool(["nft", "delete table inet watch"])
        node.rig.start()
        wait_until(lambda: node.vlan_link(pod) is not None, what="the link is made again")
        assert node.is_heard(pod.name, "host-a")
        node.end_all()
        node.assert_sound()
