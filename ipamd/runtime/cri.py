"""The port `Runtime` over CRI: the sandboxes that the container runtime has.

Only ListPodSandbox, Version and GetContainerEvents are called. The socket would allow everything, so read-only is a matter of what
we send. Every call except the stream has a deadline. An answer that is cut off is an error, never a short list (I11).

Event streams of real runtimes (measured with containerd 1.6.20 and 1.7.24, read in CRI-O's source):
containerd 1.6 answers UNIMPLEMENTED. containerd 1.7 sends no headers before its first event. It first sends up to 1000 buffered
events since its own start. All subscribers share one queue: each event reaches only one of them, and a dead subscriber takes one
more (https://github.com/containerd/containerd/issues/7318, fixed in 2.0). CRI-O without `enable_pod_events` ends the stream at
once with success. All of this is harmless as long as events are only hints (docs/adr/0013).
"""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from ipamd.grpc_client import MAX_ANSWER_BYTES, open_channel, status
from ipamd.model.branch import ANNOTATION_MAX, POD_ENI
from ipamd.model.errors import EventsUnsupportedError, IpamError, RuntimeUnreachableError
from ipamd.model.ids import CONTAINER_ID_MAX, parse_container_id
from ipamd.model.sandbox import EventKind, RuntimeInfo, Sandbox, SandboxEvent, SandboxState
from ipamd.model.words import printable
from ipamd.pb import cri_pb2, cri_pb2_grpc
from ipamd.ports import Runtime

# The connection to the container runtime: socket, limits, and the conversion of its failures.
#
# An existing socket proves little: a removed runtime leaves its file behind, and Docker's containerd serves no CRI. So the first
# candidate that answers CRI's Version is used, for the life of the process: in the list of another runtime every sandbox would
# seem to be gone (I11).


USUAL_SOCKETS = (
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
    "/var/run/dockershim.sock",
)
"""Probed in this order if CRI_SOCKET is not set.

Source: https://kubernetes.io/docs/setup/production-environment/container-runtimes/; dockershim.sock is the old default of kubelet,
and some node images keep it as a link.
"""

PROBE_TIMEOUT_S = 2.0
"""Ours: a runtime answers Version from memory in under a millisecond; a candidate that takes longer is not serving."""


def choose_socket(configured: str, candidates: tuple[str, ...]) -> str:
    """Find the CRI socket: the configured one, or the first candidate that answers CRI's Version.

    Raises: RuntimeUnreachableError with the problem at each path.
    """
    if configured:
        path = configured.removeprefix("unix://")
        problem = _socket_problem(path)
        if problem:
            raise _nobody({path: problem})
        return path
    problems: dict[str, str] = {}
    for path in candidates:
        problems[path] = _socket_problem(path) or _probe(path)
        if not problems[path]:
            return path
    raise _nobody(problems)


def unreachable(error: grpc.RpcError, *, call: str, socket: str) -> RuntimeUnreachableError:
    """Convert a gRPC error into our error: why the call gave no complete answer."""
    code, said = status(error)
    if code is grpc.StatusCode.UNIMPLEMENTED and call == "GetContainerEvents":
        return EventsUnsupportedError(
            f"the runtime at {socket} does not know {call}", details="re-listing takes its place (containerd < 1.7)"
        )
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return RuntimeUnreachableError(
            f"what listens at {socket} serves no CRI v1 ({call} is not known there)",
            details="enable the runtime's CRI plugin, or set CRI_SOCKET; nothing is freed until it answers",
        )
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return RuntimeUnreachableError(
            f"the answer of the container runtime at {socket} to {call} is larger than {MAX_ANSWER_BYTES >> 20} MiB",
            details=f"{said}; remove exited sandboxes; nothing is freed until a whole list fits",
        )
    return RuntimeUnreachableError(
        f"the container runtime at {socket} did not answer {call}",
        details=f"{said}; nothing is freed until it answers",
    )


def _nobody(problems: dict[str, str]) -> RuntimeUnreachableError:
    return RuntimeUnreachableError(
        f"no CRI socket at {', '.join(problems)}",
        details="; ".join(f"{path}: {problem}" for path, problem in problems.items())
        + "; start the runtime, mount its socket, or set CRI_SOCKET (or CRI_SOCKET=off)",
    )


def _socket_problem(path: str) -> str:
    try:
        return "" if stat.S_ISSOCK(Path(path).stat().st_mode) else "not a socket"
    except OSError as error:
        return error.strerror or str(error)


def _probe(path: str) -> str:
    with open_channel(path) as channel:
        stub = cri_pb2_grpc.RuntimeServiceStub(channel)  # type: ignore[no-untyped-call]  # generated code
        try:
            stub.Version(cri_pb2.VersionRequest(version="v1"), timeout=PROBE_TIMEOUT_S)
        except grpc.RpcError as error:
            return status(error)[1]
    return ""


CALL_TIMEOUT_S = 10.0
"""Deadline of a list. Ours: a list of 110 sandboxes takes a few milliseconds; kubelet waits 2 minutes."""

NAME_MAX = 253
"""Characters of a name that are kept; they are aids to people. Ours: those that CNI_ARGS give are cut alike (`ipamd/rpc/cni.py`)."""

