"""Pods that come one by one, each after the one before has its address. At most one pod waits at a time, so the pool never sees that
many are wanted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

from bench.fleet.ec2 import Ec2Model
from bench.fleet.measure import Measure
from bench.fleet.node import FleetNode
from bench.fleet.reference import ReferenceNode
from bench.fleet.run import MakeNode, run_fleet
from bench.fleet.traces import WARM_UP_S, NodeTrace, Pod, Trace
from ipamd.cloud.limits import from_table
from ipamd.settings import Settings

INSTANCE_TYPE = "m5.4xlarge"
POD_COUNT = 60
GAP_S = 0.05
"""Pause between an address and the next ADD. Ours: of the order of the 75 ms that a runtime needs for a sandbox."""

TARGETS = {"WARM_IP_TARGET": "5"}
SEEDS = (1, 2, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class Growth:
    """Medians of the runs with all seeds.

    calls: EC2 calls that change something. waits: ADDs that waited. waited_s: their waits together. held: average number of addresses
    that the node had at EC2.
    """

    calls: float
    waits: float
    waited_s: float
    held: float


def growth(kind: type[FleetNode | ReferenceNode]) -> Growth:
    """Simulate the growth from no pod to POD_COUNT, on a node of this kind that has been up for WARM_UP_S."""
    pods = tuple(Pod(WARM_UP_S, math.inf) for _ in range(POD_COUNT))
    limits = from_table(INSTANCE_TYPE)
    if limits is None:
        raise LookupError(INSTANCE_TYPE)
    trace = Trace("one by one", (NodeTrace(0.0, pods, limits),), WARM_UP_S, WARM_UP_S + 300.0)
    outcomes = [run_fleet(trace, TARGETS, seed=seed, make_node=_chained(kind)) for seed in SEEDS]
    return Growth(
        median(outcome.mutating_count for outcome in outcomes),
        median(len(outcome.waits_s) for outcome in outcomes),
        median(sum(outcome.waits_s) for outcome in outcomes),
        median(outcome.held for outcome in outcomes),
    )


def _chained(kind: type[FleetNode | ReferenceNode]) -> MakeNode:
    def make(model: Ec2Model, trace: NodeTrace, index: int, settings: Settings, measure: Measure) -> Callable[[], None]:
        node = kind(model, replace(trace, pods=()), index, settings=settings, measure=measure)
        world, addressed, left = model.world, measure.addressed, list(enumerate(trace.pods))

        def arrive() -> None:
            number, pod = left.pop()
            pod = pod._replace(arrives_s=world.now_s)
            node._arrive(number, pod) if isinstance(node, FleetNode) else node._add(pod)

        def then_the_next(node: int, pod: Pod, *, now_s: float) -> None:
            addressed(node, pod, now_s=now_s)
            if left:
                world.at(now_s + GAP_S, arrive)

        measure.addressed = then_the_next  # type: ignore[method-assign]
        world.at(trace.pods[0].arrives_s, arrive)
        return node.spawn

    return make
