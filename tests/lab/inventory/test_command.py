"""The command over real HTTP: what it prints in each form, its exit statuses, and the job as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ipamd.inventory import command as command
from ipamd.inventory import state_file
from ipamd.inventory.document import read_report
from ipamd.model.eni_tags import CLUSTER_TAG, CREATED_AT_TAG, INSTANCE_TAG
from tests.lab.inventory.account import CLUSTER, InventoryAccount
from tests.patience import PATIENCE_S

PROGRAM = "import sys; from ipamd.inventory.command import main; sys.exit(main())"
"""As the entry point of the wheel."""

TAGS = {"kubernetes.io/cluster/blue": "shared"}


@dataclass
class Shell:
    """The environment of the deployed job, and the command with its output."""

    account: InventoryAccount
    capture: pytest.CaptureFixture[str]
    state: Path

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run the command. Returns: exit status and standard output."""
        status = command.main(arguments, sleep=lambda _: None)
        return status, self.capture.readouterr().out

    def document(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Run it with JSON."""
        status, text = self.run(*arguments, "-o", "json")
        return status, json.loads(text)


@pytest.fixture
def shell(
    account: InventoryAccount, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Shell]:
    """A cluster with two subnets, a node in one, and a leaked ENI in the other."""
    vpc = account.vpc
    first, second = (vpc.add_subnet(f"10.0.{number}.0/24", tags=TAGS) for number in range(2))
    vpc.add_instance(name="node", subnet_id=first.subnet_id)
    tags = {INSTANCE_TAG: "i-gone", CREATED_AT_TAG: "2025-01-01T00:00:00Z", CLUSTER_TAG: CLUSTER}
    leak = account.eni(second, second.cidr.network_address + 20)
    vpc.add_enis([replace(leak, description="aws-K8S-i-gone", tags=tags)])
    variables = {"CLUSTER_NAME": CLUSTER, "VPC_ID": vpc.vpc_id, "AWS_REGION": vpc.region, "AWS_EC2_ENDPOINT": account.url}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return Shell(account, capsys, tmp_path / "state.json")


def test_a_table_a_map_and_json(shell: Shell) -> None:
    """Three forms of one report; nothing is changed in EC2."""
    status, text = shell.run()
    assert status == 0
    head, *rows = text.splitlines()
    assert head.split()[:4] == ["SUBNET", "ZONE", "CIDR", "ENIS"]
    assert len([row for row in rows if row.startswith("subnet-")]) == 2
    assert len([row for row in rows if row.startswith("leaked-eni ")]) == 1
    status, text = shell.run("-o", "map")
    assert status == 0
    lines = text.splitlines()
    assert len([line for line in lines if line.startswith("10.0.")]) == 2
    status, document = shell.document()
    assert (status, document["is_complete"]) == (0, True)
    assert [subnet["cidr"] for subnet in document["subnets"]] in (["10.0.0.0/24", "10.0.1.0/24"], ["10.0.1.0/24", "10.0.0.0/24"])
    assert [finding["problem"] for finding in document["findings"]] == ["leaked-eni"]
    assert read_report(document).cluster_name == CLUSTER
    assert all(api.startswith(("Describe", "Get")) for api in shell.account.vpc.call_counts())


def test_the_state_file_makes_samples_and_shows(shell: Shell) -> None:
    """`show` asks EC2 nothing."""
    shell.run("--state", str(shell.state))
    assert all(len(memory.samples) == 1 for memory in state_file.load(shell.state).subnets.values())
    shell.account.vpc.clear_calls()
    status, document = shell.document("show", "--state", str(shell.state))
    assert (status, len(document["subnets"])) == (0, 2)
    assert shell.account.vpc.calls() == []


def test_a_state_file_of_another_cluster_or_damaged_is_replaced(shell: Shell) -> None:
    """A run goes on without it; show refuses the damaged one."""
    shell.run("--state", str(shell.state))
    status, document = shell.document("--state", str(shell.state), "--cluster", "green", "--subnets", "all")
    assert (status, document["cluster"], document["findings"]) == (0, "green", [])
    shell.state.write_text("{")
    assert shell.run("show", "--state", str(shell.state))[0] == command.EXIT_USAGE
    assert shell.run("--state", str(shell.state))[0] == 0
    assert shell.run("show", "--state", str(shell.state))[0] == 0


def test_nothing_to_show_yet(shell: Shell) -> None:
    """It is no success."""
    assert shell.run("show", "--state", str(shell.state))[0] == command.EXIT_PARTIAL
    with pytest.raises(SystemExit, check=lambda ended: ended.code == 2):
        shell.run("show")


def test_a_state_file_that_cannot_be_written_is_said(shell: Shell) -> None:
    """The report is printed, and the status says that something is missing."""
    status, text = shell.run("--state", str(shell.state.parent / "none" / "state.json"))
    assert status == command.EXIT_PARTIAL
    assert text.startswith("SUBNET")


def test_a_partial_answer_has_its_exit_status(shell: Shell) -> None:
    """The gaps are in each form."""
    shell.account.vpc.faults.apply({"iam": [{"action": "GetSubnetCidrReservations"}]})
    status, document = shell.document()
    assert (status, document["is_complete"]) == (command.EXIT_PARTIAL, False)
    assert [gap["part"] for gap in document["gaps"]] == ["reservations"]
    for form in ("table", "map"):
        status, text = shell.run("-o", form)
        assert status == command.EXIT_PARTIAL
        assert len([line for line in text.splitlines() if line.startswith("not read: reservations of subnet-")]) == 1


def test_ec2_that_refuses_is_no_report(shell: Shell) -> None:
    """Nothing is printed on standard output."""
    shell.account.vpc.faults.apply({"iam": [{"action": "DescribeSubnets"}]})
    assert shell.run() == (command.EXIT_BLIND, "")


@pytest.mark.parametrize("name", ["CLUSTER_NAME", "VPC_ID", "AWS_REGION"])
def test_never_without_a_cluster(shell: Shell, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Without cluster, VPC or region nothing is asked of EC2."""
    monkeypatch.setenv(name, " ")
    with pytest.raises(SystemExit, check=lambda ended: ended.code == 2):
        shell.run()
    assert name in shell.capture.readouterr().err
    assert shell.account.vpc.calls() == []


@pytest.mark.parametrize("arguments", [["--max-calls", "3"], ["--leak-age", "299"], ["--second-look", "-1"], ["frobnicate"]])
def test_bad_bounds_are_refused(shell: Shell, arguments: list[str]) -> None:
    """As wrong usage."""
    with pytest.raises(SystemExit, check=lambda ended: ended.code == 2):
        shell.run(*arguments)


def test_no_subnet_of_the_cluster_is_a_wrong_setting(shell: Shell) -> None:
    """It has an exit status of its own."""
    assert shell.run("--cluster", "green") == (command.EXIT_USAGE, "")


def test_the_job_serves_metrics_and_ends_at_once(shell: Shell) -> None:
    """As a process: the first run at the start, its metrics on the port, SIGTERM ends it, and the state stays for the next one."""
    arguments = ["serve", "--state", str(shell.state), "--listen", "127.0.0.1:0", "--second-look", "0"]
    started = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stderr=subprocess.PIPE, env=os.environ, text=True)
    try:
        assert started.stderr is not None
        lines = []
        for line in started.stderr:
            lines.append(json.loads(line))
            if lines[-1]["message"] == "inventory taken":
                break
        (port,) = [line["port"] for line in lines if line["message"] == "inventory listens"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
            page = answer.read().decode()
        assert "ipamd_inventory_findings{" in page
        started.send_signal(signal.SIGTERM)
        assert started.wait(PATIENCE_S) == 0
    finally:
        started.kill()
        started.communicate()
    assert len(state_file.load(shell.state).subnets) == 2
