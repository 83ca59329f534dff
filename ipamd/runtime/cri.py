"""The port `Runtime` over CRI: the sandboxes that the container runtime has.

Only ListPodSandbox, Version, GetContainerEvents and, while an appended plugin is missing, Status are called. The socket would allow
every call, also calls that change the node. Every call except the event stream has a deadline. An answer that is cut off is an error,
never a short list (I11).

Event streams of real runtimes differ (measured with containerd 1.6.20 and 1.7.24, read in CRI-O's source):

- containerd 1.6 answers UNIMPLEMENTED.
- containerd 1.7 sends no headers before its first event. It first sends up to 1000 buffered events since its own start. All
  subscribers share one queue, so each event reaches only one subscriber, and a subscriber that has died still takes one event
  (https://github.com/containerd/containerd/issues/7318, fixed in 2.0).
- CRI-O without `enable_pod_events` ends the stream at once with success.

All of this is harmless as long as events are only hints (docs/adr/0013).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from ipamd.grpc_client import Peer, status
from ipamd.model.errors import EventsUnsupportedError, IpamError, RuntimeUnreachableError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.ids import CONTAINER_ID_MAX, parse_container_id
from ipamd.model.pod_annotations import ANNOTATION_MAX, POD_ENI
from ipamd.model.sandbox import EventKind, RuntimeInfo, Sandbox, SandboxEvent, SandboxState
from ipamd.model.words import printable
from ipamd.pb import cri_pb2, cri_pb2_grpc
from ipamd.ports.runtime import Runtime
from ipamd.runtime.cri_socket import PROBE_TIMEOUT_S, USUAL_SOCKETS, choose_socket, unreachable
from ipamd.runtime.plugin_directories import plugin_directories

CALL_TIMEOUT_S = 10.0
"""Deadline of ListPodSandbox and of Status. Ours: far longer than the few milliseconds that a list of 110 sandboxes takes, and far
shorter than the 2 minutes that kubelet waits."""

NAME_MAX = 253
"""Characters to which names of pods and of the runtime are cut. Ours: Kubernetes allows 253 for a pod's name. Names in CNI_ARGS are
cut in the same way (`ipamd/rpc/envelope.py`)."""

OPEN_GRACE_S = 0.2
"""Longest wait for a refusal of the event stream, after the answer to a later call on the same connection. Ours: long enough,
because the runtime sends refusal and answer within microseconds of each other. The wait only delays the first list."""

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
        self._peer: Peer | None = None
        self._socket = ""
        self._events: Any = None

    def info(self) -> RuntimeInfo:
        # A short deadline, because the daemon waits for this answer before it is ready.
        reply = self._ask("Version", cri_pb2.VersionRequest(version="v1"), PROBE_TIMEOUT_S)
        name, version = (printable(text, most=NAME_MAX) for text in (reply.runtime_name, reply.runtime_version))
        return RuntimeInfo(name=name, version=version, socket=self._socket)

    def sandboxes(self) -> tuple[Sandbox, ...]:
        reply = self._ask("ListPodSandbox", cri_pb2.ListPodSandboxRequest(), self._call_timeout_s)
        return tuple(_sandbox(listed_sandbox) for listed_sandbox in reply.items)

    def plugin_directories(self) -> tuple[Path, ...]:
        reply = self._ask("Status", cri_pb2.StatusRequest(verbose=True), self._call_timeout_s)
        return plugin_directories(reply.info)

    def events(self) -> Iterator[SandboxEvent]:
        peer = self._connected()
        stub = peer.stub()
        try:
            _require_thread()
            call = stub.GetContainerEvents(cri_pb2.GetEventsRequest())
        except RuntimeError as error:
            raise failure(
                RuntimeUnreachableError, FailureCode.EVENT_STREAM_NOT_OPENED, socket=self._socket, cause=error
            ) from error
        self._events = call
        try:
            self._await_open(peer, stub, call)
            yield SandboxEvent("", "", EventKind.SUBSCRIBED)
            for event in call:
                kind = _KINDS.get(event.container_event_type, EventKind.OTHER)
                sandbox_id = event.pod_sandbox_status.id[:CONTAINER_ID_MAX]
                yield SandboxEvent(event.container_id[:CONTAINER_ID_MAX], sandbox_id, kind)
        except grpc.RpcError as error:
            peer.call_failed(stub, status(error)[0])
            raise unreachable(error, call="GetContainerEvents", socket=self._socket) from error
        finally:
            self._events = None
            call.cancel()
        raise failure(RuntimeUnreachableError, FailureCode.EVENT_STREAM_ENDED, socket=self._socket)

    def cancel_events(self) -> None:
        call = self._events
        if call is not None:
            call.cancel()

    def close(self) -> None:
        """Close the channel; a later call opens another one."""
        with self._lock:
            peer, self._peer = self._peer, None
        if peer is not None:
            peer.close()

    def _ask(self, call: str, request: Any, timeout_s: float) -> Any:
        """Make one unary call. Returns: a complete answer. Raises: RuntimeUnreachableError."""
        try:
            reply = self._connected().ask(call, request, timeout_s=timeout_s)
        except grpc.RpcError as error:
            raise unreachable(error, call=call, socket=self._socket) from error
        if reply is None:  # grpcio returns None if the message was cut off but the call ended with success
            raise failure(RuntimeUnreachableError, FailureCode.RUNTIME_ANSWER_CUT_OFF, socket=self._socket, call=call)
        return reply

    def _await_open(self, peer: Peer, stub: Any, call: Any) -> None:
        """Wait until the stream is open, as far as that can be known. Raises: EventsUnsupportedError, grpc.RpcError.

        Headers do not show that it is open, because containerd sends none before the first event. But once a later call on the same
        connection is answered, the runtime has read the subscription, and a refusal would have arrived with that answer.
        """
        ended = threading.Event()
        if not call.add_callback(ended.set):
            ended.set()
        peer.ask("Version", cri_pb2.VersionRequest(version="v1"), timeout_s=PROBE_TIMEOUT_S, stub=stub)
        if not ended.wait(OPEN_GRACE_S):
            return
        if call.code() is grpc.StatusCode.OK:
            raise failure(EventsUnsupportedError, FailureCode.EVENT_STREAM_ENDS_AT_ONCE, socket=self._socket)
        raise call  # a refused call is itself an RpcError

    def _connected(self) -> Peer:
        with self._lock:
            if self._peer is None:
                if not self._socket:
                    self._socket = choose_socket(self._configured, self._candidates)
                self._peer = Peer(self._socket, cri_pb2_grpc.RuntimeServiceStub)
            return self._peer


def _require_thread() -> None:
    """Check that a thread can be made now. Raises: RuntimeError.

    Call it before grpcio makes a thread for a stream. If grpcio itself fails to make that thread, it counts the stream as open, gives
    no later stream of the channel a thread, and never ends a close of the channel.
    """
    thread = threading.Thread(target=int, name="trial", daemon=True)
    thread.start()
    thread.join()


def _sandbox(listed_sandbox: cri_pb2.PodSandbox) -> Sandbox:
    try:
        container_id = parse_container_id(listed_sandbox.id)
    except IpamError as error:
        raise failure(RuntimeUnreachableError, FailureCode.SANDBOX_WITHOUT_ID, cause=str(error)) from error
    return Sandbox(
        container_id=container_id,
        state=SandboxState.READY if listed_sandbox.state == cri_pb2.SANDBOX_READY else SandboxState.NOTREADY,
        pod_namespace=listed_sandbox.metadata.namespace[:NAME_MAX],
        pod_name=listed_sandbox.metadata.name[:NAME_MAX],
        pod_uid=listed_sandbox.metadata.uid[:NAME_MAX],
        eni_annotation=listed_sandbox.annotations.get(POD_ENI, "")[: ANNOTATION_MAX + 1],
    )
