"""The ledger and the intents: what happened to every address, and what we were about to ask of EC2.

The ledger is append-only and written in the same transaction as the change it tells of; `ipamctl history` reads it. An intent
is written before an EC2 call that creates or removes something and closed after, so that a crash between leaves a trace (I9).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class LedgerEvent(StrEnum):
    """Closed set of events."""

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


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One row. Empty strings where an event has no such object."""

    sequence: int
    at: datetime
    event: LedgerEvent
    address: str = ""
    container_id: str = ""
    ifname: str = ""
    eni_id: str = ""
    detail: str = ""


class IntentKind(StrEnum):
    """What an intent is about to change at EC2."""

    CREATE_ENI = "create-eni"
    DELETE_ENI = "delete-eni"
    ASSIGN = "assign"
    UNASSIGN = "unassign"


@dataclass(frozen=True, slots=True)
class Intent:
    """One thing about to be asked of EC2. `payload` holds strings only; `client_token` makes a replay idempotent."""

    intent_id: str
    kind: IntentKind
    opened_at: datetime
    payload: Mapping[str, str]
    client_token: str = ""
