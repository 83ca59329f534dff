"""The bounds ("lines") that the figures of a scenario must keep (docs/performance.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.fleet.traces import NODE_TYPE

RATIO_MOST = 1.3
UNFAIRNESS_MOST = 2.0
QUEUE_SLACK = 1.1
CALLS_SHARE_MOST = 0.1
HELD_RATIO_MOST = 1.2
CALM_RATIO_MOST = 1.05

BURSTY = ("deploy", "brown-out", "day")
"""Traces in which many pods come at once to a node that has been at rest."""


def is_fair(details: Mapping[str, Any]) -> bool:
    """Whether no node waits much longer than others: the 99th percentile of the nodes' waits is at most twice their median.

    EC2's buckets or a disturbance may make that impossible. Then the percentile may be a tenth more than in a perfect queue of all
    nodes (`bench/fleet/scenarios.py`).
    """
    if details["unfairness"] <= UNFAIRNESS_MOST:
        return True
    return bool(details["node_wait_p99_s"] <= QUEUE_SLACK * details["queue_p99_s"])


def is_met(trace: str, mode: str, row: Mapping[str, Any], details: Mapping[str, Any]) -> bool:
    """Whether a scenario keeps its bounds. `row`: its row of the report. `details`: further figures, which are not in the report."""
    if mode == "auto" and not _auto_is_better(trace, row, details):
        return False
    if trace != "day":
        return bool(row["ratio"] <= RATIO_MOST and is_fair(details))
    calls, held = details["mutating_ratio"], details["held_ratio"]
    if mode == "ip5-min10":
        return bool(calls <= CALLS_SHARE_MOST and held <= HELD_RATIO_MOST)
    if mode == "default":
        return calls <= 1.0 and is_calm(
            row["held"], reference_held=row["held"] / held, eni_size=row["nodes"] * NODE_TYPE.slots_per_eni
        )
    return True  # the only bound is that every pod got an address, which the caller checks


def is_calm(held: float, *, reference_held: float, eni_size: int) -> bool:
    """Whether a fleet holds at most 1.05 x of the addresses that the reference holds on average, or those of one ENI more for each
    node.

    `eni_size`: addresses of an ENI, of all nodes together.
    """
    return held <= max(CALM_RATIO_MOST * reference_held, reference_held + eni_size)


def _auto_is_better(trace: str, row: Mapping[str, Any], details: Mapping[str, Any]) -> bool:
    """Whether `auto` holds fewer addresses than WARM_ENI_TARGET=1, and has no more waits than WARM_IP_TARGET=2; if pods come in
    bursts, fewer waits."""
    waits, most = details["waits"], details["ip2_waits"]
    return bool(row["held"] < details["default_held"] and (waits < most if trace in BURSTY else waits <= most))
