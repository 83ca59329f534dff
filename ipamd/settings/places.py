"""Rename objects in the run directory that have the name of one of our files or directories, but are of another kind.

A node must start even if there is a plain file where the spool's directory belongs, or a directory where a lock file belongs. Such an
object is renamed within its directory and logged. It is never deleted. A symbolic link counts as a wrong kind, because none of our
files is a link. Some of our files are not in the table:

- `state.db` with its WAL and its journal, because their loss must be reported (`ipamd/datastore/open.py`);
- `freeze.json`, because it freezes the pool regardless of its kind (`ipamd/host/freeze_files.py`);
- the socket, because it may belong to another program (`ipamd/rpc/unix_server.py`).
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode, failure

FILE, DIRECTORY = "a file", "a directory"

INSTANCE_LOCK = "ipamd.lock"

PLACES = {
    INSTANCE_LOCK: FILE,
    "state.db-shm": FILE,
    "spool": DIRECTORY,
    "spool.lock": FILE,
    "spool-bad": DIRECTORY,
    ".freeze.json.new": FILE,
    "ready-once": FILE,
    "served": FILE,
    ".served": FILE,
    "starts": FILE,
    ".starts": FILE,
    "bridged": FILE,
    "aws-node.json": FILE,
    ".aws-node.json.vpc-ipamd-tmp": FILE,
    "probe.lock": FILE,
    "nft-confinement.json": FILE,
    ".nft-confinement.json": FILE,
    "nft-translation.json": FILE,
    ".nft-translation.json": FILE,
}
"""The kind of the object that belongs at each name in the run directory."""

SPOOL_PLACES = ("spool", "spool.lock", "spool-bad")
"""The names that the plugin uses while the daemon runs."""

PREFIX = "in-the-way."

MOVED_MAX = 16
"""The largest number of objects of one name that are renamed within a second. Ours: more means that a program makes them again and
again."""

log = logging.getLogger(__name__)


def free_places(run_dir: Path, names: Iterable[str] = PLACES) -> list[Path]:
    """Rename objects of a wrong kind at these names.

    Returns: the new paths. Raises: SettingsError if an object cannot be renamed. The error names it.
    """
    moved = []
    for name in names:
        path = run_dir / name
        try:
            kind = _kind(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise failure(SettingsError, FailureCode.FILE_UNSEEN, path=path, cause=error.strerror) from error
        if kind != PLACES[name]:
            moved.append(move_aside(path, kind=kind, belongs=PLACES[name]))
    return moved


def move_aside(path: Path, *, kind: str, belongs: str) -> Path:
    """Rename an object. Returns: its new path. Raises: SettingsError.

    Args:
        kind: the kind of the object, in words.
        belongs: the kind that belongs at `path`, FILE or DIRECTORY.
    """
    problem = f"{path} is {kind}, where {belongs} of vpc-ipamd belongs"
    try:
        new_path = _free_name(path)
        path.rename(new_path)
    except OSError as error:
        raise failure(SettingsError, FailureCode.FILE_NOT_RENAMED, problem=problem, cause=error.strerror or error) from error
    log.warning("renamed a file that was in the way path=%s kind=%s new_path=%s", path, kind, new_path)
    return new_path


def _free_name(path: Path) -> Path:
    """Return the path of a name beside `path` that does not exist yet. Raises: OSError if MOVED_MAX names exist."""
    base = f"{PREFIX}{path.name.lstrip('.')}.{_now():%Y%m%dT%H%M%SZ}"
    for number in range(MOVED_MAX):
        name = base
        if number:
            name += f".{number}"
        candidate = path.with_name(name)
        if not os.path.lexists(candidate):
            return candidate
    raise OSError(f"{MOVED_MAX} files of this name were renamed within a second")


def _now() -> datetime:
    return datetime.now(UTC)


def _kind(path: Path) -> str:
    mode = path.lstat().st_mode
    if stat.S_ISREG(mode):
        return FILE
    if stat.S_ISDIR(mode):
        return DIRECTORY
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    return "a FIFO, socket or device"
