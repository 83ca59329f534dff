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
from lab.lab import IPV6_CIDR, Lab
from lab.node.kernel_view import OWN_TABLE, read_kernel
from lab.vpc.family import IPV4, IPV6, Family
from lab.vpc.state import Vpc

pytestmark = [pytest.mark.privileged, pytest.mark.containerd, pytest.mark.slow]
ENV = {"IP_COOLDOWN_PERIOD": "5", "VPC_IPAMD_DRAIN_SECONDS": "2", "ENABLE_V6_EGRESS": "true"}


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


@pytest.fixture(scope="module", params=[IPV4, IPV6], ids=["ipv4", "ipv6"])
def observed(request: pytest.FixtureRequest) -> Iterator[Observed]:
    """A lab of one node and one host, two sandboxes up, of each family and with egress of the other."""
    family: Family = request.param
    history = History()
    expected = ExpectedState(clock=history.now, cooldown_s=5.0, report=history.violate)
    name = f"observer-{time.monotonic_ns()}"
    with Lab(name=name, nodes=["node-a"], hosts=["host-a"], vpc=Vpc(ipv6_cidr=IPV6_CIDR)) as lab:
        env = {**ENV, **family.settings}
        node = ChaosNode(lab.node("node-a"), region=lab.vpc.region, env=env, expected=expected, history=history)
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
    egress = {record.sandbox_id: record.egress for record in observed.records}
    assert all(egress.values())
    assert {veth.container_id: veth.address for veth in seen.kernel.wired_for_egress.values()} == seen.inside_egress == egress
    assert set(egress.values()) <= set(seen.kernel.host_routes)
    assert not round_.mute
    assert observed.broken(3) == set()


def test_a_missing_rule_shows(observed: Observed) -> None:
    """I2: a rule that nobody admits to have taken; the daemon gives way to who takes it again and again (docs/adr/0023)."""
    node, address = observed.node.lab_node, observed.records[0].address
    veth, family = read_kernel(node).host_routes[address], observed.node.daemon.family

    def take() -> None:
        node.run(["ip", "route", "del", address, "table", OWN_TABLE], check=False)

    def is_fought_over() -> bool:
        return any(
            "repair conflict: " in sentence for sentence in (observed.node.daemon.status() or {"degraded": []})["degraded"]
        )

    def is_there() -> bool:
        return address in node.run(["ip", family.option, "route", "show", "table", OWN_TABLE]).stdout

    for _ in range(5):
        if is_fought_over():
            break
        take()
        wait_for(is_there, "the repair")
    wait_for(is_fought_over, "the daemon giving way")
    for _ in range(5):  # on a busy machine the pause may be over by now, and the next one is longer
        take()
        if found := observed.broken(5):
            break
    assert found == {"I2"}
    node.run(["ip", "route", "add", address, "dev", veth, "table", OWN_TABLE])


def test_an_address_that_another_sandbox_has_shows(observed: Observed) -> None:
    """I1: one sandbox has, inside, the other's address."""
    first, second = observed.records
    expected = observed.expected.snapshot().pods
    swapped = replace(expected[second.sandbox_id], netns_path=first.netns_path)
    observed.expected.on_created(replace(swapped, sandbox_id=second.sandbox_id, address=second.address))
    try:
        wait_for(lambda: "I1" in observed.broken(2), "the checker seeing it")
    finally:
        observed.expected.on_created(expected[second.sandbox_id])


def test_a_sandbox_that_is_cut_off_from_the_other_family_shows(observed: Observed) -> None:
    """I2: it answers, and nobody of the other family hears it: a firewall of somebody else's on its node."""
    node, family = observed.node.lab_node, observed.node.daemon.egress
    assert family is not None
    link = read_kernel(node).wired_for_egress[observed.records[0].sandbox_id].name
    table = f"{family.nft} others"
    rule = f'table {table} {{ chain c {{ type filter hook prerouting priority 0; iifname "{link}" drop\n }}\n}}'
    node.netns.tool(["nft", "-f", "-"], script=rule)
    try:
        assert observed.broken(12) == {"I2"}
    finally:
        node.netns.tool(["nft", "delete", "table", *table.split()])
    wait_for(lambda: not observed.observer.look().mute, "its way back")


def test_a_deleted_link_for_egress_shows(observed: Observed) -> None:
    """I2: a living sandbox has lost its second link; it goes on to answer. The next daemon wires it again."""
    victim, node = observed.records[1], observed.node
    name = read_kernel(node.lab_node).wired_for_egress[victim.sandbox_id].name
    stopped = node.queue(lambda: node.stop_daemon(down_s=12.0))
    wait_for(lambda: node.state().ready_since is None, "the daemon's end")
    node.lab_node.run(["ip", "link", "del", name])
    assert "I2" in observed.broken(8)
    assert victim.address not in observed.observer.look().silent
    stopped.result(60)
    wait_for(lambda: victim.sandbox_id in read_kernel(node.lab_node).wired_for_egress, "its link again")


def test_a_deleted_veth_shows(observed: Observed) -> None:
    """I2: a living sandbox's wiring is touched; it does not answer either. Last: it cannot be undone."""
    victim = observed.records[0]
    seen = observed.observer.look().observations["node-a"]
    name = next(veth.name for veth in seen.kernel.veths if veth.container_id == victim.sandbox_id)
    observed.node.lab_node.run(["ip", "link", "del", name])
    assert "I2" in observed.broken(10)
    assert victim.address in observed.observer.look().silent
