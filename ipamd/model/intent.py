"""Intents: what we are about to ask of EC2, written before the call and closed after it.

A crash between the two leaves an open intent, so nothing that EC2 made for us is lost (I9).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


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
