"""The history: what the ledger tells, kept on the host's disk over reboots, and the ADDs that were refused.

The ledger lives in the datastore, dies with it, and is what decisions may be traced by; the history is for people, is written behind
(docs/adr/0035) and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from ipamd.model.ledger import LedgerEvent


class HistoryEvent(StrEnum):
    """What the history tells besides the ledger's events."""

    BOOTED = "booted"
    HELD = "held"
    MISSED = "missed"
    REFUSED = "refused"


UNKEPT = frozenset({LedgerEvent.TOMBSTONED, LedgerEvent.COOLED})
"""Ledger events that follow from others: with them a pod would cost twice the bytes."""

MARKS = frozenset({HistoryEvent.BOOTED, HistoryEvent.MISSED})
"""Events that concern every subject."""


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    """One event. Empty strings where it has no such object.

    `event` is a LedgerEvent, a HistoryEvent, or a word of a later release. `pod` is `namespace/name`. `since`: when that began which
    ends or is repeated here: the attachment that an `unassigned` ends or a `held` confirms, the first of `count` refusals, the boot.
    `code`: the CNI code of a refusal.
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

    def as_kept(self) -> HistoryRecord:
        """The same with times in milliseconds, which is what the file keeps. Not at once: ADD and DEL make records."""
        return replace(self, at=_whole_ms(self.at), since=_whole_ms(self.since) if self.since is not None else None)

    @property
    def sandbox(self) -> str:
        """`container_id/ifname`, or an empty string."""
        return f"{self.container_id}/{self.ifname}" if self.container_id else ""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a history has about one subject.

    records: in no order, and all marks.
    begins_at: of the oldest record that is kept, whatever its subject; None if none is.
    problem: why something may be missing; "" if nothing is known to be.
    """

    records: tuple[HistoryRecord, ...] = ()
    begins_at: datetime | None = None
    problem: str = ""


def _whole_ms(moment: datetime) -> datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
