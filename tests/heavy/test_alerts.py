"""Alerts and dashboard tried with Debian's Prometheus: its checker, its unit tests on recordings, and a lab run that it
scrapes itself."""

from __future__ import annotations

import json
import random
import re
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.fabric.netns import run_inside
from lab.lab import missing_requirements
from tests.heavy.tools import ROOT, needs
from tests.patience import PATIENCE_S
from tests.recordings.expected import EXPECTED, EXTENDED_S, alerts
from tests.recordings.fleet import alert_labels
from tests.recordings.series import SERIES, extended, read
from tests.recordings.trial import FIRING, NODE_INFO, answers_to, run, run_series, value, without_scrapes
from tests.rig import Rig, rig, wait_until
from tests.unit.manifests import monitoring

pytestmark = [needs("promtool", "prometheus", root=True)]


def _rules_file(folder: Path) -> Path:
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": monitoring.groups()}))
    return path


def _promtool(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=120, check=False)


def test_promtool_checks_the_rules(tmp_path: Path) -> None:
    """Expressions and templates can be parsed."""
    done = _promtool("check", "rules", str(_rules_file(tmp_path)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(monitoring.expressions())} rules found" in done.stdout


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_exactly_the_expected_alerts_fire(name: str, tmp_path: Path) -> None:
    """On a lab node's real trouble, load or rest, its steady state repeated, with windows and `for:` unscaled; each begins once, and
    stays.
    """
    found = run(extended(read(SERIES / f"{name}.json.gz"), until_s=EXTENDED_S), tmp_path)
    assert (found.alerts, found.again) == (alerts(name), frozenset())


@pytest.mark.parametrize(("cause", "is_failure"), [("branch-pending", False), ("pool-empty", True), ("", True)])
def test_an_add_before_the_control_plane_is_no_failure(cause: str, is_failure: bool, tmp_path: Path) -> None:
    """Half of the ADDs are refused: with the annotations each pod with security groups is once, until its branch ENI is named."""
    adds = {f'ipamd_requests_total{{verb="ADD",code="{code}"}}': "0+2x120" for code in (0, 11)}
    refused = {f'ipamd_refusals_total{{verb="ADD",cause="{cause}"}}': "0+2x120"} if cause else {}
    assert ("VpcIpamdAddsFail" in run_series({NODE_INFO: "1x120"} | adds | refused, tmp_path).alerts) is is_failure


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [("churn", True), ("branch-churn", True), ("branch-never-made", True), ("denied", False), ("pods-service-gone", False)],
)
def test_the_pilots_first_objective_is_kept_by_load_and_missed_in_trouble(name: str, is_kept: bool, tmp_path: Path) -> None:
    """Its query on recordings: pods that wait for their branch ENIs are refused, and no ADD has failed."""
    page = (ROOT / "docs" / "release.md").read_text()
    (limit, query) = re.findall(r"^\| ADDs that .* \| ([\d.]+) % \| `(.*)` \|$", page, re.M)[0]
    assert (value(query, read(SERIES / f"{name}.json.gz"), tmp_path) * 100 >= float(limit)) is is_kept


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_missed_scrapes_change_no_alert(name: str, tmp_path: Path) -> None:
    """A Prometheus that was away for up to three scrapes at a time, as often as every twelfth: nothing fires for it, nothing stops."""
    recording = extended(read(SERIES / f"{name}.json.gz"), until_s=EXTENDED_S)
    rng = random.Random(name)
    missed = {at + more for at in range(4, recording.count - 4) if rng.random() < 1 / 24 for more in range(rng.randint(1, 3))}
    found = run(without_scrapes(recording, missed), tmp_path)
    assert (found.alerts, found.again) == (alerts(name), frozenset())


@pytest.mark.parametrize("name", ["idle", "packed", "churn"])
def test_a_node_that_goes_raises_nothing_of_its_own(name: str, tmp_path: Path) -> None:
    """Its target and all its series end; other nodes are still there."""
    recording = read(SERIES / f"{name}.json.gz")
    longer = extended(recording, until_s=EXTENDED_S)
    gone = without_scrapes(longer, range(recording.count, longer.count))
    other = {'ipamd_ready{node="node-b"}': f"1x{longer.count}"}
    assert run(gone, tmp_path, beside=other).alerts == frozenset()


@pytest.mark.parametrize("name", ["stopped", "crash-loop", "slow-crash-loop", "short-lives", "rolls", "idle"])
def test_a_dead_daemon_alerts_under_any_job(name: str, tmp_path: Path) -> None:
    """A job of another name that scrapes other programs too, without the labels of the Prometheus operator; those that are down do not
    count."""
    target = {"job": "kubernetes-pods", "instance": "10.0.0.10:61678", "node": "node-a"}
    recording = extended(read(SERIES / f"{name}.json.gz"), until_s=EXTENDED_S)
    other = {'up{job="kubernetes-pods",instance="10.0.0.11:8080"}': f"0x{recording.count}"}
    assert run(recording, tmp_path, beside=other, labels_of_target=target).alerts == alerts(name)


def test_a_missing_daemon_alerts_without_any_series(tmp_path: Path) -> None:
    """Nothing is scraped at all."""
    assert run_series({"unrelated": "1x120"}, tmp_path).alerts == {"VpcIpamdDown"}


TARGET_OF_FILE = 'job="vpc-ipamd",instance="10.0.0.10:61678"'
"""A target that Prometheus has from a file: it has no label `container`, and stays a target while its node is away."""

DOWN_AT_THE_END = f'{FIRING[:-1]},alertname="VpcIpamdDown"}}'
HOUR = 60


