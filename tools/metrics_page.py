"""Write `docs/metrics.md`: one row per metric, in alphabetical order, under the names that a scrape has."""

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
"""Where the description of an alert by zone begins to name nodes, by a template of Prometheus."""

SUFFIXES: Mapping[str, str] = {"counter": "_total", "info": "_info"}
"""What the library appends to the name of a family of this type."""


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
    """A table of the metrics of the inventory."""
    rows = [_row(metric) for metric in sorted(of_the_inventory(), key=lambda metric: metric.name)]
    return f"{INVENTORY_HEAD}\n| Name | Type | Labels | Meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def of_the_inventory() -> Iterator[Metric]:
    """Every metric of the inventory with its labels."""
    yield from InventoryCollector(JobStatus(), now_s=lambda: 0.0).collect()


def _alerts() -> str:
    """A heading for each alert, which its annotation `runbook_url` names: what it means, what to do."""
    groups = yaml.safe_load(RULES.read_text())["spec"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    alerts = "".join(_alert(rule) for rule in rules if "alert" in rule)
    return f"{ALERTS_HEAD}\n{alerts}{ALERTS_TAIL}\n{RECORDED}\n{_records(rules)}"


def _records(rules: Iterable[Mapping[str, Any]]) -> str:
    """A table of what is recorded by subnet and zone; what only an alert reads is left out."""
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
    """Every metric with its labels: a daemon of which nothing is known has answered one ADD and one DEL."""
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
    """The name in a scrape; without the suffixes of a histogram's or a summary's parts."""
    return metric.name + SUFFIXES.get(metric.type, "")


def labels_of(metric: Metric) -> tuple[str, ...]:
    """Its labels, in order; without the bounds of a histogram."""
    found = {label: None for sample in metric.samples for label in sample.labels if label != "le"}
    return tuple(found) or tuple(getattr(metric, "_labelnames", ()))


def _row(metric: Metric) -> str:
    name, kind = exposed_name(metric), {"unknown": "counter (untyped)", "info": "gauge"}.get(metric.type, metric.type)
    there = OF_THEIRS.get(name, THE_SAME)
    text = metric.documentation if there == THE_SAME else f"{metric.documentation}; {there}"
    return f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels_of(metric))} | {text} |"


class _Nothing:
    """Has every attribute, is called with anything, and counts nothing; nothing was reached."""

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
        """Nothing is known of the pool."""


class _Silent:
    """EC2 that answered once, and refused once."""

    def call_counts(self) -> Mapping[str, int]:
        return {"DescribeNetworkInterfaces": 0}

    def call_reports(self) -> Mapping[str, CallReport]:
        statuses = {ANSWERED: StatusReport(0, 0.0), "RequestLimitExceeded": StatusReport(0, 0.0)}
        return {"DescribeNetworkInterfaces": CallReport(statuses=statuses)}

    def throttling(self) -> None:
        """It never throttled."""

    def calls_under_way(self) -> tuple[()]:
        return ()
