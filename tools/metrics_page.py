"""Write `docs/metrics.md`: one row per metric, in alphabetical order, under the name that Prometheus reads from the endpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

import yaml
from prometheus_client import Metric

from ipamd.eni.external_changes import MetadataDifference
from ipamd.inventory.metrics import InventoryCollector, JobStatus
from ipamd.metrics.counts import Counts
from ipamd.metrics.page import Metrics
from ipamd.model.call_report import ANSWERED, CallReport, StatusReport
from ipamd.ports.cloud import Ec2
from ipamd.report.sources import Sources
from tools.metrics_words import (
    ALERTS_HEAD,
    ALERTS_TAIL,
    INVENTORY_HEAD,
    METRICS_HEAD,
    NOT_HERE,
    OF_THEIRS,
    RECORDED,
    RECORDED_MEANINGS,
    THE_SAME,
    ZERO,
)

RULES = Path(__file__).resolve().parents[1] / "manifests" / "monitoring" / "rules.yaml"

NODES = " Nodes: {{"
"""With these characters the part of an alert's description begins that lists nodes, by a template of Prometheus. The page omits it."""

SUFFIXES: Mapping[str, str] = {"counter": "_total", "info": "_info"}
"""Type of a metric -> what the library prometheus_client appends to the metric's name on the endpoint."""


def metrics_page() -> str:
    """Write the page: head, alerts, what must stay 0, all metrics, and those of amazon-vpc-cni-k8s that are missing."""
    rows = [_row(metric) for metric in sorted(documented(), key=lambda metric: metric.name)]
    head = (
        "## All metrics\n\nNames of amazon-vpc-cni-k8s mean the same here unless the row says otherwise. "
        "*There* is amazon-vpc-cni-k8s.\n\n"
        "| Name | Type | Labels | Meaning |\n|---|---|---|---|\n"
    )
    missing = "\n".join(f"| `{name}` | {why} |" for name, why in sorted(NOT_HERE.items()))
    theirs = (
        f"## Names of amazon-vpc-cni-k8s that are not here\n\nOf its {len(OF_THEIRS) + len(NOT_HERE)} metrics "
        f"{len(OF_THEIRS)} are above. The others:\n\n| Its name | Why not, and what to look at |\n|---|---|\n{missing}\n"
    )
    return f"{METRICS_HEAD}\n{_alerts()}\n{ZERO}\n{head}" + "\n".join(rows) + f"\n\n{_inventory()}\n{theirs}"


def _inventory() -> str:
    """Return a table of the metrics of the inventory."""
    rows = [_row(metric) for metric in sorted(of_the_inventory(), key=lambda metric: metric.name)]
    return f"{INVENTORY_HEAD}\n| Name | Type | Labels | Meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def of_the_inventory() -> Iterator[Metric]:
    """Yield every metric of the inventory with its labels."""
    yield from InventoryCollector(JobStatus(), now_s=lambda: 0.0).collect()


def _alerts() -> str:
    """Return the sections on alerts and records.

    Each alert has a section with its meaning and what to do. The alert's annotation `runbook_url` links to the section's heading.
    """
    groups = yaml.safe_load(RULES.read_text())["spec"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    alerts = "".join(_alert(rule) for rule in rules if "alert" in rule)
    return f"{ALERTS_HEAD}\n{alerts}{ALERTS_TAIL}\n{RECORDED}\n{_records(rules)}"


def _records(rules: Iterable[Mapping[str, Any]]) -> str:
    """Return a table of the records by subnet and zone. The other records are left out, because only alerts read them."""
    rows = [f"| `{rule['record']}` | {RECORDED_MEANINGS[rule['record']]} |\n" for rule in rules if _is_by_subnet(rule)]
    return "| Record | Meaning |\n|---|---|\n" + "".join(rows)


def _is_by_subnet(rule: Mapping[str, Any]) -> bool:
    return str(rule.get("record", "")).startswith(("subnet:", "zone:"))


def _alert(rule: Mapping[str, Any]) -> str:
    what = rule["annotations"]
    description = what["description"].partition(NODES)[0]
    text = re.sub(r"docs/([\w.]+md)(#[\w-]+)?", r"[\1](\1\2)", description)
    return f"### {rule['alert']}\n\n{what['summary']}. {text}{'' if text.endswith(('.', '?')) else '.'}\n\n"


def documented() -> Iterator[Metric]:
    """Yield every metric with its labels, as a daemon without any state has it after it answered one ADD and one DEL."""
    metrics, ec2 = Metrics(), cast(Ec2, _Silent())
    metrics.watch(
        cast(Sources, _Nothing()),
        Counts(
            ec2=ec2,
            replayed=lambda: 0,
            pool_empty={},
            looks={},
            repairs=dict,
            released={},
            metadata=lambda: MetadataDifference(0, 0.0, None),
            metadata_requests=lambda: 0,
        ),
    )
    metrics.request_done("ADD", code=0, total_ms=1.0, steps_ms={"wire": 1.0})
    metrics.request_done("DEL", code=11, total_ms=1.0, steps_ms={}, cause="busy")
    metrics.request_orphaned("ADD")
    yield from metrics.registry.collect()


def exposed_name(metric: Metric) -> str:
    """Return the metric's name on the endpoint. For a histogram or summary this is the name without the suffixes of its parts."""
    return metric.name + SUFFIXES.get(metric.type, "")


def labels_of(metric: Metric) -> tuple[str, ...]:
    """Return the metric's labels in their order, without the label `le`, which has the bounds of a histogram."""
    labels = {label: None for sample in metric.samples for label in sample.labels if label != "le"}
    return tuple(labels) or tuple(getattr(metric, "_labelnames", ()))


def _row(metric: Metric) -> str:
    name, kind = exposed_name(metric), {"unknown": "counter (untyped)", "info": "gauge"}.get(metric.type, metric.type)
    there = OF_THEIRS.get(name, THE_SAME)
    text = metric.documentation if there == THE_SAME else f"{metric.documentation}; {there}"
    return f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels_of(metric))} | {text} |"


class _Nothing:
    """Stands for the parts of a daemon without any state: has every attribute, can be called, is empty, and is 0 as a number."""

    reached_s: ClassVar[Mapping[str, float]] = {}

    def __getattr__(self, name: str) -> _Nothing:
        return self

    def __call__(self, *_: object) -> _Nothing:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __getitem__(self, _: object) -> _Nothing:
        return self

    def __len__(self) -> int:
        return 0

    def __int__(self) -> int:
        return 0

    def preview(self) -> None:
        """Return nothing, as if the state of the pool were not known."""


class _Silent:
    """Stands for EC2. It reports one answered and one refused status of a call, so that the metrics by status have labels."""

    def call_counts(self) -> Mapping[str, int]:
        return {"DescribeNetworkInterfaces": 0}

    def call_reports(self) -> Mapping[str, CallReport]:
        statuses = {ANSWERED: StatusReport(0, 0.0), "RequestLimitExceeded": StatusReport(0, 0.0)}
        return {"DescribeNetworkInterfaces": CallReport(statuses=statuses)}

    def throttling(self) -> None:
        """Return nothing, because EC2 never throttled."""

    def calls_under_way(self) -> tuple[()]:
        return ()
