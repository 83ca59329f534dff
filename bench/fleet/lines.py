"""The lines that a scenario must hold (docs/fleet.md): pure functions of its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RATIO_MOST = 1.3
UNFAIRNESS_MOST = 2.0
IDEAL_UNFAIRNESS_SLACK = 1.1
CALLS_SHARE_MOST = 0.1
HELD_RATIO_MOST = 1.2

BURSTY = ("deploy", "brown-out", "day")
"""Traces in which many pods come at once to a node that has been at rest."""


def fairness_most(ideal: float) -> float:
    """How unequal the waits of the nodes may be: twice the median, or where EC2's buckets make any client exceed that, a tenth more
    than they cause (`ideal`, see `bench/fleet/scenarios.py`)."""
    return UNFAIRNESS_MOST if ideal <= UNFAIRNESS_MOST else IDEAL_UNFAIRNESS_SLACK * ideal


def is_met(trace: str, mode: str, row: Mapping[str, Any], details: Mapping[str, Any]) -> bool:
    """Whether the line of a scenario holds. `details`: the figures that the report leaves out."""
    if mode == "auto" and not _auto_is_better(trace, row, details):
        return False
    if trace != "day":
        return bool(row["ratio"] <= RATIO_MOST and details["unfairness"] <= fairness_most(details["ideal_unfairness"]))
    calls, held = details["mutating_ratio"], details["held_ratio"]
    if mode == "ip5-min10":
        return bool(calls <= CALLS_SHARE_MOST and held <= HELD_RATIO_MOST)
    if mode == "default":
        return bool(calls <= 1.0 and held <= 1.0 and min(calls, held) < 1.0)
    return True  # no line but that every pod got an address


def _auto_is_better(trace: str, row: Mapping[str, Any], details: Mapping[str, Any]) -> bool:
    """Fewer addresses than WARM_ENI_TARGET=1, and no more waits than WARM_IP_TARGET=2, fewer of them where pods come in bursts."""
    waits, most = details["waits"], details["ip2_waits"]
    return bool(row["held"] < details["default_held"] and (waits < most if trace in BURSTY else waits <= most))
