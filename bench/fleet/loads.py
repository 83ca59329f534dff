"""`python -m bench.fleet.loads`: single nodes under loads that last for hours, summed over seeds. If the pool grows and shrinks
needlessly, these loads show it.

The loads are constant load, a job at the edge of an ENI, a load that follows the day, hourly bursts, and rolling replacements, on
instance types of several sizes. The bounds: the daemon's default mode makes no more calls that change EC2 than the reference (the
rules of amazon-vpc-cni-k8s); it holds at most 1.05 x as many addresses, or those of one ENI more, whichever is larger; and no more of
its ADDs wait or are refused. An ADD of ours waits for an address. An ADD of the reference is refused, and ten seconds later the
kubelet sends another one for the same pod; each of them counts. The table also shows the mode `auto`, which has no bounds here.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from multiprocessing import get_context
from random import Random

from bench.fleet.lines import is_calm
from bench.fleet.reference import reference
from bench.fleet.run import run_fleet, shipped
from bench.fleet.traces import DAY_S, HOUR_S, NODE_TYPE, WARM_UP_S, NodeTrace, Pod, Trace
from ipamd.cloud.limits import from_table
from ipamd.model.eni import InstanceLimits

SEEDS = (1, 2, 3, 4, 5)
RESIDENT_COUNT = 6
MODES: Mapping[str, Mapping[str, str]] = {"reference": {}, "default": {}, "auto": {"VPC_IPAMD_WARM_TARGET_MODE": "auto"}}

Pods = Callable[[Random, InstanceLimits, float], Iterator[Pod]]


@dataclass(frozen=True, slots=True)
class Load:
    """One node under one load. `pods`: makes the pods from random numbers, the node's limits and the measured hours."""

    name: str
    pods: Pods
    instance_type: str = NODE_TYPE.instance_type
    hours: float = 4.0

    @property
    def limits(self) -> InstanceLimits:
        """The limits of the instance type."""
        return from_table(self.instance_type) or NODE_TYPE

    def trace(self, seed: int) -> Trace:
        """Return the trace of the one node."""
        pods = _that_fit(self.pods(Random(seed), self.limits, self.hours), self.limits.max_pods - 2)
        return Trace(self.name, (NodeTrace(0.0, pods, self.limits),), WARM_UP_S, WARM_UP_S + self.hours * HOUR_S)


@dataclass(frozen=True, slots=True)
class Sum:
    """The results of the runs with all seeds.

    calls: calls that change EC2, of all runs. held: held addresses, the average of the runs. unserved: ADDs that waited or were
        refused.
    pods: pods with such an ADD. waited_s: the waits of these pods together.
    """

    calls: int
    held: float
    unserved: int
    pods: int = 0
    waited_s: float = 0.0


def run(load: Load, mode: str, *, seeds: Iterable[int] = SEEDS) -> Sum:
    """Run a load with one of `MODES`, once for each seed."""
    make_node = reference if mode == "reference" else shipped
    outcomes = [run_fleet(load.trace(seed), MODES[mode], seed=seed, make_node=make_node) for seed in seeds]
    return Sum(
        sum(outcome.mutating_count for outcome in outcomes),
        sum(outcome.held for outcome in outcomes) / len(outcomes),
        sum(outcome.unserved_count for outcome in outcomes),
        sum(len(outcome.waits_s) for outcome in outcomes),
        sum(sum(outcome.waits_s) for outcome in outcomes),
    )


def constant(draw: Random, _: InstanceLimits, hours: float, *, busy_count: float = 12.0, life_s: float = 120.0) -> Iterator[Pod]:
    """Yield jobs that come independently of each other. On average `busy_count` of them run at the same time."""
    yield from _residents(RESIDENT_COUNT)
    yield from _jobs_at_rate(draw, lambda _: 1.0, busy_count / life_s, hours=hours, life_s=life_s)


def edge(draw: Random, limits: InstanceLimits, hours: float, *, life_s: float = 90.0, period_s: float = 180.0) -> Iterator[Pod]:
    """Yield as many lasting pods as an ENI has slots, so that WARM_ENI_TARGET=1 is just met, and one further job that comes and
    goes."""
    yield from _residents(limits.slots_per_eni)
    at_s = WARM_UP_S + draw.uniform(0.0, period_s)
    while at_s < WARM_UP_S + hours * HOUR_S:
        yield Pod(at_s, at_s + life_s * draw.uniform(0.9, 1.1))
        at_s += period_s * draw.uniform(0.9, 1.1)


def diurnal(
    draw: Random, limits: InstanceLimits, hours: float, *, busy_share: float = 0.6, life_s: float = 600.0
) -> Iterator[Pod]:
    """Yield jobs whose number follows a sine curve over the day, from 0 to `busy_share` of the node's max-pods."""
    yield from _residents(RESIDENT_COUNT)

    def share(at_s: float) -> float:
        return (1 - math.cos(2 * math.pi * (at_s - WARM_UP_S) / DAY_S)) / 2

    yield from _jobs_at_rate(draw, share, busy_share * limits.max_pods / life_s, hours=hours, life_s=life_s)


