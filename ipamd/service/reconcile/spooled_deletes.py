"""Carry out the DELs that the plugin left on disk while the daemon was down or too slow (I3)."""

from __future__ import annotations

from ipamd.model.errors import DatastoreError
from ipamd.ports import Spool
from ipamd.service.context import ServiceContext
from ipamd.service.odd_objects import OddObjects
from ipamd.service.request import Deadline, Steps
from ipamd.service.sandbox.detach import DetachService

FAILPOINTS = ("restore.replayed", "restore.entry-done")


class SpooledDeletes:
    """Replays the spool: at start before ADD is served, and every few seconds afterwards."""

    def __init__(self, context: ServiceContext, *, spool: Spool, detach: DetachService) -> None:
        self._clock = context.clock
        self._failpoint = context.failpoint
        self._spool = spool
        self._detach = detach
        self._odd = OddObjects(context.health, work="spooled DELs")

    def pending_count(self) -> int:
        """How many DELs wait on disk."""
        return self._spool.pending_count()

    def replay(self, *, deadline: Deadline) -> int:
        """Carry out every spooled DEL. The socket must be listening already, so that no plugin spools one unseen.

        An entry that refuses stays on disk (I3), is named in a condition, and is tried again at the next replay: neither the others
        nor a start wait for it.
        Returns: how many were carried out. Raises: DatastoreError if the disk refuses, after all entries have been tried.
        """
        count = 0
        tried: set[str] = set()
        disk_error: DatastoreError | None = None
        with self._spool.replay() as entries:
            for entry in entries:
                tried.add(str(entry.key))
                with self._odd.skip(str(entry.key)):
                    try:
                        self._detach.detach_sandbox(entry.key, deadline=deadline, steps=Steps(self._clock), reason="spooled DEL")
                    except DatastoreError as error:
                        if error.retryable:  # the disk refuses; the others are about this entry
                            disk_error = disk_error or error
                        raise
                    self._failpoint("restore.replayed")
                    entry.done()
                    self._failpoint("restore.entry-done")
                    count += 1
        self._odd.keep_only(tried)
        if disk_error is not None:
            raise disk_error
        return count
