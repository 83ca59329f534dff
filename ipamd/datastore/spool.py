"""The daemon's side of the spool: DELs that the plugin stored because the daemon did not answer (I3).

The plugin takes `spool.lock` shared, tries the socket once more, writes `.tmp-*`, syncs it and renames it to `del-*`. The daemon
listens before it takes the lock exclusively, so a plugin with the shared lock either reaches the daemon or its entry is read here.
A `del-*` that is not a regular file of ours with a DEL is moved aside, and links are never followed. The plugin's side is
cni_plugin/spool.py.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ipamd.model.errors import DatastoreError, InvalidRequestError, TryAgainError, log_text
from ipamd.model.failures import FailureCode, failure
from ipamd.model.ids import AttachmentKey, parse_key
from ipamd.model.record import dataclass
from ipamd.pb import cni_pb2
from ipamd.ports.process import Clock
from ipamd.settings.places import SPOOL_PLACES, free_places

ENTRY_MAX_BYTES = 2 * 1024 * 1024
"""Largest entry that is read. Ours: every valid entry fits, because most of it is the network configuration, of at most 1.75 MiB."""

LOCK_WAIT_S = 5.0
"""Longest wait for the lock of the spool. Ours: this is ample, because a plugin holds the lock only for one write and one fsync, some
milliseconds."""

LOCK_PAUSE_S = 0.01
"""Pause between two tries to take the lock. Ours: a plugin holds it for some milliseconds, so the second try usually succeeds, and 500
tries in LOCK_WAIT_S cost next to nothing."""

HALF_WRITTEN_MAX_AGE_S = 3600.0
"""A half-written entry is removed when it is this old. Ours: no plugin runs for so long, because kubelet gives up on a sandbox after
four minutes, twice its runtimeRequestTimeout."""

KEPT_COUNT = 32
"""How many damaged entries are kept; older ones are removed. Ours: they must be few, because `/run` is memory."""

ENTRY_PREFIX = "del-"
HALF_WRITTEN_PREFIX = ".tmp-"
_MONOTONIC_NS = re.compile(r"-(\d{6,})$")

log = logging.getLogger(__name__)

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags to open a directory, and fail on a symbolic link."""


