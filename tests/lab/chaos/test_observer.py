"""The observer on a real node: what it sees of living sandboxes is right, and sabotage of the kernel, of EC2 and of packets shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from lab.chaos.checker import Checker
from lab.chaos.expected_state import ExpectedState, PodRecord, Violation
from lab.chaos.history import History
from lab.chaos.kubelet import Kubelet
from lab.chaos.node import ChaosNode
from lab.chaos.observer import Observer
from lab.lab import Lab
from lab.node.kernel_view import OWN_TABLE, read_kernel

pytestmark = [pytest.mark.privileged, pytest.mark.containerd, pytest.mark.slow]
ENV = {"IP_COOLDOWN_PERIOD": "5", "VPC_IPAMD_DRAIN": "2"}


@dataclass
class Observed:
    """One node with two sandboxes under an observer that looks when it is told to."""

    lab: Lab
    node: ChaosNode
    kubelet: Kubelet
    expected: ExpectedState
    history: History
    observer: Observer

    @property
    def records(self) -> list[PodRecord]:
        """The two sandboxes."""
        return self.expected.wanted("node-a")

    def broken(self, seconds: float) -> set[str]:
        """The invariants that a fresh checker finds broken within so many seconds."""
        checker = Checker(cooldown_s=5.0)
        deadline = time.monotonic() + seconds
        found: list[Violation] = []
        while time.monotonic() < deadline:
            found += checker.check(self.observer.look())
            time.sleep(0.2)
        return {violation.invariant for violation in found}


def wait_for(claim: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    """Look until a thing is so, bounded."""
    deadline = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture(scope="module")
def observed() -> Iterator[Observed]:
    """A lab of one node and one host, two sandboxes up."""
    history = History()
    expected = ExpectedState(clock=history.now, cooldown_s=5.0, report=history.violate)
    with Lab(name=f"observer-{time.monotonic_ns()}", nodes=["node-a"], hosts=["host-a"]) as lab:
        node = ChaosNode(lab.node("node-a"), region=lab.vpc.region, env=ENV, expected=expected, history=history)
        kubelet = Kubelet(node, expected=expected, history=history)
        observer = Observer(lab, nodes=[node], host="host-a", expected=expected, history=history, checker=Checker(cooldown_s=5.0))
        try:
            node.open()
            assert node.wait_ready(60)
            for pod in ("p1", "p2"):
                kubelet.run_pod(pod)
            wait_for(lambda: len(expected.wanted("node-a")) == 2, "two sandboxes up")
            yield Observed(lab, node, kubelet, expected, history, observer)
        finally:
            kubelet.close()
            node.close()


def test_a_sound_node_looks_sound(observed: Observed) -> None:
    """Kernel, rows, insides, EC2 and pings tell the same of both sandboxes, and nothing is found."""
    round_ = observed.observer.look()
    seen = round_.observations["node-a"]
    expected = {record.sandbox_id: record.address for record in observed.records}
    assert {veth.container_id: veth.address for veth in seen.kernel.wired.values()} == expected
    assert seen.rows == expected
    assert seen.inside == expected
    assert set(expected.values()) <= set(seen.kernel.to_rules) & set(seen.kernel.host_routes)
    assert all(round_.on_enis.get(address) == "node-a" for address in expected.values())
    assert not round_.silent
    assert observed.broken(3) == set()


def test_a_missing_rule_shows(observed: Observed) -> None:
    """I2: a rule that nobody admits to have taken; the daemon gives way to who takes it again and again (docs/adr/0023)."""
    node, address = observed.node.lab_node, observed.records[0].address
    veth = read_kernel(node).host_routes[address]

    def take() -> None:
        node.run(["ip", "route", "del", address, "table", OWN_TABLE], check=False)

    def is_fought_over() -> bool:
        return any("fight: " in sentence for sentence in (observed.node.daemon.status() or {"lacks": []})["lacks"])

    def is_there() -> bool:
        return address in node.run(["ip", "route", "show", "table", OWN_TABLE]).stdout

    for _ in range(5):
        if is_fought_over():
            break
        take()
        wait_for(is_there, "the repair")
    wait_for(is_fought_over, "the daemon giving way")
    take()
    assert observed.broken(5) == {"I2"}
    node.run(["ip", "route", "add", address, "dev", veth, "table", OWN_TABLE])


def test_an_address_that_another_sandbox_has_shows(observed: Observed) -> None:
    """I1: one sandbox has, inside, the other's address."""
    first, second = observed.records
    expected = observed.expected.snapshot().pods
    swapped = replace(expected[second.sandbox_id], netns_path=first.netns_path)
    observed.expected.on_created(replace(swapped, sandbox_id=second.sandbox_id, address=second.address))
    assert "I1" in observed.broken(2)
    observed.expected.on_created(expected[second.sandbox_id])


def test_a_deleted_veth_shows(observed: Observed) -> None:
    """I2: a living sandbox's wiring is touched; it does not answer either. Last: it cannot be undone."""
    victim = observed.records[0]
    seen = observed.observer.look().observations["node-a"]
    name = next(veth.name for veth in seen.kernel.veths if veth.container_id == victim.sandbox_id)
    observed.node.lab_node.run(["ip", "link", "del", name])
    assert "I2" in observed.broken(3)
    assert victim.address in observed.observer.look().silent
