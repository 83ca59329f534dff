"""Delay the first *ready* of a boot until this node can assign an address, because a ready node attracts pods.

One free address is enough, or one live sandbox. The daemon serves ADD while it waits, because a pod's ADD can wait for the pool. Only
the readiness probe and the conflist are delayed. Later an empty pool is a condition and does not end *ready*, because the pods of a
node that is not ready for minutes are evicted. A mark in the run directory, with the boot's ID, records the first *ready* of a boot.
If the mark is lost, the next start waits once more.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from ipamd.core.context import Service, ServiceContext
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.errors import IpamError, NotServingError
from ipamd.model.pool_counts import assignable_count
from ipamd.model.words import counted
from ipamd.settings.settings_file import content_of, created

log = logging.getLogger(__name__)

READY_ONCE_NAME = "ready-once"

CONDITION = "first address"

CHECK_S = 1.0
"""Longest pause, in seconds, until a wait for the pool's next status checks again whether the daemon ends. Ours: the check only reads
memory."""


class FirstAddress(Service):
    """Waits for the first address of a boot. Only one thread may use it."""

    def __init__(self, context: ServiceContext, *, run_dir: Path, boot_id: str, stopped: threading.Event) -> None:
        super().__init__(context)
        self._mark = run_dir / READY_ONCE_NAME
        self._boot_id = boot_id
        self._stopped = stopped

    def wait(self) -> str:
        """Wait until this node may be ready.

        Returns: why it may be ready, as a sentence for `ipamctl status`. Raises: NotServingError if the daemon is stopped.
        """
        try:
            if content_of(str(self._mark)).strip() == self._boot_id.encode():
                return "not awaited: this node has been ready since its boot"
        except OSError:
            pass
        # This wait counts as a waiting ADD, because with MINIMUM_IP_TARGET alone the pool possibly does not grow before the
        # first ADD.
        self._demand.join()
        self._health.awaits_first_address = True
        try:
            return self._wait()
        finally:
            self._demand.leave()
            self._health.awaits_first_address = False

    def remember(self) -> None:
        """Record the first *ready* of this boot. A failure is logged."""
        try:
            with created(self._mark, 0o644) as stream:
                stream.write(f"{self._boot_id}\n".encode())
        except OSError as error:
            log.warning("failed to record the first ready of this boot path=%s error=%s", self._mark, error.strerror)

    def _wait(self) -> str:
        while not self._stopped.is_set():
            announcement_count, status = self._demand.announcement_count, self._demand.status
            count = assignable_count(self._datastore.stock())
            attached = len({attachment.key.container_id for attachment in self._datastore.attachments()})
            if count or attached:
                self._health.report(CONDITION, None)
                return f"{counted(count, 'address')} can be given, {counted(attached, 'sandbox')} attached"
            wired = self._wired_count()
            if wired:
                self._health.report(CONDITION, None)
                return f"{counted(wired, 'sandbox')} wired and not recorded: this node was ready before"
            missing = problem(ConditionCode.NO_FIRST_ADDRESS, cause=status.shortage(), next_step=status.step())
            self._health.report(CONDITION, missing)
            self._demand.wait(seen_announcement_count=announcement_count, seen_status=status, timeout_s=CHECK_S)
        raise NotServingError("vpc-ipamd is shutting down")

    def _wired_count(self) -> int:
        """Count the live sandboxes in the kernel; 0 if the kernel cannot be read.

        If the run directory was lost, they have no rows, but the node must become ready all the same.
        """
        try:
            survey = self._wiring.survey()
        except IpamError:
            return 0
        return len({veth.key.container_id for veth in survey.firsts if veth.key is not None and not veth.is_dying})
