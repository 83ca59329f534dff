"""What every service needs of the process: its clocks, and the points at which a test stops it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

Failpoint = Callable[[str], None]
"""Called with a name between two effects; tests kill or pause the process there (`ipamd.failpoints`)."""


def no_failpoint(_name: str) -> None:
    """Do nothing: in production no failpoint is armed."""


class Clock(Protocol):
    """Wall clock and monotonic clock, a port so that tests control time. The two are never mixed."""

    def now(self) -> datetime:
        """Aware UTC wall time: for records."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back: for deadlines and ages within one process."""
        ...
