"""Pods that come one by one: each when the one before has its address. Never more than one waits, so no look sees many of them."""

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
"""Between an address and the next ADD. Ours: a runtime needs some 75 ms for a sandbox."""

TARGETS = {"WARM_IP_TARGET": "5"}
SEEDS = (1, 2, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class Growth:
    """Medians over the seeds: changing calls, ADDs that waited, for how long in all, and addresses held on average."""

    calls: float
    waits: float
    waited_s: float
    held: float


def growth(kind: type[FleetNode | ReferenceNode]) -> Growth:
    """From no pod to POD_COUNT, on a node that has been up for a while."""
    pods = tuple(Pod(WARM_UP_S, math.inf) for _ in range(POD_COUNT))
    limits = from_table(INSTANCE_TYPE)
    if limits is None:
        raise LookupError(INSTANCE_TYPE)
    trace = Trace("one by one", (NodeTrace(0.0, pods, limits),), WARM_UP_S, WARM_UP_S + 300.0)
    done = [run_fleet(trace, TARGETS, seed=seed, make_node=_chained(kind)) for seed in SEEDS]
    return Growth(
        median(one.mutating_count for one in done),
        median(len(one.waits_s) for one in done),
        median(sum(one.waits_s) for one in done),
        median(one.held for one in done),
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
