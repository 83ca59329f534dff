"""After one fault the address of a dead sandbox is free again within a bound, with or without a DEL; that of a live one never.

Real containerd, real clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from lab.chaos.expected_state import ExpectedState, PodRecord
from lab.chaos.history import History
from lab.chaos.kubelet import Kubelet
from lab.chaos.node import ChaosNode
from lab.lab import Lab
from lab.node.plugin import PLUGIN_PATH
from tests.patience import PATIENCE_S
from tests.rig import wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.containerd, pytest.mark.slow]
COOLDOWN_S = 3.0
MARGIN_S = 3.0
"""For the sweep, a status call and a busy machine."""

PAUSE_S = 0.2
"""Between two questions: each costs 6 ms of a core, and the longest wait is half a minute."""

LISTS_S = 45.0
"""Two lists, 10 s apart, after the one under way, on a busy machine. The five minutes are for a sandbox that is not proven gone."""


def wait_for(is_so: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Look until a thing is so, bounded."""
    wait_until(is_so, what=what, timeout_s=timeout_s, pause_s=PAUSE_S)


@dataclass
class Reuse:
    """One node with two sandboxes, p1 and p2."""

    node: ChaosNode
    kubelet: Kubelet
    records: dict[str, PodRecord]

    def free_count(self) -> int:
        """Addresses that may be given; -1 when the daemon is away."""
        status = self.node.daemon.status()
        return int(status["pool"]["free_count"]) if status is not None and status["ready"] else -1

    def has_row(self, pod: str) -> bool:
        """Whether the daemon has it attached."""
        return self.records[pod].sandbox_id in (self.node.daemon.rows() or {})

    def wait_free(self, count: int, timeout_s: float) -> None:
        """Demand so many free addresses within a bound."""
        wait_for(lambda: self.free_count() == count, f"{count} free addresses", timeout_s)


@pytest.fixture
def reuse() -> Iterator[Reuse]:
    """Both up, the pool at rest."""
    history = History()
    expected = ExpectedState(clock=history.now, cooldown_s=COOLDOWN_S, report=history.violate)
    env = {"IP_COOLDOWN_PERIOD": str(int(COOLDOWN_S)), "VPC_IPAMD_DRAIN_SECONDS": "2", "MAX_ENI": "1"}
    with Lab(name=f"reuse-{time.monotonic_ns()}", nodes=["node-a"], hosts=[]) as lab:
        node = ChaosNode(lab.node("node-a"), region=lab.vpc.region, env=env, expected=expected, history=history)
        kubelet = Kubelet(node, expected=expected, history=history)
        try:
            node.open()
            assert node.wait_ready(60)
            kubelet.run_pod("p1")
            kubelet.run_pod("p2")
            wait_for(lambda: len(expected.wanted("node-a")) == 2, "two sandboxes up")
            made = Reuse(node, kubelet, {record.pod: record for record in expected.wanted("node-a")})
            made.wait_free(7, 10)  # 9 on the one ENI
            yield made
            assert history.violations == []
        finally:
            kubelet.close()
            node.close()


def test_after_del_an_address_is_free_within_the_cooldown(reuse: Reuse) -> None:
    """DEL came: the cooldown, and not earlier."""
    reuse.kubelet.remove_pod("p1")
    wait_for(lambda: not reuse.has_row("p1"), "DEL")
    began = time.monotonic()
    reuse.wait_free(8, COOLDOWN_S + MARGIN_S)
    assert time.monotonic() - began > COOLDOWN_S - MARGIN_S / 2
    assert reuse.has_row("p2")


def test_after_a_spooled_del_an_address_is_free_within_the_cooldown(reuse: Reuse) -> None:
    """The daemon was dead when DEL came: the cooldown from its return on."""
    reuse.node.queue(lambda: reuse.node.kill_daemon(down_s=4))
    time.sleep(0.5)
    reuse.kubelet.remove_pod("p1")
    wait_for(lambda: reuse.free_count() >= 0, "the daemon back")
    reuse.wait_free(8, COOLDOWN_S + MARGIN_S)
    assert reuse.has_row("p2")


def test_without_del_an_address_is_free_within_two_lists_and_the_cooldown(reuse: Reuse) -> None:
    """The runtime forgot a sandbox that is proven gone: two lists are enough; the one that lives stays."""
    _lose_sandbox(reuse, reuse.records["p1"])
    wait_for(lambda: not reuse.has_row("p1"), "reaped", LISTS_S)
    reuse.wait_free(8, COOLDOWN_S + MARGIN_S)
    assert reuse.has_row("p2")


def _lose_sandbox(reuse: Reuse, record: PodRecord) -> None:
    """Have the runtime lose one sandbox without a DEL: its task and namespace die, its record goes, while the runtime is dead."""
    node = reuse.node.lab_node
    assert node.containerd is not None
    node.containerd.kill()
    node.containerd.wait(10)
    node.run(["runc", "--root", "/run/containerd/runc/k8s.io", "delete", "--force", record.sandbox_id])
    node.run(["/bin/sh", "-c", f"umount {record.netns_path} && rm {record.netns_path}"])
    node.run(["mv", PLUGIN_PATH, f"{PLUGIN_PATH}.away"])
    node.start_containerd()
    # without the plugin no DEL of the runtime arrives; the conflist would be written again
    node.run(["ctr", "--namespace", "k8s.io", "tasks", "delete", "--force", record.sandbox_id], check=False)
    node.run(["ctr", "--namespace", "k8s.io", "containers", "delete", record.sandbox_id])
    node.containerd.kill()
    node.containerd.wait(10)
    node.run(["mv", f"{PLUGIN_PATH}.away", PLUGIN_PATH])
    node.start_containerd()
    assert [sandbox.sandbox_id for sandbox in node.cri.list()] == [reuse.records["p2"].sandbox_id]
