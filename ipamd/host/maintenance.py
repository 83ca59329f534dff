"""Do the periodic work of the daemon.

A turn does the following in order. It checks that the datastore's file is still the file that is open, and puts missing sockets of
ours back. It looks for another daemon on the node, and records in a file that this daemon serves (`ServedMark`). If the datastore's
disk refused a change, it writes an event to find out whether the disk accepts changes again. It ends the idle process that calls EC2,
or keeps it ready. It carries out spooled DELs, makes the policy agent forget deleted pods, and removes old tombstones, which are the
records of deleted sandboxes.

The spool, the directory in which plugins leave DELs, is also read while the daemon serves, because a plugin spools a DEL if the daemon
was too slow to answer (I3).

If the datastore's file was deleted while in use, nothing written to it survives a restart. If even a rollback failed, the content of
the file is unknown. In both cases the process exits on purpose, so that it is restarted. The next start reads the file again, or
rebuilds the rows from kernel and runtime.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

from ipamd.core.context import Service, ServiceContext
from ipamd.core.loop import Loop
from ipamd.model.errors import DATASTORE, DatastoreError
from ipamd.model.history import LedgerEvent
from ipamd.ports.datastore import Spool

INTERVAL_S = 5.0
"""Seconds between two turns. Ours: short, because DELs that were spooled while the daemon stalled wait for a turn, and a turn costs
little: it writes a line to a tmpfs, lists one directory and makes one stat."""

TOMBSTONE_AGE = timedelta(hours=1)
"""For how long after the DEL of a sandbox a late ADD of the same sandbox is refused. Ours: much longer than the 4 minutes that kubelet
gives RunPodSandbox. This refuses no other ADD, because sandbox IDs are never reused."""

TOMBSTONE_INTERVAL_S = 600.0
"""Seconds between two removals of old tombstones. Ours: a tombstone that stays longer than TOMBSTONE_AGE does no harm, and each
removal is a transaction. With a DEL each second 600 more rows wait for it, of some tens of bytes each."""

TOMBSTONES = ("tombstones",)
"""Key in `Backoffs` of the next removal of old tombstones."""

log = logging.getLogger(__name__)


class Maintenance(Service):
    """Does the periodic work, in a loop of its own."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        spool: Spool,
        leave_mark: Callable[[], None],
        replay: Callable[[], None],
        find_other_daemon: Callable[[], object],
        keep_sockets: Callable[[], None],
        release_idle: Callable[..., None],
        end: Callable[[str], None],
        clean_up_policy: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the functions of other packages that a turn calls.

        Args:
            leave_mark: records that this daemon serves (`ServedMark.leave`).
            replay: carries out the spooled DELs.
            find_other_daemon: looks for another daemon on the node.
            keep_sockets: puts missing sockets of ours back.
            release_idle: ends the idle process that calls EC2; keeps it ready if `is_needed_soon`.
            end: exits the process, with a reason.
            clean_up_policy: makes the policy agent forget pods whose cleanup is pending.
        """
        super().__init__(context)
        self._keep_sockets = keep_sockets
        self._find_other_daemon = find_other_daemon
        self._spool = spool
        self._leave_mark = leave_mark
        self._replay = replay
        self._clean_up_policy = clean_up_policy
        self._release_idle = release_idle
        self._end = end
        self.loop = Loop("maintenance", self.turn, health=context.health, clock=context.clock)
        self._backoffs.put(TOMBSTONES, in_s=TOMBSTONE_INTERVAL_S)

    def turn(self) -> float:
        """Do everything that is due. Returns: seconds until the next turn. Raises: the first error; the next turn tries again."""
        lost = self._datastore.file_problem()
        if lost:
            log.error("datastore file lost or unreliable, exiting for a restart reason=%s", lost)
            self._end(lost)
            return INTERVAL_S
        self._keep_sockets()
        self._find_other_daemon()
        self._leave_mark()
        if DATASTORE in self._health.conditions_by_subject():
            self._try_datastore()
        counts = self._datastore.counts()
        next_add_needs_ec2 = counts.free <= counts.withheld and self._demand.status.blocked is None
        self._release_idle(is_needed_soon=next_add_needs_ec2)
        try:
            self._spool.free_places()
            if self._spool.pending_count():
                self._replay()
        finally:  # also after a failure of the spool
            self._clean_up_policy()
            self._drop_tombstones()
        return INTERVAL_S

    def _drop_tombstones(self) -> None:
        if not self._backoffs.is_due(TOMBSTONES):
            return
        self._backoffs.put(TOMBSTONES, in_s=TOMBSTONE_INTERVAL_S)
        with self._datastore.transaction() as uow:
            count = uow.drop_tombstones(older_than=TOMBSTONE_AGE)
        if count:
            log.info("tombstones dropped count=%d age=%s", count, TOMBSTONE_AGE)

    def _try_datastore(self) -> None:
        """Write an event to the datastore, to find out whether the disk that refused a change accepts changes again.

        Without this the condition would last until the next pod, which may come much later.
        """
        try:
            with self._datastore.transaction() as uow:
                uow.record_event(
                    LedgerEvent.REPAIRED, detail="the datastore's disk accepts changes again after it had refused one"
                )
        except DatastoreError as error:
            self._health.report_refused_change(error)
        else:
            self._health.report_accepted_change()
