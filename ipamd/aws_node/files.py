"""Read and write small files that others read too: bounded, atomic, durable, and never written through a stranger's link."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Version:
    """Which content of a file it is, without reading it: both daemons replace it by a rename, so another has another inode or time."""

    inode: int
    mtime_ns: int


def version_of(path: Path) -> Version | None:
    """The version of a file that is there; None without one. Raises: OSError."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Version(status.st_ino, status.st_mtime_ns)


def read_bounded(path: Path, *, most: int) -> bytes | None:
    """The content, at most one byte more than `most`; None without a file. Raises: OSError, also for anything but a file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(0, "it is no regular file", str(path))
        return stream.read(most + 1)


def replace(path: Path, content: bytes, *, mode: int, announce: Callable[[Version], None] = lambda _: None) -> None:
    """Write a file durably: a reader sees the whole old one or the whole new one.

    `announce` is told which version it will be, when all of it is on the disk and before it takes its place. Raises: OSError.
    """
    scratch = path.with_name(f".{path.name}.vpc-ipamd-tmp")
    scratch.unlink(missing_ok=True)  # of a daemon that was killed
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
        status = os.fstat(stream.fileno())
    announce(Version(status.st_ino, status.st_mtime_ns))
    scratch.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames and removals in a directory durable. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
