"""Record the last starts of the daemon in the run directory, so that `ipamctl` recognises a crash loop while no daemon answers.

A process writes a line when it begins, and completes the line when it ends, even if its settings are invalid. A line without an exit
status belongs to a process that runs or was killed. The file only informs people. No decision of the daemon depends on it.
"""

from __future__ import annotations

import json
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ipamd.model.words import printable
from ipamd.settings import settings_file

STARTS_NAME = "starts"

STARTS_MAX = 8
"""The largest number of starts in the file. Ours: enough to recognise a loop."""

REASON_MAX = 400
"""The largest number of characters of a reason. A longer reason, such as a message about many settings, is cut. Ours: people read it
in one line."""


class ProcessStart(NamedTuple):
    """A start of the daemon.

    `boottime_s`: CLOCK_BOOTTIME at the start, in seconds.
    `exit_status`: None while the process runs, or if it was killed.
    `reason`: why the process ended, "" if that is not known.
    `next_step`: what an operator can do, "" if only the reason is known.
    """

    boottime_s: float
    pid: int
    exit_status: int | None = None
    reason: str = ""
    next_step: str = ""


class StartRecord:
    """Writes the line of this process. No method raises an error, because the start must not fail if the line cannot be written."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._this_start = ProcessStart(time.clock_gettime(time.CLOCK_BOOTTIME), os.getpid())

    def begin(self) -> None:
        """Record that this process began."""
        self._write()

    def end(self, exit_status: int, *, reason: str, next_step: str = "") -> None:
        """Record how this process ends."""
        reason, next_step = printable(reason, most=REASON_MAX), printable(next_step, most=REASON_MAX)
        self._this_start = self._this_start._replace(exit_status=exit_status, reason=reason, next_step=next_step)
        self._write()

    def _write(self) -> None:
        with suppress(OSError):
            if not _is_ours(self._run_dir):
                return
            earlier = [start for start in read_starts(self._run_dir) if start.boottime_s != self._this_start.boottime_s]
            lines = [json.dumps(start._asdict()) for start in [*earlier, self._this_start][-STARTS_MAX:]]
            temporary = self._run_dir / f".{STARTS_NAME}"
            with settings_file.created(temporary, 0o600) as stream:
                stream.write(("\n".join(lines) + "\n").encode())
            temporary.replace(self._run_dir / STARTS_NAME)


def read_starts(run_dir: Path) -> tuple[ProcessStart, ...]:
    """Read the last starts, oldest first. Never blocks, whatever is in the place of the file.

    Returns: () if there is no such file, or if it cannot be read or is malformed.
    """
    try:
        lines = settings_file.content_of(run_dir / STARTS_NAME).decode().splitlines()
        starts = tuple(ProcessStart(**json.loads(line)) for line in lines)
    except (OSError, ValueError, TypeError, RecursionError):
        return ()
    if not all(map(_is_well_formed, starts)):
        return ()
    return starts


def _is_well_formed(start: ProcessStart) -> bool:
    """Whether the fields of a line have their types. A disk may have damaged the line."""
    return (
        isinstance(start.boottime_s, (int, float))
        and isinstance(start.pid, int)
        and isinstance(start.exit_status, (int, type(None)))
        and isinstance(start.reason, str)
        and isinstance(start.next_step, str)
    )


def _is_ours(run_dir: Path) -> bool:
    """Whether a directory can be a run directory: this user owns it, and it is closed to all other users, is empty, or has our record.

    This is checked because invalid settings may name any directory. A run directory may be open to all: kubelet makes it so, and a
    daemon closes it only after it has read its settings.
    """
    status = run_dir.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return False
    return not status.st_mode & 0o077 or not any(run_dir.iterdir()) or bool(read_starts(run_dir))
