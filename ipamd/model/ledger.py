"""The ledger: the history of every address.

Append-only, and written in the same transaction as the change that it records; `ipamctl history` shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class LedgerEvent(StrEnum):
    """The events; a closed set."""

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


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One row. Empty strings where an event has no such object. `event` is a LedgerEvent, or a word that a later release wrote."""

    sequence: int
    at: datetime
    event: str
    address: str = ""
    container_id: str = ""
    ifname: str = ""
    eni_id: str = ""
    detail: str = ""
