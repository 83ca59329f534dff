"""GC: free attachments that the runtime's list of valid ones lacks, unless CRI still lists their sandbox (I2).

Candidates come from our datastore only. The list is older than the request that carries it, so young attachments are not judged.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

from ipamd.model.errors import IpamError, log_text
from ipamd.model.ids import AttachmentKey
from ipamd.model.ledger import LedgerEvent
from ipamd.ports import Runtime
from ipamd.service.context import ServiceContext
from ipamd.service.request import Deadline, Steps
from ipamd.service.sandbox.detach import DetachService

GC_MIN_AGE = timedelta(seconds=60)
"""Attachments younger than this are not judged by a list that may be older than they are. Ours: the longest ADD deadline."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GcOutcome:
    """What GC did, by key."""

    freed: tuple[AttachmentKey, ...]
    kept: tuple[AttachmentKey, ...]


class GcService:
    """GC."""

    def __init__(self, context: ServiceContext, *, runtime: Runtime | None, detach: DetachService) -> None:
        self._datastore = context.datastore
        self._runtime = runtime
        self._detach = detach
        self._clock = context.clock
        self._started_at, self._started_monotonic_s = context.clock.now(), context.clock.monotonic()

    def collect(self, valid: frozenset[AttachmentKey], *, network_name: str, deadline: Deadline, steps: Steps) -> GcOutcome:
        """Free the attachments of one network that are not valid any more.

        Args:
            valid: the runtime's `cni.dev/valid-attachments`.
        Returns: what was freed and what was kept against the list.
        Raises: RuntimeUnreachableError if CRI is on and silent: then nothing is freed (I11); else the first error, after every
            candidate was tried.
        """
        now = self._clock.now()
        # A wall clock that was set forward since we started must not make an attachment older than it is.
        stepped = max(
            now - self._started_at - timedelta(seconds=self._clock.monotonic() - self._started_monotonic_s), timedelta(0)
        )
        candidates = [
            attachment
            for attachment in self._datastore.attachments()
            if attachment.network_name == network_name
            and attachment.key not in valid
            and now - attachment.created_at - stepped >= GC_MIN_AGE
        ]
        listed = self._listed() if candidates else frozenset()
        freed, kept, first_error = [], [], None
        for attachment in candidates:
            if attachment.key.container_id in listed:
                kept.append(attachment.key)
                self._note_kept(attachment.key)
                continue
            try:
                self._detach.detach_sandbox(attachment.key, deadline=deadline, steps=steps, reason="GC")
                freed.append(attachment.key)
            except IpamError as error:
                log.warning("GC of sandbox %s: %s", attachment.key, log_text(error))
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        return GcOutcome(tuple(freed), tuple(kept))

    def _listed(self) -> frozenset[str]:
        """Sandboxes that CRI knows; with CRI off the runtime's own list, which came with the request, decides alone."""
        if self._runtime is None:
            return frozenset()
        return frozenset(sandbox.container_id for sandbox in self._runtime.sandboxes())

    def _note_kept(self, key: AttachmentKey) -> None:
        with self._datastore.transaction() as uow:
            uow.note(
                LedgerEvent.KEPT,
                key=key,
                detail="GC did not list it as valid, but the runtime still lists its sandbox",
            )
