"""What kubelet does for a pod on one node: its sandbox with its annotations, again while that fails, and its end.

The annotations of a sandbox are those that the pod has when the sandbox is asked for; a changed annotation makes kubelet try again at
once. Source: kubernetes pkg/kubelet/kuberuntime/kuberuntime_sandbox.go, pkg/kubelet/config.
"""

from __future__ import annotations

import threading
import time

from lab.branches.messages import annotations_of
from lab.branches.pods import Pod, PodStore
from lab.node.cri import RUN_TIMEOUT_S
from lab.node.errors import SandboxError
from lab.node.node import Node

BACKOFF_S = 1.0
"""Between two attempts when nothing changes (pkg/kubelet/pod_workers.go, backOffOnTransientErrorPeriod)."""

POD_TIMEOUT_S = 60.0


class Kubelet:
    """One node's. Concurrency: any thread; one at a time for a pod."""

    def __init__(self, node: Node, pods: PodStore) -> None:
        self._node = node
        self._pods = pods
        self._lock = threading.Lock()
        self._sandboxes: dict[str, str] = {}
        self._attempts: dict[str, int] = {}
        self.refusals: list[tuple[str, str]] = []
        """Pod and words of each sandbox that could not be made, in order."""

    def has_sandbox(self, pod: Pod) -> bool:
        """Whether a sandbox of the pod was made and not ended."""
        with self._lock:
            return pod.uid in self._sandboxes

    def sandbox(self, pod: Pod) -> str:
        """ID of the pod's sandbox. Raises: KeyError if it has none."""
        with self._lock:
            return self._sandboxes[pod.uid]

    def attempt(self, pod: Pod, *, timeout_s: float = RUN_TIMEOUT_S) -> str:
        """Make a sandbox for a pod, once. Returns: its ID. Raises: SandboxError; PodGoneError."""
        present = self._pods.get(pod)
        with self._lock:
            number = self._attempts[pod.uid] = self._attempts.get(pod.uid, -1) + 1
        try:
            made = self._node.cri.run_sandbox(
                pod.name,
                namespace=pod.namespace,
                uid=pod.uid,
                attempt=number,
                annotations=annotations_of(present),
                timeout_s=timeout_s,
            )
        except SandboxError as error:
            self.refusals.append((pod.key, str(error)))
            raise
        with self._lock:
            self._sandboxes[pod.uid] = made
        return made

    def run(self, pod: Pod, *, timeout_s: float = POD_TIMEOUT_S) -> str:
        """Make a sandbox, again when the pod changes and after each back-off. Returns: its ID. Raises: SandboxError, the last one."""
        deadline = time.monotonic() + timeout_s
        while True:
            before = dict(self._pods.get(pod).annotations)
            try:
                return self.attempt(pod)
            except SandboxError:
                if time.monotonic() > deadline:
                    raise
            self._wait_change(pod, before)

    def end_sandbox(self, pod: Pod) -> None:
        """Stop and remove the pod's sandbox, if it has one; the pod stays. Raises: SandboxError."""
        with self._lock:
            sandbox = self._sandboxes.get(pod.uid)
        if sandbox is not None:
            self._node.cri.stop(sandbox)
            self._node.cri.remove(sandbox)
            with self._lock:
                self._sandboxes.pop(pod.uid, None)

    def end(self, pod: Pod) -> None:
        """End the sandbox, then the pod. Raises: SandboxError."""
        self.end_sandbox(pod)
        self._pods.delete(pod)

    def _wait_change(self, pod: Pod, before: dict[str, str]) -> None:
        deadline, seen = time.monotonic() + BACKOFF_S, self._pods.version
        while dict(self._pods.get(pod).annotations) == before and (left := deadline - time.monotonic()) > 0:
            seen = self._pods.wait(seen, timeout_s=left)
