"""A stand-in of kubelet's pods service on one node: `v1alpha1.Pods` over a Unix socket, of the pods that are bound there.

It can be late, dead, starting (FAILED_PRECONDITION), and of either mind about pods that have no sandbox yet. Of these only the answer
that lists them was measured on a kubelet (docs/assumptions.md). A watch begins with what is there.
Source: kubernetes pkg/kubelet/apis/pods/server.go.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from lab.branches import messages
from lab.branches.pods import Pod, PodEvent, PodStore

SOCKET = "/var/lib/kubelet/pods-api/pods-api.sock"
SERVICE = "v1alpha1.Pods"
MAX_CALLS = 32
WATCHED_EVENTS = 100  # the real one's channel; what does not fit is dropped
POLL_S = 0.1
STOP_S = 1.0


class PodsService:
    """One node's service. `start` it, `stop` it; the orders hold from the next answer on."""

    def __init__(self, pods: PodStore, *, node: str, root: str, has_sandbox: Callable[[Pod], bool]) -> None:
        """`root`: the node's root directory as this process sees it. Nothing is started yet."""
        self.lists_without_sandbox = True
        self.is_starting = False
        """Whether every answer is FAILED_PRECONDITION."""
        self.delay_s = 0.0
        """How late each answer and each event is."""
        self.answered = 0
        """How many questions came."""
        self._pods = pods
        self._node = node
        self._path = root + SOCKET
        self._has_sandbox = has_sandbox
        self._server: grpc.Server | None = None
        self._ended = threading.Event()

    @property
    def socket_path(self) -> Path:
        """The socket, opened from this process."""
        return Path(self._path)

    def start(self) -> None:
        """Listen; root alone may connect."""
        path = Path(self._path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self._ended.clear()
        server = grpc.server(ThreadPoolExecutor(MAX_CALLS, thread_name_prefix=f"pods-{self._node}"))
        handlers = {
            "ListPods": grpc.unary_unary_rpc_method_handler(self._list),
            "GetPod": grpc.unary_unary_rpc_method_handler(self._get),
            "WatchPods": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        server.add_insecure_port(f"unix:{self._path}")
        server.start()
        path.chmod(0o600)
        self._server = server

    def stop(self, *, leaves_socket: bool = True) -> None:
        """Die: the socket stays, and nobody listens there; idempotent."""
        self._ended.set()
        if self._server is not None:
            self._server.stop(STOP_S).wait()
            self._server = None
        if leaves_socket and not Path(self._path).exists() and Path(self._path).parent.exists():
            Path(self._path).touch(mode=0o600)
        elif not leaves_socket:
            Path(self._path).unlink(missing_ok=True)

    def _list(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        self._behave(context)
        return messages.list_response(
            pod for pod in sorted(self._pods.pods(node=self._node), key=lambda one: one.uid) if self._shows(pod)
        )

    def _get(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self._behave(context)
        uid = messages.uid_of_get_request(request)
        for pod in self._pods.pods(node=self._node):
            if pod.uid == uid and self._shows(pod):
                return messages.get_response(pod)
        return context.abort(grpc.StatusCode.NOT_FOUND, f"pod with UID {uid} not found")

    def _watch(self, _: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        self._behave(context)
        events: queue.Queue[tuple[float, PodEvent]] = queue.Queue(WATCHED_EVENTS)

        def hear(event: PodEvent) -> None:
            if event.pod.node == self._node and not events.full():
                events.put_nowait((time.monotonic(), event))

        end = self._pods.subscribe(hear)
        try:
            for pod in self._pods.pods(node=self._node):
                if self._shows(pod):
                    yield messages.watch_event("ADDED", pod)
            while context.is_active() and not self._ended.is_set():
                try:
                    at, event = events.get(timeout=POLL_S)
                except queue.Empty:
                    continue
                self._ended.wait(max(0.0, at + self.delay_s - time.monotonic()))
                if self._shows(event.pod):
                    yield messages.watch_event(event.kind, event.pod)
        finally:
            end()

    def _shows(self, pod: Pod) -> bool:
        return self.lists_without_sandbox or self._has_sandbox(pod)

    def _behave(self, context: grpc.ServicerContext) -> None:
        self.answered += 1
        if self._ended.wait(self.delay_s):
            context.abort(grpc.StatusCode.UNAVAILABLE, "the server ends")
        if self.is_starting:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "kubelet has not synced its pods yet")
