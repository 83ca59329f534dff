"""The scenarios, the best that EC2's buckets allow, and one row of the report for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.fleet.buckets import bound_s, size_of
from bench.fleet.ec2 import Disturbance
from bench.fleet.lines import is_met
from bench.fleet.measure import percentile
from bench.fleet.reference import reference
from bench.fleet.run import Outcome, run_fleet
from bench.fleet.traces import BROWN_OUT_S, Trace, bootstrap, brown_out, cron_day, deploy, replacement

SEED = 10

MODES: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "ip5-min10": {"WARM_IP_TARGET": "5", "MINIMUM_IP_TARGET": "10"},
    "ip2": {"WARM_IP_TARGET": "2"},
    "prefix": {"ENABLE_PREFIX_DELEGATION": "true", "WARM_PREFIX_TARGET": "1"},
    "auto": {"VPC_IPAMD_WARM_TARGET_MODE": "auto"},
}
"""Targets, as the daemon's environment. The reference knows no `auto`: there it has its own default, WARM_ENI_TARGET=1."""

ALONE_COUNT = 25
"""Nodes whose median says how long one needs that nobody throttles: latencies are drawn, and one node's are chance."""

REFERENCE_MOST = 1000
"""Nodes of a larger fleet run without the reference: its throttled calls grow with the square of the fleet. Its calls are then those
of a fleet of this many nodes for each node, which is in its favour (`with_reference_scaled`)."""

