"""The history on the host's disk."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from ipamd.model.history import HistoryRecord, RecordedHistory


class History(Protocol):
    """Keeps records beyond a boot. Safe from any thread."""

    def enqueue(self, records: Sequence[HistoryRecord]) -> None:
        """Take records to be written later. Touches no disk, never waits and never fails: it is called by ADD and DEL."""

    def read(self, subject: str) -> RecordedHistory:
        """Read the records about a subject, including those not written yet. A file that cannot be read is a `problem`."""

    def read_since(self, since: datetime) -> RecordedHistory:
        """Read the records that were written since a time, for the start: records that are not written yet are left out."""


class NoHistory:
    """VPC_IPAMD_HISTORY_DIR=off: nothing is kept beyond the datastore."""

    def enqueue(self, records: Sequence[HistoryRecord]) -> None:
        """Drop the records."""

    def read(self, subject: str) -> RecordedHistory:  # noqa: ARG002  # the port's signature
        """Return no records, and why."""
        return self._nothing()

    def read_since(self, since: datetime) -> RecordedHistory:  # noqa: ARG002  # the port's signature
        """Return no records, and why."""
        return self._nothing()

    @staticmethod
    def _nothing() -> RecordedHistory:
        return RecordedHistory(problem="no history is kept on disk (VPC_IPAMD_HISTORY_DIR=off): only this boot's ledger is read")
