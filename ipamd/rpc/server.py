"""The gRPC server on a Unix socket that only root can reach.

The directory is 0700 and owned by root, and the socket is created under umask 0177. A lock file keeps two daemons from serving one
node, because gRPC removes an existing socket even if somebody listens on it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from ipamd.model.errors import NotServingError, SettingsError
from ipamd.model.words import first_of
from ipamd.pb import cni_pb2_grpc, introspection_pb2_grpc
from ipamd.rpc.cni import CniServicer
from ipamd.rpc.introspection import IntrospectionServicer
from ipamd.rpc.unreadable import UnreadableRequests

SOCKET_NAME = "ipamd.sock"
LOCK_NAME = "ipamd.lock"

LOCK_WAIT_S = 30.0
"""For a predecessor's end. Ours: more than the pod's terminationGracePeriodSeconds; after `kubectl delete --force` the new pod starts
while the old one still ends."""

LOCK_POLL_S = 0.05
"""Ours: flock has no timeout, and this costs a start less than its interpreter does."""

MAX_REQUEST_BYTES = 2 * 1024 * 1024
"""Twice the largest network configuration. Ours."""

MAX_HEADER_BYTES = 16 * 1024
"""Of one request, unpacked, so that bytes that refer to a long header many times (HPACK) cost no more. Ours: a request's has 300."""

STREAMS_PER_CONNECTION = 8
"""Ours: the plugin and `ipamctl` make one request on a connection; each of a hostile peer costs the headers that it unpacks."""

SPARE_CONNECTIONS = 64
"""Connections beyond the RPC limit: silent ones, and `ipamctl`. Ours."""

HANDSHAKE_MS = 5_000
"""From accept to the end of HTTP/2's opening, after which a silent peer is closed. Ours: the plugin sends it with its connect."""

CONNECTION_AGE_MS, CONNECTION_GRACE_MS = 120_000, 120_000
"""A connection takes no new request after the first, and is cut after both. Ours: above every deadline of plugin and `ipamctl` (60 s).
A peer that announces a request and never sends it holds one of our threads until then."""

NAMES_OF_OURS = frozenset({LOCK_NAME, "spool", "spool.lock", "hooks", "state.db", "freeze.json"})
"""What shows that a directory is a run directory: of a daemon, of a plugin before its first daemon, of an operator. Any other that has
directories is left as it is: to close /etc to all but root would take names and users from every program of the node."""

NAMED_MAX = 3

SPARE_THREADS = 8
"""Threads beyond the RPC limit, so that introspection answers while all CNI threads are busy. Ours."""

log = logging.getLogger(__name__)


def prepare_run_dir(run_dir: Path) -> None:
    """Create the run directory, or verify the existing one.

    Raises: SettingsError if it is not a directory that we own and nobody else uses, or cannot be made.
    """
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
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
    run_dir.chmod(0o700)


def take_instance_lock(run_dir: Path, *, is_ended: Callable[[float], bool], wait_s: float = LOCK_WAIT_S) -> tuple[int, bool]:
    """Become the only daemon of this run directory until the process exits; wait for a predecessor that is about to exit.

    Args:
        is_ended: waits for so many seconds, and tells whether this process was told to end.
    Returns: the file descriptor that holds the lock, and whether the lock file existed: /run is empty after a boot, so an existing
        file means that a daemon has run since.
    Raises: NotServingError if another daemon holds the lock for `wait_s`, or this one is to end.
    """
    has_run_before = (run_dir / LOCK_NAME).exists()
    descriptor = os.open(run_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    tries = max(int(wait_s / LOCK_POLL_S), 1)
    for number in range(tries):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if number == 0:
                log.warning("another vpc-ipamd serves %s: its end is awaited for %.0f s", run_dir, wait_s)
        else:
            return descriptor, has_run_before
        if is_ended(LOCK_POLL_S):
            break
    os.close(descriptor)
    raise NotServingError(
        f"another vpc-ipamd serves {run_dir}", details="stop it first; two daemons must not share a node"
    ) from None


class RpcServer:
    """Both services on one socket."""

    def __init__(
        self, *, run_dir: Path, cni: CniServicer, introspection: IntrospectionServicer, max_concurrent_rpcs: int
    ) -> None:
        self._path = run_dir / SOCKET_NAME
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=max_concurrent_rpcs + SPARE_THREADS, thread_name_prefix="rpc"),
            interceptors=[UnreadableRequests()],
            maximum_concurrent_rpcs=max_concurrent_rpcs + SPARE_THREADS,
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
                ("grpc.max_metadata_size", MAX_HEADER_BYTES),
                ("grpc.absolute_max_metadata_size", MAX_HEADER_BYTES),
                ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION),
                ("grpc.max_allowed_incoming_connections", max_concurrent_rpcs + SPARE_CONNECTIONS),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
                ("grpc.max_connection_age_ms", CONNECTION_AGE_MS),
                ("grpc.max_connection_age_grace_ms", CONNECTION_GRACE_MS),
            ],
        )
        cni_pb2_grpc.add_CniServicer_to_server(cni, self._server)  # type: ignore[no-untyped-call]  # generated code
        introspection_pb2_grpc.add_IntrospectionServicer_to_server(introspection, self._server)  # type: ignore[no-untyped-call]  # generated code

    def start(self) -> None:
        """Listen. A stale socket is removed; any other file at its path is an error.

        Raises: SettingsError.
        """
        self._remove_stale()
        before = os.umask(0o177)
        try:
            self._server.add_insecure_port(f"unix:{self._path}")
        finally:
            os.umask(before)
        status = self._path.lstat()
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o177:
            raise SettingsError(
                f"{self._path} is not the socket that was created",
                details=f"mode {status.st_mode:o}, owner {status.st_uid}: something else writes to the run directory",
            )
        self._server.start()

    def stop(self, grace_s: float) -> None:
        """Stop accepting requests; those in progress have `grace_s` to finish."""
        self._server.stop(grace_s).wait(grace_s + 1.0)

    def _remove_stale(self) -> None:
        try:
            mode = self._path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise SettingsError(f"{self._path} exists and is not a socket", details="remove it")
        self._path.unlink()
