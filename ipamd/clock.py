"""The real clocks behind the port `Clock`."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class SystemClock:
    """Wall time and monotonic time of this machine."""

    def now(self) -> datetime:
        """Aware UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds since some point before this process."""
        return time.monotonic()
