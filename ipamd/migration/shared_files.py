"""Read and write small files that other software reads too.

Reads are bounded. Writes are atomic and durable, and never follow a link that another program has put there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ipamd.model.errors import TakeoverError
from ipamd.model.failures import FailureCode, failure
from ipamd.settings.settings_file import created

Version = list[int]
"""Inode of a file, and its modification time in nanoseconds. They identify the content of the file without reading it: both daemons
replace the file by a rename, so a new content has another inode or time."""


def read_bounded(path: Path, *, most: int) -> bytes | None:
    """Read a file, but at most one byte more than `most`, which shows the caller that the file is too large.

    Returns: the content; None if there is no file. Raises: OSError, also if it is not a regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(0, "it is no regular file", str(path))
        return stream.read(most + 1)


def replace(path: Path, content: bytes, *, mode: int, announce: Callable[[Version], None] = lambda _: None) -> None:
    """Replace a file atomically and durably. A reader sees the whole old content or the whole new content. Raises: OSError.

    Args:
        mode: the permissions, from which the umask is subtracted.
        announce: called with the new version after the content is on the disk, and before the rename.
    """
    scratch = path.with_name(f".{path.name}.vpc-ipamd-tmp")
    with created(scratch, mode) as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
        status = os.fstat(stream.fileno())
    announce([status.st_ino, status.st_mtime_ns])
    scratch.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames and removals in a directory durable. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _done_or_refused(message: str, *, advice: str = "") -> Iterator[None]:
    """Convert an OSError in the block into a TakeoverError with this message."""
    try:
        yield
    except OSError as error:
        cause = error.strerror or ""
        raise failure(TakeoverError, FailureCode.SHARED_FILE_REFUSED, problem=message, cause=cause, advice=advice) from error
