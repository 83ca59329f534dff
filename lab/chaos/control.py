"""The control plane of the one chaos node that has a trunk, which is disturbed: pods, the controller, kubelet's pods service.

What the controller gave is the truth by which pods are judged: one that must have groups has that address and no other, and nobody
reaches it whom its groups do not name. The daemon is not asked.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any

from lab.branches.controller import Given
from lab.branches.ground import Branches
from lab.branches.messages import annotations_of
from lab.branches.pods import Pod
from lab.chaos.history import History
from lab.lab import Lab

PREFIX = "sg-"
"""How the names of pods begin that must have groups."""

NO_BRANCH_HAS = 77
"""A VLAN ID that is far above those of a trunk with nine branches."""

WATCH_S = 0.5
END_S = 20.0


@dataclass(frozen=True)
class Grant:
    """What the controller gave a pod. `is_mistold`: its annotation says something else, so that it is not demanded that it works."""

    given: Given
    is_mistold: bool


class ChaosControl:
    """One node's. Concurrency: any thread; `disturb` returns at once."""

    def __init__(self, lab: Lab, node: str, *, friend: str, cooldown_s: float, history: History) -> None:
        """`friend`: the host that the groups of the pods name. Nothing is started yet."""
        self.node = node
        self._branches = Branches(lab, nodes=[node], cooldown_s=cooldown_s, waits=False)
        self._group = lab.vpc.add_security_group("chaos", sources=[ip_network(lab.primary_address(friend))])
        self._history = history
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._mistold: set[str] = set()
        self._deeds: queue.Queue[Mapping[str, Any]] = queue.Queue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"control-{node}", daemon=True)

    def open(self) -> None:
        """Start it; the trunk is there when this returns."""
        self._stack.enter_context(self._branches)
        self._branches.wait_trunk(self.node)
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(END_S)
        self._stack.close()

    def begin(self, name: str) -> Pod:
        """A new pod of a name, bound to the node."""
        groups = (self._group,) if name.startswith(PREFIX) else ()
        return self._branches.pods.create(name, node=self.node, groups=groups)

    def annotations(self, pod: Pod) -> dict[str, str]:
        """Those that a sandbox of the pod gets now."""
        return annotations_of(self._branches.pods.get(pod))

    def end(self, pod: Pod) -> None:
        """The pod is no more; its branch cools from now on."""
        self._branches.pods.delete(pod)

    def grant(self, pod: Pod) -> Grant | None:
        """What it was given; None if nothing, or if it needs nothing."""
        given = self._branches.controller.given(pod)
        with self._lock:
            return Grant(given, given.eni_id in self._mistold) if given is not None else None

    def disturb(self, deed: Mapping[str, Any]) -> None:
        """Do something when what was asked before is over; returns at once."""
        self._deeds.put(deed)

    def calm(self) -> None:
        """Wait until everything that was asked is over."""
        self._deeds.join()

    def problems(self) -> list[str]:
        """Failures of the stand-ins themselves."""
        return list(self._branches.controller.problems)

    def lines(self) -> list[str]:
        """What the controller gave, a branch a line."""
        return [f"{given}\n" for given in self._branches.controller.record]

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                deed = self._deeds.get(timeout=WATCH_S)
            except queue.Empty:
                continue
            try:
                self._history.say(
                    f"control {deed['what']} {deed['for_s']}", node=self.node, counted=f"fault control-{deed['what']}"
                )
                self._do(deed["what"], for_s=deed["for_s"], slow_s=deed["slow_s"])
            except Exception as error:  # noqa: BLE001  # top of a loop: the lab's own failure must be seen, and not end the run
                self._history.say(f"the lab failed on the control plane: {error!r}", node=self.node, counted="lab error")
            finally:
                self._deeds.task_done()

    def _do(self, what: str, *, for_s: float, slow_s: float) -> None:
        controller, service = self._branches.controller, self._branches.services[self.node]
        match what:
            case "die":
                controller.stop()
                self._closed.wait(for_s)
                controller.start()
            case "mistell":
                controller.wrong = self._mistell
                self._closed.wait(for_s)
                controller.wrong = None
            case "kubelet-dies":
                service.stop()
                self._closed.wait(for_s)
                service.start()
            case _:
                target, name, during, after = {
                    "slow": (controller, "slow_s", slow_s, 0.0),
                    "forget-annotations": (controller, "forgets_annotations", True, False),
                    "forget-ends": (controller, "forgets_ends", True, False),
                    "kubelet-starts": (service, "is_starting", True, False),
                    "kubelet-slow": (service, "delay_s", slow_s, 0.0),
                }[what]
                setattr(target, name, during)
                self._closed.wait(for_s)
                setattr(target, name, after)

    def _mistell(self, entry: dict[str, Any]) -> dict[str, Any]:
        """The ID of no branch, or that of another pod."""
        with self._lock:
            self._mistold.add(entry["eniId"])
        return {**entry, "vlanId": NO_BRANCH_HAS if entry["vlanId"] % 2 else max(1, entry["vlanId"] - 1)}
