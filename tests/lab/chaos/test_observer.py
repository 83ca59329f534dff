"""The observer on a real node: what it sees of living sandboxes is right, and sabotage of the kernel, of EC2 and of packets shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from lab.chaos.books import Books, Life, Violation
from lab.chaos.journal import Journal
from lab.chaos.judge import Judge
from lab.chaos.kubelet import Kubelet
from lab.chaos.member import Member
from lab.chaos.observer import Observer
from lab.lab import Lab

pytestmark = [pytest.mark.privileged, pytest.mark.containerd, pytest.mark.slow]
ENV = {"IP_COOLDOWN_PERIOD": "5", "VPC_IPAMD_DRAIN": "2"}


@dataclass
class Scene:
    """One node with two sandboxes under an observer that looks when it is told to."""

    lab: Lab
    member: Member
    kubelet: Kubelet
    books: Books
    journal: Journal
    observer: Observer

    @property
    def lives(self) -> list[Life]:
        """The two sandboxes."""
        return self.books.living("node-a")

    def judged(self, seconds: float) -> set[str]:
        """The invariants that a fresh judge finds broken within so many seconds."""
        judge = Judge(cooldown_s=5.0)
        deadline = time.monotonic() + seconds
        found: list[Violation] = []
        while time.monotonic() < deadline:
            found += judge.judge(self.observer.look())
            time.sleep(0.2)
        return {violation.invariant for violation in found}


def wait_for(claim: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    """Look until a thing is so, bounded."""
    deadline = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    """A lab of one node and one host, two sandboxes up."""
    journal = Journal()
    books = Books(clock=journal.now, cooldown_s=5.0, report=journal.violate)
    with Lab(name=f"observer-{time.monotonic_ns()}", nodes=["node-a"], hosts=["host-a"]) as lab:
        member = Member(lab.node("node-a"), region=lab.vpc.region, env=ENV, books=books, journal=journal)
        kubelet = Kubelet(member, books=books, journal=journal)
        observer = Observer(lab, members=[member], host="host-a", books=books, journal=journal, judge=Judge(cooldown_s=5.0))
        try:
            member.open()
            assert member.wait_ready(60)
            for pod in ("p1", "p2"):
                kubelet.run_pod(pod)
            wait_for(lambda: len(books.living("node-a")) == 2, "two sandboxes up")
            yield Scene(lab, member, kubelet, books, journal, observer)
        finally:
            kubelet.close()
            member.close()


def test_a_sound_node_looks_sound(scene: Scene) -> None:
    """Kernel, rows, insides, EC2 and pings tell the same of both sandboxes, and nothing is found."""
    seen = scene.observer.look()
    sight = seen.sights["node-a"]
    expected = {life.sandbox_id: life.address for life in scene.lives}
    assert {veth.container_id: veth.address for veth in sight.veths if veth.is_wired} == expected
    assert sight.rows == expected
    assert sight.inside == expected
    assert set(expected.values()) <= set(sight.to_rules) & set(sight.routes)
    assert all(seen.on_enis[address] == "node-a" for address in expected.values())
    assert not seen.silent
    assert scene.judged(3) == set()


def test_a_missing_rule_shows(scene: Scene) -> None:
    """I2: a rule that nobody admits to have taken."""
    scene.member.node.run(["ip", "rule", "del", "to", scene.lives[0].address, "pref", "512"])
    assert scene.judged(5) == {"I2"}
    scene.member.node.run(["ip", "rule", "add", "to", scene.lives[0].address, "lookup", "main", "pref", "512"])


def test_an_address_that_another_sandbox_has_shows(scene: Scene) -> None:
    """I1: one sandbox has, inside, the other's address."""
    first, second = scene.lives
    books = scene.books.view().lives
    swapped = replace(books[second.sandbox_id], netns_path=first.netns_path)
    scene.books.born(replace(swapped, sandbox_id=second.sandbox_id, address=second.address))
    assert "I1" in scene.judged(2)
    scene.books.born(books[second.sandbox_id])


def test_a_deleted_veth_shows(scene: Scene) -> None:
    """I2: a living sandbox's wiring is touched; it does not answer either. Last: it cannot be undone."""
    victim = scene.lives[0]
    sight = scene.observer.look().sights["node-a"]
    name = next(veth.name for veth in sight.veths if veth.container_id == victim.sandbox_id)
    scene.member.node.run(["ip", "link", "del", name])
    assert "I2" in scene.judged(3)
    assert victim.address in scene.observer.look().silent
