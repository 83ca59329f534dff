"""A pod with a branch ENI goes from amazon-vpc-cni-k8s to us: the daemon that ships, the fabric's trunk, VLAN links of the lab."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest

from ipamd.pb import cri_pb2
from lab.branches.ground import Branches
from lab.branches.pods import POD_ENI
from lab.fabric import vlan as stand_in
from lab.fabric.netns import run_inside
from tests import aws_node
from tests.aws_node import Pod
from tests.lab.migration.conftest import Migrated, migrated
from tests.rig import wait_until

pytestmark = pytest.mark.privileged

NAME = "database"


@pytest.fixture
def node() -> Iterator[Migrated]:
    """One that the other software ran, with a pod of the pool."""
    with migrated(1, env={"ENABLE_POD_ENI": "true", "POD_SECURITY_GROUP_ENFORCING_MODE": "strict"}) as made:
        yield made


def wire_theirs(node: Migrated, told: dict[str, Any], parent: str) -> Pod:
    """The pod as its plugin wires it in strict mode (cmd/routed-eni-cni-plugin/driver/driver.go, SetupBranchENIPodNetwork)."""
    vlan, gateway = told["vlanId"], IPv4Network(told["subnetCidr"])[1]
    pod = Pod(NAME, IPv4Address(told["privateIp"]), 254)
    aws_node.wire(node.rig.node, [pod])
    veth, link, table = "vlan" + pod.veth.removeprefix("eni"), f"vlan.eth.{vlan}", 100 + vlan
    run_inside(node.rig.node.netns_path(), partial(stand_in.make, parent, link, vlan, mac=told["ifAddress"]))
    node.sh(
        f"ip rule del to {pod.address} prio 512; ip route del {pod.address};"
        f"ip link set {pod.veth} down; ip link set {pod.veth} name {veth};"
        f"ip link set {parent} up mtu 9001; ip link set {veth} up; ip link set {link} up;"
        f"ip route add {gateway} dev {link} scope link table {table};"
        f"ip route add default via {gateway} dev {link} table {table}; ip route add {pod.address} dev {veth} scope link table {table};"
        f"ip rule add iif {link} table {table} prio 10; ip rule add iif {veth} table {table} prio 10"
    )
    return pod


def test_a_pod_with_a_branch_eni_comes_over(node: Migrated) -> None:
    """Beside one of the pool; it answers a host of the VPC by its branch ENI, before and after; by our DEL nothing of it is left."""
    made = node.rig
    with Branches(made.lab, nodes=["node-a"], cooldown_s=0.5) as branches:
        wanted = branches.pods.create(NAME, node="node-a", groups=(made.lab.vpc.default_group_id,))
        wait_until(lambda: POD_ENI in branches.pods.get(wanted).annotations, what="the annotation")
        text = branches.pods.get(wanted).annotations[POD_ENI]
        (told,) = json.loads(text)
        pod = wire_theirs(node, told, branches.trunk_link("node-a"))
        node.runtime.sandboxes[pod.container_id] = cri_pb2.PodSandbox(
            id=pod.container_id,
            metadata=cri_pb2.PodSandboxMetadata(name=NAME, namespace="default", uid="uid"),
            state=cri_pb2.SANDBOX_READY,
            annotations={POD_ENI: text},
        )
        made.start()
        rows = {one.container_id: one.address for one in (*node.pods, pod)}
        assert made.attachments() == rows
        status = made.status()
        assert status is not None
        assert not [one for one in status["conditions"] if one["subject"] == "import"], status["conditions"]
        assert made.lab.ping(source="host-a", targets=[pod.address])[pod.address], "from the first moment"
        shown = json.loads(node.sh(f"ip -j link show vlan.eth.{told['vlanId']}"))
        assert told["eniId"] in shown[0]["ifalias"]
        made.restart()
        assert made.attachments() == rows
        assert made.cni("DEL", pod.container_id).ok
        wait_until(lambda: "vlan" not in node.sh("ip -o link show"), what="its links are gone")
        assert "vlan" not in node.sh("ip rule")
