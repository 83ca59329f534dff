"""Answer questions about the past from all that is known: the history on disk, this boot's ledger, refusals, and who has what now.

The ledger and the history tell mostly the same; what only one has (the disk refused, or the ledger was pruned) is told as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ipamd.core.refused_adds import RefusedAdds
from ipamd.model.history import HistoryAnswer, HistoryEvent, HistoryQuestion, HistoryRecord, Recorded, Subject, answer
from ipamd.model.ledger import LedgerEvent
from ipamd.ports import Clock, Datastore, History

LEDGER_ROWS_MAX = 2000
"""Rows that are read of the ledger for one question. Ours: an address that is given once a minute has so many in eight hours."""


def held(datastore: Datastore, clock: Clock) -> tuple[HistoryRecord, ...]:
    """Who has which address now."""
    now = clock.now()
    return tuple(
        HistoryRecord(
            now,
            HistoryEvent.HELD,
            address=str(one.address),
            container_id=one.key.container_id,
            ifname=one.key.ifname,
            eni_id=one.eni_id,
            pod=one.sandbox_name,
            since=one.created_at,
        )
        for one in datastore.attachments()
    )


class PastService:
    """Reads, and changes nothing."""

    def __init__(self, *, datastore: Datastore, history: History, refused: RefusedAdds, clock: Clock) -> None:
        self._datastore = datastore
        self._history = history
        self._refused = refused
        self._clock = clock

    def ask(self, question: HistoryQuestion) -> HistoryAnswer:
        """Answer one question. Raises: DatastoreError if the ledger cannot be read."""
        subject = Subject(question.subject)
        kept = self._history.read(question.subject)
        present = [record for record in held(self._datastore, self._clock) if subject.fits(record)]
        told = {_identity(record) for record in kept.records}
        more = [record for record in self._ledger(subject) if _identity(record) not in told]
        now = [record.as_kept() for record in (*self._refused.records(subject), *present)]
        records = [*kept.records, *more, *now]
        return answer(question, Recorded(tuple(records), kept.begins_at, kept.problem))

    def refusals(self, subject: str) -> list[HistoryRecord]:
        """The refusals of a subject that are known, oldest first."""
        told = self.ask(HistoryQuestion(subject, limit=LEDGER_ROWS_MAX))
        return [record for record in told.records if record.event == HistoryEvent.REFUSED]

    def latest(self, limit: int) -> list[HistoryRecord]:
        """The last `limit` events of this boot's ledger, oldest first. Raises: DatastoreError if it cannot be read."""
        return self._records(self._datastore.latest_history(limit=limit))

    def _ledger(self, subject: Subject) -> list[HistoryRecord]:
        return self._records(self._datastore.history(subject.text, limit=LEDGER_ROWS_MAX))

    def _records(self, rows: Iterable[HistoryRecord]) -> list[HistoryRecord]:
        known = {f"{one.key.container_id}/{one.key.ifname}": one.sandbox_name for one in self._datastore.attachments()}
        return [_with_pod(row, known.get(row.sandbox, "")) for row in rows]


def _identity(record: HistoryRecord) -> tuple[object, ...]:
    """What the ledger's row and the history's record of one event have in common."""
    return record.at, record.event, record.address, record.container_id, record.ifname, record.eni_id


def _with_pod(row: HistoryRecord, pod: str) -> HistoryRecord:
    """Spell a ledger row as the history does; the pod's name is in the detail of an ADD's row."""
    named = replace(row, pod=row.detail, detail="") if row.event == LedgerEvent.ASSIGNED else replace(row, pod=pod)
    return named.as_kept()
