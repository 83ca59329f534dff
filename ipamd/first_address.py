"""The first *ready* of a boot waits until this node can give an address: a node that is ready attracts pods.

It needs one address that can be given, or one live attachment. ADD is served while it waits, because a pod that comes can wait for
the pool; only the probe and the conflist are held back. Later an empty pool is a condition and never ends *ready*: a node that is
not ready for minutes has its pods evicted. Whether this boot had its first *ready* is a mark in the run directory with the boot's
ID; a lost mark only makes the next start wait again.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from ipamd.model.assignable import assignable_count
from ipamd.model.errors import NotServingError
from ipamd.model.words import counted
from ipamd.service.context import ServiceContext

MARK_NAME = "ready-once"

CONDITION = "first address"

LOOK_S = 1.0
"""How long a wait for the pool's next word may last before the daemon's end is noticed. Ours; it looks at memory only."""

log = logging.getLogger(__name__)


class FirstAddress:
    """Waits for the first address of a boot. One thread."""

    def __init__(self, context: ServiceContext, *, run_dir: Path, boot_id: str, stopped: threading.Event) -> None:
        self._datastore = context.datastore
        self._demand = context.demand
        self._health = context.health
        self._mark = run_dir / MARK_NAME
        self._boot_id = boot_id
        self._stopped = stopped

    def wait(self) -> str:
        """Return when this node may be ready, with one sentence why. Raises: NotServingError if the daemon is stopped."""
        if self._was_ready():
            return "not awaited: this node has been ready since its boot"
        # As an ADD that waits: with MINIMUM_IP_TARGET alone the pool may see no reason to grow before one comes.
        self._demand.join()
        self._health.await_first_address(True)
        try:
            return self._wait()
        finally:
            self._demand.leave()
            self._health.await_first_address(False)

    def remember(self) -> None:
        """Record that this boot had its first *ready*. A disk that refuses is logged."""
        try:
            self._mark.write_text(f"{self._boot_id}\n")
        except OSError as error:
            log.warning("%s cannot be written (%s): the next start waits for a first address again", self._mark, error.strerror)

    def _wait(self) -> str:
        while not self._stopped.is_set():
            supply, status = self._demand.supply_count(), self._demand.status()
            count, attached = assignable_count(self._datastore.stock()), len(self._datastore.attachments())
            if count or attached:
                self._health.clear_condition(CONDITION)
                return f"{counted(count, 'address')} can be given, {counted(attached, 'sandbox')} attached"
            sentence = f"{CONDITION}: none can be given since the node's boot, so the node is not ready: {status.cause}"
            self._health.set_condition(CONDITION, sentence)
            self._demand.wait(seen_supply=supply, seen_status=status, timeout_s=LOOK_S)
        raise NotServingError("vpc-ipamd is shutting down")

    def _was_ready(self) -> bool:
        try:
            return self._mark.read_text().strip() == self._boot_id
        except (OSError, UnicodeDecodeError):
            return False
