"""Carry out the DELs that the plugin left on disk while the daemon was down or too slow (I3)."""

from __future__ import annotations

from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline, StepTimer
from ipamd.core.failure_isolation import FailureIsolation
from ipamd.model.errors import DatastoreError
from ipamd.ports.datastore import Spool
from ipamd.sandbox.detach import DetachService


class SpooledDeletes(Service):
    """Carries out the DELs in the spool, at the start before ADD is served, and every few seconds afterwards."""

    def __init__(self, context: ServiceContext, *, spool: Spool, detach: DetachService) -> None:
        super().__init__(context)
        self._spool = spool
        self._detach = detach
        self._failures = FailureIsolation(context.health, work="spooled DELs")

    def replay(self, *, deadline: Deadline) -> int:
        """Carry out every spooled DEL. The socket must be listening already, so that no plugin spools a DEL after this replay.

        An entry that fails stays on disk (I3), is named in a condition, and is tried again at the next replay. It delays neither the
        other entries nor the start.

        Args:
            deadline: bounds the total time for which entries wait for locks of sandboxes. After that time, an entry whose sandbox is
                locked is left for the next replay at once, and all other entries are carried out.
        Returns: the number of DELs that were carried out. Raises: DatastoreError if the disk cannot be written, after all entries have
            been tried.
        """
        count = 0
        tried: set[str] = set()
        disk_error: DatastoreError | None = None
        with self._spool.replay(lock_wait_s=deadline.remaining_s()) as entries:
            for entry in entries:
                tried.add(str(entry.key))
                with self._failures.isolate(str(entry.key)):
                    try:
                        self._detach.detach_sandbox(
                            entry.key, deadline=deadline, steps=StepTimer(self._clock), reason="spooled DEL"
                        )
                    except DatastoreError as error:
                        if error.retryable:  # the disk cannot be written; other datastore errors concern this entry only
                            disk_error = disk_error or error
                        raise
                    self._failpoint("restore.replayed")
                    entry.done()
                    self._failpoint("restore.entry-done")
                    count += 1
        self._failures.retain(tried)
        if disk_error is not None:
            raise disk_error
        return count
