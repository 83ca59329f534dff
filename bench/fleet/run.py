"""Run one fleet with one trace, with the daemon's pool or with the reference, and return the outcome."""

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
"""A run ends this long after the trace's end, even if pods have no address yet. Ours: such a fleet would never finish."""

MakeNode = Callable[[Ec2Model, NodeTrace, int, Settings, Measure], Callable[[], None]]
"""Makes one node. It returns a function that starts the node."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one run.

    is_done: whether every measured pod got an address.
    time_s: seconds from the begin of the measurement until the last pod had its address.
    calls: action -> EC2 calls.
    held, used: addresses that the nodes had at EC2, and that pods had, on average over the measured time.
    waits_s, unserved_count, node_waits_s: as in `Measure`.
    """

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
        """Number of calls that change something, the throttled ones included."""
        return sum(count for api, count in self.calls.items() if is_mutating(api))

    @property
    def unfairness(self) -> float:
        """The 99th percentile of the nodes' waits divided by their median; 0.0 if the median is 0."""
        median = percentile(self.node_waits_s, 0.5)
        return percentile(self.node_waits_s, 0.99) / median if median > 0 else 0.0


def shipped(model: Ec2Model, trace: NodeTrace, index: int, settings: Settings, measure: Measure) -> Callable[[], None]:
    """Make a node with the daemon's pool. Returns: a function that starts the node."""
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
        env: the settings, as environment variables of the daemon.
        is_unlimited: whether EC2 throttles no call, as for a node that is alone in its account.
    Returns: the outcome. The same arguments give the same outcome.
    """
    logging.disable(logging.CRITICAL)
    # Millions of objects live until the end. With the default thresholds the garbage collector would take half of the time.
    gc.set_threshold(1_000_000, 50, 1000)
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
