"""Alerts and dashboard read metrics that the daemon has, and each alert has its runbook. tests/heavy runs them on recordings."""

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
KNOWN = set(re.findall(r"^\| `((?:ipamd|awscni|process)_\w+)` \|", PAGE, re.M))
"""Names in a scrape: the page is generated from the registry (tests/unit/docs)."""

LABEL = {"type": "object", "additionalProperties": {"type": "string"}}
RULE = {
    "type": "object",
    "required": ["alert", "expr", "labels", "annotations"],
    "additionalProperties": False,
    "properties": {
        "alert": {"type": "string", "pattern": "^VpcIpamd[A-Za-z]+$"},
        "expr": {"type": "string"},
        "for": {"type": "string", "pattern": "^[0-9]+[mh]$"},
        "labels": {**LABEL, "required": ["severity"]},
        "annotations": {**LABEL, "required": ["summary", "description", "runbook"]},
    },
}


@pytest.mark.parametrize("rule", monitoring.rules(), ids=lambda rule: rule["alert"])
def test_each_alert_has_its_heading(rule: dict[str, Any]) -> None:
    """Its runbook is a place of its own, which says what it means and what to do."""
    assert [error.message for error in Draft202012Validator(RULE).iter_errors(rule)] == []
    assert rule["annotations"]["runbook"] == f"docs/metrics.md#{rule['alert'].lower()}"
    told = PAGE.partition(f"\n### {rule['alert']}\n")[2].partition("\n#")[0]
    assert told.strip().startswith(rule["annotations"]["summary"])
    assert len(told.split()) > len(rule["annotations"]["summary"].split()) + 3


def test_each_heading_is_an_alert() -> None:
    """No words are left of an alert that is gone, and none has its name twice."""
    names = [rule["alert"] for rule in monitoring.rules()]
    assert re.findall(r"^### (VpcIpamd\w+)$", PAGE, re.M) == names
    assert len(set(names)) == len(names)


def test_the_metrics_exist() -> None:
    """Every name in alerts and dashboard is one that the daemon serves; a misspelt one would never alert."""
    expressions = [rule["expr"] for rule in monitoring.rules()] + monitoring.dashboard_expressions()
    used = {name for expression in expressions for name in monitoring.metrics_of(expression)} - {"up"}
    assert len(used) > 15
    assert used <= KNOWN


def test_what_alerts_name_exists() -> None:
    """Each place in a page that an alert names, as its runbook or in its words."""
    for rule in monitoring.rules():
        for page, anchor in re.findall(r"(docs/[\w.]+\.md)#?([\w-]*)", " ".join(rule["annotations"].values())):
            headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), re.M)
            anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert not anchor or anchor in anchors, f"{rule['alert']}: {page}#{anchor}"


def test_the_dashboard_is_whole() -> None:
    """Panels have numbers of their own, do not lie over each other, and ask the chosen data source."""
    panels = monitoring.dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    assert {one["name"] for one in monitoring.dashboard()["templating"]["list"]} == {"datasource", "node"}


def test_the_dashboard_is_by_node() -> None:
    """A node keeps its name when its daemon's pod or its address changes; the fleet is ranked, and shown as a distribution."""
    expressions = monitoring.dashboard_expressions()
    assert not [one for one in expressions if re.search(r"\binstance\b|\bpod\b", one)]
    kinds = [panel["type"] for panel in monitoring.dashboard()["panels"]]
    assert kinds.count("heatmap") >= 2
    assert sum(one.startswith(("topk(10, ", "bottomk(10, ")) for one in expressions) >= 4
    wanted = {"ipamd_ec2_attempts_total", "ipamd_subnet_room_addresses", "process_start_time_seconds", "ipamd_build_info"}
    assert wanted <= {name for one in expressions for name in monitoring.metrics_of(one)}


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
