"""The port `History`: records of the node's events (addresses, sandboxes, ENIs), kept on the host's disk."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from ipamd.model.history import HistoryRecord, RecordedHistory


class History(Protocol):
    """Keeps records of events on disk, even across reboots of the node. Safe to call from any thread."""

    def enqueue(self, records: Sequence[HistoryRecord]) -> None:
        """Accept records, which are written later. If too many records wait, the oldest ones are dropped.

        ADD and DEL make this call, so it does not access the disk, never waits and never fails.
        """

    def read(self, subject: str) -> RecordedHistory:
        """Read the latest records about a subject, including records that are not written yet.

        The result's `problem` says why records may be missing: a file cannot be read or written, records were dropped, or there are
        too many.
        """

    def read_since(self, since: datetime) -> RecordedHistory:
        """Read the latest records on disk since a time, about any subject. Records that are not written yet are left out."""


class NoHistory:
    """The history with VPC_IPAMD_HISTORY_DIR=off: no record is kept besides the datastore's ledger."""

    def enqueue(self, records: Sequence[HistoryRecord]) -> None:
        """Discard the records."""

    def read(self, subject: str) -> RecordedHistory:  # noqa: ARG002  # the port's signature
        """Return no records, and why."""
        return self._nothing()

    def read_since(self, since: datetime) -> RecordedHistory:  # noqa: ARG002  # the port's signature
        """Return no records, and why."""
        return self._nothing()

    @staticmethod
    def _nothing() -> RecordedHistory:
        return RecordedHistory(problem="no history is kept on disk (VPC_IPAMD_HISTORY_DIR=off): only this boot's ledger is read")
