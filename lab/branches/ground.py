"""A lab with security groups for pods: the store, the controller, and on each node that has a trunk kubelet and its pods service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from lab.branches.controller import COOLDOWN_S, FEATURE, TRUNK_LABEL, BranchController
from lab.branches.kubelet import Kubelet
from lab.branches.pods import PodStore
from lab.branches.pods_service import PodsService
from lab.fabric.port import interface_name
from lab.lab import WIRE_TIMEOUT_S, Lab
from lab.node.errors import NodeError
from lab.vpc.model import Eni


class Branches:
    """All of it for some nodes of a lab. Use as a context."""

    def __init__(
        self,
        lab: Lab,
        *,
        nodes: Sequence[str],
        cooldown_s: float = COOLDOWN_S,
        by_label: bool = True,
        has_mark_policy: bool = True,
        waits: bool = True,
    ) -> None:
        """Say for whom; entering the context starts it, and returns when the trunks are wired, unless told not to wait.

        Args:
            by_label: whether nodes ask for their trunk by the label, or by CNINode's feature.
        """
        self.lab = lab
        self.pods = PodStore(has_mark_policy=has_mark_policy)
        self.controller = BranchController(lab.vpc, self.pods, cooldown_s=cooldown_s)
        self.kubelets: Mapping[str, Kubelet] = {name: Kubelet(lab.node(name), self.pods) for name in nodes}
        self.services: Mapping[str, PodsService] = {
            name: PodsService(self.pods, node=name, root=lab.node(name).root, has_sandbox=kubelet.has_sandbox)
            for name, kubelet in self.kubelets.items()
        }
        self._by_label = by_label
        self._waits = waits
        self._stack = ExitStack()

    def __enter__(self) -> Branches:
        labels = {TRUNK_LABEL: "true"} if self._by_label else {}
        for name, service in self.services.items():
            service.start()
            self._stack.callback(service.stop)
            self.controller.add_node(name, labels=labels, features=() if self._by_label else (FEATURE,))
        self._stack.callback(self.controller.stop)
        self.controller.start()
        if self._waits:
            for name in self.services:
                self.wait_trunk(name)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def wait_trunk(self, node: str) -> Eni:
        """Return a node's trunk when it is wired. Raises: NodeError if it is not in time."""

        def trunk() -> Eni | None:
            return self.lab.vpc.trunks.trunk_of(self.lab.node(node).instance_id)

        if not self.lab.fabric.wait_for(
            lambda fabric: (found := trunk()) is not None and fabric.is_wired(found.eni_id), timeout_s=WIRE_TIMEOUT_S
        ):
            raise NodeError(f"{node} has no trunk: {self.controller.problems} {self.lab.fabric.problems}")
        found = trunk()
        if found is None:
            raise NodeError(f"{node} has no trunk any more")
        return found

    def trunk_link(self, node: str) -> str:
        """Name of the trunk's link on a node."""
        return interface_name(self.wait_trunk(node))
