"""The run directory. Only root can open it, and only one daemon at a time uses it."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

from ipamd.model.errors import NotServingError, SettingsError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.words import first_of

log = logging.getLogger(__name__)

LOCK_NAME = "ipamd.lock"

RUN_DIR_MODE = 0o700

LOCK_WAIT_S = 30.0
"""Longest wait, in seconds, for the end of an earlier daemon. Ours: more than the pod's terminationGracePeriodSeconds, because after
`kubectl delete --force` the new pod starts before the old pod has ended."""

LOCK_POLL_S = 0.05
"""Pause in seconds between two tries to get the lock, because flock has no timeout. Ours: the delay that it adds is short in
comparison with the start of the interpreter."""

NAMES_OF_OURS = frozenset(
    {LOCK_NAME, "spool", "spool.lock", "spool-bad", "hooks", "state.db", "state.db-wal", "state.db-shm", "freeze.json"}
)
"""Names by which a directory is recognised as a run directory. A daemon, an operator, or a plugin that ran before the first daemon has
made an entry with such a name. The daemon refuses any other directory that contains directories, because it makes its run directory
accessible to root only. If that were /etc, no program of the node could look up a name or a user."""

NAMED_MAX = 3
"""The largest number of directories that a refusal names. Ours: a refusal is one line, and one wrong directory is enough to act."""


def prepare_run_dir(run_dir: Path) -> None:
    """Create the run directory, or verify that the existing directory can be used.

    Raises: SettingsError if it cannot be made, is not a directory, has another owner, or is used for something else.
    """
    try:
        run_dir.mkdir(mode=RUN_DIR_MODE, parents=True, exist_ok=True)
    except OSError as error:
        details = "a file is in its place, or its parent cannot be written: make room, or set VPC_IPAMD_RUN_DIR"
        raise failure(
            SettingsError, FailureCode.DIRECTORY_NOT_MADE, path=run_dir, cause=error.strerror, advice=details
        ) from error
    status = run_dir.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise failure(SettingsError, FailureCode.NO_DIRECTORY, path=run_dir)
    if status.st_uid != os.geteuid():
        raise failure(SettingsError, FailureCode.DIRECTORY_OWNER, path=run_dir, user=status.st_uid, own_user=os.geteuid())
    directories = _foreign_directories(run_dir)
    if directories:
        named = first_of(directories, NAMED_MAX)
        raise failure(SettingsError, FailureCode.DIRECTORY_OF_OTHERS, path=run_dir, directories=named)
    try:
        run_dir.chmod(RUN_DIR_MODE)
    except OSError as error:
        raise failure(SettingsError, FailureCode.DIRECTORY_NOT_CLOSED, path=run_dir, cause=error.strerror) from error


def _foreign_directories(run_dir: Path) -> list[str]:
    """Return the names of the directories in `run_dir`; [] if it has an entry of NAMES_OF_OURS, so that it is a run directory."""
    entries = list(run_dir.iterdir())
    if any(path.name in NAMES_OF_OURS for path in entries):
        return []
    return sorted(path.name for path in entries if path.is_dir() and not path.is_symlink())


def take_instance_lock(run_dir: Path, *, is_ended: Callable[[float], bool]) -> tuple[int, bool]:
    """Take the lock of the run directory, which this process holds until it exits. Wait for an earlier daemon that is about to exit.

    Args:
        is_ended: waits for a number of seconds. Returns whether this process has to end.
    Returns: the file descriptor that holds the lock, and whether the lock file existed before. /run is empty after a boot, so an
        existing file shows that a daemon has run in this boot.
    Raises: NotServingError if another daemon still holds the lock after LOCK_WAIT_S, or if this process has to end.
    """
    has_run_before = (run_dir / LOCK_NAME).exists()
    descriptor = os.open(run_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    tries = max(int(LOCK_WAIT_S / LOCK_POLL_S), 1)
    for number in range(tries):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if number == 0:
                log.warning("waiting for another vpc-ipamd to end directory=%s wait_s=%.0f", run_dir, LOCK_WAIT_S)
        else:
            return descriptor, has_run_before
        if is_ended(LOCK_POLL_S):
            break
    os.close(descriptor)
    raise failure(NotServingError, FailureCode.DIRECTORY_SERVED, path=run_dir) from None
