"""`vpc-lab`: up, daemon, status, exec, pods, ping, faults and down, as an operator types them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from ipamd import __version__
from lab.cli.main import main
from lab.node import workspace
from lab.node.node import REPOSITORY
from tests.rig import wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.containerd]


EXECUTED = ("up", "down", "exec")
"""Verbs that start processes, or hand over their own files. The others ask the lab over its socket, and print what it answers."""


class Cli:
    """The command line for one lab's name. Verbs that only ask run in this process: each would import the lab for itself."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, verb: str, *arguments: str, code: int = 0) -> str:
        words = [verb, "--name", self.name, *arguments]
        status, out, err = executed(words) if verb in EXECUTED else called(words)
        assert status == code, out + err
        return out if code == 0 else out + err


def executed(words: list[str]) -> tuple[int, str, str]:
    """Run `vpc-lab` as a process: exit code, standard output, standard error."""
    argv = [sys.executable, "-m", "lab.cli", *words]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


def called(words: list[str]) -> tuple[int, str, str]:
    """The same in this process."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = main(words)
    return status, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def cli() -> Iterator[Cli]:
    """A lab of two nodes and a host, started and stopped by the command line."""
    cli = Cli(f"cli-{time.monotonic_ns()}")
    try:
        assert "is up" in cli("up", "--nodes", "2", "--type", "m5.large", "--attach-delay", "0", "--outside")
        yield cli
    finally:
        assert "is down" in cli("down")
        assert not (workspace.STATE_ROOT / cli.name).exists()


def test_status_tells_nodes_and_interfaces(cli: Cli) -> None:
    """Status is for people and, with -o json, for programs."""
    status = json.loads(cli("status", "-o", "json"))
    assert [node["name"] for node in status["nodes"]] == ["node-a", "node-b"]
    assert all(node["containerd"] and node["enis"][0]["wired"] for node in status["nodes"])
    assert (status["drops"], status["problems"]) == ([], [])
    text = cli("status")
    assert status["nodes"][0]["enis"][0]["eni_id"] in text


def test_the_outside_is_reached_and_is_no_host_of_the_vpc(cli: Cli) -> None:
    """With --outside a node pings beyond the gateway, and the status lists hosts of the VPC only."""
    assert "answers" in cli("ping", "node-a", "198.51.100.10")
    assert [host["name"] for host in json.loads(cli("status", "-o", "json"))["hosts"]] == ["host-a"]


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


def test_external_changes_attach_and_detach(cli: Cli) -> None:
    """The example of lab/README.md: an EFA-only ENI appears and goes; what EC2 refuses is refused in its words."""
    done = cli("hand", "attach", "node-a", "--type", "efa-only")
    eni_id = done.split()[0]
    assert done == f"{eni_id} (efa-only) is being attached to node-a\n"
    (line,) = [line for line in cli("status").splitlines() if eni_id in line]
    assert line.split()[0] == "eth1"
    assert line.endswith("(not wired)  efa-only")
    assert f"{eni_id} is being detached" in cli("hand", "detach", eni_id)
    assert "attached to nothing" in cli("hand", "detach", eni_id, code=1)
    assert cli("hand", "attach", eni_id) == f"{eni_id} is being attached to node-a again\n"
    assert f"{eni_id} was deleted" in cli("hand", "delete", eni_id)
    assert "does not exist" in cli("hand", "delete", eni_id, code=1)


def test_external_changes_give_and_take_addresses(cli: Cli) -> None:
    """Of an ENI of the node; a plain ENI has a link."""
    eni_id = cli("hand", "attach", "node-b", "--addresses", "1", "--no-manage").split()[0]

    def line() -> str:
        (found,) = [line for line in cli("status").splitlines() if eni_id in line]
        return found

    assert "1 secondary addresses, 0 prefixes" in line()
    wait_until(lambda: "not wired" not in line(), what="the link, which comes after the answer")
    address = cli("hand", "assign", eni_id).split()[-1]
    assert cli("hand", "unassign", address) == f"{address} was taken from {eni_id}\n"
    assert "unassign nobody" in cli("hand", "unassign", "nobody", code=1)
    assert "only security group" in cli("hand", "groups", eni_id)
    assert "node-b has 27 volumes" in cli("hand", "volumes", "node-b", "--count", "27")
    assert "AttachmentLimitExceeded" in cli("hand", "attach", "node-b", code=1)
    cli("faults", "--clear")
    cli("hand", "delete", eni_id)


def test_exec_finds_the_programs_of_this_python(cli: Cli) -> None:
    """`vpc-lab exec NODE -- ipamctl` works because our bin directory is first in PATH, in `exec` only."""
    first = cli("exec", "node-b", "--", "sh", "-c", "echo $PATH").split(":")[0]
    assert first == str(Path(sys.executable).parent)
    assert cli("exec", "node-b", "--", "python", "-c", "import sys; print(sys.prefix)").strip() == sys.prefix


def test_a_daemon_that_was_not_started_is_said_to_be_missing(cli: Cli) -> None:
    """Kill and log need a daemon of this lab, and every action needs a node that there is."""
    for action in ("kill", "log"):
        assert "no daemon of this lab runs on node-b; start it with" in cli("daemon", "node-b", action, code=1)
        assert "no node 'node-z'" in cli("daemon", "node-z", action, code=1)
    assert "no node 'node-z'" in cli("daemon", "node-z", "start", code=1)


@pytest.fixture(scope="module")
def served() -> Iterator[Cli]:
    """A lab of one node whose daemon has a setting from the command line."""
    cli = Cli(f"served-{time.monotonic_ns()}")
    settings = ["--env", "WARM_IP_TARGET=2", "--env", "VPC_IPAMD_METRICS_ADDRESS=off"]
    try:
        out = cli("up", "--nodes", "1", "--hosts", "0", "--attach-delay", "0", "--daemon", *settings)
        assert "vpc-ipamd is ready on node-a" in out
        yield cli
    finally:
        cli("down")


def _ipamctl(cli: Cli, *words: str, code: int = 0) -> str:
    shell = f"cd {REPOSITORY} && exec python -m ipamd.ipamctl.main {' '.join(words)}"
    return cli("exec", "node-a", "--", "sh", "-c", shell, code=code)


def test_pods_run_as_soon_as_up_returns(served: Cli) -> None:
    """`up --daemon` returns when the daemon is ready and containerd has loaded the conflist; settings reached the daemon."""
    lines = served("pods", "node-a", "--run", "2").splitlines()
    assert [line.split()[1] for line in lines] == ["default/pod-0", "default/pod-1"]
    assert "WARM_IP_TARGET=2" in _ipamctl(served, "status")


def test_a_daemon_is_killed_and_started_with_its_settings(served: Cli) -> None:
    """kill -9 leaves nobody who answers; the next start has the settings of the one before, and those given to it."""
    assert "was killed" in served("daemon", "node-a", "kill")
    assert "vpc-ipamd does not answer at" in _ipamctl(served, "status", code=3)  # and why: a crash loop, after three starts
    assert "any more (the last one ended with -9)" in served("daemon", "node-a", "kill", code=1)
    assert "is ready" in served("daemon", "node-a", "start", "--env", "MINIMUM_IP_TARGET=5")
    status = _ipamctl(served, "status")
    assert "WARM_IP_TARGET=2" in status
    assert "MINIMUM_IP_TARGET=5" in status
    assert "a daemon runs on node-a already" in served("daemon", "node-a", "start", code=1)
    assert "was started" in served("daemon", "node-a", "restart", "--no-wait")
    assert "alive after" in served("daemon", "node-a", "log")


def test_a_daemon_that_does_not_come_up_is_shown_with_its_log(served: Cli) -> None:
    """A wrong setting ends the daemon: the wait ends with it, and shows status and log; the setting is taken back with ''."""
    began = time.monotonic()
    told = served("daemon", "node-a", "restart", "--env", "MINIMUM_IP_TARGET=many", code=1)
    assert time.monotonic() - began < 30, "it waits for a daemon that has ended"
    for words in ("ended with exit status 2", "--- ipamctl status", "does not answer", "/var/log/vpc-ipamd.log", "'many'"):
        assert words in told
    assert "is ready" in served("daemon", "node-a", "start", "--env", "MINIMUM_IP_TARGET=")


def test_a_lab_without_containerd_has_daemons_without_cri() -> None:
    """`up --no-containerd --daemon` is ready too: the daemon is told that there is no runtime."""
    cli = Cli(f"bare-{time.monotonic_ns()}")
    try:
        assert "is ready on node-a" in cli("up", "--nodes", "1", "--hosts", "0", "--no-containerd", "--daemon")
        assert "runtime  CRI is off" in _ipamctl(cli, "status")
    finally:
        cli("down")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["up", "--env", "A=1"], "give --daemon too"),
        (["up", "--daemon", "--env", "A"], "'A' is not KEY=VALUE"),
        (["daemon", "node-a", "log", "--no-wait"], "not for log"),
        (["daemon", "node-a", "stop"], "action"),
    ],
)
def test_options_without_effect_are_refused(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What would be ignored is wrong usage."""
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["exec", "--help"], "NODE -- COMMAND"),
        (["up", "--help"], "the node sees the new ENI"),
        (["--version"], f"vpc-lab {__version__}"),
    ],
)
def test_help_is_complete(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Help says what the command line takes and what its numbers mean."""
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 0
    assert told in " ".join(capsys.readouterr().out.split())


def test_wrong_names_are_answered_in_a_sentence(cli: Cli) -> None:
    """A lab that is not up is said to be so, with the command that starts it, and `down` of it is no error."""
    nobody = Cli(f"{cli.name}-nobody")
    assert "vpc-lab up --name" in nobody("status", code=1)
    assert "nothing of it is left" in nobody("down")
    assert "is up already" in cli("up", code=1)
