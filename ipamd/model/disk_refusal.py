"""Find the disk fault behind an error: a full, read-only or failing file system."""

from __future__ import annotations

import errno

_DISK = {errno.ENOSPC: "full", errno.EDQUOT: "full", errno.EROFS: "read-only", errno.EIO: "failing"}

_SQLITE_DISK = {"SQLITE_FULL": "full", "SQLITE_CANTOPEN": "full", "SQLITE_READONLY": "read-only", "SQLITE_IOERR": "failing"}
"""SQLite's error -> the disk fault. SQLITE_CANTOPEN is "full", because SQLite cannot open its files when inodes are used up. Source:
sqlite.org/rescode.html."""


def disk_refusal(error: BaseException | None) -> str:
    """Return the disk fault that caused an error: "full", "read-only" or "failing"; "" if there is none."""
    while error is not None:
        fault = _sqlite_fault(error)
        if not fault and isinstance(error, OSError):
            fault = _DISK.get(error.errno or 0, "")
        if fault:
            return fault
        error = error.__cause__
    return ""


def _sqlite_fault(error: BaseException) -> str:
    name = getattr(error, "sqlite_errorname", "")
    for code, fault in _SQLITE_DISK.items():
        if name.startswith(code):
            return fault
    return ""
