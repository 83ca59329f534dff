"""The scenarios, the shortest times that EC2's buckets allow, and the row of the report for each scenario."""

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
"""Mode -> targets, as environment variables of the daemon. The reference has no mode `auto`; instead it has its own default,
WARM_ENI_TARGET=1."""

ALONE_COUNT = 25
"""Number of nodes whose median wait is the wait of a node that is not throttled. Ours: latencies are random, so one node would not be
enough."""

REFERENCE_MOST = 1000
"""Larger fleets are run without the reference, because its throttled calls grow with the square of the number of nodes. For them the
reference's calls are scaled up from its largest fleet (`with_reference_scaled`), which makes it look better than it is."""

TRACES: Mapping[str, Callable[..., Trace]] = {
    "bootstrap": bootstrap,
    "replacement": replacement,
    "deploy": deploy,
    "brown-out": brown_out,
    "day": cron_day,
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One fleet. `hours`: length of a trace `day`. `env`: further settings."""

    trace: str
    mode: str
    node_count: int
    hours: int = 24
    env: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """The name in the report."""
        hours = f" of {self.hours} h" if self.is_day and self.hours < 24 else ""
        return f"{self.trace}{hours} {self.mode}{''.join(f' {name}={value}' for name, value in self.env)}"

    @property
    def is_day(self) -> bool:
        """Whether the scenario measures calls and held addresses, and not time."""
        return self.trace == "day"

    @property
    def settings(self) -> dict[str, str]:
        """The settings, as environment variables of the daemon."""
        return {**MODES[self.mode], **dict(self.env)}

    def make_trace(self, node_count: int) -> Trace:
        """Make the scenario's trace for this many nodes."""
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
"""All scenarios, in the order of the report."""


def run_scenario(scenario: Scenario) -> dict[str, Any]:
    """Run a fleet with the daemon's pool, and with the reference on the same trace.

    Returns: the row of the report. Its entry `details` is not part of the report.
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
    """Run a scenario in this process, which must be used for it alone. Returns: its row, and the CPU time of the process in s."""
    return run_scenario(scenario), time.process_time()


def with_reference_scaled(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a row with figures of the reference. If the reference was not run for this fleet, they are scaled by the number of nodes
    from its largest fleet in the same scenario."""
    smaller = [other for other in rows if other["name"] == row["name"] and other["nodes"] <= REFERENCE_MOST]
    if row["reference_calls"] or not smaller:
        return dict(row)
    largest = max(smaller, key=lambda other: int(other["nodes"]))
    factor = row["nodes"] / largest["nodes"]
    calls = {api: round(count * factor) for api, count in largest["reference_calls"].items()}
    held = round(largest["details"]["reference_held"] * factor, 1)
    scaled = {"reference_scaled_from": largest["nodes"], "reference_held": held, "held_ratio": round(row["held"] / held, 3)}
    return {**row, "reference_calls": calls, "details": {**row["details"], **scaled}}


def _compared(trace: Trace, disturbance: Disturbance | None) -> dict[str, Any]:
    """Run the daemon's pool on the same trace with WARM_ENI_TARGET=1 and with WARM_IP_TARGET=2.

    Returns: the addresses that it holds with the former, and the ADDs that wait with the latter.
    """
    by_eni, by_ip = (run_fleet(trace, MODES[mode], seed=SEED, disturbance=disturbance) for mode in ("default", "ip2"))
    return {"default_held": round(by_eni.held, 1), "ip2_waits": len(by_ip.waits_s)}


def _waits(prefix: str, outcome: Outcome) -> dict[str, Any]:
    return {
        f"{prefix}waits": len(outcome.waits_s),
        f"{prefix}wait_p50_s": round(percentile(outcome.waits_s, 0.5), 1),
        f"{prefix}wait_p99_s": round(percentile(outcome.waits_s, 0.99), 1),
    }


def _bound(scenario: Scenario, trace: Trace) -> tuple[float, float]:
    """Compute the best that EC2 allows. Returns: the shortest time until all pods have addresses, and the 99th percentile of the
    nodes' waits if EC2 serves the nodes in one perfect queue.

    A single node that is not throttled shows the calls that a node needs until its last pod has an address; ALONE_COUNT such nodes
    show the time that this takes. The fleet needs these calls for each node. EC2 accepts a full bucket of them at once, and the rest
    at the refill rate. A replacement cannot end before its last part has started. During a disturbance no call is assumed to succeed.
    If no node waits, the length of the trace is the bound. In the perfect queue EC2 serves the nodes one after the other in the order
    of their starts, and after a disturbance.
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
    """Return how long each node waits if EC2 serves the nodes one after the other, beginning with full buckets.

    Args:
        calls: action -> number of calls that every node needs. A node waits for the call that is accepted last.
        starts_s: start time of each node, ascending.
    Returns: seconds for each node, without the time that an unthrottled node needs; an empty list if there are no calls.
    """
    served_s = [_served_s(api, count, starts_s) for api, count in calls.items()]
    return [max(times) - start_s for start_s, *times in zip(starts_s, *served_s, strict=True)] if served_s else []


def _served_s(api: str, count: int, starts_s: Sequence[float]) -> list[float]:
    """Return for each node the time at which EC2 has accepted its `count` calls of an action."""
    size, refill_per_s = size_of(api)
    tokens, at_s, served_s = size, 0.0, []
    for start_s in starts_s:
        now_s = max(start_s, at_s)
        tokens = min(size, tokens + (now_s - at_s) * refill_per_s) - count
        at_s = now_s + max(-tokens, 0.0) / refill_per_s
        tokens = max(tokens, 0.0)
        served_s.append(at_s)
    return served_s
