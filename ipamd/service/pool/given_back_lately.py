"""What calls of ours took from ENIs before this process: told by its intents, or by the history if the datastore that knew it was
lost, or is of another boot.

EC2 may show for a while what it has taken back, and its first answer to a process without records is all that this one has: a chaos
run saw an address given to a pod that a call of ours had returned twenty seconds before. The history is on the node's disk, and lacks
at most its last second.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from ipaddress import IPv4Address

from ipamd.model.cloud import all_addresses
from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.errors import log_text
from ipamd.model.history import HistoryRecord
from ipamd.model.ids import EniId
from ipamd.model.intent import SETTLED_AT, IntentKind, named
from ipamd.model.ledger import LedgerEvent
from ipamd.ports import Clock
from ipamd.ports.history import History
from ipamd.service.context import ServiceContext
from ipamd.service.pool.recent_changes import RecentChanges

log = logging.getLogger(__name__)


def remember_given_back(changes: RecentChanges, history: History, clock: Clock) -> None:
    """Read the last `RECENT_S` of the history. What it cannot tell is as it would be without one."""
    now = clock.now()
    found = history.read_since(now - timedelta(seconds=RECENT_S))
    last: dict[str, HistoryRecord] = {}
    for record in sorted(found.records, key=lambda record: record.at):
        if record.event in (LedgerEvent.ADDED, LedgerEvent.REMOVED):
            last[record.address] = record
        elif record.event in (LedgerEvent.ENI_ADDED, LedgerEvent.ENI_REMOVED):
            last[record.eni_id] = record
    for key, record in last.items():
        left_s = RECENT_S - max((now - record.at).total_seconds(), 0.0)
        try:
            if record.event == LedgerEvent.REMOVED:
                changes.note_removed(addresses=[IPv4Address(key)], on=EniId(record.eni_id), left_s=left_s)
            elif record.event == LedgerEvent.ENI_REMOVED:
                changes.note_removed(enis=[EniId(key)], left_s=left_s)
        except ValueError:
            log.warning("the history names %r as an address: not read", key[:40])


def remember_named(changes: RecentChanges, context: ServiceContext) -> None:
    """Learn from its intents what an earlier process gave back, or was about to: EC2 may show it for as long as it might to that one.
    A malformed intent is left to its recovery."""
    now_s = context.clock.monotonic()
    for intent in context.datastore.open_intents():
        eni_id = EniId(intent.payload.get("eni_id", ""))
        try:
            left_s = float(intent.payload.get(SETTLED_AT, now_s)) + RECENT_S - now_s
            if intent.kind is IntentKind.UNASSIGN:
                changes.note_removed(addresses=all_addresses(*named(intent)), on=eni_id, left_s=left_s)
            elif intent.kind is IntentKind.DELETE_ENI and intent.is_settled:
                changes.note_removed(enis=[eni_id], left_s=left_s)
        except ValueError as error:
            log.warning("intent %s is not understood: %s", intent.intent_id, log_text(error))