OPEN_GRACE_S = 0.2
"""How long a refusal of the stream may arrive after the answer to a later call. Ours: one process sends both within
microseconds; this only delays the first list."""

_KINDS = {
    cri_pb2.CONTAINER_CREATED_EVENT: EventKind.CREATED,
    cri_pb2.CONTAINER_STARTED_EVENT: EventKind.STARTED,
    cri_pb2.CONTAINER_STOPPED_EVENT: EventKind.STOPPED,
    cri_pb2.CONTAINER_DELETED_EVENT: EventKind.DELETED,
}


class CriRuntime(Runtime):
    """The runtime behind one channel, which is opened at the first call and reconnects after the runtime restarted."""

    def __init__(
        self, *, socket: str, candidates: tuple[str, ...] = USUAL_SOCKETS, call_timeout_s: float = CALL_TIMEOUT_S
    ) -> None:
        self._configured = socket
        self._candidates = candidates
        self._call_timeout_s = call_timeout_s
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._socket = ""
        self._events: Any = None

    def info(self) -> RuntimeInfo:
        # A short deadline, because the daemon waits for this answer before it is ready.
        reply = self._ask("Version", cri_pb2.VersionRequest(version="v1"), PROBE_TIMEOUT_S)
        name, version = (printable(text, most=NAME_MAX) for text in (reply.runtime_name, reply.runtime_version))
        return RuntimeInfo(name=name, version=version, socket=self._socket)

    def sandboxes(self) -> tuple[Sandbox, ...]:
        reply = self._ask("ListPodSandbox", cri_pb2.ListPodSandboxRequest(), self._call_timeout_s)
        return tuple(_sandbox(item) for item in reply.items)

    def events(self) -> Iterator[SandboxEvent]:
        stub = self._stub()
        call = stub.GetContainerEvents(cri_pb2.GetEventsRequest())
        self._events = call
        try:
            self._await_open(stub, call)
            yield SandboxEvent("", "", EventKind.SUBSCRIBED)
            for event in call:
                kind = _KINDS.get(event.container_event_type, EventKind.OTHER)
                sandbox_id = event.pod_sandbox_status.id[:CONTAINER_ID_MAX]
                yield SandboxEvent(event.container_id[:CONTAINER_ID_MAX], sandbox_id, kind)
        except grpc.RpcError as error:
            raise unreachable(error, call="GetContainerEvents", socket=self._socket) from error
        finally:
            self._events = None
            call.cancel()
        raise RuntimeUnreachableError(
            f"the container runtime at {self._socket} ended the event stream", details="it is opened again"
        )

    def cancel_events(self) -> None:
        if (call := self._events) is not None:
            call.cancel()

    def close(self) -> None:
        """Close the channel; a later call opens another one."""
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _ask(self, call: str, request: Any, timeout_s: float) -> Any:
        """Make one unary call. Returns: a complete answer. Raises: RuntimeUnreachableError."""
        stub = self._stub()
        try:
            reply = getattr(stub, call)(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise unreachable(error, call=call, socket=self._socket) from error
        if reply is None:  # grpcio returns None if the message was cut off but the call ended with success
            raise RuntimeUnreachableError(
                f"the container runtime at {self._socket} did not answer {call} to the end",
                details="its message was cut off; nothing is freed until a whole one comes",
            )
        return reply

    def _await_open(self, stub: Any, call: Any) -> None:
        """Return when the stream is open, as far as that can be known, or raise.

        Headers do not help: containerd sends none before the first event. But if a later call on the same connection was
        answered, the runtime has read the subscription, and a refusal would have arrived with that answer.
        """
        ended = threading.Event()
        if not call.add_callback(ended.set):
            ended.set()
        stub.Version(cri_pb2.VersionRequest(version="v1"), timeout=PROBE_TIMEOUT_S)
        if not ended.wait(OPEN_GRACE_S):
            return
        if call.code() is grpc.StatusCode.OK:
            raise EventsUnsupportedError(
                f"the runtime at {self._socket} ends the event stream at once",
                details="re-listing takes its place (CRI-O: enable_pod_events is off)",
            )
        raise call  # a refused call is itself an RpcError

    def _stub(self) -> Any:
        with self._lock:
            if self._channel is None:
                if not self._socket:
                    self._socket = choose_socket(self._configured, self._candidates)
                self._channel = open_channel(self._socket)
            return cri_pb2_grpc.RuntimeServiceStub(self._channel)  # type: ignore[no-untyped-call]  # generated code


def _sandbox(item: cri_pb2.PodSandbox) -> Sandbox:
    try:
        container_id = parse_container_id(item.id)
    except IpamError as error:
        raise RuntimeUnreachableError("the runtime listed a sandbox without a usable ID", details=str(error)) from error
    return Sandbox(
        container_id=container_id,
        state=SandboxState.READY if item.state == cri_pb2.SANDBOX_READY else SandboxState.NOTREADY,
        pod_namespace=item.metadata.namespace[:NAME_MAX],
        pod_name=item.metadata.name[:NAME_MAX],
        pod_uid=item.metadata.uid[:NAME_MAX],
        branch_annotation=item.annotations.get(POD_ENI, "")[: ANNOTATION_MAX + 1],
    )
