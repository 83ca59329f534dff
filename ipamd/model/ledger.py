"""The ledger: the history of every address.

Append-only, and written in the same transaction as the change that it records; `ipamctl history` shows it. A row is read as a
`HistoryRecord`, whose event may be a word that a later release wrote.
"""

from __future__ import annotations

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
