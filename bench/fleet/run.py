"""Run one fleet over one trace, with the shipped pool or with the reference, and say what came of it."""

from __future__ import annotations

import gc
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bench.fleet.buckets import is_mutating
from bench.fleet.ec2 import Disturbance, Ec2Model
from bench.fleet.measure import Measure, percentile
from bench.fleet.node import FleetNode
from bench.fleet.traces import NodeTrace, Trace
from bench.fleet.world import World
from ipamd.settings import Settings, load

LAST_S = 4 * 3600.0
"""A fleet whose pods have no address so long after the trace's end never gets done: the run ends and says so. Ours."""

MakeNode = Callable[[Ec2Model, NodeTrace, int, Settings, Measure], Callable[[], None]]
"""Makes one node; what it returns starts it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run. `time_s`: from the begin until the last pod had its address. Averages of addresses are over the measured time."""

    node_count: int
    is_done: bool
    time_s: float
    calls: Mapping[str, int]
    throttled_count: int
    held: float
    used: float
    waits_s: list[float] = field(default_factory=list)
    unserved_count: int = 0
    node_waits_s: list[float] = field(default_factory=list)

    @property
    def mutating_count(self) -> int:
        """Calls that change something, the throttled ones included."""
        return sum(count for api, count in self.calls.items() if is_mutating(api))

    @property
    def unfairness(self) -> float:
        """The 99th percentile of the nodes' waits as a multiple of their median; 0.0 if nobody waited."""
        median = percentile(self.node_waits_s, 0.5)
        return percentile(self.node_waits_s, 0.99) / median if median > 0 else 0.0


def shipped(model: Ec2Model, trace: NodeTrace, index: int, settings: Settings, measure: Measure) -> Callable[[], None]:
    """Make a node with the pool that ships."""
    return FleetNode(model, trace, index, settings=settings, measure=measure).spawn


def run_fleet(
    trace: Trace,
    env: Mapping[str, str],
    *,
    seed: int,
    make_node: MakeNode = shipped,
    disturbance: Disturbance | None = None,
    is_unlimited: bool = False,
) -> Outcome:
    """Run a fleet in virtual time.

    Args:
        env: the settings as the daemon's environment.
        is_unlimited: EC2 throttles nobody: what a node alone in its account would see.
    Returns: what came of it; the same arguments give the same outcome.
    """
    logging.disable(logging.CRITICAL)
    gc.set_threshold(
        1_000_000, 50, 1000
    )  # millions of objects live until the end: to look at them again and again takes half the time
    random.seed(f"fleet/{seed}")
    settings = load({"CLUSTER_NAME": "fleet", **env})
    world = World()
    model = Ec2Model(world, seed=seed, disturbance=disturbance)
    measure = Measure(len(trace.nodes), begins_s=trace.begins_s, pod_count=sum(1 for _ in trace.measured))
    for index, node in enumerate(trace.nodes):
        make_node(model, node, index, settings, measure)()
    if trace.begins_s:
        model.buckets.is_open = True
        world.run(until_s=trace.begins_s - 0.001)
        model.reset()
    model.buckets.is_open = is_unlimited
    world.run(until_s=trace.ends_s)
    if measure.pending_count:
        world.run(until_s=trace.ends_s + LAST_S, is_done=lambda: measure.pending_count == 0)
    logging.disable(logging.NOTSET)
    return Outcome(
        node_count=len(trace.nodes),
        is_done=measure.pending_count == 0,
        time_s=measure.last_s - trace.begins_s,
        calls=dict(sorted(model.calls.items())),
        throttled_count=sum(model.buckets.throttled.values()),
        held=model.held_average(),
        used=measure.used_average(now_s=world.now_s),
        waits_s=measure.waits_s,
        unserved_count=measure.unserved_count,
        node_waits_s=measure.node_waits_s,
    )
