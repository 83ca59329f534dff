"""The events of the ledger and the records of the history.

The ledger is part of the datastore: each entry is written in the same transaction as the change that it records, and decisions can be
traced by it. The history has the same events and the refused ADDs. It is kept on the host's disk over reboots, is written with a delay
(docs/adr/0035), and is for people only: no decision depends on it.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from ipamd.model.record import dataclass, replace


class LedgerEvent(StrEnum):
    """What happens to an address; a closed set. A row of the ledger is read as a `HistoryRecord`, whose event may be a word that a
    later release wrote.
    """

    ENI_ADDED = "eni-added"
    ENI_CHANGED = "eni-changed"
    ENI_REMOVED = "eni-removed"
    ADDED = "added"
    REMOVED = "removed"
    ASSIGNED = "assigned"
    ADOPTED = "adopted"
    UNASSIGNED = "unassigned"
    ABORTED = "aborted"
    COOLED = "cooled"
    QUARANTINED = "quarantined"
    RESOLVED = "settled"
    TOMBSTONED = "tombstoned"
    KEPT = "kept"
    REAPED = "reaped"
    REPAIRED = "repaired"
    INTENT_OPENED = "intent-opened"
    INTENT_CLOSED = "intent-closed"
    RESTORED = "restored"
    LOST = "lost"
    HEALED = "healed"


class HistoryEvent(StrEnum):
    """Events that only the history has, not the ledger."""

    BOOTED = "booted"
    HELD = "held"
    MISSED = "missed"
    REFUSED = "refused"


LEFT_OUT_OF_HISTORY = frozenset({LedgerEvent.TOMBSTONED, LedgerEvent.COOLED})
"""Ledger events that the history leaves out, because they follow from others and would double its size."""

MARKS = frozenset({HistoryEvent.BOOTED, HistoryEvent.MISSED})
"""Events that concern every subject."""


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    """One event. An empty string stands for "none".

    event: a LedgerEvent, a HistoryEvent, or a word of a later release.
    pod: `namespace/name`.
    since: the beginning of the attachment that an `unassigned` ends or a `held` confirms, of a series of `count` refusals, or of the
        boot.
    code: the CNI code of a refusal.
    other_address: the address of the same sandbox's extra leg.
    """

    at: datetime
    event: str
    address: str = ""
    container_id: str = ""
    ifname: str = ""
    eni_id: str = ""
    detail: str = ""
    pod: str = ""
    since: datetime | None = None
    count: int = 1
    code: int = 0
    other_address: str = ""

    def as_kept(self) -> HistoryRecord:
        """Return the record with times in milliseconds, as in the file. Done later, because ADD and DEL create records."""
        return replace(self, at=_whole_ms(self.at), since=_whole_ms(self.since) if self.since is not None else None)

    @property
    def sandbox(self) -> str:
        """`container_id/ifname`, or an empty string."""
        if self.container_id:
            return f"{self.container_id}/{self.ifname}"
        return ""


@dataclass(frozen=True, slots=True)
class RecordedHistory:
    """The records about one subject.

    records: in any order, with all marks.
    begins_at: the time of the oldest record of any subject; None without records.
    problem: why records may be missing, or "".
    """

    records: tuple[HistoryRecord, ...] = ()
    begins_at: datetime | None = None
    problem: str = ""


def _whole_ms(moment: datetime) -> datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
