"""`vpc-lab`: up, status, exec, pods, ping, faults and down, as an operator types them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from lab.node import ground
from lab.node.node import REPOSITORY

pytestmark = [pytest.mark.privileged, pytest.mark.containerd]


class Cli:
    """The command line for one lab's name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, verb: str, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "lab.cli", verb, "--name", self.name, *arguments],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stdout + done.stderr


@pytest.fixture(scope="module")
def cli() -> Iterator[Cli]:
    """A lab of two nodes and a host, started and stopped by the command line."""
    cli = Cli(f"cli-{time.monotonic_ns()}")
    try:
        assert "is up" in cli("up", "--nodes", "2", "--type", "m5.large", "--attach-delay", "0")
        yield cli
    finally:
        assert "is down" in cli("down")
        assert not (ground.STATE_ROOT / cli.name).exists()


def test_status_tells_nodes_and_interfaces(cli: Cli) -> None:
    """Status is for people and, with -o json, for programs."""
    status = json.loads(cli("status", "-o", "json"))
    assert [node["name"] for node in status["nodes"]] == ["node-a", "node-b"]
    assert all(node["containerd"] and node["enis"][0]["wired"] for node in status["nodes"])
    assert (status["drops"], status["problems"]) == ([], [])
    text = cli("status")
    assert status["nodes"][0]["enis"][0]["eni_id"] in text


def test_exec_runs_in_the_node_and_gives_its_exit_code(cli: Cli) -> None:
    """Output and exit code of a command in the node are the command's own."""
    assert cli("exec", "node-b", "--", "hostname") == "node-b\n"
    cli("exec", "node-a", "--", "sh", "-c", "exit 7", code=7)
    assert "no node 'node-z'" in cli("exec", "node-z", "--", "true", code=1)


def test_pods_run_and_go(cli: Cli) -> None:
    """Pods on a node with the host's network of ptp are run, listed, entered and removed."""
    install = "cp /usr/lib/cni/ptp /usr/lib/cni/host-local /opt/cni/bin/ && cat > /etc/cni/net.d/10-test.conflist <<'EOF'\n"
    plugin = {"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.99.0.0/24"}}
    conflist = json.dumps({"cniVersion": "0.4.0", "name": "test", "plugins": [plugin]})
    cli("exec", "node-a", "--", "sh", "-c", f"{install}{conflist}\nEOF")
    lines = cli("pods", "node-a", "--run", "2").splitlines()
    assert [line.split()[1] for line in lines] == ["default/pod-0", "default/pod-1"]
    sandbox, address = lines[0].split()[0], lines[0].split()[2]
    assert address in cli("exec", "node-a", "--sandbox", sandbox, "--", "ip", "-brief", "address")
    assert "answers" in cli("ping", "node-a", address)
    assert cli("pods", "node-a", "--remove") == ""


def test_faults_are_set_shown_and_cleared(cli: Cli) -> None:
    """Faults are JSON in and JSON out; a wrong one is refused with its problems."""
    assert json.loads(cli("faults", '{"interface_quota": 5}')) == {"interface_quota": 5}
    assert "vpc-lab:" in cli("faults", '{"no_such_fault": 1}', code=1)
    assert json.loads(cli("faults", "--clear")) == {}


def test_wrong_names_are_answered_in_a_sentence(cli: Cli) -> None:
    """A lab that is not up is said to be so, with the command that starts it, and `down` of it is no error."""
    nobody = Cli(f"{cli.name}-nobody")
    assert "vpc-lab up --name" in nobody("status", code=1)
    assert "nothing of it is left" in nobody("down")
    assert "is up already" in cli("up", code=1)
