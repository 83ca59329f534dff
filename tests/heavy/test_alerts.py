"""Alerts and dashboard tried with Debian's Prometheus: its checker, its unit tests, and a lab run that it scrapes itself."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.lab import missing_requirements
from tests.heavy.tools import needs
from tests.rig import Rig, rig, wait_until
from tests.unit.manifests import monitoring

pytestmark = [needs("promtool", "prometheus", root=True)]

FIRING: dict[str, dict[str, str]] = {
    "VpcIpamdDown": {'up{job="kube-system/vpc-ipamd",instance="n"}': "0x120", 'ipamd_ready{instance="m"}': "1x120"},
    "VpcIpamdNotReady": {"ipamd_ready": "0x120"},
    "VpcIpamdPoolEmpty": {"ipamd_assignable_addresses": "0x120"},
    "VpcIpamdAddressesLost": {'ipamd_addresses{state="lost"}': "1x120"},
    "VpcIpamdAddsRefused": {"awscni_no_available_ip_addresses": "0+1x120"},
    "VpcIpamdSourcesUnchecked": {"ipamd_source_checked": "0x120"},
    "VpcIpamdSpoolStays": {"ipamd_spooled_deletes": "3x120"},
    "VpcIpamdOperationStuck": {"ipamd_oldest_operation_age_s": "0+60x120"},
    "VpcIpamdQuarantineStays": {'ipamd_addresses{state="quarantined"}': "2x120"},
    "VpcIpamdMetricsPortFlooded": {'ipamd_metrics_refused_connections_total{reason="open"}': "0+120x120"},
    "VpcIpamdFight": {'ipamd_repairs_total{object="rule"}': "0+1x120"},
    "VpcIpamdGivenTwice": {"ipamd_given_twice_addresses": "1x120"},
    "VpcIpamdDefect": {'ipamd_defects_total{what="duplicate-address"}': "0+1x120"},
    "VpcIpamdEcTwoDenies": {'ipamd_ec2_attempts_total{outcome="denied"}': "0+1x120"},
    "VpcIpamdEcTwoThrottles": {'ipamd_ec2_attempts_total{outcome="throttled"}': "0+60x120"},
    "VpcIpamdSubnetsFull": {"ipamd_subnet_room_addresses": "15x120"},
    "VpcIpamdEgressNearlyUsedUp": {'ipamd_egress_addresses{state="free"}': "15x120"},
    "VpcIpamdMetadataDiffers": {"ipamd_metadata_difference_age_s": "0+120x120"},
    "VpcIpamdNodeNearlyFull": {"awscni_assigned_ip_addresses": "28x120", "awscni_ip_max": "29x120"},
    "VpcIpamdSettingsRefused": {"ipamd_settings_valid": "0x120"},
    "VpcIpamdRuntimeUnreachable": {"ipamd_cri_reachable": "0x120"},
}
"""Alert -> series in promtool's notation, one sample a minute, by which it fires before two hours have passed."""

HEALTHY = {
    'up{job="kube-system/vpc-ipamd"}': "1x120",
    "ipamd_ready": "1x120",
    "ipamd_assignable_addresses": "9x120",
    'ipamd_addresses{state="lost"}': "0x120",
    'ipamd_addresses{state="quarantined"}': "0x120",
    "awscni_no_available_ip_addresses": "7x120",
    "ipamd_source_checked": "1x120",
    "ipamd_spooled_deletes": "0 5 0x118",
    "ipamd_oldest_operation_age_s": "0 59 0x118",
    'ipamd_metrics_refused_connections_total{reason="open"}': "4x120",
    'ipamd_repairs_total{object="rule"}': "0 1 1x118",
    "ipamd_given_twice_addresses": "0x120",
    'ipamd_defects_total{what="duplicate-address"}': "0x120",
    'ipamd_ec2_attempts_total{outcome="denied"}': "0x120",
    'ipamd_ec2_attempts_total{outcome="throttled"}': "0 20 20x118",
    "ipamd_subnet_room_addresses": "16x120",
    'ipamd_egress_addresses{state="free"}': "16x120",
    'ipamd_egress_addresses{state="cooling"}': "0x120",
    "ipamd_metadata_difference_age_s": "0+60x110 0x10",
    "awscni_assigned_ip_addresses": "26x120",
    "awscni_ip_max": "29x120",
    "ipamd_settings_valid": "1x60 0x3 1x57",
    "ipamd_cri_reachable": "1x60 0x3 1x57",
}
"""A node with which nothing is wrong for longer than it may be."""


def _rules_file(folder: Path) -> Path:
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": monitoring.groups()}))
    return path


def _promtool(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=120, check=False)


