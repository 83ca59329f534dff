"""Reading alerts and dashboard, and the names of metrics in an expression, for the tests of both."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from tests.unit.manifests.manifest import MANIFESTS

FOLDER = MANIFESTS / "monitoring"
METRIC = re.compile(r"\b(?:ipamd|awscni|process)_[a-z0-9_]+\b|\bup\b")


def groups() -> list[dict[str, Any]]:
    """The groups of rules, as Prometheus itself reads them."""
    found: list[dict[str, Any]] = yaml.safe_load((FOLDER / "rules.yaml").read_text())["spec"]["groups"]
    return found


def rules() -> list[dict[str, Any]]:
    """Every alert."""
    return [rule for group in groups() for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    """The dashboard."""
    found: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
    return found


def dashboard_expressions() -> list[str]:
    """The expressions of all panels, with every node chosen."""
    targets = [target for panel in dashboard()["panels"] for target in panel["targets"]]
    return [target["expr"].replace("$node", ".*").replace("$__rate_interval", "5m") for target in targets]


def metrics_of(expression: str) -> set[str]:
    """Names of the metrics that an expression reads, without the suffixes of a histogram's series."""
    return {re.sub(r"_(bucket|sum|count)$", "", name) if "duration" in name else name for name in METRIC.findall(expression)}
