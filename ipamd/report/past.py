"""Answer questions about the past from all that is known: the history on disk, this boot's ledger, refusals, and who has what now.

The ledger and the history tell mostly the same; what only one has (the disk refused, or the ledger was pruned) is told as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ipamd.model.history import (
    HistoryAnswer,
    HistoryEvent,
    HistoryQuestion,
    HistoryRecord,
    LedgerEvent,
    Recorded,
    Subject,
    answer,
)
from ipamd.ports import Clock, Datastore
from ipamd.report.sources import Sources

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
            other_address=str(one.other_address or ""),
        )
        for one in datastore.attachments()
    )


def ask(sources: Sources, question: HistoryQuestion) -> HistoryAnswer:
    """Answer one question. Raises: DatastoreError if the ledger cannot be read."""
    subject, datastore = Subject(question.subject), sources.datastore
    kept = sources.history.read(question.subject)
    present = [record for record in held(datastore, sources.clock) if subject.fits(record)]
    told = {_identity(record) for record in kept.records}
    ledger = _named(datastore, datastore.history(subject.text, limit=LEDGER_ROWS_MAX))
    more = [record for record in ledger if _identity(record) not in told]
    now = [record.as_kept() for record in (*sources.refused.records(subject), *present)]
    return answer(question, Recorded((*kept.records, *more, *now), kept.begins_at, kept.problem))


def latest(sources: Sources, limit: int) -> list[HistoryRecord]:
    """The last `limit` events of this boot's ledger, oldest first. Raises: DatastoreError if it cannot be read."""
    return _named(sources.datastore, sources.datastore.latest_history(limit=limit))


def _named(datastore: Datastore, rows: Iterable[HistoryRecord]) -> list[HistoryRecord]:
    """Spell ledger rows as the history does; the pod's name is in the detail of an ADD's row."""
    known = {f"{one.key.container_id}/{one.key.ifname}": one.sandbox_name for one in datastore.attachments()}
    return [
        (
            replace(row, pod=row.detail, detail="")
            if row.event == LedgerEvent.ASSIGNED
            else replace(row, pod=known.get(row.sandbox, ""))
        ).as_kept()
        for row in rows
    ]


def _identity(record: HistoryRecord) -> tuple[object, ...]:
    """What the ledger's row and the history's record of one event have in common."""
    return record.at, record.event, record.address, record.container_id, record.ifname, record.eni_id
