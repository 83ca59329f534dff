"""The daemon with a wall clock that can be stepped: `python -m lab.chaos.skewed_daemon`, started by the lab in place of ipamd.daemon.

The kernel has no namespace for CLOCK_REALTIME, and stepping the machine's own clock is out of the question. libfaketime 0.9.10
(Debian bookworm) was tried and rejected: with Python 3.11 and a faked wall clock only, every time.sleep fails with EINVAL. All of
ipamd reads time through one class (ipamd/clock.py), so this entry point replaces its `now`; nothing in production code knows.
What this does not step: time stamps in log lines, gRPC's own timers, signatures of requests to EC2 (none decides anything).
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ipamd import daemon
from ipamd.clock import SystemClock

OFFSET_PATH = Path("/run/chaos-clock")  # in the node, whose /run is its own
"""Seconds, as text, that the daemon's wall clock is off; a missing file means 0."""


def skewed_now(_: SystemClock) -> datetime:
    """Aware UTC, off by what the file says now."""
    try:
        offset_s = float(OFFSET_PATH.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        offset_s = 0.0
    return datetime.now(UTC) + timedelta(seconds=offset_s)


if __name__ == "__main__":
    SystemClock.now = skewed_now  # type: ignore[assignment, method-assign]  # the one purpose of this module
    sys.exit(daemon.main())
