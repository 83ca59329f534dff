"""The lines that the fleet simulation judges by."""

from __future__ import annotations

from typing import Any

import pytest

from bench.fleet.figures import auto, curve, filled
from bench.fleet.lines import is_fair, is_met
from bench.fleet.scenarios import queue_waits_s, with_reference_scaled

FAIR: dict[str, Any] = {"unfairness": 1.9, "node_wait_p99_s": 30.0, "queue_p99_s": 20.0}


@pytest.mark.parametrize(
    ("unfairness", "p99_s", "queue_s", "fair"),
    [(2.0, 100.0, 1.0, True), (2.1, 100.0, 90.0, False), (2.1, 99.0, 90.0, True), (3.8, 99.1, 90.0, False)],
)
def test_the_line_of_fairness_is_two_unless_no_client_can_hold_it(
    unfairness: float, p99_s: float, queue_s: float, fair: bool
) -> None:
    """Twice the median; or a tenth above what a perfect queue of all nodes has."""
    assert is_fair({"unfairness": unfairness, "node_wait_p99_s": p99_s, "queue_p99_s": queue_s}) is fair


def test_a_perfect_queue_waits_for_the_scarcest_action() -> None:
    """150 nodes at once: 50 attachments are accepted at once, the last one after 20 s; of 100 creations it would be 10 s."""
    waits_s = queue_waits_s({"AttachNetworkInterface": 1, "CreateNetworkInterface": 1}, [0.0] * 150)
    assert (waits_s[49], waits_s[50], waits_s[149]) == pytest.approx((0.0, 0.2, 20.0))
    assert queue_waits_s({"CreateNetworkInterface": 1}, [0.0] * 150)[149] == pytest.approx(10.0)
    assert queue_waits_s({}, [0.0]) == []


def test_a_perfect_queue_of_parts_begins_with_what_the_bucket_has_again() -> None:
    """250 nodes a minute: 50 at once and 200 in 40 s, so that the bucket is full again before the next part."""
    waits_s = queue_waits_s({"AttachNetworkInterface": 1}, [60.0 * (index // 250) for index in range(750)])
    assert waits_s[250:500] == pytest.approx(waits_s[:250])
    assert waits_s[500:] == pytest.approx(waits_s[:250])
    assert waits_s[249] == pytest.approx(40.0)
    late_s = queue_waits_s({"AttachNetworkInterface": 1}, [30.0 * (index // 250) for index in range(500)])
    assert late_s[499] == pytest.approx((500 - 50) / 5 - 30.0), "what was not served yet is served first"


@pytest.mark.parametrize(
    ("ratio", "unfairness", "queue_s", "met"),
    [(1.3, 2.0, 0.0, True), (1.31, 2.0, 0.0, False), (1.0, 2.1, 27.0, False), (1.0, 2.1, 28.0, True)],
)
def test_times(ratio: float, unfairness: float, queue_s: float, met: bool) -> None:
    """Within 1.3 x of the bound, and no node starves."""
    details = {"unfairness": unfairness, "node_wait_p99_s": 30.0, "queue_p99_s": queue_s}
    assert is_met("bootstrap", "default", {"ratio": ratio}, details) is met


@pytest.mark.parametrize(
    ("mode", "calls", "held", "met"),
    [
        ("ip5-min10", 0.1, 1.2, True),
        ("ip5-min10", 0.11, 1.0, False),
        ("default", 1.0, 1.5, True),
        ("default", 1.01, 0.9, False),
        ("default", 0.5, 1.51, False),
        ("prefix", 5.0, 5.0, True),
    ],
)
def test_days(mode: str, calls: float, held: float, met: bool) -> None:
    """Calls against addresses held, beside the reference."""
    row = {"held": 28.0 * held, "nodes": 1}
    assert is_met("day", mode, row, {"mutating_ratio": calls, "held_ratio": held}) is met


@pytest.mark.parametrize(
    ("trace", "held", "waits", "met"),
    [
        ("deploy", 9.0, 4, True),
        ("deploy", 10.0, 4, False),
        ("deploy", 9.0, 5, False),
        ("bootstrap", 9.0, 5, True),
        ("bootstrap", 9.0, 6, False),
    ],
)
def test_auto_is_held_against_both_targets(trace: str, held: float, waits: int, met: bool) -> None:
    """Fewer addresses than WARM_ENI_TARGET=1, no more waits than WARM_IP_TARGET=2, and fewer of them in bursts."""
    details = {**FAIR, "waits": waits, "default_held": 10.0, "ip2_waits": 5}
    assert is_met(trace, "auto", {"ratio": 1.0, "held": held}, details) is met


def row(nodes: int, calls: dict[str, int], **details: Any) -> dict[str, Any]:
    """One row of the report, as far as it matters here."""
    return {"name": "deploy", "nodes": nodes, "held": 12.0, "reference_calls": calls, "met": True, "details": details}


def test_a_fleet_without_its_reference_gets_that_of_the_largest_one() -> None:
    """For each node as many calls as in the largest fleet that it was run with, and the row says so."""
    rows = [row(10, {"CreateTags": 7}, reference_held=9.0), row(100, {"CreateTags": 50}, reference_held=80.0)]
    told = with_reference_scaled(row(500, {}), rows)
    assert told["reference_calls"] == {"CreateTags": 250}
    assert told["details"]["reference_scaled_from"] == 100
    assert with_reference_scaled(rows[0], rows) == rows[0]


def test_the_best_point_of_the_curve_has_the_least_sum() -> None:
    """And rows without a hold window, or without a comparison, are in neither table."""
    points = {300: (1.0, 1.0), 3600: (0.2, 1.4), 7200: (0.1, 1.7)}
    rows = [
        {"name": f"day VPC_IPAMD_RELEASE_HOLD_SECONDS={hold_s}", "details": {"mutating_ratio": calls, "held_ratio": held}}
        for hold_s, (calls, held) in points.items()
    ]
    lines = curve([*rows, row(1, {})]).splitlines()[2:]
    assert [line.endswith("the least |") for line in lines] == [False, True, False]
    assert len(auto([row(1, {})]).splitlines()) == 2


def test_a_page_is_filled_between_its_marks() -> None:
    """Twice gives the same as once, and what is around the marks stays."""
    marks = "".join(f"<!-- {name} -->\nstale\n<!-- end -->\nkept {name}\n" for name in ("figures", "auto", "curve"))
    rows = [{"name": "day VPC_IPAMD_RELEASE_HOLD_SECONDS=300", "details": {"mutating_ratio": 1.0, "held_ratio": 1.0}}]
    once = filled(marks, rows)
    assert "stale" not in once
    assert [f"kept {name}" in once for name in ("figures", "auto", "curve")] == [True] * 3
    assert "| 300 | 1.000 | 1.000 | 2.000, the least |" in once
    assert filled(once, rows) == once
