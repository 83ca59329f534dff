"""Pods with an address that stays, remade on the other of two nodes while something happens to the first one (docs/adr/0083).

The mover knows which node is to run each pod. The kubelets run and remove them; the checker judges (I1), and `demand` at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from lab.chaos.expected_state import Violation
from lab.chaos.history import History
from lab.chaos.kubelet import Kubelet
from lab.chaos.node import ChaosNode
from lab.chaos.wishes import RANGES, TAKING, wish_of
from lab.lab import Lab

HELD_S = 90.0
"""How long a pod may wait for its address after the last event. Ours: above the pause after a refused release, 60 s, and kubelet's."""

GONE_S = 150.0
"""How long an address may stay at EC2 after its pod's end: it is kept for 20 s, or 60 s without an ADD that was answered; and a pause
after a refused release."""

POLL_S = 1.0


class Mover:
    """Moves pods between two nodes. Used by the player's thread; what takes time is queued to the nodes."""

    def __init__(self, lab: Lab, *, nodes: Mapping[str, ChaosNode], kubelets: Mapping[str, Kubelet], history: History) -> None:
        """`nodes`, `kubelets`: the two between which pods move, by name."""
        self._lab = lab
        self._nodes = nodes
        self._kubelets = kubelets
        self._history = history
        self._places: dict[str, str] = {}
        self._under_way: dict[str, Callable[[], None]] = {}  # pods that are being moved, each with what ends its move
        self._stopping: set[str] = set()  # nodes that EC2 calls stopped, or soon will
        self._ways: Mapping[str, Callable[[str, str, float], Callable[[], None]]] = {
            "delete": self._delete,
            "kill": self._kill,
            "stop": self._stop,
            "cut": self._cut,
            "take": self._take,
            "rival": self._rival,
            "end": self._end,
        }

    def begin(self, pod: str, how: str, *, for_s: float) -> bool:
        """Begin to move a pod. Returns: False if that must not be now; otherwise `finish` must follow after `for_s`."""
        if pod in self._under_way or self._may_still_take(pod):
            return False
        old = self._places.get(pod)
        if old is None:
            first = sorted(self._nodes)[int(for_s * 100) % 2]
            self._places[pod] = first
            self._kubelets[first].run_pod(pod)
            return False
        finish = self._ways[how](pod, old, for_s)
        self._history.say(f"move {how} of {pod} from {old} for {for_s} s", counted=f"fault move {how}")
        self._under_way[pod] = finish
        return True

    def _may_still_take(self, pod: str) -> bool:
        """Whether an ADD may be under way that would take the address from where the pod is made next: the last one has it."""
        return pod.startswith(TAKING) and any(kubelet.is_busy(pod) for kubelet in self._kubelets.values())

    def finish(self, pod: str) -> None:
        """End what `begin` began."""
        self._under_way.pop(pod)()

    def demand(self) -> None:
        """Demand that every pod has its address on its node, and that EC2 has it there."""
        deadline = time.monotonic() + HELD_S
        while self._missing() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        for what in self._missing():
            self._history.violate(Violation("pinned", self._history.now(), what, f"not so {HELD_S:.0f} s after the last event"))

    def demand_gone(self) -> None:
        """Demand that no ENI has an address of the ranges, after all pods have been removed."""
        deadline = time.monotonic() + GONE_S
        while self._left() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if self._left():
            what = f"at the end, {GONE_S:.0f} s after their pods: EC2 has {self._left()}"
            self._history.violate(Violation("pinned", self._history.now(), "all nodes", what))

    def _missing(self) -> list[str]:
        missing = []
        for pod, name in sorted(self._places.items()):
            address = wish_of(pod).address
            place = self._where(address)
            if not self._kubelets[name].has_pod(pod) or place != name:
                missing.append(f"{name}/{pod} {address}, which EC2 has on {place or 'no node'}")
        return missing

    def _where(self, address: str) -> str:
        """Return the node on whose ENI EC2 has an address; "" if it has it on none of the two."""
        for name, node in self._nodes.items():
            for eni in self._lab.vpc.enis_of(node.lab_node.instance_id):
                if address in map(str, eni.secondary_addresses):
                    return name
        return ""

    def _left(self) -> list[str]:
        every = [str(address) for eni in self._lab.vpc.enis() for address in eni.secondary_addresses]
        pinned = [str(address) for cidr in RANGES.values() for address in cidr]
        return sorted(set(every) & set(pinned))

    def _other(self, name: str) -> str:
        return next(other for other in self._nodes if other != name)

    def _remake(self, pod: str, old: str) -> None:
        """Run a pod on the other node."""
        new = self._other(old)
        self._places[pod] = new
        self._kubelets[new].run_pod(pod)

    # The ways. Each returns what ends it.

    def _delete(self, pod: str, old: str, _: float) -> Callable[[], None]:
        """Its DEL and the ADD on the other node come at the same time."""
        if pod.startswith(TAKING):
            self._kubelets[old].condemn(pod)  # the other node need not wait for the DEL
        self._kubelets[old].remove_pod(pod)
        self._remake(pod, old)
        return _nothing

    def _kill(self, pod: str, old: str, for_s: float) -> Callable[[], None]:
        """The same while the first node's daemon is away, so that its DEL is spooled."""
        node = self._nodes[old]
        node.queue(lambda: node.kill_daemon(down_s=for_s))
        return self._delete(pod, old, for_s)

    def _stop(self, pod: str, old: str, for_s: float) -> Callable[[], None]:
        """EC2 calls the first node stopped: its sandboxes go on, and all its addresses that stay may be taken."""
        node = self._nodes[old]
        there = [name for name, place in self._places.items() if place == old]
        if any(name in self._under_way or self._may_still_take(name) for name in there):
            return self._kill(pod, old, for_s)
        for name in there:
            self._kubelets[old].condemn(name)

        def say_stopped(is_stopped: bool) -> None:
            self._lab.vpc.stop_instance(node.lab_node.instance_id, is_stopped=is_stopped)
            if not is_stopped:
                self._stopping.discard(old)

        self._stopping.add(old)
        node.queue(lambda: node.stop_instance(for_s, say_stopped))
        for name in there:
            self._remake(name, old)
            if name != pod:
                self._under_way[name] = _nothing

        def finish() -> None:
            for name in there:
                self._kubelets[old].remove_pod(name)
                self._under_way.pop(name, None)

        return finish

    def _cut(self, pod: str, old: str, for_s: float) -> Callable[[], None]:
        """The first node does not reach EC2; its daemon lives, and its sandbox goes on."""
        self._nodes[old].cut_off(is_cut=True)
        end = self._take(pod, old, for_s)

        def finish() -> None:
            self._nodes[old].cut_off(is_cut=False)
            end()

        return finish

    def _take(self, pod: str, old: str, _: float) -> Callable[[], None]:
        """The other node takes the address from a node that lives and competes."""
        self._kubelets[old].condemn(pod)
        self._remake(pod, old)
        return lambda: self._kubelets[old].remove_pod(pod)

    def _rival(self, pod: str, old: str, _: float) -> Callable[[], None]:
        """The other node asks for the address of a pod that lives, and must not get it, unless EC2 calls the pod's node stopped."""
        new = self._other(old)
        if self._stopping:
            return self._kill(pod, old, 0.0)
        self._kubelets[new].run_pod(pod)
        return lambda: self._kubelets[new].remove_pod(pod)

    def _end(self, pod: str, old: str, _: float) -> Callable[[], None]:
        """It ends and is made again by a later event."""
        self._kubelets[old].remove_pod(pod)
        del self._places[pod]
        return _nothing


def _nothing() -> None:
    """End a move that needs no end."""
