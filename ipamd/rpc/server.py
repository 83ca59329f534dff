"""The socket of our own plugin and of `ipamctl`, and the run directory in which it is.

The directory is 0700 and owned by root. A lock file keeps two daemons from serving one node.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty
from typing import Any

import grpc

from ipamd.model.errors import NotServingError, SettingsError, log_text
from ipamd.model.record import dataclass
from ipamd.model.words import first_of
from ipamd.pb import cni_pb2_grpc
from ipamd.rpc.cni import CniServicer
from ipamd.rpc.introspection import handler

log = logging.getLogger(__name__)


# A gRPC server on a Unix socket, the same for each that the daemon serves: only root reaches it, no peer can use the daemon up
# (I16).
#
# gRPC alone has next to no bounds: unpacked headers (HPACK) take gigabytes and stay, and connections are held for ever.


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

SOCKET_MODE = 0o600
"""Root's alone."""

PRIVATE_NAME = ".ipamd"
"""Of the directory beside the socket's place in which it is until it takes it. Ours: with its socket it is shorter than `ipamd.sock`,
because a socket's path has 107 bytes at most (unix(7))."""


IDLE_S = 15.0
"""A thread of requests without work ends. Ours: one between a runtime's bursts is made in 0.1 ms, and one of a burst keeps 0.1 MiB."""


class RpcThreads(ThreadPoolExecutor):
    """The threads that requests are served by. Unlike its base's they end when they have had no work for `idle_s`.

    One is made if there are fewer than requests that have not ended, and one ends only while no request is in the queue.
    """

    idle_s = IDLE_S
    thread_count = _open_count = 0

    def _adjust_thread_count(self) -> None:
        """The base calls it with its lock held, when a request has come into the queue."""
        self._open_count += 1
        if self.thread_count < min(self._open_count, self._max_workers):
            threading.Thread(target=self._serve, name=self._thread_name_prefix, daemon=True).start()
            self.thread_count += 1

    def _serve(self) -> None:
        while True:
            try:
                request = self._work_queue.get(timeout=self.idle_s)
            except Empty:
                with self._shutdown_lock:
                    if self._work_queue.empty():
                        self.thread_count -= 1
                        return
                continue
            request.run()
            del request  # it would live until the next one comes
            with self._shutdown_lock:
                self._open_count -= 1


class UnixServer:
    """A server on a socket. `stop` from any thread, also if it was never started; `keep` from one thread."""

    def __init__(
        self,
        path: Path,
        *,
        max_rpcs: int,
        max_connections: int,
        max_request_bytes: int,
        advice: str,
        add: Callable[[grpc.Server], object],
    ) -> None:
        """`advice` is the operator's next step where the path cannot be used; `add` adds the services."""
        self.path = path
        self._advice = advice
        self._add = add
        self._bounds = max_rpcs, max_connections, max_request_bytes
        self._own: tuple[int, int] | None = None
        self._is_stopped = False
        self.grpc = self._made()

    def _made(self) -> grpc.Server:
        max_rpcs, max_connections, max_request_bytes = self._bounds
        made = grpc.server(
            RpcThreads(max_rpcs, "rpc"),
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
                ("grpc.http2.bdp_probe", 0),  # else each call has a ping more: a twelfth of what it costs
            ],
        )
        self._add(made)
        return made

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

    def keep(self) -> str:
        """See that callers reach us: a socket that could not be made, was removed or replaced is made; owner and mode are put back.

        What was asked by the old one is answered. Returns: what was wrong and is mended, "" for nothing.
        Raises: SettingsError if somebody else listens there, or the path cannot be used; OSError if it is removed just now.
        """
        if self._is_stopped:
            return ""
        present = _inode(self.path)
        if present is None or present != self._own:
            was_served = self._own is not None
            self._serve_anew()
            return "it was not served" if not was_served else "it was replaced" if present else "it was removed"
        return _made_private(self.path, SOCKET_MODE)

    def _serve_anew(self) -> None:
        """gRPC listens nowhere else once it has started, so another server takes the place."""
        self._make_room()
        former, self.grpc = self.grpc, self._made()
        try:
            self.start()
        except SettingsError:
            failed, self.grpc = self.grpc, former
            failed.stop(None)
            raise
        former.stop(CONNECTION_GRACE_MS / 1000)

    def stop(self, grace_s: float) -> None:
        """Take no request any more; those in progress have `grace_s` to finish. A socket at the path is removed if it is ours."""
        self._is_stopped = True
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
            scratch.chmod(SOCKET_MODE)
            os.link(scratch, self.path)
            self._own = _inode(self.path)
        finally:
            scratch.unlink(missing_ok=True)
            private.rmdir()


