"""One pod with an address that stays: it is removed, made again on another node, and reached there at the same address."""

from __future__ import annotations

import time
from ipaddress import IPv4Address, IPv4Network

from ipamd.model.pod_annotations import ADDRESS
from lab.demo.checks import Verdict
from lab.demo.context import HOST, DemoContext, brief
from lab.demo.node import KUBELET_ANNOTATIONS, PINNED_RANGE, DemoNode, Pod
from lab.fabric import talk
from lab.node.errors import SandboxError
from lab.vpc.model import ReservationKind

MOVED_WITHIN_S = 10.0
MOVED = f"a pod with an address that stays has it on another node within {MOVED_WITHIN_S:.0f} s"
STAYING = IPv4Address("10.0.3.230")

AGAIN_S = 0.3
"""Pause before a refused sandbox is repeated. Ours: kubelet repeats it at its next look, within seconds."""

GIVE_UP_S = 60.0
"""When the demo stops waiting for the address, so that its end comes."""


def prepare(context: DemoContext) -> None:
    """Reserve the range in the nodes' subnet, so that EC2 gives none of it by itself."""
    vpc = context.lab.vpc
    subnet_id = vpc.instance(context.nodes[0].name).subnet_id
    vpc.reserve_cidr(subnet_id, str(IPv4Network(PINNED_RANGE)), ReservationKind.EXPLICIT)


def show(context: DemoContext, verdict: Verdict) -> None:
    """Run the pod on one node, remove it, run it on the other until it has its address, and let the host of the VPC ask it."""
    first, second = context.nodes
    name = "stays"
    annotations = {**KUBELET_ANNOTATIONS, ADDRESS: str(STAYING)}
    pod = first.run_pod(name, annotations=annotations)
    problems = _problems(context, first, pod)
    began = time.monotonic()
    first.remove_pod(pod)
    pod = _remade(second, name, annotations)
    took_s = time.monotonic() - began
    problems += _problems(context, second, pod)
    second.remove_pod(pod)
    if took_s > MOVED_WITHIN_S:
        problems.append(f"it took {took_s:.1f} s")
    detail = f"{STAYING} from {first.name} to {second.name}: {took_s:.1f} s from the removal's start; {HOST} reaches it on both"
    verdict(MOVED, not problems, brief(problems) or detail)


def _remade(node: DemoNode, name: str, annotations: dict[str, str]) -> Pod:
    """Run a pod as kubelet does, again after a refusal. Raises: SandboxError after `GIVE_UP_S`."""
    deadline = time.monotonic() + GIVE_UP_S
    attempt = 0
    while True:
        try:
            return node.run_pod(name, attempt=attempt, annotations=annotations)
        except SandboxError:
            if time.monotonic() > deadline:
                raise
        for sandbox in node.lab_node.cri.list():
            if sandbox.name == name:
                node.lab_node.cri.remove(sandbox.sandbox_id)
        attempt += 1
        time.sleep(AGAIN_S)


def _problems(context: DemoContext, node: DemoNode, pod: Pod) -> list[str]:
    """Ask the pod, and compare what EC2 shows. Returns: what is wrong, in words."""
    problems = [] if pod.address == STAYING else [f"{pod.name} has {pod.address} on {node.name}"]
    enis = context.lab.vpc.enis_of(node.lab_node.instance_id)
    if not any(STAYING in eni.secondary_addresses for eni in enis):
        problems.append(f"no ENI of {node.name} has {STAYING}")
    server = f"{pod.name}-on-{node.name}"
    with talk.Servers() as servers:
        servers.add(server, node.lab_node.netns_path(pod.netns_path), address=STAYING)
        heard = talk.ask(context.lab.hosts[HOST].path, STAYING)
    if heard is None or heard.by != server:
        problems.append(f"{HOST} heard {heard.by if heard else 'nobody'} at {STAYING}")
    return problems
