"""The socket of our own plugin and of `ipamctl`, and the run directory in which it is.

The directory is 0700 and owned by root. A lock file keeps two daemons from serving one node.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

from ipamd.model.errors import NotServingError, SettingsError
from ipamd.model.words import first_of
from ipamd.pb import cni_pb2_grpc
from ipamd.rpc.cni import CniServicer
from ipamd.rpc.introspection import handler
from ipamd.rpc.unix_server import SPARE_CONNECTIONS, UnixServer

SOCKET_NAME = "ipamd.sock"
LOCK_NAME = "ipamd.lock"

LOCK_WAIT_S = 30.0
"""For a predecessor's end. Ours: more than the pod's terminationGracePeriodSeconds; after `kubectl delete --force` the new pod starts
while the old one still ends."""

LOCK_POLL_S = 0.05
"""Ours: flock has no timeout, and this costs a start less than its interpreter does."""

MAX_REQUEST_BYTES = 2 * 1024 * 1024
"""Twice the largest network configuration. Ours."""

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


class RpcServer(UnixServer):
    """Both services on one socket."""

    def __init__(self, *, run_dir: Path, cni: CniServicer, introspection: object, max_concurrent_rpcs: int) -> None:
        """`introspection`: has a method for each RPC."""
        super().__init__(
            run_dir / SOCKET_NAME,
            max_rpcs=max_concurrent_rpcs + SPARE_THREADS,
            max_connections=max_concurrent_rpcs + SPARE_CONNECTIONS,
            max_request_bytes=MAX_REQUEST_BYTES,
            advice="set VPC_IPAMD_RUN_DIR to a directory that nobody else uses",
        )
        cni_pb2_grpc.add_CniServicer_to_server(cni, self.grpc)  # type: ignore[no-untyped-call]  # generated code
        self.grpc.add_generic_rpc_handlers((handler(introspection),))

    def _is_live(self) -> bool:
        """Nobody listens: we have the lock, and a predecessor that was killed may still be closing its socket."""
        return False