def _made_private(path: Path, mode: int) -> str:
    """Put owner and mode of what is ours back. Returns: what they were, "" if they were right. Raises: OSError, SettingsError."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise SettingsError(f"{path} is a link", details="the plugin follows none: put the directory back")
    if (status.st_uid, stat.S_IMODE(status.st_mode)) == (os.geteuid(), mode):
        return ""
    os.chown(path, os.geteuid(), -1, follow_symlinks=False)
    path.chmod(mode)
    return f"{path} was user {status.st_uid}'s with mode {stat.S_IMODE(status.st_mode):04o}"


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
            log.warning("a request is no message method=%s error=%s", method, request.why)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, DETAILS)
        return handler.unary_unary(request, context)

    return grpc.unary_unary_rpc_method_handler(serve, request_deserializer=read, response_serializer=handler.response_serializer)


SOCKET_NAME = "ipamd.sock"
LOCK_NAME = "ipamd.lock"
RUN_DIR_MODE = 0o700

LOCK_WAIT_S = 30.0
"""For a predecessor's end. Ours: more than the pod's terminationGracePeriodSeconds; after `kubectl delete --force` the new pod starts
while the old one still ends."""

LOCK_POLL_S = 0.05
"""Ours: flock has no timeout, and this costs a start less than its interpreter does."""

MAX_REQUEST_BYTES = 2 * 1024 * 1024
"""More than the largest network configuration and what is sent with it. Ours."""

NAMES_OF_OURS = frozenset({LOCK_NAME, "spool", "spool.lock", "hooks", "state.db", "freeze.json"})
"""What shows that a directory is a run directory: of a daemon, of a plugin before its first daemon, of an operator. Any other that has
directories is left as it is: to close /etc to all but root would take names and users from every program of the node."""

NAMED_MAX = 3

SPARE_THREADS = 8
"""Threads beyond the RPC limit, so that introspection answers while all CNI threads are busy. Ours."""


def prepare_run_dir(run_dir: Path) -> None:
    """Create the run directory, or verify the existing one.

    Raises: SettingsError if it is not a directory that we own and nobody else uses, or cannot be made.
    """
    try:
        run_dir.mkdir(mode=RUN_DIR_MODE, parents=True, exist_ok=True)
    except OSError as error:
        details = "a file is in its place, or its parent cannot be written: make room, or set VPC_IPAMD_RUN_DIR"
        raise SettingsError(f"cannot make the run directory {run_dir}: {error.strerror}", details=details) from error
    status = run_dir.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise SettingsError(f"{run_dir} is not a directory", details="symbolic links are not followed; remove it")
    if status.st_uid != os.geteuid():
        raise SettingsError(f"{run_dir} is owned by user {status.st_uid}", details=f"expected {os.geteuid()}; remove it")
    present = {entry.name: entry.is_dir() and not entry.is_symlink() for entry in run_dir.iterdir()}
    if any(present.values()) and not present.keys() & NAMES_OF_OURS:
        named = sorted(name for name, is_directory in present.items() if is_directory)
        details = (
            f"it has the directories {first_of(named, NAMED_MAX)}; set VPC_IPAMD_RUN_DIR to a directory that nobody else uses"
        )
        raise SettingsError(f"{run_dir} is somebody else's directory", details=details)
    try:
        run_dir.chmod(RUN_DIR_MODE)
    except OSError as error:
        raise SettingsError(f"cannot keep others out of {run_dir}: {error.strerror}", details="mount it writable") from error


def take_instance_lock(run_dir: Path, *, is_ended: Callable[[float], bool]) -> tuple[int, bool]:
    """Become the only daemon of this run directory until the process exits; wait for a predecessor that is about to exit.

    Args:
        is_ended: waits for so many seconds, and tells whether this process was told to end.
    Returns: the file descriptor that holds the lock, and whether the lock file existed: /run is empty after a boot, so an existing
        file means that a daemon has run since.
    Raises: NotServingError if another daemon holds the lock for LOCK_WAIT_S, or this one is to end.
    """
    has_run_before = (run_dir / LOCK_NAME).exists()
    descriptor = os.open(run_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    tries = max(int(LOCK_WAIT_S / LOCK_POLL_S), 1)
    for number in range(tries):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if number == 0:
                log.warning("another vpc-ipamd serves, its end is awaited directory=%s wait_s=%.0f", run_dir, LOCK_WAIT_S)
        else:
            return descriptor, has_run_before
        if is_ended(LOCK_POLL_S):
            break
    os.close(descriptor)
    raise NotServingError(
        f"another vpc-ipamd serves {run_dir}", details="stop it first; two daemons must not share a node"
    ) from None


class RpcServer(UnixServer):
    """Both services on one socket."""

    def __init__(self, *, run_dir: Path, cni: CniServicer, introspection: object, max_concurrent_rpcs: int) -> None:
        """`introspection`: has a method for each RPC."""

        def add(server: grpc.Server) -> None:
            cni_pb2_grpc.add_CniServicer_to_server(cni, server)  # type: ignore[no-untyped-call]  # generated code
            server.add_generic_rpc_handlers((handler(introspection),))

        super().__init__(
            run_dir / SOCKET_NAME,
            max_rpcs=max_concurrent_rpcs + SPARE_THREADS,
            max_connections=max_concurrent_rpcs + SPARE_CONNECTIONS,
            max_request_bytes=MAX_REQUEST_BYTES,
            advice="set VPC_IPAMD_RUN_DIR to a directory that nobody else uses",
            add=add,
        )

    def keep(self) -> str:
        """The run directory's owner and mode are put back, too: the plugin trusts no other."""
        return super().keep() or _made_private(self.path.parent, RUN_DIR_MODE)

    def _is_live(self) -> bool:
        """Nobody listens at the start: we have the lock, and a predecessor that was killed may still be closing its socket."""
        return self._own is not None and super()._is_live()
