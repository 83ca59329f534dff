"""The demo's first part: two empty nodes get 40 sandboxes and the ENIs for them, and every sandbox reaches the others."""

from __future__ import annotations

from lab.demo import moves, pools
from lab.demo.checks import Verdict
from lab.demo.context import ADDRESSES_PER_ENI, PODS_PER_NODE, DemoContext, brief
from lab.vpc.model import Eni

LAB_IS_UP = "the lab is up"
DAEMONS_READY = "the daemon gets ready on both nodes"
PODS_RUN = f"{2 * PODS_PER_NODE} sandboxes run, {PODS_PER_NODE} on each node"
SECOND_ENI = "each node got a second ENI on the way"
TAGGED = "each ENI we attached carries our tags"
ACROSS = "each address answers every pod of the other node"
FROM_HOST = "each address answers a host of the VPC"

READY_TIMEOUT_S = 30.0
TAGS = {
    "cluster.k8s.amazonaws.com/name": "demo",
    "eks:eni:owner": "amazon-vpc-cni",
}  # amazon-vpc-cni-k8s pkg/awsutils/awsutils.go, TagENI
INSTANCE_TAG, CREATED_TAG = "node.k8s.amazonaws.com/instance_id", "node.k8s.amazonaws.com/createdAt"


def build(context: DemoContext, verdict: Verdict) -> None:
    """Build the lab."""
    context.enter()
    pools.prepare(context)
    moves.prepare(context)
    versions = {node.lab_node.run(["containerd", "--version"]).stdout.split()[2] for node in context.every_node}
    names = ", ".join([*context.lab.nodes, *context.lab.hosts])
    verdict(LAB_IS_UP, not context.lab.fabric.problems, f"{names}; containerd {', '.join(sorted(versions))} on each node")


def start_daemons(context: DemoContext, verdict: Verdict) -> None:
    """Start all daemons, and wait until those of the two nodes serve and the runtime may call them."""
    for node in context.every_node:
        node.daemon.start()
    for node in context.nodes:
        status = node.daemon.wait_status(lambda status: bool(status["ready"]), what="ready", timeout_s=READY_TIMEOUT_S)
        context.progress.say(f"{node.name}: {status['instance_id']}, ready; pool loop: {status['pool']['last_cycle']}")
    verdict(
        DAEMONS_READY,
        True,
        f"{context.progress.elapsed_s:.1f} s after the demo's start, the lab's building included",
    )


def run_pods(context: DemoContext, verdict: Verdict) -> None:
    """Run the sandboxes; the pool starts empty, so ENIs are attached while they come."""
    started_s = context.progress.elapsed_s
    wanted = [(node, f"{node.name}-pod-{number:02}") for number in range(PODS_PER_NODE) for node in context.nodes]
    failures = context.run_pods(wanted)
    counts = {node.name: len(node.pods) for node in context.nodes}
    detail = (
        f"{', '.join(f'{name} {count}' for name, count in counts.items())}, in {context.progress.elapsed_s - started_s:.1f} s"
    )
    is_complete = not failures and all(count == PODS_PER_NODE for count in counts.values())
    verdict(PODS_RUN, is_complete, detail if is_complete else f"{detail}: {brief(failures)}")

    enis = {node.name: context.lab.vpc.enis_of(node.lab_node.instance_id) for node in context.nodes}
    counted = ", ".join(f"{name} has {len(found)} ENIs with {ADDRESSES_PER_ENI} addresses each" for name, found in enis.items())
    is_grown = all(len(found) >= 2 and all(len(eni.addresses) <= ADDRESSES_PER_ENI for eni in found) for found in enis.values())
    verdict(SECOND_ENI, is_grown, counted)

    untagged = [
        problem for node in context.nodes for eni in enis[node.name] if (problem := _tag_problem(eni, node.lab_node.instance_id))
    ]
    ours = sum(len(found) - 1 for found in enis.values())
    verdict(
        TAGGED,
        ours > 0 and not untagged,
        brief(untagged) or f"{ours} ENIs: instance, creation time, cluster, owner; deleted with the instance",
    )


def ping(context: DemoContext, verdict: Verdict) -> None:
    """Ask from every pod for every pod of the other node, and from the host for all."""
    tried, silent = context.silent(context.across())
    expected = 2 * PODS_PER_NODE**2
    verdict(ACROSS, tried == expected and not silent, brief(silent) or f"{tried} of {expected} pairs of pods answered")
    tried, silent = context.silent(context.from_host())
    verdict(FROM_HOST, tried == 2 * PODS_PER_NODE and not silent, brief(silent) or f"{tried} of {2 * PODS_PER_NODE} answered")


def _tag_problem(eni: Eni, instance_id: str) -> str:
    """What an ENI lacks of what we give to each that we attach; the instance's own (device 0) is not ours to tag."""
    if eni.attachment is None or eni.attachment.device_index == 0:
        return ""
    wrong = [name for name, value in (TAGS | {INSTANCE_TAG: instance_id}).items() if eni.tags.get(name) != value]
    wrong += [] if eni.tags.get(CREATED_TAG) else [CREATED_TAG]
    wrong += [] if eni.attachment.delete_on_termination else ["delete on termination"]
    return f"{eni.eni_id} lacks {', '.join(wrong)}" if wrong else ""
