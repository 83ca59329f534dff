"""A CRI client for the kubelet's part: run, stop, remove and list the pod sandboxes of one node.

Only what the lab needs. The daemon has its own CRI client: a test must not share the code that it tests.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, TypeVar

import grpc

from ipamd.pb import cri_pb2, cri_pb2_grpc
from lab.node.errors import SandboxError
from lab.vpc.model import Address

T = TypeVar("T")

RUN_TIMEOUT_S = 240.0  # the kubelet's own (runtimeRequestTimeout x 2), pkg/kubelet/cri/remote
CALL_TIMEOUT_S = 30.0
STATUS_TIMEOUT_S = 5.0  # ours: containerd answers within milliseconds, so after 5 s it hangs, and the caller asks again


@dataclass(frozen=True)
class Sandbox:
    """One pod sandbox in the answer of ListPodSandbox."""

    sandbox_id: str
    name: str
    namespace: str
    uid: str
    attempt: int
    is_ready: bool


@dataclass(frozen=True)
class SandboxStatus:
    """One pod sandbox in the answer of PodSandboxStatus.

    `address`: the pod's address; None if CRI reports none.
    `netns_path`: the path of its network namespace in the node; "" if the namespace is gone.
    """

    sandbox_id: str
    is_ready: bool
    address: Address | None
    netns_path: str


class CriClient:
    """Calls one containerd over its Unix socket. Concurrency: any thread."""

    def __init__(self, socket_path: str) -> None:
        """`socket_path`: the path of the socket for this process. The first call makes the connection."""
        options = [("grpc.default_authority", "localhost"), ("grpc.initial_reconnect_backoff_ms", 50)]
        self._channel = grpc.insecure_channel(f"unix:{socket_path}", options=options)
        self._runtime = cri_pb2_grpc.RuntimeServiceStub(self._channel)  # type: ignore[no-untyped-call]  # generated

    def run_sandbox(
        self,
        name: str,
        *,
        namespace: str = "default",
        uid: str = "",
        attempt: int = 0,
        annotations: Mapping[str, str] | None = None,
        timeout_s: float = RUN_TIMEOUT_S,
    ) -> str:
        """Create and start a sandbox as the kubelet would; return its ID (CNI's container ID). `annotations`: those of the pod.

        Raises: SandboxError with the runtime's message, which contains the CNI plugin's error.
        """
        config = cri_pb2.PodSandboxConfig(
            metadata=cri_pb2.PodSandboxMetadata(name=name, namespace=namespace, uid=uid or str(uuid.uuid4()), attempt=attempt),
            hostname=name,
            annotations=annotations or {},
            linux=cri_pb2.LinuxPodSandboxConfig(cgroup_parent="/kubepods"),
        )
        request = cri_pb2.RunPodSandboxRequest(config=config)
        answer = _call(f"run sandbox {namespace}/{name}", self._runtime.RunPodSandbox, request, timeout_s)
        return str(answer.pod_sandbox_id)

    def stop(self, sandbox_id: str, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Stop a sandbox: the runtime calls DEL and ends the processes. Idempotent.

        A sandbox that the runtime does not know counts as stopped, because a removal whose answer was lost may have taken effect.
        Source: kubernetes pkg/kubelet/kuberuntime/kuberuntime_manager.go, which treats NotFound as success.
        """
        request = cri_pb2.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)
        try:
            _call(f"stop sandbox {sandbox_id}", self._runtime.StopPodSandbox, request, timeout_s)
        except SandboxError as error:
            if not isinstance(error.__cause__, grpc.RpcError) or error.__cause__.code() is not grpc.StatusCode.NOT_FOUND:
                raise

    def remove(self, sandbox_id: str, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Remove a sandbox; the runtime stops it first if it runs. Idempotent."""
        request = cri_pb2.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)
        _call(f"remove sandbox {sandbox_id}", self._runtime.RemovePodSandbox, request, timeout_s)

    def list(self) -> list[Sandbox]:
        """List all sandboxes, ready or not, by namespace and name."""
        answer = _call("list sandboxes", self._runtime.ListPodSandbox, cri_pb2.ListPodSandboxRequest(), CALL_TIMEOUT_S)
        found = [
            Sandbox(
                sandbox_id=item.id,
                name=item.metadata.name,
                namespace=item.metadata.namespace,
                uid=item.metadata.uid,
                attempt=item.metadata.attempt,
                is_ready=item.state == cri_pb2.SANDBOX_READY,
            )
            for item in answer.items
        ]
        return sorted(found, key=lambda sandbox: (sandbox.namespace, sandbox.name, sandbox.sandbox_id))

    def status(self, sandbox_id: str) -> SandboxStatus:
        """Return a sandbox's state, address and network namespace.

        Raises: SandboxError if the runtime does not know the sandbox.
        """
        request = cri_pb2.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        answer = _call(f"status of sandbox {sandbox_id}", self._runtime.PodSandboxStatus, request, CALL_TIMEOUT_S)
        address = answer.status.network.ip
        return SandboxStatus(
            sandbox_id=sandbox_id,
            is_ready=answer.status.state == cri_pb2.SANDBOX_READY,
            address=ip_address(address) if address else None,
            netns_path=_netns_path(json.loads(answer.info.get("info", "{}"))),
        )

    def network_problem(self, *, timeout_s: float = STATUS_TIMEOUT_S) -> str:
        """Return the runtime's reason why it has no network for sandboxes; "" once it has loaded a CNI configuration.

        From version 2.0.1 on containerd calls STATUS of the CNI plugins before it answers. Raises: SandboxError if the runtime does
        not answer in time.
        """
        answer = _call("ask the runtime's status", self._runtime.Status, cri_pb2.StatusRequest(), timeout_s)
        for condition in answer.status.conditions:
            if condition.type == "NetworkReady":
                return "" if condition.status else str(condition.message or condition.reason or "NetworkReady is false")
        return "the runtime tells no condition NetworkReady"

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._channel.close()


def _netns_path(info: dict[str, Any]) -> str:
    """Read the path of the network namespace from containerd's verbose status, which has the OCI spec of the pause container."""
    spec = info.get("runtimeSpec") or {}
    for namespace in (spec.get("linux") or {}).get("namespaces", []):
        if namespace["type"] == "network":
            return str(namespace.get("path", ""))
    return ""


def _call(what: str, method: Callable[..., T], request: Any, timeout_s: float) -> T:
    try:
        return method(request, timeout=timeout_s)
    except grpc.RpcError as exc:
        details = exc.details() if hasattr(exc, "details") else str(exc)
        raise SandboxError(f"cannot {what}: {details}") from exc
