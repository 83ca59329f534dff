"""Read from records what calls of an earlier process removed from ENIs, or may have removed.

EC2 may still show a released address for a while. In a chaos run, the daemon had released an address twenty seconds before it ended.
EC2's first answer still showed the address to the next process, which assigned it to a pod. So a new process reads the removals from
the open intents and the ledger. If the datastore was lost or is of another boot, it reads them from the history on the node's disk, in
which at most the records of the last second are missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from ipamd.core.context import ServiceContext
from ipamd.eni.book import EniBook
from ipamd.model.cloud import all_addresses
from ipamd.model.cloud_evidence import RECENT_S, CloudKey
from ipamd.model.errors import log_text
from ipamd.model.family import read_address
from ipamd.model.history import HistoryRecord, LedgerEvent, RecordedHistory
from ipamd.model.ids import EniId
from ipamd.model.intent import DETACHED, SETTLED_AT, Intent, IntentKind, objects_to_release
from ipamd.model.record import replace
from ipamd.ports.process import Clock

log = logging.getLogger(__name__)

NOT_SHOWN = "EC2 no longer shows"
"""Beginning of the reason that is recorded if EC2 did not show an ENI or address, and no call of ours had removed it."""

PRESENT = (LedgerEvent.ADDED, LedgerEvent.HEALED, LedgerEvent.ENI_ADDED, LedgerEvent.ENI_CHANGED)
"""Events after which an ENI has the address, or the instance has the ENI."""

LastRecords = dict[tuple[CloudKey, EniId], HistoryRecord]
"""The last record about each address on each ENI, and about each ENI."""


def remember_released(book: EniBook, read_since: Callable[[datetime], RecordedHistory], clock: Clock) -> None:
    """Read the records of the last RECENT_S seconds from the ledger or the history, and record in the book what our calls removed."""
    now = clock.now()
    records = sorted(read_since(now - timedelta(seconds=RECENT_S)).records, key=lambda record: record.at)
    last: LastRecords = {}
    for record in records:
        try:
            _apply(record, last, now)
        except ValueError as error:
            log.warning("malformed history record ignored error=%s", log_text(error))
    enis_with_releases = _enis_with_release_intents(records)
    added = {key for (key, _), record in last.items() if record.event == LedgerEvent.ADDED}
    for (key, eni_id), record in last.items():
        if NOT_SHOWN in record.detail and eni_id not in enis_with_releases and key not in added:
            continue  # the record says what EC2 did not show, and not that we removed it: the next answer may show it again
        if record.event not in PRESENT:
            left_s = RECENT_S - max((now - record.at).total_seconds(), 0.0)
            book.record_own([key], on=eni_id, is_added=False, left_s=left_s)


def _apply(record: HistoryRecord, last: LastRecords, now: datetime) -> None:
    """Update `last` with the next record. Raises: ValueError if the record is malformed."""
    intent, _, payload = record.detail.partition(": ")
    eni_id = EniId(record.eni_id)
    match record.event:
        case LedgerEvent.ADDED | LedgerEvent.REMOVED | LedgerEvent.LOST | LedgerEvent.HEALED:
            last[read_address(record.address), eni_id] = record
        case LedgerEvent.ENI_ADDED | LedgerEvent.ENI_CHANGED | LedgerEvent.ENI_REMOVED:
            last[eni_id, eni_id] = record
        case LedgerEvent.INTENT_OPENED if intent.startswith(IntentKind.UNASSIGN):
            # The call may have been made at any time before the process ended, so it counts as made now. If EC2 confirmed it, later
            # records of the removal replace this one.
            release = Intent(intent, IntentKind.UNASSIGN, now, _read_payload(payload))
            last |= dict.fromkeys(
                [(key, release.eni_id) for key in all_addresses(*objects_to_release(release))], replace(record, at=now)
            )
        case LedgerEvent.INTENT_OPENED if f"deleting={DETACHED}" in payload:
            last[eni_id, eni_id] = replace(record, at=now)
        case LedgerEvent.INTENT_CLOSED:  # nothing was released, or records of the removal follow
            for key in [key for key, last_record in last.items() if last_record.detail.startswith(f"{intent}: ")]:
                del last[key]


def _read_payload(text: str) -> dict[str, str]:
    """Read an intent's payload as the ledger writes it. Raises: ValueError if it is malformed."""
    return dict(field.split("=") for field in text.split(", "))


def _enis_with_release_intents(records: Iterable[HistoryRecord]) -> set[str]:
    """Return the IDs of the ENIs for which an intent other than an allocation was opened or closed."""
    eni_ids = set()
    for record in records:
        is_of_intent = record.event in (LedgerEvent.INTENT_OPENED, LedgerEvent.INTENT_CLOSED)
        if is_of_intent and not record.detail.startswith(IntentKind.ASSIGN):
            eni_ids.add(record.eni_id)
    return eni_ids


def remember_open_releases(book: EniBook, context: ServiceContext) -> None:
    """Record in the book the addresses that an earlier process released or was about to release according to its open intents.

    EC2 may show an address for RECENT_S after its release, whichever process released it. A malformed intent is left out here, and is
    reported by its recovery.
    """
    now_s = context.clock.monotonic()
    for intent in context.datastore.open_intents():
        try:
            if intent.kind is IntentKind.UNASSIGN:
                left_s = float(intent.payload.get(SETTLED_AT, now_s)) + RECENT_S - now_s
                book.record_own(all_addresses(*objects_to_release(intent)), on=intent.eni_id, is_added=False, left_s=left_s)
        except ValueError as error:
            log.warning("malformed intent ignored intent=%s error=%s", intent.intent_id, log_text(error))
