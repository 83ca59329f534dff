"""One node of the demo: its daemon, and the kubelet's part of running and removing pods."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from lab.demo.ledger import AddressLedger
from lab.node.daemon import Daemon
from lab.node.errors import NodeError
from lab.node.node import Node
from lab.vpc.family import IPV4, Family
from lab.vpc.model import Address

RUN_TIMEOUT_S = 90.0  # ours, because: above the 60 s of the plugin, whose words we want; a demo that waits longer has failed
CLUSTER_NAME = "demo"

HOLD_S = "3"
"""What is in excess is released after so many seconds, not after an hour, so that the demo's end shows it. Ours: the demo
waits that long."""


PINNED_RANGE = "10.0.3.224/28"
"""The end of the nodes' subnet, from which pods may name addresses (`lab/demo/moves.py`)."""

NETWORK_FILE = "/run/vpc-ipamd/network.json"
"""The network file, which names one pool (`lab/demo/pools.py`)."""

KUBELET_ANNOTATIONS = {"kubernetes.io/config.source": "api"}
"""Of every pod, as kubelet writes them. Source: kubernetes pkg/kubelet/types/pod_update.go."""


@dataclass(frozen=True)
class Pod:
    """One pod that runs: its sandbox, address, and where its network namespace is as the node sees it."""

    node: str
    name: str
    uid: str
    sandbox_id: str
    address: Address
    netns_path: str

    @property
    def holder(self) -> str:
        """Its name in the kubelets' ledger."""
        return f"{self.node}/{self.sandbox_id}"


class DemoNode:
    """One node. Concurrency: pods may be run and removed from many threads; the daemon is for one."""

    def __init__(self, lab_node: Node, *, region: str, ledger: AddressLedger, family: Family) -> None:
        """`ledger` is the kubelets' common one; `family` that of the node's sandboxes."""
        self.lab_node = lab_node
        self.name = lab_node.name
        settings = {"CLUSTER_NAME": CLUSTER_NAME, "VPC_IPAMD_RELEASE_HOLD_SECONDS": HOLD_S, **family.settings}
        settings["VPC_IPAMD_SNAT_ANNOTATION_NAMESPACES"] = "default"  # the runtime hands over the annotations of all pods then
        if family is IPV4:
            settings["VPC_IPAMD_PINNED_ADDRESSES"] = f"default={PINNED_RANGE}"
            settings["VPC_IPAMD_NETWORK_FILE"] = NETWORK_FILE
            settings["VPC_IPAMD_POOL_ANNOTATION_NAMESPACES"] = "default=cards"
        settings["DISABLE_LEAKED_ENI_CLEANUP"] = "true"  # its one look, 1 to 2 min after a start, may fall into the idle seconds
        self.daemon = Daemon(lab_node, region=region, settings=settings)
        self._ledger = ledger
        self._pods: dict[str, Pod] = {}
        self._lock = threading.Lock()  # a leaf

    @property
    def pods(self) -> list[Pod]:
        """Pods that run, by name."""
        with self._lock:
            return [self._pods[name] for name in sorted(self._pods)]

    def run_pod(self, name: str, *, uid: str = "", attempt: int = 0, annotations: Mapping[str, str] = KUBELET_ANNOTATIONS) -> Pod:
        """Have the runtime create a sandbox, once. Raises: SandboxError with the plugin's words."""
        cri = self.lab_node.cri
        sandbox_id = cri.run_sandbox(name, uid=uid, attempt=attempt, annotations=annotations, timeout_s=RUN_TIMEOUT_S)
        status = cri.status(sandbox_id)
        if status.address is None:
            raise NodeError(f"{self.name}: the runtime reports no address for sandbox {sandbox_id}")
        pod = Pod(self.name, name, uid, sandbox_id, status.address, self.lab_node.inside_netns_path(status.netns_path))
        self._ledger.give(pod.address, pod.holder)
        with self._lock:
            self._pods[name] = pod
        return pod

    def remove_pod(self, pod: Pod) -> None:
        """Have the runtime stop and remove a sandbox. Raises: SandboxError."""
        self._ledger.let_go(pod.holder)  # from the call on, as the daemon may give the address before the call returns
        self.lab_node.cri.stop(pod.sandbox_id, timeout_s=RUN_TIMEOUT_S)
        self.lab_node.cri.remove(pod.sandbox_id, timeout_s=RUN_TIMEOUT_S)
        with self._lock:
            self._pods.pop(pod.name, None)
