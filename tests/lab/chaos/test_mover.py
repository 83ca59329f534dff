"""Which ways of moving pods the chaos runs leave out, because the daemons may then rightly do what the judge forbids."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lab.chaos.mover import Mover


class Kubelet:
    """Remembers which pods it was told to run."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def run_pod(self, pod: str) -> None:
        """Run a pod."""
        self.ran.append(pod)

    def remove_pod(self, pod: str) -> None:
        """Remove a pod."""
        self.ran = [other for other in self.ran if other != pod]

    def condemn(self, _: str) -> None:
        """The pod may be made again elsewhere."""

    def is_busy(self, _: str) -> bool:
        """Whether a pod is being run."""
        return False


class Node:
    """Keeps what was queued until the test runs it."""

    def __init__(self, name: str) -> None:
        self.queued: list[Any] = []
        self.lab_node = SimpleNamespace(instance_id=f"i-{name}")

    def queue(self, work: Any) -> None:
        """Queue work."""
        self.queued.append(work)

    def stop_instance(self, _: float, say_stopped: Any) -> None:
        """Stop it, and start it again."""
        say_stopped(True)
        say_stopped(False)


def test_no_rival_asks_while_ec2_calls_a_node_stopped() -> None:
    """The rival may take the address of a stopped node, also of one whose stop is only queued."""
    nodes = {name: Node(name) for name in ("node-m", "node-n")}
    kubelets = {name: Kubelet() for name in nodes}
    vpc = SimpleNamespace(stop_instance=lambda _, is_stopped: None)
    history = SimpleNamespace(say=lambda *_, **__: None)
    mover = Mover(SimpleNamespace(vpc=vpc), nodes=nodes, kubelets=kubelets, history=history)  # type: ignore[arg-type]
    for pod in ("keep-1", "keep-2"):
        mover.begin(pod, "end", for_s=0.0)
    place = "node-m"
    other = "node-n"
    assert kubelets[place].ran == ["keep-1", "keep-2"]
    mover._places["keep-2"] = other
    assert mover.begin("keep-1", "stop", for_s=1.0)
    assert mover.begin("keep-2", "rival", for_s=1.0)
    assert mover._places["keep-2"] == place  # it was moved instead
    nodes[place].queued[0]()
    mover.finish("keep-1")
    mover.finish("keep-2")
    assert mover.begin("keep-2", "rival", for_s=1.0)
    assert mover._places["keep-2"] == place
    assert "keep-2" in kubelets[other].ran
