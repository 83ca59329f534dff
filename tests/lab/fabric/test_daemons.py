"""Waiting for daemons: bounded, for both the daemon and containerd, and what is missing is told with status and log."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from lab.cli.daemons import Daemons
from lab.lab import Lab
from lab.node.errors import NodeError

pytestmark = [pytest.mark.privileged, pytest.mark.containerd]

ENV = {"VPC_IPAMD_METRICS_ADDRESS": "off"}


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A lab of one node with containerd."""
    with Lab(name=f"daemons-{time.monotonic_ns()}", nodes=["node-a"]) as lab:
        yield lab


def test_pods_run_right_after_the_wait(lab: Lab) -> None:
    """Before the daemon containerd says in its words that it has no network; after the wait a pod runs at once."""
    node = lab.node("node-a")
    assert "cni plugin not initialized" in node.cri.network_problem()
    daemons = Daemons(lab)
    daemons.start("node-a", env=ENV)
    daemons.wait_ready("node-a")
    assert node.cri.network_problem() == ""
    node.cri.run_sandbox("first")


def test_a_containerd_that_does_not_load_the_conflist_is_told_at_the_deadline(lab: Lab) -> None:
    """A daemon that is ready is not enough; the wait ends at its deadline and shows status and log."""
    daemons = Daemons(lab)
    daemons.start("node-a", env=ENV | {"VPC_IPAMD_CONFLIST_FILE": "/etc/cni/elsewhere.conflist"})
    began = time.monotonic()
    with pytest.raises(NodeError) as refused:
        daemons.wait_ready("node-a", timeout_s=10)
    assert time.monotonic() - began < 60
    told = str(refused.value)
    for words in ("the daemon is ready, containerd is not", "cni plugin not initialized", "serving, ready", "alive after"):
        assert words in told


def test_a_daemon_that_does_not_get_ready_is_told_at_the_deadline(lab: Lab) -> None:
    """What the daemon lacks is in the first line."""
    lab.faults.apply({"unreachable": {"imds": "refuse"}})
    daemons = Daemons(lab)
    daemons.start("node-a", env=ENV)
    with pytest.raises(NodeError, match=r"the daemon is not ready .*; degraded: ") as refused:
        daemons.wait_ready("node-a", timeout_s=10)
    assert "not ready, up" in str(refused.value)


def test_restart_without_a_running_daemon_starts_one(lab: Lab) -> None:
    """`kill` of nobody is an error only where somebody is required."""
    daemons = Daemons(lab)
    daemons.kill("node-a", must_run=False)
    with pytest.raises(NodeError, match="no daemon of this lab runs on node-a; start it"):
        daemons.kill("node-a")
    assert daemons.pid("node-a") is None
    with pytest.raises(NodeError, match="no daemon of this lab runs on node-a"):
        daemons.wait_ready("node-a")
