"""That DEL was done for a key: for some time a late ADD of it is refused (I4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Tombstone:
    """`at` is when DEL was done (aware UTC); `at_monotonic_s` the same on the machine's monotonic clock, None if not known."""

    at: datetime
    at_monotonic_s: float | None = field(default=None, compare=False)
