"""A bundle of a node in trouble answers the questions of docs/troubleshooting.md, although it keeps known words only."""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.node.node import REPOSITORY
from tests.rig import Rig, rig, wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.slow]

METRICS = "127.0.0.1:61678"
SECRET = "wJalrXUtnFEMIbKgMDENGcbPxRfiCYzEXqMPLeKe"
ENV = {
    "VPC_IPAMD_METRICS_ADDRESS": METRICS,
    "WARM_IP_TARGET": "1",
    "MINIMUM_IP_TARGET": "2",
    "ADDITIONAL_ENI_TAGS": json.dumps({"owner": SECRET}),
}
DROP = f'table inet theirs {{\n chain input {{\n type filter hook forward priority 0; tcp dport 53 log prefix "{SECRET}" drop\n }}\n}}'


def bring_trouble(made: Rig) -> None:
    """EC2 denies addresses, the pool runs out, another CNI's file sorts first, others drop packets, a pod's namespace is gone."""
    made.lab.faults.apply({"iam": [{"action": "AssignPrivateIpAddresses"}, {"action": "CreateNetworkInterface"}]})
    number = 0
    while made.add(f"web-{number}", conf={"timeout": 1}).ok:
        number += 1
        assert number < 10
    assert made.cni("ADD", "gone", netns="/run/netns/none").code == 104
    conflists = Path(made.node.root + "/etc/cni/net.d")
    (conflists / "05-cilium.conflist").write_text(
        json.dumps({"name": "cilium", "cniVersion": "1.0.0", "plugins": [{"type": SECRET}]})
    )
    made.node.run(["nft", DROP])
    made.node.run(["/bin/sh", "-c", f"echo 'panic: frobnicator={SECRET}' >> /var/log/vpc-ipamd.log"])
    wait_until(lambda: "other conflist" in str(made.status()), what="the other conflist is told")


def bundle(made: Rig) -> dict[str, str]:
    """The files of an archive, by name."""
    name = "/run/node.tar.gz"
    argv = [sys.executable, "-m", "ipamd.ipamctl.main", "bundle", "-f", name]
    made.node.run(argv, cwd=str(REPOSITORY), env=made.driver.environment | {"VPC_IPAMD_METRICS_ADDRESS": METRICS}, check=False)
    files = {}
    with tarfile.open(made.node.root + name) as archive:
        for entry in archive:
            file = archive.extractfile(entry)
            if file is not None:
                files[entry.name.rpartition("/")[2]] = file.read().decode()
    return files


@pytest.fixture(scope="module")
def files() -> Iterator[dict[str, str]]:
    """The archive of such a node."""
    with rig(env=ENV) as made:
        bring_trouble(made)
        yield bundle(made)


def reply(files: dict[str, str], name: str) -> dict[str, Any]:
    """One file that is a JSON object."""
    found: dict[str, Any] = json.loads(files[name])
    return found


def test_it_holds_no_secret(files: dict[str, str]) -> None:
    """None of those that lay in a tag, a rule, a conflist and a log."""
    assert SECRET not in "".join(files.values())
    manifest = {entry["name"]: entry for entry in json.loads(files["MANIFEST.json"])}
    assert {name for name, entry in manifest.items() if entry["problem"]} == set()
    assert manifest["log.txt"]["left_out_count"] > 0


def test_can_the_node_run_pods_and_what_is_amiss(files: dict[str, str]) -> None:
    """The first line of the status, and each condition with what to do."""
    status = reply(files, "status.json")
    assert status["verdict"].startswith("ready, with ")
    subjects = {condition["subject"] for condition in status["conditions"]}
    assert {"other conflist", "pool"} <= subjects
    assert "[" not in status["verdict"]
    for condition in status["conditions"]:
        assert condition["next"]
        assert condition["page"].startswith("docs/")


def test_why_a_pod_does_not_start(files: dict[str, str]) -> None:
    """Code, cause with the action that IAM must allow, counts and a next step; of which pod, when."""
    refused = [json.loads(line) for line in files["history.jsonl"].splitlines() if '"refused"' in line]
    by_code = {record["code"]: record for record in refused}
    assert by_code[104]["pod"] == "default/gone"
    assert "UnauthorizedOperation" in by_code[11]["detail"]
    assert "AssignPrivateIpAddresses" in files["status.json"]
    assert "cause:" in by_code[11]["detail"]


def test_who_had_an_address(files: dict[str, str]) -> None:
    """Each attachment with its pod, sandbox, ENI and time; the same in history and log."""
    (first, *_) = reply(files, "attachments.json")["attachments"]
    assert first["sandbox_name"] == "default/web-0"
    assert all(first[field] for field in ("address", "container_id", "eni_id", "host_veth", "netns", "created_at"))
    assigned = [line for line in files["history.jsonl"].splitlines() if '"assigned"' in line and first["address"] in line]
    assert json.loads(assigned[0])["pod"] == "default/web-0"
    assert "address assigned" in files["log.txt"]


def test_what_the_pool_would_do_and_under_which_settings(files: dict[str, str]) -> None:
    """Targets, plan, obstacles and settings with their origin."""
    plan = reply(files, "plan.json")
    assert {target["name"] for target in plan["targets"]} >= {"WARM_IP_TARGET", "MINIMUM_IP_TARGET"}
    assert any("UnauthorizedOperation" in obstacle["reason"] for obstacle in plan["obstacles"])
    settings = {row["name"]: row for row in reply(files, "config.json")["settings"]}
    assert (settings["WARM_IP_TARGET"]["value"], settings["WARM_IP_TARGET"]["origin"]) == ("1", "environment")


def test_what_others_do_on_the_node(files: dict[str, str]) -> None:
    """Their conflist by its file's name, their rule that drops, and the routes, rules and links beside them."""
    assert "05-cilium.conflist" in files["files.txt"]
    assert "05-cilium.conflist" in files["status.json"]
    assert "tcp dport 53 log prefix" in files["nft.txt"]
    (first, *_) = reply(files, "attachments.json")["attachments"]
    assert first["address"] in files["routes.jsonl"]
    assert '"FRA_TABLE": 113213' in files["rules.jsonl"]
    links = [json.loads(line) for line in files["links.jsonl"].splitlines()]
    assert first["host_veth"] in {link["IFLA_IFNAME"] for link in links}
    assert all(link["IFLA_MTU"] for link in links)


def test_what_the_log_says(files: dict[str, str]) -> None:
    """Each line of ours with its message and keys; EC2's code in the words of the log."""
    lines = [json.loads(line) for line in files["log.txt"].splitlines() if line.startswith("{")]
    requests = [line for line in lines if line["message"] == "request"]
    assert {line["verb"] for line in requests} == {"ADD"}
    assert {line["code"] for line in requests} >= {0, 11, 104}
    assert any("UnauthorizedOperation" in json.dumps(line) for line in lines)
    assert "ipamd_requests_total" in files["metrics.txt"]