TRACES: Mapping[str, Callable[..., Trace]] = {
    "bootstrap": bootstrap,
    "replacement": replacement,
    "deploy": deploy,
    "brown-out": brown_out,
    "day": cron_day,
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One fleet. `hours` is of a trace `day`."""

    trace: str
    mode: str
    node_count: int
    hours: int = 24
    env: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """In the report."""
        hours = f" of {self.hours} h" if self.is_day and self.hours < 24 else ""
        return f"{self.trace}{hours} {self.mode}{''.join(f' {name}={value}' for name, value in self.env)}"

    @property
    def is_day(self) -> bool:
        """Whether calls against addresses held are what counts, and not time."""
        return self.trace == "day"

    @property
    def settings(self) -> dict[str, str]:
        """The daemon's environment."""
        return {**MODES[self.mode], **dict(self.env)}

    def make_trace(self, node_count: int) -> Trace:
        """Its trace, for this many nodes."""
        options = {"hours": self.hours} if self.is_day else {}
        return TRACES[self.trace](node_count, seed=SEED, **options)


SCENARIOS = (
    *(Scenario("day", mode, 10) for mode in MODES),
    *(Scenario(trace, "auto", 150) for trace in TRACES if trace != "day"),
    Scenario("day", "ip5-min10", 1000, hours=2),
    *(
        Scenario(trace, mode, count)
        for count in (150, 1000, 5000)
        for trace, mode in (
            ("bootstrap", "default"),
            ("deploy", "ip5-min10"),
            ("replacement", "default"),
            ("brown-out", "ip5-min10"),
        )
    ),
)
"""In the order of the report."""


def run_scenario(scenario: Scenario) -> dict[str, Any]:
    """Run a fleet, and the reference over the same trace.

    Returns: the row of the report, with `details` that the report leaves out.
    """
    trace = scenario.make_trace(scenario.node_count)
    disturbance = Disturbance(*BROWN_OUT_S) if scenario.trace == "brown-out" else None
    ours = run_fleet(trace, scenario.settings, seed=SEED, disturbance=disturbance)
    bound, queue_p99_s = _bound(scenario, trace)
    row = {
        "name": scenario.name,
        "nodes": scenario.node_count,
        "time_s": round(ours.time_s, 1),
        "bound_s": round(bound, 1),
        "ratio": round(ours.time_s / bound, 3),
        "calls": dict(ours.calls),
        "reference_calls": {},
        "held": round(ours.held, 1),
        "used": round(ours.used, 1),
        "met": False,
    }
    details = {
        "throttled": ours.throttled_count,
        **_waits("", ours),
        "unfairness": round(ours.unfairness, 2),
        "node_wait_p99_s": round(percentile(ours.node_waits_s, 0.99), 1),
        "queue_p99_s": round(queue_p99_s, 1),
    }
    if scenario.node_count <= REFERENCE_MOST:
        theirs = run_fleet(trace, scenario.settings, seed=SEED, disturbance=disturbance, make_node=reference)
        row["reference_calls"] = dict(theirs.calls)
        details |= {
            "reference_time_s": round(theirs.time_s, 1),
            "reference_held": round(theirs.held, 1),
            "reference_is_done": theirs.is_done,
            "mutating_ratio": round(ours.mutating_count / max(theirs.mutating_count, 1), 3),
            "held_ratio": round(ours.held / max(theirs.held, 1e-9), 3),
            "reference_throttled": theirs.throttled_count,
            **_waits("reference_", theirs),
        }
    if scenario.mode == "auto":
        details |= _compared(trace, disturbance)
    row["met"] = ours.is_done and is_met(scenario.trace, scenario.mode, row, details)
    return {**row, "details": details}


def run_timed(scenario: Scenario) -> tuple[dict[str, Any], float]:
    """Run one in a process of its own. Returns: its row, and the CPU seconds so far, which are no part of it."""
    return run_scenario(scenario), time.process_time()


def with_reference_scaled(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Fill in what the reference needs for a fleet that it was not run with: for each node what it needs in the largest one."""
    smaller = [one for one in rows if one["name"] == row["name"] and one["nodes"] <= REFERENCE_MOST]
    if row["reference_calls"] or not smaller:
        return dict(row)
    largest = max(smaller, key=lambda one: int(one["nodes"]))
    factor = row["nodes"] / largest["nodes"]
    calls = {api: round(count * factor) for api, count in largest["reference_calls"].items()}
    held = round(largest["details"]["reference_held"] * factor, 1)
    told = {"reference_scaled_from": largest["nodes"], "reference_held": held, "held_ratio": round(row["held"] / held, 3)}
    return {**row, "reference_calls": calls, "details": {**row["details"], **told}}


def _compared(trace: Trace, disturbance: Disturbance | None) -> dict[str, Any]:
    """What the shipped pool holds under WARM_ENI_TARGET=1, and how many ADDs wait under WARM_IP_TARGET=2, over the same trace."""
    by_eni, by_ip = (run_fleet(trace, MODES[mode], seed=SEED, disturbance=disturbance) for mode in ("default", "ip2"))
    return {"default_held": round(by_eni.held, 1), "ip2_waits": len(by_ip.waits_s)}


def _waits(prefix: str, outcome: Outcome) -> dict[str, Any]:
    return {
        f"{prefix}waits": len(outcome.waits_s),
        f"{prefix}wait_p50_s": round(percentile(outcome.waits_s, 0.5), 1),
        f"{prefix}wait_p99_s": round(percentile(outcome.waits_s, 0.99), 1),
    }


def _bound(scenario: Scenario, trace: Trace) -> tuple[float, float]:
    """Compute what EC2 allows at best: the time until all pods have addresses, and how long the slowest hundredth of nodes waits then.

    A node alone, which nobody throttles, shows which calls come before its last pod has an address, and some nodes how long that
    takes. Of each action the fleet needs so many times that, and EC2 accepts a bucket at once and the rest at its refill. A
    replacement cannot end before its last part has; a disturbance gives nothing while it lasts. If no node waits, what the trace
    itself takes is the bound.
    The queue is one of all nodes: EC2 serves them one after the other as they start, and after a disturbance.
    """
    alone = run_fleet(scenario.make_trace(1), scenario.settings, seed=SEED, is_unlimited=True)
    arrivals_s = [pod.arrives_s - trace.begins_s for pod in trace.measured]
    last_arrival_s = max(arrivals_s)
    if scenario.is_day:
        return last_arrival_s, 0.0
    few = run_fleet(scenario.make_trace(ALONE_COUNT), scenario.settings, seed=SEED, is_unlimited=True)
    wait_s = percentile(few.node_waits_s, 0.5)
    refill_s = max((bound_s(api, count * scenario.node_count) for api, count in alone.calls.items()), default=0.0)
    queue_s = queue_waits_s(alone.calls, [node.starts_s for node in trace.nodes])
    queue_p99_s = percentile(queue_s, 0.99) + wait_s if queue_s else 0.0
    if scenario.trace == "brown-out":
        ends_s = BROWN_OUT_S[1] - trace.begins_s
        return ends_s + refill_s, ends_s - min(arrivals_s) + queue_p99_s
    if scenario.trace == "replacement":
        return max(last_arrival_s + wait_s, refill_s + wait_s), queue_p99_s
    return max(last_arrival_s, min(arrivals_s) + refill_s + wait_s), queue_p99_s


def queue_waits_s(calls: Mapping[str, int], starts_s: Sequence[float]) -> list[float]:
    """How long each node waits if EC2 serves them one after the other, from full buckets on.

    Args:
        calls: how many of each action every node needs; the one that is accepted last counts.
        starts_s: when each node starts, ascending.
    Returns: seconds by node, without what a node needs that nobody throttles; empty without calls.
    """
    served_s = [_served_s(api, count, starts_s) for api, count in calls.items()]
    return [max(one) - start_s for start_s, *one in zip(starts_s, *served_s, strict=True)] if served_s else []


def _served_s(api: str, count: int, starts_s: Sequence[float]) -> list[float]:
    """When EC2 has accepted the calls of each node."""
    size, refill_per_s = size_of(api)
    tokens, at_s, served_s = size, 0.0, []
    for start_s in starts_s:
        now_s = max(start_s, at_s)
        tokens = min(size, tokens + (now_s - at_s) * refill_per_s) - count
        at_s = now_s + max(-tokens, 0.0) / refill_per_s
        tokens = max(tokens, 0.0)
        served_s.append(at_s)
    return served_s
