"""CRI adapter: which sandboxes exist, says the runtime.

Only ListPodSandbox, Version and GetContainerEvents are called: the socket is powerful, and we hold it read-only by what we send.
Every call has a deadline; an answer that is cut off is an error, never a short list (I11).
"""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from ipamd.model.errors import EventsUnsupportedError, IpamError, RuntimeUnreachableError
from ipamd.model.ids import parse_container_id
from ipamd.model.sandbox import RuntimeInfo, Sandbox, SandboxEvent, SandboxState
from ipamd.pb import cri_pb2, cri_pb2_grpc

USUAL_SOCKETS = (
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
    "/var/run/dockershim.sock",
)
"""Probed in this order when CRI_SOCKET is not set. Source: Kubernetes documentation of container runtimes, EKS's AMIs."""

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""CRI-O and containerd send lists of 16 MiB and more on crowded nodes. Ours: four times their own limit."""

CALL_TIMEOUT_S = 10.0
"""Deadline of one call. Ours: a list of 110 sandboxes takes a few milliseconds; kubelet itself waits 2 minutes."""

PROBE_TIMEOUT_S = 2.0


class CriRuntime:
    """Implements the port `Runtime`. One channel, opened at the first call, reopened after the runtime restarted."""

    def __init__(self, *, socket: str, candidates: tuple[str, ...] = USUAL_SOCKETS) -> None:
        self._configured = socket
        self._candidates = candidates
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._socket = ""
        self._events: Any = None

    def info(self) -> RuntimeInfo:
        """Ask who answers, with a short deadline: this is on the way to ready."""
        stub = self._stub()
        try:
            reply = stub.Version(cri_pb2.VersionRequest(version="v1"), timeout=PROBE_TIMEOUT_S)
        except grpc.RpcError as error:
            raise self._unreachable(error, "Version") from error
        return RuntimeInfo(name=reply.runtime_name, version=reply.runtime_version, socket=self._socket)

    def sandboxes(self) -> tuple[Sandbox, ...]:
        """List every sandbox in any state, in the runtime's order."""
        stub = self._stub()
        try:
            reply = stub.ListPodSandbox(cri_pb2.ListPodSandboxRequest(), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise self._unreachable(error, "ListPodSandbox") from error
        return tuple(_sandbox(item) for item in reply.items)

    def events(self) -> Iterator[SandboxEvent]:
        """Follow the stream until it ends, breaks or is cancelled; a clean end is an error too, since it should not end."""
        call = self._stub().GetContainerEvents(cri_pb2.GetEventsRequest())
        with self._lock:
            self._events = call
        try:
            for event in call:
                kind = cri_pb2.ContainerEventType.Name(event.container_event_type)
                yield SandboxEvent(event.container_id or event.pod_sandbox_status.id, kind)
        except grpc.RpcError as error:
            raise self._unreachable(error, "GetContainerEvents") from error
        finally:
            with self._lock:
                self._events = None
            call.cancel()

    def cancel_events(self) -> None:
        """End a running `events` from another thread."""
        with self._lock:
            call = self._events
        if call is not None:
            call.cancel()

    def close(self) -> None:
        """Release the channel."""
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _stub(self) -> Any:
        with self._lock:
            path = find_socket(self._configured, self._candidates)
            if self._channel is None or path != self._socket:
                if self._channel is not None:
                    self._channel.close()
                self._socket = path
                self._channel = grpc.insecure_channel(
                    f"unix://{path}",
                    options=[
                        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                        ("grpc.enable_http_proxy", 0),
                        # A restarted runtime must be seen at once: the default back-off grows to two minutes.
                        ("grpc.initial_reconnect_backoff_ms", 100),
                        ("grpc.max_reconnect_backoff_ms", 1000),
                    ],
                )
            return cri_pb2_grpc.RuntimeServiceStub(self._channel)  # type: ignore[no-untyped-call]  # generated code

    def _unreachable(self, error: grpc.RpcError, call: str) -> RuntimeUnreachableError:
        # At run time every RpcError of a call is a grpc.Call too; the stubs cannot say so.
        status: Any = error
        code, text = status.code(), status.details() or "no text"
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return EventsUnsupportedError(
                f"the runtime at {self._socket} does not know {call}", details="re-listing takes its place (containerd < 1.7)"
            )
        return RuntimeUnreachableError(
            f"the container runtime at {self._socket} did not answer {call}",
            details=f"{code.name}: {text}; nothing is freed until it answers",
        )


def find_socket(configured: str, candidates: tuple[str, ...]) -> str:
    """Choose the CRI socket: the configured one, or the first usual one that is there.

    Raises: RuntimeUnreachableError naming what was looked for.
    """
    paths = (configured.removeprefix("unix://"),) if configured else candidates
    for path in paths:
        try:
            if stat.S_ISSOCK(Path(path).stat().st_mode):
                return path
        except OSError:
            continue
    raise RuntimeUnreachableError(
        f"no CRI socket at {', '.join(paths)}",
        details="start the runtime, mount its socket, or set CRI_SOCKET (or CRI_SOCKET=off)",
    )


def _sandbox(item: cri_pb2.PodSandbox) -> Sandbox:
    try:
        container_id = parse_container_id(item.id)
    except IpamError as error:
        raise RuntimeUnreachableError("the runtime listed a sandbox without a usable ID", details=str(error)) from error
    return Sandbox(
        container_id=container_id,
        state=SandboxState.READY if item.state == cri_pb2.SANDBOX_READY else SandboxState.NOTREADY,
        pod_namespace=item.metadata.namespace,
        pod_name=item.metadata.name,
        pod_uid=item.metadata.uid,
    )
