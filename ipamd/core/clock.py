"""The port `Clock` over the clocks of the system."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from ipamd.ports import Clock


class SystemClock(Clock):
    """Wall time and monotonic time of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()
