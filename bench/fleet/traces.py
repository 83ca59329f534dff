"""Traces: the times at which pods come and go on each node of a fleet. They are the input of every comparison of targets.

A trace is made from a seed, and is the same in every run. Times are seconds of virtual time since the trace's begin. The trace of a
warm fleet begins with `WARM_UP_S`, in which the nodes start and their resident pods get addresses; the measurement begins after it.
All nodes have the type `NODE_TYPE`, except in `bench/fleet/loads.py`. All traces are ours. They are made to be hard: pods come on all
nodes in the same seconds, and on each node at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from ipamd.model.eni import InstanceLimits

NODE_TYPE = InstanceLimits("m5.xlarge", 4, 15)
"""4 ENIs with 15 addresses each: 56 for pods, maxPods 58. Source: amazon-vpc-cni-k8s pkg/vpc/vpc_ip_resource_limit.go."""

WARM_UP_S = 600.0
"""Seconds from the begin of a warm fleet's trace until its measurement begins."""

RESIDENT_COUNT = 8
"""Pods that stay on each node of a warm fleet, such as agents and services. Ours: assumed, no fleet was measured. Some add-ons of
EKS, an agent each for logs, metrics and security, and a few services that rarely change."""

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


class Pod(NamedTuple):
    """One pod. `leaves_s`: infinite if it stays."""

    arrives_s: float
    leaves_s: float = math.inf


@dataclass(frozen=True, slots=True)
class NodeTrace:
    """One node: its start, and its pods in the order of arrival. It never has more pods than its maxPods."""

    starts_s: float
    pods: tuple[Pod, ...]
    limits: InstanceLimits = NODE_TYPE


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of one fleet. The measurement lasts from `begins_s` to `ends_s`, and until every pod has an address."""

    name: str
    nodes: tuple[NodeTrace, ...]
    begins_s: float
    ends_s: float

    @property
    def measured(self) -> Iterator[Pod]:
        """The pods that arrive after `begins_s`."""
        return (pod for node in self.nodes for pod in node.pods if pod.arrives_s >= self.begins_s)


def bootstrap(node_count: int, *, seed: int, pod_count: int = 16) -> Trace:
    """Start all nodes at the same time. The pods of each arrive in the first two seconds; they are more than one ENI has addresses
    for."""

    def pods(draw: Random) -> tuple[Pod, ...]:
        return (Pod(draw.uniform(0.0, 2.0)),) * pod_count

    return Trace("bootstrap", _nodes(node_count, seed, pods), 0.0, 0.0)


def replacement(node_count: int, *, seed: int, wave_count: int = 20, interval_s: float = 60.0, pod_count: int = 16) -> Trace:
    """Replace all nodes by new ones in `wave_count` parts, one part each `interval_s`. The new nodes get the pods of the old ones at
    once."""

    def node(index: int) -> NodeTrace:
        starts_s = interval_s * (index * wave_count // node_count)
        draw = _draw(seed, index)
        return NodeTrace(starts_s, (Pod(starts_s + draw.uniform(0.0, 2.0)),) * pod_count)

    return Trace("replacement", tuple(node(index) for index in range(node_count)), 0.0, 0.0)


def deploy(node_count: int, *, seed: int, pod_count: int = 10) -> Trace:
    """Start `pod_count` new pods on every node of a warm fleet, within one second."""

    def pods(draw: Random) -> tuple[Pod, ...]:
        return (*_residents(draw), *_at_once(WARM_UP_S + draw.uniform(0.0, 1.0), pod_count))

    return Trace("deploy", _nodes(node_count, seed, pods), WARM_UP_S, WARM_UP_S)


BROWN_OUT_S = (WARM_UP_S, WARM_UP_S + 600.0)
"""Begin and end of the time in which EC2 is disturbed, in the trace `brown_out`."""


def brown_out(node_count: int, *, seed: int, pod_count: int = 10) -> Trace:
    """Make a deploy as in `deploy`, one minute after the begin of ten minutes in which EC2 refuses and delays calls
    (`BROWN_OUT_S`)."""
    at_s = BROWN_OUT_S[0] + 60.0

    def pods(draw: Random) -> tuple[Pod, ...]:
        return (*_residents(draw), *_at_once(at_s + draw.uniform(0.0, 1.0), pod_count))

    return Trace("brown-out", _nodes(node_count, seed, pods), WARM_UP_S, BROWN_OUT_S[1])


def cron_day(node_count: int, *, seed: int, hours: int = 24) -> Trace:
    """Make a day of a warm fleet. At every full hour 2 to 6 jobs come to each node, every four hours a dozen instead, and at every
    half hour one. Services grow by some pods over the working day. Jobs live one to three minutes, and those of the dozen ten minutes.
    The jobs of a time come within 5 s on all nodes.
    """

    def pods(draw: Random) -> tuple[Pod, ...]:
        return _sorted([*_residents(draw), *_jobs(draw, hours), *_services(draw, hours)])

    return Trace("day", _nodes(node_count, seed, pods), WARM_UP_S, WARM_UP_S + hours * HOUR_S)


def _at_once(at_s: float, count: int) -> tuple[Pod, ...]:
    return (Pod(at_s),) * count


def _residents(draw: Random) -> tuple[Pod, ...]:
    return _at_once(draw.uniform(0.0, 2.0), RESIDENT_COUNT)


def _jobs(draw: Random, hours: int) -> Iterator[Pod]:
    for hour in range(1, hours):
        at_s = WARM_UP_S + hour * HOUR_S
        count, life_s = (12, 600.0) if hour % 4 == 0 else (draw.randint(2, 6), draw.uniform(60.0, 180.0))
        arrives_s = at_s + draw.uniform(0.0, 5.0)
        yield from (Pod(arrives_s, arrives_s + life_s * draw.uniform(0.9, 1.1)) for _ in range(count))
        arrives_s = at_s + HOUR_S / 2 + draw.uniform(0.0, 5.0)
        yield Pod(arrives_s, arrives_s + draw.uniform(60.0, 180.0))


def _services(draw: Random, hours: int) -> Iterator[Pod]:
    """Yield pods that come between 8 and 10 o'clock and leave between 17 and 19; none in a trace shorter than a day."""
    if hours < 24:
        return
    for _ in range(draw.randint(4, 8)):
        yield Pod(WARM_UP_S + draw.uniform(8, 10) * HOUR_S, WARM_UP_S + draw.uniform(17, 19) * HOUR_S)


def _nodes(node_count: int, seed: int, pods: Callable[[Random], tuple[Pod, ...]]) -> tuple[NodeTrace, ...]:
    return tuple(NodeTrace(0.0, pods(_draw(seed, index))) for index in range(node_count))


def _draw(seed: int, index: int) -> Random:
    """Return the random numbers of one node. They do not depend on the number of nodes."""
    return Random(f"{seed}/{index}")


def _sorted(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    return tuple(sorted(pods))
