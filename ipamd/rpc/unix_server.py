"""The gRPC server that serves each Unix socket of the daemon. Only root reaches it, and no peer can exhaust the daemon (I16).

gRPC alone has nearly no bounds: unpacked headers (HPACK) can take gigabytes and stay in memory, and connections are held for ever.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import grpc

from ipamd.malloc import return_free_memory
from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode, failure
from ipamd.rpc.unreadable import UnreadableRequests
from ipamd.threads import RequestThreads

log = logging.getLogger(__name__)

MAX_HEADER_BYTES = 16 * 1024
"""The largest size in bytes of a request's unpacked header. It bounds a short header that refers to a long entry many times (HPACK).
Ours: a usual header has 300 bytes."""

STREAMS_PER_CONNECTION = 8
"""The largest number of requests at a time on one connection. Ours: plugins and `ipamctl` make one request on a connection, and each
stream of a hostile peer takes memory for its headers."""

SPARE_CONNECTIONS = 64
"""The number of connections beyond the limit of requests, for connections without a request, and for `ipamctl`. Ours: far
more than are usually open, and each costs one descriptor."""

HANDSHAKE_MS = 5_000
"""A connection is closed if its peer has not sent the opening of HTTP/2 this many milliseconds after the accept. Ours: a plugin
sends the opening as soon as it has connected."""

CONNECTION_AGE_MS, CONNECTION_GRACE_MS = 120_000, 120_000
"""A connection accepts no new request after the age, and is cut after the sum of age and grace, in milliseconds. Ours: both are above
all deadlines of plugins and `ipamctl` (60 s). A peer that announces a request and never sends it occupies one of our threads until the
cut."""

SOCKET_MODE = 0o600
"""Mode of the socket: only root may connect."""

PRIVATE_NAME = ".ipamd"
"""Name of the private directory, beside the socket's path, in which the socket is made. Ours: this name, with the name of the socket
in the directory, is shorter than `ipamd.sock`, because the path of a socket has at most 107 bytes (unix(7))."""


class UnixServer:
    """A gRPC server on one Unix socket.

    `stop` may be called from any thread, also if the server was never started. Only one thread may call `keep`.
    """

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
        """Make the server. It does not listen before `start`.

        Args:
            path: the path of the socket.
            max_rpcs: the largest number of requests at a time.
            max_connections: the largest number of connections at a time.
            max_request_bytes: the largest size of a request.
            advice: what an operator can do if the path cannot be used.
            add: adds the services to a new gRPC server.
        """
        self.path = path
        self._advice = advice
        self._add = add
        self._bounds = max_rpcs, max_connections, max_request_bytes
        self._own: tuple[int, int] | None = None
        self._is_stopped = False
        self.grpc, self._threads = self._make_server()

    @property
    def ended_count(self) -> int:
        """The number of requests that this server has ended."""
        return self._threads.ended_count

    def lacks_threads(self) -> bool:
        """Whether a further thread for requests cannot be started (`RequestThreads.lacks_threads`)."""
        return self._threads.lacks_threads()

    def _make_server(self) -> tuple[grpc.Server, RequestThreads]:
        """Make the gRPC server and its threads, but no socket. Raises: RuntimeError if no thread can be started."""
        max_rpcs, max_connections, max_request_bytes = self._bounds
        threads = RequestThreads(max_rpcs, "rpc", on_rest=return_free_memory)
        server = grpc.server(
            threads,  # type: ignore[arg-type]  # grpcio wants a ThreadPoolExecutor in its stubs, and calls `submit` only
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
                # If this is not off, gRPC sends a ping with each call, which is a twelfth of the cost of the call.
                ("grpc.http2.bdp_probe", 0),
            ],
        )
        self._add(server)
        return server, threads

    def start(self) -> None:
        """Listen on the path. A socket there on which no process listens is replaced.

        gRPC removes any socket at its path when it starts and when it stops, even if the socket belongs to another daemon by then. So
        gRPC binds to a private name, and a hard link to that socket is made at the path. The link fails if the path exists.
        Source: <https://github.com/grpc/grpc/issues/17122>.
        Raises: SettingsError if another process listens there, or if the path cannot be used; RuntimeError if gRPC's own thread cannot
            be made. Nothing is left at the path then.
        """
        self._make_room()
        try:
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._listen(self.path.with_name(PRIVATE_NAME))
        except FileExistsError as error:
            raise failure(SettingsError, FailureCode.SOCKET_TAKEN, path=self.path, advice=self._advice) from error
        except (OSError, RuntimeError) as error:
            raise failure(SettingsError, FailureCode.SOCKET_REFUSED, path=self.path, cause=error, advice=self._advice) from error
        try:
            self.grpc.start()
        except RuntimeError:  # callers must not connect to a socket that is not served
            self.path.unlink(missing_ok=True)
            self._own = None
            raise

    def keep(self) -> str:
        """Check that callers reach this server. Make the socket again if it is missing or was replaced, and restore its owner and
        mode.

        Requests through the old socket are still answered. Returns: the problem that was repaired, "" if there was none.
        Raises: SettingsError if another process listens there, or if the path cannot be used; OSError if the socket is removed during
            the call; RuntimeError if a thread cannot be started. The next call tries the repair again.
        """
        if self._is_stopped:
            return ""
        present = _inode(self.path)
        if present is None or present != self._own:
            was_served = self._own is not None
            self._serve_anew()
            if not was_served:
                return "it was not served"
            if present:
                return "it was replaced"
            return "it was removed"
        return _made_private(self.path, SOCKET_MODE)

    def _serve_anew(self) -> None:
        """Replace the server, because a gRPC server that has started cannot listen on another socket."""
        self._make_room()
        former = self.grpc, self._threads
        self.grpc, self._threads = self._make_server()
        try:
            self.start()
        except (SettingsError, RuntimeError):
            failed = self.grpc, self._threads
            self.grpc, self._threads = former
            _stopped(*failed, 0.0)
            raise
        _stopped(*former, CONNECTION_GRACE_MS / 1000)

    def stop(self, grace_s: float) -> None:
        """Accept no more requests, and wait at most `grace_s` seconds for the running requests. Remove our socket at the path."""
        self._is_stopped = True
        if self._own is not None and _inode(self.path) == self._own:
            self.path.unlink(missing_ok=True)
        ended = _stopped(self.grpc, self._threads, grace_s)
        if ended is not None:
            ended.wait(grace_s + 1.0)

    def _make_room(self) -> None:
        """Remove a socket at the path on which no process listens.

        Raises: SettingsError if a process listens there, if there is another kind of file at the path, or if the path cannot be
            examined.
        """
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        except OSError as error:
            raise failure(SettingsError, FailureCode.SOCKET_UNSEEN, path=self.path, cause=error.strerror or "") from error
        if not stat.S_ISSOCK(mode):
            raise failure(SettingsError, FailureCode.NO_SOCKET_FILE, path=self.path, advice=self._advice)
        if self._is_live():
            raise failure(SettingsError, FailureCode.SOCKET_TAKEN, path=self.path, advice=self._advice)
        self.path.unlink(missing_ok=True)

    def _is_live(self) -> bool:
        """Whether a process listens at the path. Raises: SettingsError if that cannot be found out."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(1.0)
            try:
                sock.connect(str(self.path))
            except ConnectionRefusedError:
                return False
            except OSError as error:
                raise failure(SettingsError, FailureCode.SOCKET_UNCLEAR, path=self.path, cause=str(error)) from error
        return True

    def _listen(self, private: Path) -> None:
        """Bind the socket in a directory that only root can enter, set its mode, and then link it to the path.

        The mode is not set by a umask, because a umask would apply to all threads.
        Raises: FileExistsError if the path exists by then; OSError, RuntimeError.
        """
        scratch = private / "s"
        private.mkdir(mode=0o700, exist_ok=True)  # directory and socket may be left over from a daemon that was killed
        scratch.unlink(missing_ok=True)
        try:
            self.grpc.add_insecure_port(f"unix:{scratch}")
            scratch.chmod(SOCKET_MODE)
            os.link(scratch, self.path)
            self._own = _inode(self.path)
        finally:
            scratch.unlink(missing_ok=True)
            private.rmdir()


