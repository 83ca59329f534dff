"""The mark that this daemon served a moment ago: what STATUS bridges while it is away is counted from it (I17, docs/adr/0033).

One line in the run directory, replaced by a rename: boot ID and CLOCK_BOOTTIME in milliseconds. Only *ready* daemons leave it, so that
one that comes and dies again and again gains nothing. It is written by the loop of `Maintenance`, at *ready* and at SIGTERM, hence a
kill -9 makes the absence look 5 s longer at most. It says that the daemon lives and serves ADD, not that answers come in time.
`cni_plugin/absence.py` reads it. /run is a tmpfs: no disk is written.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

from ipamd.service.health import Health

MARK_NAME = "served"
LEFTOVERS = ".bridged-*"
"""Temporary files of plugins that were killed while they wrote."""

log = logging.getLogger(__name__)


class ServedMark:
    """Safe to use from any thread."""

    def __init__(self, run_dir: Path, *, boot_id: str, health: Health) -> None:
        self._path = run_dir / MARK_NAME
        self._boot_id = boot_id
        self._health = health
        self._writing = threading.Lock()
        self._problem = ""

    def leave(self) -> None:
        """Write the mark if the daemon is ready, or gives its node back: while amazon-vpc-cni-k8s takes over, ours may be the only
        conflist. A refusal is logged once: then nothing is bridged."""
        if not (self._health.is_ready or self._health.is_held):
            return
        try:
            with self._writing:
                self._write()
        except OSError as error:
            if str(error) != self._problem:
                log.warning("STATUS will fail at a restart: %s cannot be written: %s", self._path, error.strerror)
            self._problem = str(error)
        else:
            self._problem = ""

    def tidy(self) -> None:
        """Remove what killed plugins left behind."""
        for path in self._path.parent.glob(LEFTOVERS):
            path.unlink(missing_ok=True)

    def _write(self) -> None:
        now_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
        temporary = self._path.with_name(f".{MARK_NAME}")
        temporary.unlink(missing_ok=True)  # of a daemon that was killed in between, or somebody's link
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, f"{self._boot_id}\n{now_ms}\n".encode())
        finally:
            os.close(descriptor)
        temporary.replace(self._path)
