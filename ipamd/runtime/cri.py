"""CRI adapter: which sandboxes exist, says the runtime.

Only ListPodSandbox, Version and GetContainerEvents are called: the socket is powerful, and we hold it read-only by what we send.
Every call but the stream, which should last for ever, has a deadline; an answer that is cut off is an error, never a short list
(I11).

What real runtimes do with the stream (measured on 1.6.20 and 1.7.24, read in the sources of CRI-O):
containerd 1.6 answers UNIMPLEMENTED. containerd 1.7 sends no headers before its first event; it first sends what it has buffered
since its own start (up to 1000 old events); all its subscribers share one queue, each event reaches one of them only, and a
subscriber that died eats one more (containerd #7318, mended in 2.0). CRI-O without `enable_pod_events` ends the stream at once,
with success. None of it hurts who takes events as hints.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc

from ipamd.model.errors import EventsUnsupportedError, IpamError, RuntimeUnreachableError
from ipamd.model.ids import parse_container_id
from ipamd.model.sandbox import EventKind, RuntimeInfo, Sandbox, SandboxEvent, SandboxState
from ipamd.pb import cri_pb2, cri_pb2_grpc
from ipamd.runtime.channel import MAX_MESSAGE_BYTES, PROBE_TIMEOUT_S, USUAL_SOCKETS, choose_socket, open_channel, unreachable

__all__ = ["CALL_TIMEOUT_S", "MAX_MESSAGE_BYTES", "USUAL_SOCKETS", "CriRuntime"]

CALL_TIMEOUT_S = 10.0
"""Deadline of a list. Ours: a list of 110 sandboxes takes a few milliseconds; kubelet itself waits 2 minutes."""

OPEN_GRACE_S = 0.2
"""How long a stream may take to be refused after the runtime has answered a later call. Ours: both come from one process, within
microseconds of each other; this only delays the first list."""

_KINDS = {
    cri_pb2.CONTAINER_CREATED_EVENT: EventKind.CREATED,
    cri_pb2.CONTAINER_STARTED_EVENT: EventKind.STARTED,
    cri_pb2.CONTAINER_STOPPED_EVENT: EventKind.STOPPED,
    cri_pb2.CONTAINER_DELETED_EVENT: EventKind.DELETED,
}


class CriRuntime:
    """Implements the port `Runtime`. One channel, opened at the first call, reconnected after the runtime restarted."""

    def __init__(
        self, *, socket: str, candidates: tuple[str, ...] = USUAL_SOCKETS, call_timeout_s: float = CALL_TIMEOUT_S
    ) -> None:
        self._configured = socket
        self._candidates = candidates
        self._call_timeout_s = call_timeout_s
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._socket = ""
        self._events_lock = threading.Lock()
        self._events: Any = None

    def info(self) -> RuntimeInfo:
        """Ask who answers, with a short deadline: this is on the way to ready."""
        reply = self._ask("Version", cri_pb2.VersionRequest(version="v1"), PROBE_TIMEOUT_S)
        return RuntimeInfo(name=reply.runtime_name, version=reply.runtime_version, socket=self._socket)

    def sandboxes(self) -> tuple[Sandbox, ...]:
        """List every sandbox in any state, in the runtime's order."""
        reply = self._ask("ListPodSandbox", cri_pb2.ListPodSandboxRequest(), self._call_timeout_s)
        return tuple(_sandbox(item) for item in reply.items)

    def events(self) -> Iterator[SandboxEvent]:
        """Follow the stream until it ends, breaks or is cancelled; the first event is SUBSCRIBED, ours."""
        stub = self._stub()
        call = stub.GetContainerEvents(cri_pb2.GetEventsRequest())
        with self._events_lock:
            self._events = call
        try:
            self._await_open(stub, call)
            yield SandboxEvent("", "", EventKind.SUBSCRIBED)
            for event in call:
                yield _event(event)
        except grpc.RpcError as error:
            raise unreachable(error, call="GetContainerEvents", socket=self._socket) from error
        finally:
            with self._events_lock:
                self._events = None
            call.cancel()
        raise RuntimeUnreachableError(
            f"the container runtime at {self._socket} ended the event stream", details="it is opened again"
        )

    def cancel_events(self) -> None:
        """End a running `events` from another thread."""
        with self._events_lock:
            call = self._events
        if call is not None:
            call.cancel()

    def close(self) -> None:
        """Release the channel."""
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _ask(self, call: str, request: Any, timeout_s: float) -> Any:
        """Make one unary call: a complete answer, or an error."""
        stub = self._stub()
        try:
            reply = getattr(stub, call)(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise unreachable(error, call=call, socket=self._socket) from error
        if reply is None:  # grpcio's answer when the message was cut off and the call still ended with success
            raise RuntimeUnreachableError(
                f"the container runtime at {self._socket} did not answer {call} to the end",
                details="its message was cut off; nothing is freed until a whole one comes",
            )
        return reply

    def _await_open(self, stub: Any, call: Any) -> None:
        """Return when the stream is open as far as can be known, or raise.

        Headers cannot tell: containerd sends none before the first event. But a later call on the same connection that was
        answered proves that the runtime has read the subscription, and a refusal would have come with it.
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
        raise call  # a refused call is its own RpcError

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
        pod_namespace=item.metadata.namespace,
        pod_name=item.metadata.name,
        pod_uid=item.metadata.uid,
    )


def _event(event: cri_pb2.ContainerEventResponse) -> SandboxEvent:
    kind = _KINDS.get(event.container_event_type, EventKind.OTHER)
    return SandboxEvent(event.container_id, event.pod_sandbox_status.id, kind)
