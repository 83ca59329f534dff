"""One pod that asks by its annotation to be seen with its own address: an elastic IP on it works both ways."""

from __future__ import annotations

from ipaddress import IPv4Address

from ipamd.model.pod_annotations import SNAT
from ipamd.model.pod_snat import PodSnat
from lab.demo.checks import Verdict
from lab.demo.context import DemoContext, brief
from lab.demo.node import KUBELET_ANNOTATIONS, DemoNode, Pod
from lab.fabric import talk
from lab.fabric.internet import OUTSIDE_HOST

ELASTIC_IP = "an elastic IP on the address of one pod of a secondary ENI works both ways"
OUTSIDE = "outside"


def show(context: DemoContext, verdict: Verdict) -> None:
    """Run the pod, let it speak with the outside and the outside with it, and remove it."""
    node = context.nodes[0]
    pod = node.run_pod(f"{node.name}-elastic", annotations={**KUBELET_ANNOTATIONS, SNAT: PodSnat.NONE})
    primary, *_ = context.lab.vpc.enis_of(node.lab_node.instance_id)
    problems = [f"{pod.address} is on the primary ENI"] if pod.address in primary.secondary_addresses else []
    with talk.Servers() as servers:
        servers.add(OUTSIDE, context.lab.internet.outside.path, address=OUTSIDE_HOST)
        servers.add(pod.name, node.lab_node.netns_path(pod.netns_path), address=pod.address)
        public = context.lab.internet.associate(IPv4Address(str(pod.address)))
        problems += _problems(context, node, pod, public)
    node.remove_pod(pod)
    verdict(
        ELASTIC_IP, not problems, brief(problems) or f"{public} of {pod.address}: seen by {OUTSIDE_HOST}, and reached from it"
    )


def _problems(context: DemoContext, node: DemoNode, pod: Pod, public: IPv4Address) -> list[str]:
    """Ask in both directions, over UDP and TCP. Returns: what is wrong, in words."""
    problems = []
    for tcp in (False, True):
        out = talk.ask(node.lab_node.netns_path(pod.netns_path), OUTSIDE_HOST, tcp=tcp)
        if out is None or out.seen_as != public:
            problems.append(f"{OUTSIDE_HOST} saw {out and out.seen_as}, not {public}")
        back = talk.ask(context.lab.internet.outside.path, public, tcp=tcp)
        if back is None or back.by != pod.name:
            problems.append(f"{back.by if back else 'nobody'} answered at {public}, not {pod.name}")
    return problems
