"""Intents: EC2 calls that are about to be made, written before the call and closed after it.

A crash in between leaves an open intent, so nothing that EC2 created for us is lost (I9).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class IntentKind(StrEnum):
    """What an intent changes in EC2."""

    CREATE_ENI = "create-eni"
    DELETE_ENI = "delete-eni"
    ASSIGN = "assign"
    UNASSIGN = "unassign"


@dataclass(frozen=True, slots=True)
class Intent:
    """One change about to be made in EC2. `payload` holds strings only; `client_token` makes a repeated call idempotent."""

    intent_id: str
    kind: IntentKind
    opened_at: datetime
    payload: Mapping[str, str]
    client_token: str = ""
