"""Carry out the DELs that the plugin left on disk while the daemon was down or too slow (I3)."""

from __future__ import annotations

from ipamd.model.errors import IpamError
from ipamd.ports import Spool
from ipamd.service.context import ServiceContext
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

    def pending_count(self) -> int:
        """How many DELs wait on disk."""
        return self._spool.pending_count()

    def replay(self, *, deadline: Deadline) -> int:
        """Carry out every spooled DEL. The socket must be listening already, so that no plugin spools one unseen.

        Returns: how many were carried out. Raises: the first error of an entry that should be tried again, after all others have
            been tried.
        """
        count = 0
        first_error: IpamError | None = None
        with self._spool.replay() as entries:
            for entry in entries:
                try:
                    self._detach.detach_sandbox(entry.key, deadline=deadline, steps=Steps(self._clock), reason="spooled DEL")
                    self._failpoint("restore.replayed")
                except IpamError as error:  # the DEL has not been done, so its entry stays on disk (I3)
                    first_error = first_error or error
                else:
                    entry.done()
                    self._failpoint("restore.entry-done")
                    count += 1
        if first_error is not None:
            raise first_error
        return count