def _unit_test(folder: Path, series: dict[str, str], firing: set[str]) -> subprocess.CompletedProcess[str]:
    """Run promtool's unit test: of all alerts, exactly these fire after two hours."""
    _rules_file(folder)
    expected = [
        {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": "119m",
            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(firing)],
        }
    ]
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": expected,
            }
        ],
    }
    (folder / "test.yaml").write_text(yaml.safe_dump(test))
    return _promtool("test", "rules", str(folder / "test.yaml"))


def test_promtool_checks_the_rules(tmp_path: Path) -> None:
    """Expressions and templates can be parsed."""
    done = _promtool("check", "rules", str(_rules_file(tmp_path)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(monitoring.rules())} rules found" in done.stdout


def test_every_alert_is_tried() -> None:
    """A new one gets its series above."""
    assert set(FIRING) == {rule["alert"] for rule in monitoring.rules()}


@pytest.mark.parametrize("alert", sorted(FIRING))
def test_it_fires(alert: str, tmp_path: Path) -> None:
    """With its own series only, and no other alert with it; the daemon's presence is given."""
    series = {"ipamd_ready": "1x120"} | FIRING[alert]
    done = _unit_test(tmp_path, series, {alert})
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_fires_on_a_healthy_node(tmp_path: Path) -> None:
    """What passes within its time alerts nobody."""
    done = _unit_test(tmp_path, HEALTHY, set())
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_missing_daemon_alerts_without_any_series(tmp_path: Path) -> None:
    """Nothing is scraped at all."""
    done = _unit_test(tmp_path, {"unrelated": "1x120"}, {"VpcIpamdDown"})
    assert done.returncode == 0, done.stdout + done.stderr


ADDRESS = "127.0.0.1:9090"
CONFIG = {
    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
    "rule_files": ["/run/prometheus/rules.yaml"],
    "scrape_configs": [{"job_name": "kube-system/vpc-ipamd", "static_configs": [{"targets": ["127.0.0.1:61678"]}]}],
}


@pytest.fixture(scope="module")
def scraped() -> Iterator[Rig]:
    """A lab node whose daemon works while Prometheus scrapes it, in the node's own network."""
    if missing_requirements(containerd=False):
        pytest.skip(missing_requirements(containerd=False))
    with rig(env={"VPC_IPAMD_METRICS_ADDRESS": "127.0.0.1:61678"}) as made:
        made.node.write_file("/run/prometheus/rules.yaml", yaml.safe_dump({"groups": monitoring.groups()}).encode())
        made.node.write_file("/run/prometheus/config.yaml", yaml.safe_dump(CONFIG).encode())
        options = ["--config.file=/run/prometheus/config.yaml", "--storage.tsdb.path=/run/prometheus/data"]
        prometheus = made.node.spawn(["prometheus", *options, f"--web.listen-address={ADDRESS}"])
        try:
            wait_until(lambda: bool(_query(made, "ipamd_ready")), what="Prometheus has scraped the daemon")
            made.add("one")
            made.delete("one")
            wait_until(lambda: bool(_query(made, 'ipamd_requests_total{verb="DEL"}')), what="the first requests were scraped")
            made.add("two")
            wait_until(lambda: bool(_query(made, "rate(ipamd_requests_total[5m]) > 0")), what="their increase was scraped")
            yield made
        finally:
            prometheus.kill()
            prometheus.wait(20)


def _query(made: Rig, expression: str) -> list[dict[str, Any]]:
    """Ask Prometheus by promtool. Raises: AssertionError if it refuses the expression; an empty list before it serves."""
    words = ["promtool", "query", "instant", "--format=json", f"http://{ADDRESS}", expression]
    done = made.node.run(words, check=False)
    if done.returncode != 0:
        assert re.search("connection refused|error: 503", done.stderr), done.stderr
        return []
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


EMPTY_WHEN_WELL = re.compile(r"ipamd_(repairs|dropped_packets)_total|awscni_no_available")
"""Panels that may show nothing on a node on which nothing happened."""


@pytest.mark.parametrize("expression", monitoring.dashboard_expressions())
def test_the_dashboard_shows_a_lab_run(scraped: Rig, expression: str) -> None:
    """Every panel's expression finds series of the running daemon."""
    found = _query(scraped, expression)
    assert found or EMPTY_WHEN_WELL.search(expression), expression


@pytest.mark.parametrize("rule", monitoring.rules(), ids=lambda rule: rule["alert"])
def test_every_alert_is_evaluated_on_a_lab_run(scraped: Rig, rule: dict[str, Any]) -> None:
    """Prometheus takes the expression, finds nothing wrong with the run, and has the metrics that it reads."""
    assert _query(scraped, rule["expr"]) == [] or rule["alert"] == "VpcIpamdRuntimeUnreachable"
    for name in monitoring.metrics_of(rule["expr"]) - {"ipamd_cri_reachable"}:  # the rig's daemon follows no runtime
        assert _query(scraped, f"count({name})") or EMPTY_WHEN_WELL.search(name), name