def bursts(draw: Random, _: InstanceLimits, hours: float, *, count: int = 40, life_s: float = 300.0) -> Iterator[Pod]:
    """Yield `count` jobs in every hour, which come within some seconds."""
    yield from _residents(RESIDENT_COUNT)
    for hour in range(int(hours)):
        at_s = WARM_UP_S + hour * HOUR_S + draw.uniform(0.0, 60.0)
        for _job in range(count):
            arrives_s = at_s + draw.uniform(0.0, 5.0)
            yield Pod(arrives_s, arrives_s + life_s * draw.uniform(0.8, 1.2))


def rolling(
    draw: Random, limits: InstanceLimits, hours: float, *, busy_share: float = 0.5, every_s: float = 2 * HOUR_S
) -> Iterator[Pod]:
    """Yield pods that are all replaced every `every_s`, a quarter at a time. A new pod comes half a minute before the old one
    leaves."""
    count = int(busy_share * limits.max_pods)
    for number in range(count):
        at_s, begins_s = 0.0, WARM_UP_S + every_s / 2
        while begins_s < WARM_UP_S + hours * HOUR_S:
            change_s = begins_s + 60.0 * (4 * number // count) + draw.uniform(0.0, 5.0)
            yield Pod(at_s, change_s + 30.0)
            at_s, begins_s = change_s, begins_s + every_s
        yield Pod(at_s)


LOADS = (
    Load("constant", constant),
    Load("constant, large node", partial(constant, busy_count=60.0), "m5.4xlarge"),
    Load("constant, jobs of 15 min", partial(constant, busy_count=20.0, life_s=900.0), hours=8.0),
    Load("constant, full node", partial(constant, busy_count=35.0)),
    Load("ENI's edge", edge),
    Load("ENI's edge, small node", edge, "m5.large"),
    Load("diurnal", diurnal, hours=24.0),
    Load("diurnal, large node", diurnal, "m5.4xlarge", 24.0),
    Load("hourly bursts of 40", bursts, hours=8.0),
    Load("hourly bursts of 18, small node", partial(bursts, count=18), "m5.large", 8.0),
    Load("hourly bursts of 120, large node", partial(bursts, count=120), "m5.4xlarge", 8.0),
    Load("rolling replacement", rolling, hours=8.0),
    Load("rolling replacement, large node", rolling, "m5.4xlarge", 8.0),
)


def line(load: Load, sums: Mapping[str, Sum]) -> str:
    """Return a row of the table in docs/performance.md."""
    ours, theirs, auto = sums["default"], sums["reference"], sums["auto"]
    met, waits = "yes" if is_met(load, sums) else "no", f"{ours.unserved:,} / {theirs.unserved:,}"
    pods = "-"
    if ours.pods or theirs.pods:
        pods = f"{ours.pods:,} / {theirs.pods:,} ({ours.waited_s:,.0f} / {theirs.waited_s:,.0f})"
    return (
        f"| {load.name} | {load.instance_type} | {ours.calls:,} / {theirs.calls:,} | {ours.held:.1f} / {theirs.held:.1f} "
        f"| {waits} | {pods} | {met} | {auto.calls:,}, {auto.held:.1f}, {auto.unserved:,} |"
    )


def is_met(load: Load, sums: Mapping[str, Sum]) -> bool:
    """Whether the daemon's default mode keeps the bounds."""
    ours, theirs = sums["default"], sums["reference"]
    return (
        ours.calls <= theirs.calls
        and ours.unserved <= theirs.unserved
        and is_calm(ours.held, reference_held=theirs.held, eni_size=load.limits.slots_per_eni)
    )


HEADER = (
    "| load | type | changing calls: default / reference | held | ADDs that waited / were refused | their pods (s in all) "
    "| held the line | `auto`: calls, held, waited |\n"
    "|---|---|---|---|---|---|---|---|"
)


def main(names: list[str]) -> int:
    """Print a Markdown table of the loads whose name contains one of `names`, or of all loads if there are no names."""
    wanted = [load for load in LOADS if not names or any(name in load.name for name in names)]
    print(HEADER)
    with get_context("fork").Pool(2) as pool:
        sums = pool.imap(_sum, [(load.name, mode) for load in wanted for mode in MODES])
        for load in wanted:
            print(line(load, {mode: next(sums) for mode in MODES}), flush=True)
    return 0


def _sum(job: tuple[str, str]) -> Sum:
    name, mode = job
    return run(next(load for load in LOADS if load.name == name), mode)


def _residents(count: int) -> Iterator[Pod]:
    return (Pod(0.0) for _ in range(count))


def _jobs_at_rate(draw: Random, share: Callable[[float], float], most: float, *, hours: float, life_s: float) -> Iterator[Pod]:
    """Yield jobs that arrive by a Poisson process, whose rate is `most` times `share` of the moment."""
    at_s = 0.0
    while (at_s := at_s + draw.expovariate(most)) < WARM_UP_S + hours * HOUR_S:
        if draw.random() < share(at_s):
            yield Pod(at_s, at_s + life_s)


def _that_fit(pods: Iterable[Pod], most: int) -> tuple[Pod, ...]:
    """Return the pods without those that would come to a full node, because the scheduler would send them to another node."""
    kept: list[Pod] = []
    leaving: list[float] = []
    for pod in sorted(pods):
        while leaving and leaving[0] <= pod.arrives_s:
            heappop(leaving)
        if len(leaving) < most:
            heappush(leaving, pod.leaves_s)
            kept.append(pod)
    return tuple(kept)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
