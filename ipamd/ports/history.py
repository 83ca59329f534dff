"""The history on the host's disk, as services see it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from ipamd.model.history import HistoryRecord, Recorded


class History(Protocol):
    """Keeps records beyond a boot. Safe from any thread."""

    def note(self, records: Sequence[HistoryRecord]) -> None:
        """Take records to be written later. Touches no disk, never waits and never fails: it is called by ADD and DEL."""
        ...

    def read(self, subject: str) -> Recorded:
        """Read what is kept about a subject, with what is not written yet. A file that cannot be read is a `problem`."""
        ...

    def read_since(self, since: datetime) -> Recorded:
        """Read what was written since an instant, for the start: what waits to be written is not in it."""
        ...


class NoHistory:
    """VPC_IPAMD_HISTORY_DIR=off: nothing is kept beyond the datastore."""

    def note(self, records: Sequence[HistoryRecord]) -> None:
        """Drop them."""

    def read(self, subject: str) -> Recorded:  # noqa: ARG002  # the port's signature
        """Say why there is nothing."""
        return self._nothing()

    def read_since(self, since: datetime) -> Recorded:  # noqa: ARG002  # the port's signature
        """Say why there is nothing."""
        return self._nothing()

    @staticmethod
    def _nothing() -> Recorded:
        return Recorded(problem="no history is kept on disk (VPC_IPAMD_HISTORY_DIR=off): only this boot's ledger is told")
