"""Answer questions about the past from the history on disk, this boot's ledger, refused ADDs, and the present attachments.

The ledger and the history mostly contain the same events. An answer also includes events that only one of the two has, because the
disk may have refused to write the history, and old rows of the ledger are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ipamd.model.history import HistoryEvent, HistoryRecord, LedgerEvent, RecordedHistory
from ipamd.model.history_answer import HistoryAnswer, HistoryQuestion, answer
from ipamd.model.history_subject import HistorySubject
from ipamd.ports.datastore import Datastore
from ipamd.ports.process import Clock
from ipamd.report.sources import Sources

LEDGER_ROWS_MAX = 2000
"""The largest number of ledger rows that are read for one question. Ours: an address that is assigned once a minute has this many
rows in eight hours."""


def present_holders(datastore: Datastore, clock: Clock) -> tuple[HistoryRecord, ...]:
    """Return the present attachments as records of the event HELD."""
    now = clock.now()
    records = []
    for attachment in datastore.attachments():
        record = HistoryRecord(
            now,
            HistoryEvent.HELD,
            address=str(attachment.address),
            container_id=attachment.key.container_id,
            ifname=attachment.key.ifname,
            eni_id=attachment.eni_id,
            pod=attachment.sandbox_name,
            since=attachment.created_at,
            other_address=str(attachment.other_address or ""),
        )
        records.append(record)
    return tuple(records)


def ask(sources: Sources, question: HistoryQuestion) -> HistoryAnswer:
    """Answer one question. Raises: DatastoreError if the ledger cannot be read."""
    subject, datastore = HistorySubject(question.subject), sources.datastore
    on_disk = sources.history.read(question.subject)
    present = [record for record in present_holders(datastore, sources.clock) if subject.fits(record)]
    identities_on_disk = {_identity(record) for record in on_disk.records}
    ledger = _named(datastore, datastore.history(subject.text, limit=LEDGER_ROWS_MAX))
    only_in_ledger = [record for record in ledger if _identity(record) not in identities_on_disk]
    now = [record.as_kept() for record in (*sources.refused.records(subject), *present)]
    return answer(question, RecordedHistory((*on_disk.records, *only_in_ledger, *now), on_disk.begins_at, on_disk.problem))


def latest(sources: Sources, limit: int) -> list[HistoryRecord]:
    """Return the last `limit` events of this boot's ledger, oldest first. Raises: DatastoreError if the ledger cannot be read."""
    return _named(sources.datastore, sources.datastore.latest_history(limit=limit))


def _named(datastore: Datastore, rows: Iterable[HistoryRecord]) -> list[HistoryRecord]:
    """Convert ledger rows to history records with pod names.

    The row that an ADD wrote has the pod's name in its detail. For any other row the name comes from the attachment, if that is still
    recorded.
    """
    pods = {
        f"{attachment.key.container_id}/{attachment.key.ifname}": attachment.sandbox_name
        for attachment in datastore.attachments()
    }
    records = []
    for row in rows:
        if row.event == LedgerEvent.ASSIGNED:
            record = replace(row, pod=row.detail, detail="")
        else:
            record = replace(row, pod=pods.get(row.sandbox, ""))
        records.append(record.as_kept())
    return records


def _identity(record: HistoryRecord) -> tuple[object, ...]:
    """Return the fields that are equal in the ledger's row and in the history's record of the same event."""
    return record.at, record.event, record.address, record.container_id, record.ifname, record.eni_id
