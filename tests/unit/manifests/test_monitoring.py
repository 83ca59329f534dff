"""Alerts and dashboard read metrics that the daemon has, and each alert has its runbook. tests/heavy runs them on recordings."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from ipamd.settings import load
from tests.unit.manifests import monitoring
from tests.unit.manifests.manifest import MANIFESTS, ROOT, container, daemonset, environment, init_container

PAGE = (ROOT / "docs" / "metrics.md").read_text()
KNOWN = set(re.findall(r"^\| `((?:ipamd|awscni|process)_\w+)` \|", PAGE, re.M))
"""Names in a scrape: the page is generated from the registry (tests/unit/docs)."""

LABEL = {"type": "object", "additionalProperties": {"type": "string"}}
RULE = {
    "type": "object",
    "required": ["alert", "expr", "labels", "annotations"],
    "additionalProperties": False,
    "properties": {
        "alert": {"type": "string", "pattern": "^VpcIpamd[A-Za-z0-9]+$"},
        "expr": {"type": "string"},
        "for": {"type": "string", "pattern": "^[0-9]+[mh]$"},
        "labels": {**LABEL, "required": ["severity"]},
        "annotations": {**LABEL, "required": ["summary", "description", "runbook_url"]},
    },
}


@pytest.mark.parametrize("rule", monitoring.rules(), ids=lambda rule: rule["alert"])
def test_each_alert_has_its_heading(rule: dict[str, Any]) -> None:
    """Its runbook is a place of its own, which says what it means and what to do."""
    assert [error.message for error in Draft202012Validator(RULE).iter_errors(rule)] == []
    assert rule["annotations"]["runbook_url"] == f"{monitoring.RUNBOOK_PAGE}#{rule['alert'].lower()}"
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
    expressions = monitoring.expressions() + monitoring.dashboard_expressions()
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


@pytest.mark.parametrize("name", monitoring.DASHBOARDS)
def test_a_dashboard_is_whole(name: str) -> None:
    """Panels have numbers of their own, do not lie over each other, and ask the chosen data source."""
    dashboard = monitoring.dashboard(name)
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert variables == {"datasource", "cluster"} | ({"node"} if name == "dashboard-node.json" else set())


@pytest.mark.parametrize("name", monitoring.DASHBOARDS)
def test_every_expression_is_of_the_chosen_cluster(name: str) -> None:
    """Each metric of each panel; without a label of this name the choice is everything."""
    for panel in monitoring.dashboard(name)["panels"]:
        for target in panel["targets"]:
            metrics = re.findall(r"(?:[a-z]+:)?\b(?:ipamd|awscni|process)_[\w:]+|\bup\b|\bALERTS\b", target["expr"])
            assert metrics
            assert target["expr"].count('cluster=~"$cluster"') == len(metrics), target["expr"]


def test_the_dashboards_are_linked() -> None:
    """From the fleet to the node that a bar is about, and back."""
    uids = {name: monitoring.dashboard(name)["uid"] for name in monitoring.DASHBOARDS}
    assert len(set(uids.values())) == len(monitoring.DASHBOARDS)
    bars = [panel for panel in monitoring.dashboard("dashboard-fleet.json")["panels"] if panel["type"] == "bargauge"]
    assert len(bars) >= 5
    for panel in bars:
        (link,) = panel["fieldConfig"]["defaults"]["links"]
        assert link["url"].startswith(f"/d/{uids['dashboard-node.json']}?var-node=")
    (back,) = monitoring.dashboard("dashboard-node.json")["links"]
    assert back["url"] == f"/d/{uids['dashboard-fleet.json']}"


def test_no_line_of_the_fleet_is_a_node() -> None:
    """Nodes are ranked or shown as a distribution: three hundred lines are no picture."""
    panels = monitoring.dashboard("dashboard-fleet.json")["panels"]
    for panel in panels:
        if panel["type"] == "timeseries":
            assert not [target for target in panel["targets"] if "{{node}}" in target["legendFormat"]]
            assert not [target for target in panel["targets"] if "$node" in target["expr"]]
    kinds = [panel["type"] for panel in panels]
    assert kinds.count("heatmap") >= 2
    ranked = monitoring.dashboard_expressions("dashboard-fleet.json")
    assert sum(expression.startswith(("topk(10, ", "bottomk(10, ")) for expression in ranked) >= 6


def test_nodes_of_two_clusters_are_two() -> None:
    """Names of nodes are made of addresses, which VPCs share: no sum of the fleet is over both, and each bar names the cluster."""
    for panel in monitoring.dashboard("dashboard-fleet.json")["panels"]:
        for target in panel["targets"]:
            groups = re.findall(r"\bby \(([^)]*)\)", target["expr"])
            assert not [names for names in groups if "node" in names.split(", ") and "cluster" not in names.split(", ")], panel[
                "title"
            ]
            assert "{{node}}" not in target["legendFormat"] or "{{cluster}}" in target["legendFormat"], panel["title"]


def test_panels_of_the_inventory_say_that_they_need_it() -> None:
    """It is deployed apart from the daemons, and a panel without data would look like trouble."""
    of_inventory = 0
    for panel in monitoring.dashboard("dashboard-fleet.json")["panels"]:
        needs_it = any("ipamd_inventory_" in target["expr"] for target in panel["targets"])
        assert needs_it == ("manifests/inventory" in panel["description"]), panel["title"]
        of_inventory += needs_it
    assert of_inventory >= 3


def test_a_node_keeps_its_name() -> None:
    """When its daemon's pod or its address changes: no panel shows either."""
    for expression in monitoring.dashboard_expressions():
        shown = re.sub(r"on \(cluster, job, instance\)|instance:ipamd_node_info:zone", "", expression)
        assert not re.search(r"\binstance\b|\bpod\b", shown), expression


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
    """Its selector, port and path are the DaemonSet's."""
    monitor = yaml.safe_load((monitoring.FOLDER / "podmonitor.yaml").read_text())
    assert monitor["spec"]["selector"]["matchLabels"].items() <= daemonset()["spec"]["template"]["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert "port" not in endpoint  # the pod announces none
    port = load(environment()).daemon.metrics_address.rpartition(":")[2]
    assert scraped(endpoint, name=container()["name"], ip="10.0.3.7") == f"10.0.3.7:{port}"
    assert scraped(endpoint, name=container()["name"], ip="2001:db8::7") == f"[2001:db8::7]:{port}"
    assert scraped(endpoint, name=init_container()["name"], ip="10.0.3.7") is None


def test_no_expression_needs_the_name_of_a_job() -> None:
    """Whoever scrapes the daemon by another job has the same alerts and panels."""
    expressions = monitoring.expressions() + monitoring.dashboard_expressions()
    assert [expression for expression in expressions if re.search(r"\bjob\s*[!=]", expression)] == []


def test_the_dashboards_show_what_operators_look_for() -> None:
    """Settings awaiting a restart, frozen pools, addresses in excess, how long EC2 takes, and what only the inventory knows."""
    shown = {name for expression in monitoring.dashboard_expressions() for name in monitoring.metrics_of(expression)}
    assert {
        "ipamd_settings_awaiting_restart",
        "ipamd_pool_frozen",
        "ipamd_excess_addresses",
        "ipamd_ec2_attempt_duration_seconds",
        "ipamd_ec2_attempts_total",
        "ipamd_subnet_free_addresses",
        "process_start_time_seconds",
        "ipamd_build_info",
        "ipamd_inventory_subnet_free_prefixes",
        "ipamd_inventory_subnet_exhaustion_seconds",
        "ipamd_inventory_findings",
        "ipamd_inventory_last_success_timestamp_seconds",
    } <= shown


def test_the_chart_sets_where_runbooks_are() -> None:
    """Its template puts a base before the page that the rules name; without a base there is no invented address."""
    values = yaml.safe_load((MANIFESTS / "chart" / "values.yaml").read_text())
    assert (values["rules"]["runbookBaseUrl"], values["rules"]["runbookPath"]) == ("", monitoring.RUNBOOK_PAGE)
    template = (MANIFESTS / "chart" / "templates" / "monitoring.yaml").read_text()
    assert f'replace "runbook_url: {monitoring.RUNBOOK_PAGE}#"' in template
    text = (monitoring.FOLDER / "rules.yaml").read_text()
    assert text.count(f"runbook_url: {monitoring.RUNBOOK_PAGE}#") == len(monitoring.rules()), "as the template replaces it"
    assert "example." not in text


def test_the_page_sets_where_runbooks_are_without_the_chart(tmp_path: Path) -> None:
    """By the command that docs/metrics.md has, on a copy of the rules."""
    (command,) = re.findall(r"^    (sed -i .*rules\.yaml)$", PAGE, re.M)
    rules = tmp_path / "manifests" / "monitoring" / "rules.yaml"
    rules.parent.mkdir(parents=True)
    rules.write_text((monitoring.FOLDER / "rules.yaml").read_text())
    subprocess.run(["/bin/sh", "-c", command.replace("BASE", "https://docs.example.net")], cwd=tmp_path, check=True, timeout=30)
    groups = yaml.safe_load(rules.read_text())["spec"]["groups"]
    urls = {rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"] if "alert" in rule}
    assert urls == {f"https://docs.example.net/{monitoring.RUNBOOK_PAGE}#{rule['alert'].lower()}" for rule in monitoring.rules()}
