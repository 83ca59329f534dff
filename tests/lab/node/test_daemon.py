"""The daemon driver: what it says when the daemon is not there, ends, or does not get ready; settings of all starts and of one."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from lab.lab import Lab
from lab.node.daemon import Daemon
from lab.node.errors import NodeError

pytestmark = pytest.mark.privileged
SETTINGS = {"VPC_IPAMD_METRICS_ADDRESS": "off", "WARM_IP_TARGET": "2"}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A node without containerd."""
    with Lab(name=f"driver-{time.monotonic_ns()}", nodes=["node-a"], containerd=False) as lab:
        yield lab


@pytest.fixture
def daemon(lab: Lab) -> Iterator[Daemon]:
    """A daemon that was not started; ended afterwards."""
    made = Daemon(lab.node("node-a"), region=lab.vpc.region, settings=SETTINGS)
    yield made
    made.kill()


def test_a_daemon_is_started_killed_and_started_again(daemon: Daemon) -> None:
    """Two at once are refused; after `kill -9` nobody answers; the log goes on and the newest start's part is told apart."""
    assert daemon.problem() == "the daemon was not started"
    assert daemon.kill() == 0
    daemon.start()
    with pytest.raises(NodeError, match="a daemon runs on node-a already"):
        daemon.start()
    daemon.wait_ready()
    assert daemon.problem() == ""
    assert daemon.rows() == {}
    assert daemon.spooled_count() == 0
    assert daemon.kill() == -9
    assert (daemon.status(), daemon.rows(), daemon.is_running) == (None, None, False)
    assert daemon.problem() == "the daemon ended with exit status -9"
    daemon.start()
    daemon.wait_ready()
    assert daemon.log_text().count("ready after") == 2
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
    status = daemon.wait_status(lambda status: bool(status["ready"]), what="ready", timeout_s=30)
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
