"""The events of the ledger and the records of the history.

The ledger is part of the datastore: each entry is written in the same transaction as the change that it records, so that decisions can
be traced. The history has most of these events (see LEFT_OUT_OF_HISTORY), and the refused ADDs. The history is kept on the host's disk
across reboots and is written with a delay (docs/adr/0035). The history is for people, with one exception: if the ledger was lost or is
of another boot, a starting daemon reads from the history what the calls of an earlier process removed from ENIs lately
(`ipamd/eni/earlier_changes.py`).
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from ipamd.model.record import dataclass, replace


class LedgerEvent(StrEnum):
    """What happened to an address, a sandbox, an ENI or an intent. This release writes no other event.

    A row of the ledger is read as a `HistoryRecord`, whose event may be a word that a later release wrote.
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
    KEEPING_ENDED = "keeping-ended"
    MOVED = "moved"


class HistoryEvent(StrEnum):
    """Events that the history has, and the ledger does not.

    BOOTED: the boot of the node in which the following records were written; every file except those of refused ADDs begins with it.
    HELD: a sandbox has had its address since before this file of the history began.
    MISSED: records are missing.
    REFUSED: ADDs of a pod were refused.
    """

    BOOTED = "booted"
    HELD = "held"
    MISSED = "missed"
    REFUSED = "refused"


LEFT_OUT_OF_HISTORY = frozenset({LedgerEvent.TOMBSTONED, LedgerEvent.COOLED})
"""Ledger events that the history leaves out: they follow from other events, and would double the size of the history."""

MARKS = frozenset({HistoryEvent.BOOTED, HistoryEvent.MISSED})
"""Events that concern every subject."""


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    """One event. An empty string means that the event has no such field.

    at: the time of the event (aware UTC); in a series of refusals the time of the last one.
    event: a LedgerEvent, a HistoryEvent, or a word of a later release.
    detail: further information in words, such as the reason of a refusal or the ID of a boot.
    pod: `namespace/name`.
    since: the time at which the attachment began, if the event is about an attachment; for `refused`, the time of the first refusal of
        the series; for `booted`, the time of the boot. None for all other events, and for all records that are read from the ledger,
        which does not store it.
    count: for `refused` the number of refusals in the series; for `missed` the number of missing records, if it is known; else 1.
    code: for `refused` the CNI code.
    other_address: the address of the extra leg, if the sandbox has one.
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
        """Return the record with times in whole milliseconds, as in the file.

        This is not done when a record is made, because ADD and DEL make records and should be fast.
        """
        return replace(self, at=_whole_ms(self.at), since=_whole_ms(self.since) if self.since is not None else None)

    @property
    def sandbox(self) -> str:
        """`container_id/ifname`, or an empty string."""
        if self.container_id:
            return f"{self.container_id}/{self.ifname}"
        return ""


@dataclass(frozen=True, slots=True)
class RecordedHistory:
    """The records about one subject, or about all subjects since a time.

    records: these records, in any order; with one subject also all records whose event is in MARKS.
    begins_at: the time of the oldest record of any subject, refused ADDs left out; None if there is none.
    problem: why records may be missing; "" if none are.
    """

    records: tuple[HistoryRecord, ...] = ()
    begins_at: datetime | None = None
    problem: str = ""


def _whole_ms(moment: datetime) -> datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
