"""Periodic work: see that our sockets are there, look for another daemon, say that we serve, replay the spool, have the policy agent
forget, see that the datastore's file is still ours, drop old tombstones.

A plugin also spools a DEL when the daemon was too slow to answer, so the spool is read while the daemon serves (I3). If the
datastore's file was deleted while in use, nothing written to it survives a restart; if the disk failed so that not even a rollback
succeeded, nobody knows what the file holds: the process exits on purpose and must be restarted; the next start reads the file again,
or rebuilds the rows from kernel and runtime.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

from ipamd.core.context import Service, ServiceContext
from ipamd.core.loop import Loop
from ipamd.model.errors import DATASTORE, DatastoreError
from ipamd.model.history import LedgerEvent
from ipamd.ports import Spool

INTERVAL_S = 5.0
"""Ours: a line in a tmpfs, one directory listing and one stat; DELs of a daemon that stalled wait no longer once it answers again."""

TOMBSTONE_AGE = timedelta(hours=1)
"""How long a late ADD is refused after its DEL. Ours: kubelet gives RunPodSandbox 4 minutes, and sandbox IDs are never reused."""

TOMBSTONE_INTERVAL_S = 600.0

TOMBSTONES = ("tombstones",)
"""Of the agenda: when old ones are dropped next."""

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
        look: Callable[[], object],
        keep: Callable[[], None],
        rest: Callable[..., None],
        end: Callable[[str], None],
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        """`leave_mark` says that ADD is served; `replay` carries out the spooled DELs; `look` looks for another daemon; `keep` sees
        that our sockets are there; `rest` lets go of what asks EC2 and is idle, or has it ready; `end` exits the process, with why;
        `settle` has the policy agent forget what it is owed."""
        super().__init__(context)
        self._keep = keep
        self._look = look
        self._spool = spool
        self._leave_mark = leave_mark
        self._replay = replay
        self._settle = settle
        self._rest = rest
        self._end = end
        self.loop = Loop("maintenance", self.turn, health=context.health, clock=context.clock)
        self._agenda.put(TOMBSTONES, in_s=TOMBSTONE_INTERVAL_S)

    def turn(self) -> float:
        """Do everything that is due. Returns: seconds until the next turn. Raises: the first error; the next turn tries again."""
        lost = self._datastore.file_problem()
        if lost:
            log.error("the process exits; its next start reads the datastore again, or rebuilds it reason=%s", lost)
            self._end(lost)
            return INTERVAL_S
        self._keep()
        self._look()
        self._leave_mark()
        if DATASTORE in self._health.conditions_by_subject():
            self._try_datastore()
        counts = self._datastore.counts()
        is_dry = counts.free <= counts.held and not self._demand.status.blocked_by
        self._rest(is_wanted=is_dry)  # the next ADD will wait for EC2
        if self._spool.pending_count():
            self._replay()
        self._settle()
        if self._agenda.is_due(TOMBSTONES):
            self._agenda.put(TOMBSTONES, in_s=TOMBSTONE_INTERVAL_S)
            with self._datastore.transaction() as uow:
                count = uow.drop_tombstones(older_than=TOMBSTONE_AGE)
            if count:
                log.info("tombstones dropped count=%d age=%s", count, TOMBSTONE_AGE)
        return INTERVAL_S

    def _try_datastore(self) -> None:
        """See whether a disk that refused takes a change again; pods may be long in coming."""
        try:
            with self._datastore.transaction() as uow:
                uow.record_event(LedgerEvent.REPAIRED, detail="the datastore's disk refused, and takes changes again")
        except DatastoreError as error:
            self._health.report_refused_change(error)
        else:
            self._health.report(DATASTORE, "")