def sync_directory(path: Path) -> None:
    """Make renames and removals in a directory durable. Raises: OSError."""
    handle = os.open(path, DIRECTORY_FLAGS)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class SpoolDirectory:
    """DELs that the plugin stored on disk because the daemon did not answer, in a run directory that only root can write."""

    def __init__(
        self,
        run_dir: Path,
        *,
        clock: Clock,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._run_dir = run_dir
        self._lock_path = run_dir / "spool.lock"
        self._directory = run_dir / "spool"
        self._kept = run_dir / "spool-bad"
        self._clock = clock
        self._pause = pause
        self._lock_wait_s = LOCK_WAIT_S

    def free_places(self) -> None:
        free_places(self._run_dir, SPOOL_PLACES)

    def pending_count(self) -> int:
        try:
            return sum(path.name.startswith(ENTRY_PREFIX) for path in self._directory.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return 0
        except OSError as error:
            raise _refused(self._directory, error) from error

    def pending_keys(self) -> frozenset[AttachmentKey]:
        try:
            directory = os.open(self._directory, DIRECTORY_FLAGS)
        except OSError:
            return frozenset()
        keys = set()
        try:
            names = [name for name in _names(directory) if name.startswith(ENTRY_PREFIX)]
            for name in names:
                with suppress(InvalidRequestError, OSError):
                    keys.add(_decode_del(_read(name, directory)))
        finally:
            os.close(directory)
        return frozenset(keys)

    @contextmanager
    def replay(self, *, lock_wait_s: float = LOCK_WAIT_S) -> Iterator[Iterator[SpoolFile]]:
        try:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _refused(self._lock_path, error) from error
        try:
            self._lock_wait_s = min(lock_wait_s, LOCK_WAIT_S)
            self._lock(lock)
            yield self._entries()
        finally:
            os.close(lock)  # frees the lock

    def _lock(self, handle: int) -> None:
        """Take the lock. It is polled, because a blocking flock has no deadline.

        Raises: TryAgainError after the longest wait; DatastoreError.
        """
        deadline = self._clock.monotonic() + self._lock_wait_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if self._clock.monotonic() >= deadline:
                    raise failure(
                        TryAgainError, FailureCode.SPOOL_LOCKED, path=self._lock_path, wait_s=f"{self._lock_wait_s:g}"
                    ) from None
            except OSError as error:
                raise _refused(self._lock_path, error) from error
            self._pause(LOCK_PAUSE_S)

    def _entries(self) -> Iterator[SpoolFile]:
        try:
            directory = os.open(self._directory, DIRECTORY_FLAGS)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _refused(self._directory, error) from error
        try:
            self._drop_half_written(directory)
            names = [name for name in _names(directory) if name.startswith(ENTRY_PREFIX)]
            for name in _oldest_first(names, directory):
                try:
                    key = _decode_del(_read(name, directory))
                except InvalidRequestError as error:
                    self._set_aside(name, log_text(error))
                else:
                    yield SpoolFile(name, key, self._directory)
        except OSError as error:
            raise _refused(self._directory, error) from error
        finally:
            os.close(directory)

    def _drop_half_written(self, directory: int) -> None:
        oldest = self._clock.now().timestamp() - HALF_WRITTEN_MAX_AGE_S
        for name in _names(directory):
            if name.startswith(HALF_WRITTEN_PREFIX):
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if status.st_mtime < oldest and not stat.S_ISDIR(status.st_mode):
                    os.unlink(name, dir_fd=directory)

    def _set_aside(self, name: str, reason: str) -> None:
        """Move a damaged entry to another directory for diagnosis, so that it is not replayed again. Raises: DatastoreError."""
        source = self._directory / name
        try:
            self._kept.mkdir(mode=0o700, exist_ok=True)
            number = 0
            while os.path.lexists(target := self._kept / (f"{name}.{number}" if number else name)):
                number += 1
            source.rename(target)
            _prune(self._kept)
            sync_directory(self._kept)
            sync_directory(self._directory)
        except OSError as error:
            raise _refused(source, error) from error
        log.error("damaged spooled DEL was not carried out name=%s reason=%s kept=%s", name, reason, target)


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """One spooled DEL, which was read while the lock was held. `name`: the name of its file in `directory`."""

    name: str
    key: AttachmentKey
    directory: Path

    def done(self) -> None:
        """Remove the file durably, after its DEL has been carried out. Idempotent. Raises: DatastoreError."""
        path = self.directory / self.name
        try:
            path.unlink(missing_ok=True)
            sync_directory(self.directory)
        except OSError as error:
            raise _refused(path, error) from error


def _read(name: str, directory: int) -> bytes:
    """Read a regular file of ours. Raises: InvalidRequestError for anything else; OSError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        handle = os.open(name, flags, dir_fd=directory)
    except OSError as error:
        raise InvalidRequestError(f"it cannot be opened ({error.strerror})") from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidRequestError("it is not a regular file")
        if status.st_uid != os.geteuid():
            raise InvalidRequestError(f"it belongs to user {status.st_uid}")
        if not 0 < status.st_size <= ENTRY_MAX_BYTES:
            raise InvalidRequestError(f"it has {status.st_size} bytes, where 1 to {ENTRY_MAX_BYTES} are allowed")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(ENTRY_MAX_BYTES)
    finally:
        os.close(handle)


def _decode_del(content: bytes) -> AttachmentKey:
    """Read the sandbox of a spooled DEL; nothing else of the request is needed. Raises: InvalidRequestError."""
    request = cni_pb2.ExecRequest()
    try:
        request.ParseFromString(content)
    except Exception as error:  # no public name of protobuf's DecodeError exists in all versions
        raise InvalidRequestError("it is not an ExecRequest", details=str(error)) from error
    if request.verb != "DEL":
        raise InvalidRequestError(f"it is a request for {request.verb[:20]!r}, only DEL is spooled")
    return parse_key(request.container_id, request.ifname)


def _names(directory: int) -> list[str]:
    return os.listdir(directory)  # listed by descriptor, so that nobody can replace the directory meanwhile


def _oldest_first(names: list[str], directory: int) -> list[str]:
    """Sort by the monotonic nanoseconds at the end of the names; if any name lacks them, sort all by modification time."""
    stamps_ns = {}
    for name in names:
        match = _MONOTONIC_NS.search(name)
        if match:
            stamps_ns[name] = int(match[1])
    if len(stamps_ns) == len(names):
        return sorted(names, key=lambda name: (stamps_ns[name], name))
    return sorted(names, key=lambda name: (os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime_ns, name))


def _prune(directory: Path) -> None:
    """Remove all but the newest KEPT_COUNT entries. A directory that is not empty was made by somebody else, and stays."""
    entries = sorted(directory.iterdir(), key=lambda path: (path.lstat().st_ctime_ns, path.name))
    for path in entries[:-KEPT_COUNT]:
        if path.is_dir() and not path.is_symlink():
            with suppress(OSError):
                path.rmdir()
        else:
            path.unlink()


def _refused(path: Path, error: OSError) -> DatastoreError:
    return failure(DatastoreError, FailureCode.SPOOL_UNREADABLE, path=path, cause=error.strerror or error)
