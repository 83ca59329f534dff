"""A lab node with a trunk while it is recorded: the control plane's controller, kubelet's pods service, and pods of both kinds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from lab.branches.ground import Branches
from lab.branches.messages import annotations_of
from lab.branches.pods import POD_ENI, Pod
from lab.node import vlan_standin
from tests.aws_node import Runtime
from tests.recordings.stage import Stage
from tests.rig import CniReply, Rig

ANNOTATIONS = "io.kubernetes.cri.pod-annotations"


class BranchStage(Stage):
    """The node; its pods are those of a store. `branches`: who makes branch ENIs, with the real cooldown, and tells of pods."""

    module = vlan_standin.__name__

    def __init__(self, made: Rig, runtime: Runtime, *, seed: int, interval_s: int, speed: int) -> None:
        super().__init__(made, runtime, seed=seed, interval_s=interval_s, speed=speed)
        self._stack = ExitStack()
        self.branches = self._stack.enter_context(Branches(made.lab, nodes=[made.node.name]))
        self._group = made.lab.vpc.add_security_group("pods")
        self._pods: dict[str, Pod] = {}
        self._told: dict[str, str] = {}
        self._made = 0

    def want_branches(self, count: int, *, groups: tuple[str, ...] = (), named: str = "") -> None:
        """Start so many pods with security groups at once, by default with one that there is; returns at once. `named`: what somebody
        else than the controller writes as their ENIs."""
        for _ in range(count):
            self._made += 1
            name = f"web-{self._made}"
            self._pods[name] = self.branches.pods.create(name, node=self.rig.node.name, groups=groups or (self._group,))
            if named:
                self.branches.pods.annotate(self._pods[name], POD_ENI, named)
            self._workers.submit(self.add, name)

    def churn_of_both(self, every_s: float, *, most: int, share: float) -> Callable[[], None]:
        """A load: as `churn`; of the pods that start this share has security groups, unless so many have."""

        def add() -> None:
            living = sum(pod.wants_branch for pod in self.branches.pods.pods())
            if living < most and self.rng.random() < share:
                self.want_branches(1)
            else:
                self.add()

        return self.churn(every_s, low=most, add=add)

    def lose_trunk(self) -> None:
        """Somebody detaches and deletes the trunk, and the controller, which is away meanwhile, is not asked for another."""
        trunk = self.branches.wait_trunk(self.rig.node.name)
        self.branches.controller.stop()
        self.branches.controller.add_node(self.rig.node.name)
        self.branches.controller.start()
        self.rig.lab.vpc.hands.delete(trunk.eni_id)

    def remove(self) -> bool:
        """End one pod, any, and its entry in the store. Returns: whether DEL succeeded."""
        with self._lock:
            sandbox = self.rng.choice(self.running)
            self.running.remove(sandbox)
        self.runtime.stop_pod(sandbox)
        is_done = self.rig.delete(sandbox).ok
        self.branches.pods.delete(self._pods.pop(sandbox))
        return is_done

    def close(self) -> None:
        """End the load, then who serves it."""
        super().close()
        self._stack.close()

    def _begin(self, name: str, sandbox: str) -> CniReply:
        pods = self.branches.pods
        pod = self._pods[sandbox] = self._pods.get(name) or pods.create(sandbox, node=self.rig.node.name)
        present = pods.get(pod)
        self._told[name] = present.annotations.get(POD_ENI, "")
        conf = {"runtimeConfig": {ANNOTATIONS: annotations_of(present)}}
        reply = self.rig.add(sandbox, pod=pod.name, uid=pod.uid, conf=conf)
        if not reply.ok:
            del self._pods[sandbox]
            if name not in self._pods:
                pods.delete(pod)
        return reply

    def _is_news(self, name: str) -> bool:
        pod = self._pods.get(name)
        return pod is not None and self.branches.pods.get(pod).annotations.get(POD_ENI, "") != self._told[name]
