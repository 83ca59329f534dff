"""Every query of the dashboards returns data: three lab nodes, one Prometheus that scrapes them all, and nothing is left out.

One node is at rest, one has its wiring disturbed, one has run out of addresses while EC2 refuses more: what panels are for has
happened. The inventory's page is that of a job with a day's memory, because a new one has no forecast for three hours.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from ipamd.core.deadline import SystemClock
from ipamd.inventory.serve import InventoryJob
from lab.lab import Lab, missing_requirements
from lab.node.node import Node
from lab.node.process import NodeProcess
from tests.heavy.tools import needs
from tests.rig import Rig, wait_until
from tests.unit.inventory.reports import a_memory
from tests.unit.manifests import monitoring

pytestmark = [needs("promtool", "prometheus", root=True)]

NODES = ("node-a", "node-b", "node-c")
PORT, INVENTORY_PORT = 61678, 61680
ADDRESS = "127.0.0.1:9090"
DENIED = {"error": {"code": "UnauthorizedOperation", "message": "told by the lab"}}
SETTINGS = {"VPC_IPAMD_METRICS_ADDRESS": f":{PORT}", "WARM_IP_TARGET": "1", "MINIMUM_IP_TARGET": "3"}


@dataclass
class Scraped:
    """The nodes, and where Prometheus is."""

    rigs: dict[str, Rig]
    home: Node

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Ask Prometheus; an empty list before it serves. Raises: AssertionError if it refuses the expression."""
        words = ["promtool", "query", "instant", "--format=json", f"http://{ADDRESS}", expression]
        done = self.home.run(words, check=False)
        if done.returncode != 0:
            assert "connection refused" in done.stderr or "error: 503" in done.stderr, done.stderr
            return []
        samples: list[dict[str, Any]] = json.loads(done.stdout)
        return samples


def configuration(lab: Lab) -> dict[str, Any]:
    """Of Prometheus: a target for each node, with the labels that the dashboards select by."""
    targets = [{"targets": [f"{lab.primary_address(name)}:{PORT}"], "labels": {"node": name, "cluster": "lab"}} for name in NODES]
    inventory = [{"targets": [f"127.0.0.1:{INVENTORY_PORT}"], "labels": {"cluster": "lab"}}]
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["/run/prometheus/rules.yaml"],
        "scrape_configs": [
            {"job_name": "kube-system/vpc-ipamd", "static_configs": targets},
            {"job_name": "kube-system/vpc-ipamd-inventory", "static_configs": inventory},
        ],
    }


def serve_inventory(home: Node) -> NodeProcess:
    """Serve the page of an inventory that has run for a while, in the node where Prometheus is."""
    job = InventoryJob(dict, a_memory(), call_count=int, save=dict, clock=SystemClock())  # type: ignore[arg-type]  # it does not run
    _, page = job.page("/metrics")
    home.write_file("/run/inventory/metrics", page)
    options = ["--bind", "127.0.0.1", "--directory", "/run/inventory", str(INVENTORY_PORT)]
    return home.spawn(["/usr/bin/python3", "-m", "http.server", *options])


def disturb(rigs: dict[str, Rig], lab: Lab) -> None:
    """Let happen what panels are for: a repair on node-b, pods without an address on node-c while EC2 denies."""
    rigs["node-b"].node.run(["ip", "rule", "del", "prio", "513"])
    lab.faults.apply({"apis": dict.fromkeys(("CreateNetworkInterface", "AssignPrivateIpAddresses"), DENIED)})
    short = rigs["node-c"]
    for number in range(12):
        if not short.add(f"short-{number}").ok:
            return
    raise AssertionError("node-c has more addresses than it may")


@pytest.fixture(scope="module")
def scraped() -> Iterator[Scraped]:
    """Three daemons at work, and Prometheus in the network of the first."""
    if missing_requirements(containerd=False):
        pytest.skip(missing_requirements(containerd=False))
    with Lab(nodes=NODES, containerd=False) as lab:
        rigs = {name: Rig(lab, lab.node(name), env=SETTINGS) for name in NODES}
        home = lab.node(NODES[0])
        home.write_file("/run/prometheus/rules.yaml", yaml.safe_dump({"groups": monitoring.groups()}).encode())
        home.write_file("/run/prometheus/config.yaml", yaml.safe_dump(configuration(lab)).encode())
        options = ["--config.file=/run/prometheus/config.yaml", "--storage.tsdb.path=/run/prometheus/data"]
        prometheus = home.spawn(["prometheus", *options, f"--web.listen-address={ADDRESS}"])
        inventory = serve_inventory(home)
        made = Scraped(rigs, home)
        try:
            for rig in rigs.values():
                rig.start()
            wait_until(lambda: len(made.query("ipamd_ready == 1")) == len(NODES), what="all three nodes are scraped")
            for rig in rigs.values():
                assert rig.add("one").ok
            disturb(rigs, lab)
            wait_until(lambda: bool(made.query('ipamd_requests_total{code!="0"}')), what="a refused ADD was scraped")
            rigs["node-c"].add("again")
            yield made
        finally:
            for process in (prometheus, inventory):
                process.kill()
                process.wait(20)
            lab.faults.clear()
            for rig in rigs.values():
                rig.kill()


@pytest.mark.parametrize("expression", monitoring.dashboard_expressions())
def test_every_query_returns_data(scraped: Scraped, expression: str) -> None:
    """Without exception; rates and records need a second scrape, so they are asked again until the patience ends."""
    samples: list[dict[str, Any]] = []

    def has_data() -> bool:
        samples[:] = scraped.query(expression)
        return bool(samples)

    wait_until(has_data, what=expression)


def test_each_node_is_a_choice_of_the_variables(scraped: Scraped) -> None:
    """The dashboard of a node offers all three, and each of its queries by name finds that node alone."""
    assert {sample["metric"]["node"] for sample in scraped.query('ipamd_ready{cluster=~"lab"}')} == set(NODES)
    for name in NODES:
        (sample,) = scraped.query(f'ipamd_node_info{{cluster=~"lab",node=~"{name}"}}')
        assert sample["metric"]["node"] == name


def test_the_worst_node_is_the_first(scraped: Scraped) -> None:
    """What ranks nodes by failed ADDs names the one that is short of addresses."""
    (ranking,) = [
        text for text in monitoring.dashboard_expressions() if text.startswith("topk(10, sum by (cluster, node) (increase(")
    ]
    wait_until(lambda: any(float(sample["value"][1]) > 0 for sample in scraped.query(ranking)), what="the increase was scraped")
    worst = max(scraped.query(ranking), key=lambda sample: float(sample["value"][1]))
    assert worst["metric"]["node"] == "node-c"
