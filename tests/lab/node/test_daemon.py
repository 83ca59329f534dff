"""The daemon driver: what it says when the daemon is not there, ends, or does not get ready; settings of all starts and of one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.lab import Lab
from lab.node.daemon import DAEMON_LOG, Daemon
from lab.node.errors import NodeError
from lab.node.node import Node
from tests.rig import preloaded, wait_until

pytestmark = pytest.mark.privileged
SIGNALS_OF_LIBC = 1 << 31 | 1 << 32
"""Signals 32 and 33, which are the C library's own: posix_spawn leaves them ignored, and a fork does not. Source: nptl(7)."""

SETTINGS = {"VPC_IPAMD_METRICS_ADDRESS": "off", "WARM_IP_TARGET": "2"}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A node without containerd."""
    with Lab(name=f"driver-{time.monotonic_ns()}", nodes=["node-a"], containerd=False) as lab:
        yield lab


@pytest.fixture(params=["executed", "forked"])
def daemon(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """A daemon that was not started; ended afterwards."""
    by = preloaded() if request.param == "forked" else None
    made = Daemon(lab.node("node-a"), region=lab.vpc.region, settings=SETTINGS, by=by)
    yield made
    made.kill()


def world_of(pid: int) -> dict[str, object]:
    """What decides what a process sees and may do."""
    proc = Path("/proc") / str(pid)
    names = ("SigBlk", "SigCgt", "CapEff", "CapBnd", "Uid", "NoNewPrivs")
    status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines())
    return {
        "namespaces": {one.name: one.readlink() for one in (proc / "ns").iterdir() if not one.name.endswith("_for_children")},
        "cgroup": (proc / "cgroup").read_text(),
        "paths": [str((proc / name).readlink()).split(":")[0] for name in ("cwd", "root", "fd/0", "fd/1", "fd/2")],
        "limits": (proc / "limits").read_text(),
        "is a session": os.getsid(pid) == pid,
        "levels of process IDs": len(status["NSpid"].split()),
        "status": {name: status[name] for name in names},
        "ignored signals": int(status["SigIgn"], 16) & ~SIGNALS_OF_LIBC,
    }


def asking_ec2(node: Node, daemon: Daemon) -> list[int]:
    """The processes of a daemon that ask EC2: all in the node but its PID 1 and the daemon."""
    listed = Path(node.root + "/sys/fs/cgroup/init/cgroup.procs").read_text().split()
    return sorted({int(pid) for pid in listed} - {node.pid, daemon.pid})


def test_a_forked_daemon_lives_in_the_world_of_an_executed_one(lab: Lab) -> None:
    """Namespaces, cgroup, directories, limits, signals, capabilities, also of the process that asks EC2, which ends with the daemon;
    and the daemon ends with its node, whoever forked it."""
    node = lab.add_node("other")
    worlds = []
    for by in (None, preloaded()):
        daemon = Daemon(node, region=lab.vpc.region, settings=SETTINGS, by=by)
        daemon.start()
        daemon.wait_ready()
        (asking,) = asking_ec2(node, daemon)
        worlds.append((world_of(daemon.pid), world_of(asking) | {"is a session": None}))
        if by is None:
            daemon.kill()
            wait_until(lambda: asking_ec2(node, daemon) == [], what="its process for EC2 has ended")  # noqa: B023
    for executed, forked in zip(*worlds, strict=True):
        assert {key: (executed[key], forked[key]) for key in executed if executed[key] != forked[key]} == {}
    assert worlds[1][0]["levels of process IDs"] == worlds[1][1]["levels of process IDs"] == 2
    node.close()
    assert daemon.process is not None
    assert daemon.process.wait(30) == -signal.SIGKILL


def test_a_node_that_is_gone_gets_no_forked_daemon(lab: Lab) -> None:
    """An error that says so, and nobody waits."""
    node = lab.add_node("gone")
    daemon = Daemon(node, region=lab.vpc.region, settings=SETTINGS, by=preloaded())
    daemon.install_plugin()
    preloaded_request = {"env": daemon.environment, "cwd": "/", "by": preloaded()}
    node.pid = 2**22 - 1  # of no process
    with pytest.raises(NodeError, match=r"cannot start python: .*No such process"):
        node.spawn(["python", "-m", "ipamd.daemon"], **preloaded_request)


def test_a_daemon_is_started_killed_and_started_again(daemon: Daemon) -> None:
    """Two at once are refused; after `kill -9` nobody answers; the log goes on and the newest start's part is told apart."""
    assert daemon.problem() == "the daemon was not started"
    assert daemon.kill() == 0
    log = Path(daemon.node.root + DAEMON_LOG)
    earlier = log.read_text().count("ready after") if log.exists() else 0
    daemon.start()
    with pytest.raises(NodeError, match="a daemon runs on node-a already"):
        daemon.start()
    daemon.wait_ready()
    wait_until(lambda: log.read_text().count("ready after") > earlier, what="the log says so, a moment after the status")
    assert daemon.problem() == ""
    assert daemon.rows() == {}
    assert daemon.spooled_count() == 0
    assert daemon.kill() == -9
    assert (daemon.status(), daemon.rows(), daemon.is_running) == (None, None, False)
    assert daemon.problem() == "the daemon ended with exit status -9"
    daemon.start()
    daemon.wait_ready()
    wait_until(lambda: daemon.log_text().count("ready after") == earlier + 2, what="the log says so again")
    assert daemon.log_text(of_this_start=True).count("ready after") == 1
    assert daemon.ipamctl_json("status")["ready"]


def test_settings_of_one_start_are_gone_with_the_next(daemon: Daemon) -> None:
    """`settings` belong to every start, `env` to one; a wait ends with the process and shows the end of its log."""
    daemon.start(env={"WARM_IP_TARGET": "many"})
    began = time.monotonic()
    with pytest.raises(NodeError, match=r"not ready and never will be: the daemon ended with exit status 2\n(.|\n)*'many'"):
        daemon.wait_ready()
    assert time.monotonic() - began < 20
    daemon.restart()
    status = daemon.wait_status(lambda status: bool(status["ready"]), what="ready", timeout_s=120)
    assert status["pool"]["total_count"] > 0


def test_a_wait_that_is_in_vain_ends_at_its_deadline(daemon: Daemon) -> None:
    """The claim, the bound and what the daemon says are in the message."""
    daemon.start()
    with pytest.raises(NodeError, match="node-a: not done within 1 s: "):
        daemon.wait_until(lambda: False, what="done", timeout_s=1)


def test_a_lost_datastore_is_rebuilt(daemon: Daemon) -> None:
    """The files of the datastore go, and nothing else."""
    daemon.restart()
    daemon.wait_ready()
    daemon.kill()
    assert "state.db" in daemon.lose_datastore()
    assert daemon.lose_datastore() == []
    daemon.start()
    daemon.wait_ready()
