"""A gRPC server on a Unix socket, the same for each that the daemon serves: only root reaches it, no peer can use the daemon up (I16).

gRPC alone has next to no bounds: unpacked headers (HPACK) take gigabytes and stay, and connections are held for ever.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from ipamd.model.errors import SettingsError, log_text

MAX_HEADER_BYTES = 16 * 1024
"""Of one request, unpacked, so that bytes that refer to a long header many times (HPACK) cost no more. Ours: a request's has 300."""

STREAMS_PER_CONNECTION = 8
"""Ours: plugins and `ipamctl` make one request on a connection; each of a hostile peer costs the headers that it unpacks."""

SPARE_CONNECTIONS = 64
"""Connections beyond the RPC limit: silent ones, and `ipamctl`. Ours."""

HANDSHAKE_MS = 5_000
"""From accept to the end of HTTP/2's opening, after which a silent peer is closed. Ours: a plugin sends it with its connect."""

CONNECTION_AGE_MS, CONNECTION_GRACE_MS = 120_000, 120_000
"""A connection takes no new request after the first, and is cut after both. Ours: above all deadlines of plugins and `ipamctl` (60 s).
A peer that announces a request and never sends it holds one of our threads until then."""

PRIVATE_NAME = ".ipamd"
"""Of the directory beside the socket's place in which it is until it takes it. Ours: with its socket it is shorter than `ipamd.sock`,
because a socket's path has 107 bytes at most (unix(7))."""


class UnixServer:
    """A server whose services are added to `grpc`. `stop` from any thread, also if it was never started."""

    def __init__(self, path: Path, *, max_rpcs: int, max_connections: int, max_request_bytes: int, advice: str) -> None:
        """`advice` is the operator's next step where the path cannot be used."""
        self.path = path
        self._advice = advice
        self._own: tuple[int, int] | None = None
        self.grpc = grpc.server(
            ThreadPoolExecutor(max_workers=max_rpcs, thread_name_prefix="rpc"),
            interceptors=[UnreadableRequests()],
            maximum_concurrent_rpcs=max_rpcs,
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", max_request_bytes),
                ("grpc.max_metadata_size", MAX_HEADER_BYTES),
                ("grpc.absolute_max_metadata_size", MAX_HEADER_BYTES),
                ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION),
                ("grpc.max_allowed_incoming_connections", max_connections),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
                ("grpc.max_connection_age_ms", CONNECTION_AGE_MS),
                ("grpc.max_connection_age_grace_ms", CONNECTION_GRACE_MS),
            ],
        )

    def start(self) -> None:
        """Listen; a dead socket at the path is replaced, a live one never.

        gRPC removes whatever socket is at its path, both when it begins and when it ends, and another daemon may have come back
        there. So gRPC gets a name of its own, and a second link of that socket takes the place, which fails if it is taken.
        Source: <https://github.com/grpc/grpc/issues/17122>.
        Raises: SettingsError if somebody listens there, or the path cannot be used.
        """
        self._make_room()
        try:
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._listen(self.path.with_name(PRIVATE_NAME))
        except FileExistsError as error:
            raise SettingsError(f"somebody listens on {self.path}", details=self._advice) from error
        except (OSError, RuntimeError) as error:
            raise SettingsError(f"cannot listen on {self.path}", details=f"{error}; {self._advice}") from error
        self.grpc.start()

    def stop(self, grace_s: float) -> None:
        """Take no request any more; those in progress have `grace_s` to finish. A socket at the path is removed if it is ours."""
        if self._own is not None and _inode(self.path) == self._own:
            self.path.unlink(missing_ok=True)
        self.grpc.stop(grace_s).wait(grace_s + 1.0)

    def _make_room(self) -> None:
        """Remove a socket on which nobody listens. Raises: SettingsError if somebody does, or it is no socket."""
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        except OSError as error:
            raise SettingsError(f"cannot look at {self.path}", details=error.strerror or "") from error
        if not stat.S_ISSOCK(mode):
            raise SettingsError(f"{self.path} exists and is not a socket", details=f"remove it, or {self._advice}")
        if self._is_live():
            raise SettingsError(f"somebody listens on {self.path}", details=self._advice)
        self.path.unlink(missing_ok=True)

    def _is_live(self) -> bool:
        """Whether somebody listens at the path. Raises: SettingsError if that cannot be told."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(1.0)
            try:
                sock.connect(str(self.path))
            except ConnectionRefusedError:
                return False
            except OSError as error:
                raise SettingsError(f"cannot tell whether somebody listens on {self.path}", details=str(error)) from error
        return True

    def _listen(self, private: Path) -> None:
        """Bind in a directory that nobody else can enter until the socket has its mode: a umask would be that of all threads.

        Raises: FileExistsError if the place was taken meanwhile; OSError, RuntimeError.
        """
        scratch = private / "s"
        private.mkdir(mode=0o700, exist_ok=True)  # both may be of a daemon that was killed
        scratch.unlink(missing_ok=True)
        try:
            self.grpc.add_insecure_port(f"unix:{scratch}")
            scratch.chmod(0o600)
            os.link(scratch, self.path)
            self._own = _inode(self.path)
        finally:
            scratch.unlink(missing_ok=True)
            private.rmdir()


def _inode(path: Path) -> tuple[int, int] | None:
    """Which file is at a path; None for none."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


# Refuse requests whose bytes are no message, and keep nothing of them.
#
# grpcio refuses them itself, but badly: its `_unary_request` (grpc/_server.py, seen in 1.85) goes on to wait for the request after the
# refusal, refuses a second time when the peer has closed, and waits for ever for the end of that second answer. Each such request left
# 27 KiB in the daemon behind and held one of our threads until its peer closed. So no deserializer that grpcio calls may fail: ours
# hands the failure on as a value, and the call is refused where services run.


DETAILS = "the request is no message of this method"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """In place of a request."""

    why: str


class UnreadableRequests(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Refuses an unreadable request with INVALID_ARGUMENT; all others pass. Used by gRPC's thread."""

    def __init__(self) -> None:
        self._known: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """See the base class. Handlers are made once for each method that exists; what peers invent is not remembered."""
        method = str(handler_call_details.method)
        found = self._known.get(method)
        if found is None:
            handler = continuation(handler_call_details)
            if handler is None or handler.unary_unary is None:
                return handler
            found = self._known[method] = _tolerant(handler, method)
        return found


def _tolerant(handler: Any, method: str) -> grpc.RpcMethodHandler[Any, Any]:
    def read(data: bytes) -> Any:
        try:
            return handler.request_deserializer(data)
        except Exception as error:  # noqa: BLE001  # the parser's own error type differs between implementations of protobuf
            return _Unreadable(log_text(error))

    def serve(request: Any, context: grpc.ServicerContext) -> Any:
        if isinstance(request, _Unreadable):
            log.warning("a request of %s is no message: %s", method, request.why)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, DETAILS)
        return handler.unary_unary(request, context)

    return grpc.unary_unary_rpc_method_handler(serve, request_deserializer=read, response_serializer=handler.response_serializer)
