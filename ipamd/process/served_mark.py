"""Record when this daemon last served. The plugin's STATUS bridges a short absence of the daemon: it succeeds although no daemon
serves. The absence begins at this mark (I17, docs/adr/0033).

The mark is a file in the run directory with the boot ID and CLOCK_BOOTTIME in milliseconds. It is replaced by a rename. /run is a
tmpfs, so no disk is written. The mark is written only by a daemon that is *ready*, or that blocks ADD because amazon-vpc-cni-k8s is
taking over the node or leaving it. A daemon in a crash loop does not write it, because it must not prolong the bridging.

The mark is written at *ready*, at SIGTERM, and every 5 s by the loop of `Maintenance`. So after a kill -9 the absence seems at most 5
s longer. The mark means that the daemon lives and serves ADD, or blocks it on purpose, and not that it answers in time.
`cni_plugin/absence.py` and the start of the next daemon read it.
"""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path

from ipamd.core.health import Health
from ipamd.model.conditions import ConditionCode, problem
from ipamd.settings.settings_file import created

SERVED_NAME = "served"

LEFTOVERS = ".bridged-*"
"""Name pattern of the temporary files of plugins that were killed while they wrote."""


class ServedMark:
    """Writes and reads the file `served`, which has the time when this daemon last served ADD. Safe from any thread."""

    def __init__(self, run_dir: Path, *, boot_id: str, health: Health) -> None:
        self._path = run_dir / SERVED_NAME
        self._boot_id = boot_id
        self._health = health
        self._writing = threading.Lock()

    def absence_s(self) -> float:
        """Return for how many seconds no daemon has served ADD; infinite if there is no readable mark of this boot.

        It must be called before this daemon writes its first mark.
        """
        try:
            boot_id, served_ms = self._path.read_text(encoding="ascii").split()
            absence_s = _boottime_ms() / 1000 - int(served_ms) / 1000
        except (OSError, ValueError):
            return math.inf
        if boot_id != self._boot_id or absence_s < 0:
            return math.inf
        return absence_s

    def leave(self) -> None:
        """Write the mark if the daemon is ready, or if ADD is blocked.

        ADD is blocked while the node moves between amazon-vpc-cni-k8s and this daemon. Until the other daemon serves, our conflist may
        be the only one, so STATUS must not fail. If the file cannot be written, a condition reports it, and STATUS bridges no absence.
        """
        if not (self._health.is_ready or self._health.are_adds_blocked):
            return
        unwritable, failure = None, None
        try:
            with self._writing:
                self._write()
        except OSError as error:
            unwritable = problem(ConditionCode.SERVED_MARK_UNWRITABLE, path=self._path, cause=error.strerror)
            failure = error
        self._health.report("served mark", unwritable, error=failure)

    def tidy(self) -> None:
        """Remove temporary files of killed plugins."""
        for path in self._path.parent.glob(LEFTOVERS):
            path.unlink(missing_ok=True)

    def _write(self) -> None:
        temporary = self._path.with_name(f".{SERVED_NAME}")
        with created(temporary, 0o600) as stream:
            stream.write(f"{self._boot_id}\n{_boottime_ms()}\n".encode())
        temporary.replace(self._path)


def _boottime_ms() -> int:
    """Return the milliseconds since the boot, including the time in which the machine slept."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
