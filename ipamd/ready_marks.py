"""The first *ready* of a boot waits until this node can give an address: a node that is ready attracts pods.

It needs one address that can be given, or one live attachment. ADD is served while it waits, because a pod that comes can wait for
the pool; only the probe and the conflist are held back. Later an empty pool is a condition and never ends *ready*: a node that is
not ready for minutes has its pods evicted. Whether this boot had its first *ready* is a mark in the run directory with the boot's
ID; a lost mark only makes the next start wait again.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from ipamd.core.context import Service, ServiceContext
from ipamd.core.health import Health
from ipamd.model.errors import NotServingError
from ipamd.model.pool import assignable_count
from ipamd.model.words import counted
from ipamd.settings.settings_file import content_of, created

log = logging.getLogger(__name__)


READY_ONCE_NAME = "ready-once"

CONDITION = "first address"

LOOK_S = 1.0
"""How long a wait for the pool's next word may last before the daemon's end is noticed. Ours; it looks at memory only."""


class FirstAddress(Service):
    """Waits for the first address of a boot. One thread."""

    def __init__(self, context: ServiceContext, *, run_dir: Path, boot_id: str, stopped: threading.Event) -> None:
        super().__init__(context)
        self._mark = run_dir / READY_ONCE_NAME
        self._boot_id = boot_id
        self._stopped = stopped

    def wait(self) -> str:
        """Return when this node may be ready, with one sentence why. Raises: NotServingError if the daemon is stopped."""
        try:
            if content_of(str(self._mark)).strip() == self._boot_id.encode():
                return "not awaited: this node has been ready since its boot"
        except OSError:
            pass
        # As an ADD that waits: with MINIMUM_IP_TARGET alone the pool may see no reason to grow before one comes.
        self._demand.join()
        self._health.awaits_first_address = True
        try:
            return self._wait()
        finally:
            self._demand.leave()
            self._health.awaits_first_address = False

    def remember(self) -> None:
        """Record that this boot had its first *ready*. A disk that refuses is logged."""
        try:
            self._mark.write_text(f"{self._boot_id}\n")
        except OSError as error:
            log.warning("the next start waits for a first address again path=%s error=%s", self._mark, error.strerror)

    def _wait(self) -> str:
        while not self._stopped.is_set():
            supply, status = self._demand.supply_count, self._demand.status
            count, attached = assignable_count(self._datastore.stock()), len(self._datastore.attachments())
            if count or attached:
                self._health.report(CONDITION, "")
                return f"{counted(count, 'address')} can be given, {counted(attached, 'sandbox')} attached"
            sentence = f"{CONDITION}: none can be given since the node's boot, so the node is not ready: {status.cause()}"
            self._health.report(CONDITION, sentence)
            self._demand.wait(seen_supply=supply, seen_status=status, timeout_s=LOOK_S)
        raise NotServingError("vpc-ipamd is shutting down")


# The mark that this daemon served a moment ago: what STATUS bridges while it is away is counted from it (I17, docs/adr/0033).
#
# One line in the run directory, replaced by a rename: boot ID and CLOCK_BOOTTIME in milliseconds. Only *ready* daemons leave it,
# so that one that comes and dies again and again gains nothing. It is written by the loop of `Maintenance`, at *ready* and at
# SIGTERM, hence a kill -9 makes the absence look 5 s longer at most. It says that the daemon lives and serves ADD, not that
# answers come in time. `cni_plugin/absence.py` reads it. /run is a tmpfs: no disk is written.


SERVED_NAME = "served"
LEFTOVERS = ".bridged-*"
"""Temporary files of plugins that were killed while they wrote."""


class ServedMark:
    """Safe to use from any thread."""

    def __init__(self, run_dir: Path, *, boot_id: str, health: Health) -> None:
        self._path = run_dir / SERVED_NAME
        self._boot_id = boot_id
        self._health = health
        self._writing = threading.Lock()

    def leave(self) -> None:
        """Write the mark if the daemon is ready, or gives its node back: while amazon-vpc-cni-k8s takes over, ours may be the only
        conflist. After a refusal nothing is bridged."""
        if not (self._health.is_ready or self._health.is_held):
            return
        problem, refused = "", None
        try:
            with self._writing:
                self._write()
        except OSError as error:
            problem = f"served mark: {self._path} cannot be written ({error.strerror}): STATUS will fail at a restart"
            refused = error
        self._health.report("served mark", problem, error=refused)

    def tidy(self) -> None:
        """Remove what killed plugins left behind."""
        for path in self._path.parent.glob(LEFTOVERS):
            path.unlink(missing_ok=True)

    def _write(self) -> None:
        now_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
        temporary = self._path.with_name(f".{SERVED_NAME}")
        with created(temporary, 0o600) as stream:
            stream.write(f"{self._boot_id}\n{now_ms}\n".encode())
        temporary.replace(self._path)
