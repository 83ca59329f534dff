"""`python -m bench.fleet.loads`: single nodes under loads that last, summed over seeds; what flaps shows here, and no burst hides it.

Constant load, a job at an ENI's edge, a day's sinus, hourly bursts and rolling replacements, on types of several shapes. The line: the
shipped default makes no more changing calls than the reference, holds no more than 1.05 x of it or one ENI more, whichever is larger,
and lets no more ADDs wait or be refused. An ADD of ours waits for an address; one of the reference is refused, and ten seconds later
the kubelet sends another one for the same pod: each counts. `auto` is beside it, with what it holds and how many wait, without line.
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
    """One node under one load. `pods`: by drawn numbers, the node's limits and the hours that are measured."""

    name: str
    pods: Pods
    instance_type: str = NODE_TYPE.instance_type
    hours: float = 4.0

    @property
    def limits(self) -> InstanceLimits:
        """Of its type."""
        return from_table(self.instance_type) or NODE_TYPE

    def trace(self, seed: int) -> Trace:
        """Of one node."""
        pods = _that_fit(self.pods(Random(seed), self.limits, self.hours), self.limits.max_pods - 2)
        return Trace(self.name, (NodeTrace(0.0, pods, self.limits),), WARM_UP_S, WARM_UP_S + self.hours * HOUR_S)


@dataclass(frozen=True, slots=True)
class Sum:
    """Over all seeds: changing calls, addresses held on average of the runs, ADDs that waited or were refused, the pods that had such
    a one, and for how long these waited in all."""

    calls: int
    held: float
    unserved: int
    pods: int = 0
    waited_s: float = 0.0


def run(load: Load, mode: str, *, seeds: Iterable[int] = SEEDS) -> Sum:
    """Run a load with one of `MODES`, once for each seed."""
    make_node = reference if mode == "reference" else shipped
    done = [run_fleet(load.trace(seed), MODES[mode], seed=seed, make_node=make_node) for seed in seeds]
    return Sum(
        sum(one.mutating_count for one in done),
        sum(one.held for one in done) / len(done),
        sum(one.unserved_count for one in done),
        sum(len(one.waits_s) for one in done),
        sum(sum(one.waits_s) for one in done),
    )


def constant(draw: Random, _: InstanceLimits, hours: float, *, busy_count: float = 12.0, life_s: float = 120.0) -> Iterator[Pod]:
    """Jobs that come independently of each other, `busy_count` of them at once on average."""
    yield from _residents(RESIDENT_COUNT)
    yield from _jobs_at_rate(draw, lambda _: 1.0, busy_count / life_s, hours=hours, life_s=life_s)


def edge(draw: Random, limits: InstanceLimits, hours: float, *, life_s: float = 90.0, period_s: float = 180.0) -> Iterator[Pod]:
    """So many residents that WARM_ENI_TARGET=1 is just met, and one job more that comes and goes."""
    yield from _residents(limits.slots_per_eni)
    at_s = WARM_UP_S + draw.uniform(0.0, period_s)
    while at_s < WARM_UP_S + hours * HOUR_S:
        yield Pod(at_s, at_s + life_s * draw.uniform(0.9, 1.1))
        at_s += period_s * draw.uniform(0.9, 1.1)


def diurnal(
    draw: Random, limits: InstanceLimits, hours: float, *, busy_share: float = 0.6, life_s: float = 600.0
) -> Iterator[Pod]:
    """Jobs whose number follows a sinus over the day, from 0 to `busy_share` of what the node can carry."""
    yield from _residents(RESIDENT_COUNT)

    def share(at_s: float) -> float:
        return (1 - math.cos(2 * math.pi * (at_s - WARM_UP_S) / DAY_S)) / 2

    yield from _jobs_at_rate(draw, share, busy_share * limits.max_pods / life_s, hours=hours, life_s=life_s)


def bursts(draw: Random, _: InstanceLimits, hours: float, *, count: int = 40, life_s: float = 300.0) -> Iterator[Pod]:
    """`count` jobs at every full hour, within some seconds."""
    yield from _residents(RESIDENT_COUNT)
    for hour in range(int(hours)):
        at_s = WARM_UP_S + hour * HOUR_S + draw.uniform(0.0, 60.0)
        for _job in range(count):
            arrives_s = at_s + draw.uniform(0.0, 5.0)
            yield Pod(arrives_s, arrives_s + life_s * draw.uniform(0.8, 1.2))


def rolling(
    draw: Random, limits: InstanceLimits, hours: float, *, busy_share: float = 0.5, every_s: float = 2 * HOUR_S
) -> Iterator[Pod]:
    """Each `every_s` all pods are replaced by new ones, a quarter at a time; the new come half a minute before the old go."""
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
    """One row of the table in docs/performance.md."""
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
    """Whether the shipped default holds the line."""
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
    """Print the table, as Markdown, of the loads whose name contains one of these; of all without any."""
    wanted = [load for load in LOADS if not names or any(name in load.name for name in names)]
    print(HEADER)
    with get_context("fork").Pool(2) as pool:
        found = pool.imap(_sum, [(load.name, mode) for load in wanted for mode in MODES])
        for load in wanted:
            print(line(load, {mode: next(found) for mode in MODES}), flush=True)
    return 0


def _sum(job: tuple[str, str]) -> Sum:
    name, mode = job
    return run(next(load for load in LOADS if load.name == name), mode)


def _residents(count: int) -> Iterator[Pod]:
    return (Pod(0.0) for _ in range(count))


def _jobs_at_rate(draw: Random, share: Callable[[float], float], most: float, *, hours: float, life_s: float) -> Iterator[Pod]:
    """Arrivals of a Poisson process: of one with the rate `most`, the share that a moment has."""
    at_s = 0.0
    while (at_s := at_s + draw.expovariate(most)) < WARM_UP_S + hours * HOUR_S:
        if draw.random() < share(at_s):
            yield Pod(at_s, at_s + life_s)


def _that_fit(pods: Iterable[Pod], most: int) -> tuple[Pod, ...]:
    """Leave out what would come to a full node: the scheduler sends it elsewhere."""
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
