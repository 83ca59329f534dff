"""The record that the DEL of a key was done. As long as it exists, a late ADD of the key is refused (I4)."""

from __future__ import annotations

from datetime import datetime

from ipamd.model.record import dataclass, field


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The time at which the DEL was done. `at`: aware UTC. `at_monotonic_s`: on the machine's monotonic clock."""

    at: datetime
    at_monotonic_s: float = field(compare=False)
