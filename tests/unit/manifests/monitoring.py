"""Reading alerts and dashboards, and the names of metrics in an expression, for the tests of both."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from tests.unit.manifests.manifest import MANIFESTS

FOLDER = MANIFESTS / "monitoring"
RUNBOOK_PAGE = "docs/metrics.md"
"""In the repository: who installs this knows where the repository is."""

METRIC = re.compile(r"\b(?:ipamd|awscni|process)_[a-z0-9_]+\b|\bup\b")


def groups() -> list[dict[str, Any]]:
    """The groups of rules, as Prometheus itself reads them."""
    found: list[dict[str, Any]] = yaml.safe_load((FOLDER / "rules.yaml").read_text())["spec"]["groups"]
    return found


def rules() -> list[dict[str, Any]]:
    """Every alert."""
    return [rule for group in groups() for rule in group["rules"] if "alert" in rule]


def records() -> list[dict[str, Any]]:
    """Every recording rule."""
    return [rule for group in groups() for rule in group["rules"] if "record" in rule]


def expressions() -> list[str]:
    """What alerts and recording rules read."""
    return [rule["expr"] for rule in (*records(), *rules())]


DASHBOARDS = ("dashboard-fleet.json", "dashboard-node.json")


def dashboard(name: str) -> dict[str, Any]:
    """One of the dashboards."""
    found: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return found


def dashboard_expressions(*names: str) -> list[str]:
    """The expressions of all panels of these dashboards, by default of all, with every node and cluster chosen."""
    panels = [panel for name in names or DASHBOARDS for panel in dashboard(name)["panels"]]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    return [
        expression.replace("$node", ".*").replace("$cluster", ".*").replace("$__rate_interval", "5m")
        for expression in expressions
    ]


def metrics_of(expression: str) -> set[str]:
    """Names of the metrics that an expression reads, without the suffixes of a histogram's series."""
    return {re.sub(r"_(bucket|sum|count)$", "", name) if "duration" in name else name for name in METRIC.findall(expression)}
