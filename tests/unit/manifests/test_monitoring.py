"""Alerts and dashboard read metrics that the daemon has, and say the same as docs/metrics.md. promtool tries them in tests/heavy."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from ipamd.settings import load
from tests.unit.manifests import monitoring
from tests.unit.manifests.manifest import ROOT, container, daemonset, environment, init_container

PAGE = (ROOT / "docs" / "metrics.md").read_text()
KNOWN = set(re.findall(r"^\| `((?:ipamd|awscni)_\w+)` \|", PAGE, re.M))
"""Names in a scrape: the page is generated from the registry (tests/unit/docs)."""

LABEL = {"type": "object", "additionalProperties": {"type": "string"}}
RULE = {
    "type": "object",
    "required": ["alert", "expr", "labels", "annotations"],
    "additionalProperties": False,
    "properties": {
        "alert": {"type": "string", "pattern": "^VpcIpamd[A-Za-z]+$"},
        "expr": {"type": "string"},
        "for": {"type": "string", "pattern": "^[0-9]+m$"},
        "labels": {**LABEL, "required": ["severity"]},
        "annotations": {**LABEL, "required": ["summary", "description"]},
    },
}


def _rows() -> dict[frozenset[str], str]:
    """The table of alerts on the page: metrics of the row's expressions -> the row's first column."""
    table = PAGE[PAGE.index("## What to alert on") + 1 :].partition("\n## ")[0].partition("\n### ")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    return {_key(cell): cell for cell in cells}


def _key(text: str) -> frozenset[str]:
    """What is asked for, states included: two alerts read `ipamd_addresses`."""
    return frozenset(re.findall(r"\b(?:ipamd|awscni)_\w+(?:\{[^}]*\})?|\bup\b", text))


def _in_minutes(cell: str) -> str | None:
    found = re.search(r"for (\d+) min", cell)
    return f"{found[1]}m" if found else None


@pytest.mark.parametrize("rule", monitoring.rules(), ids=lambda rule: rule["alert"])
def test_each_alert_is_a_row_of_the_page(rule: dict[str, Any]) -> None:
    """The same metrics, the same limit, the same duration; nothing alerts that the page does not explain."""
    assert [error.message for error in Draft202012Validator(RULE).iter_errors(rule)] == []
    cell = _rows()[_key(rule["expr"])]
    if "up" not in monitoring.metrics_of(rule["expr"]):  # the page leaves out its selector and its patience
        assert rule["expr"] in re.findall(r"`([^`]+)`", cell)
        assert rule.get("for") == _in_minutes(cell)


def test_each_row_of_the_page_is_an_alert() -> None:
    """What the page says to alert on has a rule, and only one."""
    in_rules = [_key(rule["expr"]) for rule in monitoring.rules()]
    assert len(in_rules) == len(set(in_rules))
    assert set(in_rules) == set(_rows())


def test_the_metrics_exist() -> None:
    """Every name in alerts and dashboard is one that the daemon serves; a misspelt one would never alert."""
    expressions = [rule["expr"] for rule in monitoring.rules()] + monitoring.dashboard_expressions()
    used = {name for expression in expressions for name in monitoring.metrics_of(expression)} - {"up"}
    assert len(used) > 15
    assert used <= KNOWN


def test_runbooks_exist() -> None:
    """Each alert that names a place in a page names one that there is."""
    for rule in monitoring.rules():
        page, _, anchor = rule["annotations"].get("runbook", "docs/metrics.md#all-of-them").partition("#")
        headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), re.M)
        assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, rule["alert"]


def test_the_dashboard_is_whole() -> None:
    """Panels have numbers of their own, do not lie over each other, and ask the chosen data source."""
    panels = monitoring.dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    assert {one["name"] for one in monitoring.dashboard()["templating"]["list"]} == {"datasource", "instance"}


def scraped(endpoint: dict[str, Any], *, name: str, ip: str) -> str | None:
    """The address at which Prometheus asks a container that announces no port, by the rules of relabelling; None: it does not."""
    labels = {"__address__": ip, "__meta_kubernetes_pod_container_name": name, "__meta_kubernetes_pod_ip": ip}
    for rule in endpoint["relabelings"]:
        found = re.fullmatch(rule.get("regex", "(.*)"), ";".join(labels.get(one, "") for one in rule["sourceLabels"]))
        if rule.get("action") == "keep":
            if found is None:
                return None
        elif found is not None:
            labels[rule["targetLabel"]] = found.expand(re.sub(r"\$(\d)", r"\\\1", rule.get("replacement", "$1")))
    return labels["__address__"]


def test_the_pod_monitor_finds_the_daemon() -> None:
    """Its selector, port and path are the DaemonSet's; `job` is what the alert on a daemon that is down looks for."""
    monitor = yaml.safe_load((monitoring.FOLDER / "podmonitor.yaml").read_text())
    assert monitor["spec"]["selector"]["matchLabels"].items() <= daemonset()["spec"]["template"]["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert "port" not in endpoint  # the pod announces none
    port = load(environment()).daemon.metrics_address.rpartition(":")[2]
    assert scraped(endpoint, name=container()["name"], ip="10.0.3.7") == f"10.0.3.7:{port}"
    assert scraped(endpoint, name=container()["name"], ip="2001:db8::7") == f"[2001:db8::7]:{port}"
    assert scraped(endpoint, name=init_container()["name"], ip="10.0.3.7") is None
    job = f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}"
    (down,) = [rule for rule in monitoring.rules() if rule["alert"] == "VpcIpamdDown"]
    (pattern,) = re.findall(r'job=~"([^"]+)"', down["expr"])
    assert re.fullmatch(pattern, job)
