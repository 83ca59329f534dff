"""The record that DEL was done for a key: for some time a late ADD of that key is refused (I4)."""

from __future__ import annotations

from datetime import datetime

from ipamd.model.record import dataclass, field


@dataclass(frozen=True, slots=True)
class Tombstone:
    """`at` is when DEL was done (aware UTC); `at_monotonic_s` the same on the machine's monotonic clock."""

    at: datetime
    at_monotonic_s: float = field(compare=False)
