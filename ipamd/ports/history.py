"""The history on the host's disk."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from ipamd.model.history import HistoryRecord, RecordedHistory


class History(Protocol):
    """Keeps records of events on disk, also after a reboot of the node. Safe to call from any thread."""

    def enqueue(self, records: Sequence[HistoryRecord]) -> None:
        """Accept records, which are written later. It does not access the disk, never waits and never fails, because ADD and DEL call
        it.
        """

    def read(self, subject: str) -> RecordedHistory:
        """Read the records about a subject, including records that are not written yet. If a file cannot be read, the result's
        `problem` says so.
        """

    def read_since(self, since: datetime) -> RecordedHistory:
        """Read the records on disk since a time, for the start of the daemon. Records that are not written yet are left out."""


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
