"""A CRI server of our own on a Unix socket, which answers as told: late, cut off, too much, not at all.

Two of them: `FakeCri` speaks gRPC through grpcio; `CutOffCri` speaks just enough HTTP/2 by hand to stop in the middle of a
message, which no gRPC library lets its user do.
"""

from __future__ import annotations

import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import grpc

from ipamd.pb import cri_pb2

SERVICE = "runtime.v1.RuntimeService"
EVENT_TYPES = cri_pb2.ContainerEventType

Streamed = cri_pb2.ContainerEventResponse | bytes | grpc.StatusCode | None
"""What a stream sends next: an event, raw bytes, an error that ends it, or None for a clean end."""


class FakeCri:
    """Serves until `close`. `list_answer` replaces the list's bytes; `hold_list` makes lists wait until it is set."""

    def __init__(self, path: str, *, has_events: bool = True, serves_cri: bool = True) -> None:
        self.path = path
        self.has_events = has_events
        self.ends_stream_at_once = False
        self.sandboxes: dict[str, cri_pb2.PodSandbox] = {}
        self.list_answer: Callable[[], bytes] | None = None
        self.hold_list: threading.Event | None = None
        self.list_count = 0
        self._serves_cri = serves_cri
        self._streams: list[queue.Queue[Streamed]] = []
        self._lock = threading.Lock()
        self._server: grpc.Server
        self.start()

    def __enter__(self) -> FakeCri:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Listen on the path; a socket that a dead server left there is replaced, as runtimes do."""
        Path(self.path).unlink(missing_ok=True)
        self._server = grpc.server(ThreadPoolExecutor(max_workers=8))
        handlers = {
            "Version": grpc.unary_unary_rpc_method_handler(self._version),
            "ListPodSandbox": grpc.unary_unary_rpc_method_handler(self._list),
            "GetContainerEvents": grpc.unary_stream_rpc_method_handler(self._events),
        }
        service = grpc.method_handlers_generic_handler(SERVICE if self._serves_cri else "some.other.Service", handlers)
        self._server.add_generic_rpc_handlers((service,))
        assert self._server.add_insecure_port(f"unix:{self.path}")
        self._server.start()

    def close(self) -> None:
        """Stop as a killed server would: running calls break."""
        if self.hold_list is not None:
            self.hold_list.set()
        self.send(None)
        self._server.stop(None).wait()

    def run(self, sandbox_id: str, *, is_ready: bool = True) -> None:
        """A sandbox is listed from now on."""
        self.sandboxes[sandbox_id] = pod_sandbox(sandbox_id, is_ready=is_ready)

    def send(self, item: Streamed) -> None:
        """Send on every open stream."""
        with self._lock:
            for stream in self._streams:
                stream.put(item)

    def emit(self, container_id: str, kind: int, *, sandbox_id: str = "") -> None:
        """Send an event on every open stream."""
        self.send(event(container_id, kind, sandbox_id=sandbox_id))

    def _version(self, _request: bytes, _context: grpc.ServicerContext) -> bytes:
        reply = cri_pb2.VersionResponse(version="0.1.0", runtime_name="fake", runtime_version="0", runtime_api_version="v1")
        return reply.SerializeToString()

    def _list(self, _request: bytes, _context: grpc.ServicerContext) -> bytes:
        self.list_count += 1
        if self.hold_list is not None:
            self.hold_list.wait(30)
        if self.list_answer is not None:
            return self.list_answer()
        return cri_pb2.ListPodSandboxResponse(items=list(self.sandboxes.values())).SerializeToString()

    def _events(self, _request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        if not self.has_events:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "method GetContainerEvents not implemented")
        if self.ends_stream_at_once:
            return
        stream: queue.Queue[Streamed] = queue.Queue()
        context.add_callback(lambda: stream.put(None))
        with self._lock:
            self._streams.append(stream)
        while (item := stream.get()) is not None:
            if isinstance(item, grpc.StatusCode):
                context.abort(item, "so it was told")
            else:
                yield item if isinstance(item, bytes) else item.SerializeToString()
        with self._lock:
            self._streams.remove(stream)


class CutOffCri:
    """Answers every call with the head of a long message, then ends the call with success, or the connection."""

    def __init__(self, path: str, *, ends_with_success: bool) -> None:
        self._ends_with_success = ends_with_success
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                self._converse(connection)

    def _converse(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as reader:
            reader.read(len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
            connection.sendall(frame(4, 0, 0, b""))
            while len(head := reader.read(9)) == 9:
                kind, flags, stream = head[3], head[4], struct.unpack("!I", head[5:])[0]
                reader.read(int.from_bytes(head[:3], "big"))
                if kind == 4 and not flags & 1:
                    connection.sendall(frame(4, 1, 0, b""))  # SETTINGS, acknowledged
                if kind == 1:
                    content_type = header(b"content-type", b"application/grpc")
                    connection.sendall(frame(1, 4, stream, b"\x88" + content_type))  # :status 200
                    whole = cri_pb2.ListPodSandboxResponse(items=[pod_sandbox(f"s{n}") for n in range(20)]).SerializeToString()
                    first = cri_pb2.ListPodSandboxResponse(items=[pod_sandbox("s0")]).SerializeToString()
                    # gRPC says how long the message is; only its first sandbox comes.
                    connection.sendall(frame(0, 0, stream, b"\0" + struct.pack("!I", len(whole)) + first))
                    if not self._ends_with_success:
                        return
                    connection.sendall(frame(1, 5, stream, header(b"grpc-status", b"0")))


def pod_sandbox(sandbox_id: str, *, is_ready: bool = True, padding_bytes: int = 0) -> cri_pb2.PodSandbox:
    """One sandbox of a list."""
    return cri_pb2.PodSandbox(
        id=sandbox_id,
        metadata=cri_pb2.PodSandboxMetadata(name=f"pod-{sandbox_id}", namespace="default", uid="uid"),
        state=cri_pb2.SANDBOX_READY if is_ready else cri_pb2.SANDBOX_NOTREADY,
        annotations={"padding": "x" * padding_bytes} if padding_bytes else {},
    )


def event(container_id: str, kind: int, *, sandbox_id: str = "") -> cri_pb2.ContainerEventResponse:
    """One event; without `sandbox_id` its sandbox is gone."""
    status = cri_pb2.PodSandboxStatus(id=sandbox_id) if sandbox_id else None
    return cri_pb2.ContainerEventResponse(container_id=container_id, container_event_type=kind, pod_sandbox_status=status)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One HTTP/2 frame (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + struct.pack("!I", stream) + payload


def header(name: bytes, value: bytes) -> bytes:
    """One literal header field without indexing (RFC 7541, 6.2.2)."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value