@pytest.mark.parametrize(
    ("up", "is_down"),
    [
        (f"1x{HOUR} 0x{30 * HOUR}", True),
        (f"1x{HOUR} 0x{26 * HOUR} 1x{4 * HOUR}", False),
        (f"1x{HOUR} 0x{26 * HOUR} stale _x{4 * HOUR}", False),
        (f"1x{HOUR} 0x{20 * HOUR} _x{2 * HOUR} 0x{8 * HOUR}", True),
    ],
    ids=["for more than a day", "it is back", "the target was removed", "Prometheus was away for two hours"],
)
def test_a_dead_daemon_alerts_for_as_long_as_it_is_a_target(up: str, is_down: bool, tmp_path: Path) -> None:
    """Not only for a day, though nothing but `up` is scraped; the daemon of another node answers, and other programs are down."""
    ready = re.sub(r"0x(\d+)", r"stale _x\1", up, count=1).replace("0x", "_x")
    series = {
        f"up{{{TARGET_OF_FILE}}}": up,
        f"ipamd_ready{{{TARGET_OF_FILE}}}": ready,
        'up{job="vpc-ipamd",instance="10.0.0.11:61678"}': f"1x{30 * HOUR}",
        'ipamd_ready{job="vpc-ipamd",instance="10.0.0.11:61678"}': f"1x{30 * HOUR}",
        'up{job="vpc-ipamd",instance="10.0.0.12:9100"}': f"0x{30 * HOUR}",
    }
    (answer,) = answers_to((DOWN_AT_THE_END,), series, tmp_path, interval_s=60, count=30 * HOUR) or [""]
    assert [labels["instance"] for labels in alert_labels(answer)] == (["10.0.0.10:61678"] if is_down else [])


def test_the_judge_sees_an_alert_that_begins_again(tmp_path: Path) -> None:
    """Five minutes not ready, five minutes ready, and so on."""
    found = run_series({"ipamd_ready": " ".join(["0x4 1x4"] * 12)}, tmp_path)
    assert found.alerts == found.again == {"VpcIpamdNotReady"}


ADDRESS = "127.0.0.1:9090"
CONFIG = {
    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
    "rule_files": ["/run/prometheus/rules.yaml"],
    "scrape_configs": [
        {"job_name": "kube-system/vpc-ipamd", "static_configs": [{"targets": ["127.0.0.1:61678"], "labels": {"node": "node-a"}}]}
    ],
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


def test_promtool_finds_no_wrong_name_in_a_scrape(scraped: Rig) -> None:
    """Names, types and HELP of a daemon at work; those of amazon-vpc-cni-k8s are as it has them."""
    connect = partial(socket.create_connection, ("127.0.0.1", 61678), timeout=PATIENCE_S)
    with run_inside(scraped.node.netns_path(), connect) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
        _, _, page = b"".join(iter(lambda: sock.recv(65536), b"")).partition(b"\r\n\r\n")
    assert b"\nipamd_requests_total{" in page
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, timeout=60, check=False)
    findings = (done.stdout + done.stderr).decode().splitlines()
    assert [finding for finding in findings if not finding.startswith("awscni_")] == []


EMPTY_WHEN_WELL = re.compile(
    r"ipamd_(repairs|dropped_packets|refusals)_total|code!=\"0\"|ipamd_conditions|ipamd_egress_addresses|ipamd_metadata_list_age_seconds"
    r"|ipamd_waiting_branch_adds|ipamd_longest_refusal_seconds|predict_linear"
    r"|ipamd_subnet_fragmented_addresses|ipamd_inventory_"
)
"""What may have no series on a node on which nothing happened, without egress, branch ENIs or prefixes, and before metadata's first
turn of a minute. The inventory is a job of its own, whose page `test_dashboards.py` has."""

WITHOUT_RUNTIME = {"VpcIpamdRuntimeUnreachable", "VpcIpamdConditionPersists"}
"""The rig's daemon follows no runtime, and says so."""


@pytest.mark.parametrize("expression", monitoring.dashboard_expressions())
def test_the_dashboards_show_a_lab_run(scraped: Rig, expression: str) -> None:
    """Every panel's expression finds series of the running daemon."""
    found = _query(scraped, expression)
    assert found or EMPTY_WHEN_WELL.search(expression), expression


BY_SUBNET = [rule for rule in monitoring.records() if rule["record"].startswith(("subnet:", "zone:", "instance:ipamd_node_info"))]


@pytest.mark.parametrize("rule", BY_SUBNET, ids=lambda rule: rule["record"])
def test_what_is_recorded_by_subnet_has_its_zone(scraped: Rig, rule: dict[str, Any]) -> None:
    """On a lab run, which has a zone and a subnet."""
    found = _query(scraped, rule["record"])
    assert found or EMPTY_WHEN_WELL.search(rule["expr"])
    assert all(sample["metric"]["zone"] for sample in found)


@pytest.mark.parametrize("rule", monitoring.rules(), ids=lambda rule: rule["alert"])
def test_every_alert_is_evaluated_on_a_lab_run(scraped: Rig, rule: dict[str, Any]) -> None:
    """Prometheus takes the expression, finds nothing wrong with the run, and has the metrics that it reads."""
    assert _query(scraped, rule["expr"]) == [] or rule["alert"] in WITHOUT_RUNTIME
    for name in monitoring.metrics_of(rule["expr"]) - {"ipamd_cri_reachable"}:
        every = f'count({{__name__=~"{name}(_count)?"}})'
        assert _query(scraped, every) or EMPTY_WHEN_WELL.search(name), name
