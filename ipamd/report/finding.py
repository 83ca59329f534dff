"""One thing in which the sources differ, and how much it matters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters."""

    VIOLATION = "violation"
    DIFFERENCE = "difference"
    PENDING = "pending"


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing that differs; `next` says what will be done about it, and by whom."""

    severity: Severity
    subject: str
    what: str
    next: str
