"""Our metrics follow Prometheus' conventions for names: https://prometheus.io/docs/practices/naming/.

The rules are those of `promtool check metrics`, and stricter ones of our own. tests/heavy runs promtool itself on a scrape. Names that
begin with `awscni_` are those of amazon-vpc-cni-k8s and stay as they are.
"""

from __future__ import annotations

import re

import pytest
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from tools.metrics_page import documented, exposed_name, labels_of, of_the_inventory

ABBREVIATED_UNITS = frozenset({"s", "ms", "us", "ns", "sec", "min", "m", "h", "hr", "d", "b", "kb", "mb", "gb", "kib", "mib"})
"""Units that a name must spell out."""

OTHER_UNITS = frozenset({"milliseconds", "microseconds", "minutes", "hours", "days", "kilobytes", "megabytes", "bits", "percent"})
"""Units that are no base units: seconds, bytes and ratios are."""

TYPES = frozenset({"counter", "gauge", "histogram", "summary", "info", "untyped", "unknown"})
OF_PARTS = ("_count", "_sum", "_bucket", "_created")
"""Endings that the series of a histogram or a summary have."""

TIMES = frozenset(["age", "duration", "latency", "delay", "elapsed", "uptime"])
"""Words after which a name must say its unit."""

VAGUE_LABELS = frozenset({"what", "which", "thing", "one"})


def problems(metric: Metric) -> list[str]:
    """What the conventions forbid in a family's name, text and labels; empty: nothing."""
    name = exposed_name(metric)
    words = name.split("_")
    faults = {
        "no HELP": not metric.documentation.strip(),
        "not in snake case": not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name),
        "an abbreviated unit": bool(ABBREVIATED_UNITS & set(words)),
        "no base unit": bool(OTHER_UNITS & set(words)),
        "a time without unit": bool(TIMES & set(words)) and "seconds" not in words,
        "the unit is not last": name.removesuffix("_total").endswith(("_seconds", "_bytes", "_ratio"))
        != bool({"seconds", "bytes", "ratio"} & set(words)),
        "the type is in the name": bool(TYPES & set(words[: -1 if metric.type == "info" else None])),
        "a counter without _total": metric.type == "counter" and not name.endswith("_total"),
        "_total, but no counter": metric.type != "counter" and name.endswith("_total"),
        "an ending of a histogram's parts": name.endswith(OF_PARTS),
        "untyped": metric.type == "unknown",
        "a vague label": bool(VAGUE_LABELS & set(labels_of(metric))),
        "a label of a histogram or summary": bool({"le", "quantile"} & set(labels_of(metric))),
    }
    return [fault for fault, is_there in faults.items() if is_there]


OURS = [metric for metric in (*documented(), *of_the_inventory()) if not metric.name.startswith(("awscni_", "process_"))]


@pytest.mark.parametrize("metric", OURS, ids=exposed_name)
def test_the_name_follows_the_conventions(metric: Metric) -> None:
    """Base units spelt out and last, `_total` for counters only, no type in the name, HELP for each."""
    assert metric.name.startswith("ipamd_")
    assert problems(metric) == []


def test_the_bounds_of_histograms_are_seconds() -> None:
    """No request, step or attempt is observed for longer than two minutes: a larger bound would be milliseconds."""
    bounds = {
        metric.name: [float(sample.labels["le"]) for sample in metric.samples if sample.labels.get("le", "+Inf") != "+Inf"]
        for metric in OURS
        if metric.type == "histogram"
    }
    assert len(bounds) == 3
    assert all(max(values) <= 120 for values in bounds.values()), bounds


@pytest.mark.parametrize(
    ("metric", "fault"),
    [
        (GaugeMetricFamily("ipamd_age_s", "x"), "an abbreviated unit"),
        (HistogramMetricFamily("ipamd_request_duration_ms", "x"), "an abbreviated unit"),
        (GaugeMetricFamily("ipamd_uptime_minutes", "x"), "no base unit"),
        (GaugeMetricFamily("ipamd_list_age", "x"), "a time without unit"),
        (GaugeMetricFamily("ipamd_seconds_of_start", "x"), "the unit is not last"),
        (GaugeMetricFamily("ipamd_add_gauge", "x"), "the type is in the name"),
        (GaugeMetricFamily("ipamd_adds_total", "x"), "_total, but no counter"),
        (GaugeMetricFamily("ipamd_add_count", "x"), "an ending of a histogram's parts"),
        (GaugeMetricFamily("ipamd_adds", ""), "no HELP"),
        (CounterMetricFamily("ipamd_Adds", "x"), "not in snake case"),
        (CounterMetricFamily("ipamd_adds", "x", labels=("what",)), "a vague label"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_a_wrong_name_is_found(metric: Metric, fault: str) -> None:
    """Each rule finds the name that breaks it."""
    assert fault in problems(metric)
