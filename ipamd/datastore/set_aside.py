"""Move an unusable file out of the way, and keep it for diagnosis."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from ipamd.datastore.spool import sync_directory

KEPT_COUNT = 3
"""How many files are kept; older ones are removed. Ours: they must be few, because `/run` is memory, and only the newest damage is
diagnosed."""

FILES = ("", "-wal", "-shm", "-journal")
"""The ends of the names of a database and of the files that SQLite writes beside it. Source: sqlite.org/tempfiles.html."""


def set_aside(path: Path, *, reason: str, now: datetime) -> Path | None:
    """Rename a file and its companions to `<name>.<reason>-<time>`, where `sqlite3` still opens them as one database.

    The main file moves first. After a crash before the WAL has moved, a WAL without a database is left, which the next call moves too.
    In the other order, a database without its newest changes would be left, and nothing would show that they are missing.
    Returns: the new path; None if there was no file.
    Raises: OSError.
    """
    base, number = f"{path}.{reason}-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}", 0
    target = Path(base)
    while any(os.path.lexists(f"{target}{suffix}") for suffix in FILES):
        number += 1
        target = Path(f"{base}.{number}")
    moved = None
    for suffix in FILES:
        source = Path(f"{path}{suffix}")
        if os.path.lexists(source):
            source.rename(f"{target}{suffix}")
            moved = target
    if moved is not None:
        _prune(path)
        sync_directory(path.parent)
    return moved


def _prune(path: Path) -> None:
    """Remove all but the newest groups of files. The newest group was renamed last (ctime).

    A directory that is not empty was made by somebody else, and stays.
    """
    groups: dict[str, float] = {}
    for moved in path.parent.glob(f"{path.name}.*-*"):
        base = str(moved)
        for suffix in FILES:
            base = base.removesuffix(suffix)
        groups[base] = max(groups.get(base, 0.0), moved.lstat().st_ctime_ns)
    for base in sorted(groups, key=lambda base: (groups[base], base))[:-KEPT_COUNT]:
        for suffix in FILES:
            victim = Path(f"{base}{suffix}")
            if victim.is_dir() and not victim.is_symlink():
                with suppress(OSError):
                    victim.rmdir()
            else:
                victim.unlink(missing_ok=True)