def _stopped(server: grpc.Server, threads: RequestThreads, grace_s: float) -> threading.Event | None:
    """Make a server accept no more requests. Its threads end after their present requests.

    A thread of gRPC cuts off requests that run longer than `grace_s` seconds. If that thread cannot be started, each request ends by
    its own deadline.
    Returns: an event that is set when all requests have ended; None if that thread could not be started.
    """
    try:
        ended = server.stop(grace_s)
    except RuntimeError as error:
        log.warning("failed to cut off requests of a replaced server error=%s", error)
        ended = None
    threads.shutdown(wait=False)
    return ended


def _made_private(path: Path, mode: int) -> str:
    """Restore owner and mode of a path.

    Returns: a sentence about the former owner and mode, "" if they were right. Raises: OSError; SettingsError if the path is a link.
    """
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise failure(SettingsError, FailureCode.DIRECTORY_IS_LINK, path=path)
    if (status.st_uid, stat.S_IMODE(status.st_mode)) == (os.geteuid(), mode):
        return ""
    os.chown(path, os.geteuid(), -1, follow_symlinks=False)
    path.chmod(mode)
    return f"{path} was user {status.st_uid}'s with mode {stat.S_IMODE(status.st_mode):04o}"


def _inode(path: Path) -> tuple[int, int] | None:
    """Return device and inode of the file at a path; None if there is no file."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
