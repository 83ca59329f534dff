"""Measure the age of the history's files by a clock that nobody sets.

While the wall clock is days ahead, for example at a boot or for an hour, every file looks old. If the wall clock was days behind,
every file looks old once the clock is corrected. So a file is removed for its age only if it is old by two clocks. The first is the
wall clock, which is compared with the file's modification time. The second is the running time: the monotonic clock, summed over boots
by the daemons of this node. Running time stands still while the node is off, so a node that was off keeps its history for longer.
`VPC_IPAMD_HISTORY_MAX_BYTES` bounds the history in any case.

The running times are in `ages.json` beside the files. If `ages.json` is missing or cannot be read, the age of a file counts from the
moment at which this process first saw the file, so the file seems younger than it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from ipamd.model.record import dataclass
from ipamd.settings.settings_file import opened

FILE_NAME = "ages.json"

FILE_BYTES_MAX = 1 << 20
"""Largest `ages.json` that is read. Ours: it has 40 bytes for each file of the history, and there are some dozens."""


@dataclass(slots=True)
class _RunningTime:
    """The content of `ages.json`.

    `ran_s`: running time when the monotonic clock of boot `boot_id` was at `monotonic_s`.
    `written_s`: running time of the last write, by file name.
    """

    boot_id: str
    monotonic_s: float
    ran_s: float
    written_s: dict[str, float]


class FileAges:
    """The running time since the last write of each file. One thread at a time may use it. `ages.json` is read at the first call."""

    def __init__(self, directory: Path, *, boot_id: str) -> None:
        self._path = directory / FILE_NAME
        self._boot_id = boot_id
        self._counted: _RunningTime | None = None

    def record_write(self, name: str, *, monotonic_s: float) -> None:
        """Record that a file was written just now."""
        counted = self._count(monotonic_s)
        counted.written_s[name] = counted.ran_s

    def age_s(self, name: str, *, monotonic_s: float) -> float:
        """Return the seconds of running time since the last write of a file; 0 for a file that is seen for the first time."""
        counted = self._count(monotonic_s)
        return counted.ran_s - counted.written_s.setdefault(name, counted.ran_s)

    def retain(self, names: Collection[str]) -> None:
        """Store the running times of the files in `names`, and forget those of all other files. If the write fails, the next daemon
        has only the times of an earlier write.
        """
        if self._counted is None:
            return
        self._counted.written_s = {name: at_s for name, at_s in self._counted.written_s.items() if name in names}
        temporary = self._path.with_suffix(".tmp")
        content = {
            "boot_id": self._counted.boot_id,
            "monotonic_s": round(self._counted.monotonic_s, 1),
            "ran_s": round(self._counted.ran_s, 1),
            "written_s": {name: round(at_s, 1) for name, at_s in self._counted.written_s.items()},
        }
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with suppress(OSError):
            with os.fdopen(os.open(temporary, flags, 0o600), "w") as file:
                json.dump(content, file)
            temporary.replace(self._path)

    def _count(self, monotonic_s: float) -> _RunningTime:
        """Add the time since the last call to the running time. Returns: all running times."""
        counted = self._counted
        if counted is None:
            counted = self._counted = self._read() or _RunningTime(self._boot_id, monotonic_s, 0.0, {})
        since_s = 0.0  # the monotonic clock begins at 0 with each boot
        if counted.boot_id == self._boot_id:
            since_s = counted.monotonic_s
        counted.ran_s += max(monotonic_s - since_s, 0.0)
        counted.boot_id, counted.monotonic_s = self._boot_id, monotonic_s
        return counted

    def _read(self) -> _RunningTime | None:
        """Read the running times that an earlier daemon stored; None if there are none, or they cannot be read."""
        try:
            with opened(self._path, flags=os.O_NOFOLLOW) as file:
                content = json.loads(file.read(FILE_BYTES_MAX))
            written_s = {str(name): _seconds(at_s) for name, at_s in content["written_s"].items()}
            return _RunningTime(str(content["boot_id"]), _seconds(content["monotonic_s"]), _seconds(content["ran_s"]), written_s)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None


def _seconds(value: Any) -> float:
    """Read a number of seconds. Raises: ValueError, TypeError."""
    seconds = float(value)
    if not 0 <= seconds < 1e12:
        raise ValueError(f"{seconds} is no time that has passed")
    return seconds
