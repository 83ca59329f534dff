"""Move a datastore file that cannot be used out of the way, and keep it for diagnosis."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

# Durability of names: a rename or removal is on disk only once its directory is.


DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""To open a directory, and nothing that a link in its place leads to."""


def sync_directory(path: Path) -> None:
    """Make renames and removals in a directory durable. Raises: OSError."""
    handle = os.open(path, DIRECTORY_FLAGS)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


KEPT_COUNT = 3
"""Files kept at most, the newest ones. Ours: `/run` is memory, and the newest damage is what is diagnosed."""

COMPANIONS = ("-wal", "-shm", "-journal")
"""What SQLite writes beside a database. Source: sqlite.org/tempfiles.html."""


def set_aside(path: Path, *, why: str, now: datetime) -> Path | None:
    """Rename a file and its companions to `<name>.<why>-<time>`, where `sqlite3` still opens them as one.

    The main file moves first: a crash in between then leaves a WAL without a database, which the next call moves too; the
    other way round would leave a database that silently lacks its newest changes.
    Returns: the new path; None if nothing was there.
    Raises: OSError.
    """
    kept = _fresh_name(path, f"{why}-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}")
    moved = None
    for suffix in ("", *COMPANIONS):
        source = Path(f"{path}{suffix}")
        if os.path.lexists(source):
            source.rename(f"{kept}{suffix}")
            moved = kept
    if moved is not None:
        _prune(path)
        sync_directory(path.parent)
    return moved


def _fresh_name(path: Path, suffix: str) -> Path:
    number = 0
    while True:
        name = Path(f"{path}.{suffix}" if number == 0 else f"{path}.{suffix}.{number}")
        if not any(os.path.lexists(f"{name}{companion}") for companion in ("", *COMPANIONS)):
            return name
        number += 1


def _prune(path: Path) -> None:
    """Remove all but the newest; the age is the time at which a file was moved here (ctime)."""
    groups: dict[str, float] = {}
    for found in path.parent.glob(f"{path.name}.*-*"):
        base = str(found)
        for suffix in COMPANIONS:
            base = base.removesuffix(suffix)
        groups[base] = max(groups.get(base, 0.0), found.lstat().st_ctime_ns)
    for base in sorted(groups, key=lambda base: (groups[base], base))[:-KEPT_COUNT]:
        for suffix in ("", *COMPANIONS):
            victim = Path(f"{base}{suffix}")
            if victim.is_dir() and not victim.is_symlink():
                shutil.rmtree(victim)
            else:
                victim.unlink(missing_ok=True)
