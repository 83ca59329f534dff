"""One pod that asks by its annotation for a pool of the network file: its address is of that subnet, its ENI has that group."""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv4Network

from ipamd.model.eni_tags import POOL_TAG
from ipamd.model.pod_annotations import POOL
from lab.demo.checks import Verdict
from lab.demo.context import HOST, DemoContext, brief
from lab.demo.node import KUBELET_ANNOTATIONS, NETWORK_FILE, DemoNode, Pod
from lab.fabric import talk

OTHER_POOL = "a pod that asks for another pool gets an address of its subnet, on an ENI with its group"
SUBNET = IPv4Network("10.0.48.0/24")
NAME = "cards"


def prepare(context: DemoContext) -> None:
    """Make subnet and group of the pool at EC2, and the network file that names them on the nodes. Before the daemons start."""
    vpc = context.lab.vpc
    subnet, group = vpc.add_subnet(str(SUBNET)), vpc.add_security_group(NAME)
    pools = {NAME: {"subnets": [subnet.subnet_id], "securityGroups": [group]}}
    for node in context.nodes:
        node.lab_node.write_file(NETWORK_FILE, json.dumps({"pools": pools}).encode())


def show(context: DemoContext, verdict: Verdict) -> None:
    """Run the pod, let the host of the VPC ask it, and remove it."""
    node = context.nodes[0]
    pod = node.run_pod(f"{node.name}-{NAME}", annotations={**KUBELET_ANNOTATIONS, POOL: NAME})
    problems = _problems(context, node, pod)
    node.remove_pod(pod)
    verdict(OTHER_POOL, not problems, brief(problems) or f"{pod.address} of {SUBNET}: {HOST} reaches it")


def _problems(context: DemoContext, node: DemoNode, pod: Pod) -> list[str]:
    """Compare what EC2 shows with the file, and ask the pod. Returns: what is wrong, in words."""
    vpc, address = context.lab.vpc, IPv4Address(str(pod.address))
    problems = [] if address in SUBNET else [f"{address} is not of {SUBNET}"]
    enis = [eni for eni in vpc.enis_of(node.lab_node.instance_id) if address in eni.secondary_addresses]
    for eni in enis:
        groups = [vpc.world.groups[group_id].name for group_id in eni.security_groups]
        if (eni.tags.get(POOL_TAG), groups) != (NAME, [NAME]):
            problems.append(f"{eni.eni_id} has tag {eni.tags.get(POOL_TAG)} and groups {groups}")
    if not enis:
        problems.append(f"no ENI of {node.name} has {address}")
    with talk.Servers() as servers:
        servers.add(pod.name, node.lab_node.netns_path(pod.netns_path), address=address)
        heard = talk.ask(context.lab.hosts[HOST].path, address)
    if heard is None or heard.by != pod.name:
        problems.append(f"{HOST} heard {heard.by if heard else 'nobody'} at {address}")
    return problems
