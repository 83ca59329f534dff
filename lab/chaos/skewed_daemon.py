"""The daemon with a wall clock that can be stepped, and with time that can pass at once.

`python -m lab.chaos.skewed_daemon`, started by the lab in place of ipamd.daemon.

The kernel has no namespace for CLOCK_REALTIME, and the machine's own clock must not be stepped. libfaketime 0.9.10
(Debian bookworm) was tried and rejected: with Python 3.11 and a faked wall clock only, every time.sleep fails with EINVAL. All of
ipamd reads time through one class (ipamd/core/deadline.py), so this entry point replaces its methods; production code is not involved.
What this does not step: time stamps in log lines, gRPC's own timers, signatures of requests to EC2 (none decides anything).
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ipamd import daemon
from ipamd.core.deadline import SystemClock
from lab.node.vlan_standin import VlanStandIn

OFFSET_PATH = Path("/run/chaos-clock")  # in the node, whose /run is its own
"""Seconds, as text, that the daemon's wall clock is off; a missing file means 0."""

PASSED_PATH = Path("/run/chaos-passed")
"""Seconds, as text, that have passed on both of the daemon's clocks beyond those of the machine; never less than before."""


def skewed_now(_: SystemClock) -> datetime:
    """Aware UTC, off by what the files say now."""
    return datetime.now(UTC) + timedelta(seconds=_seconds_in(OFFSET_PATH) + _seconds_in(PASSED_PATH))


class PassedTime:
    """Monotonic time that is ahead of the machine's; it never goes back, not even while the file is being replaced."""

    def __init__(self) -> None:
        self._passed_s = 0.0

    def monotonic(self, _: SystemClock) -> float:
        """Monotonic seconds, ahead by the most that the file has ever said."""
        self._passed_s = max(self._passed_s, _seconds_in(PASSED_PATH))
        return time.monotonic() + self._passed_s


def _seconds_in(path: Path) -> float:
    try:
        return float(path.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        return 0.0


if __name__ == "__main__":
    SystemClock.now = skewed_now  # type: ignore[assignment, method-assign]  # the one purpose of this module
    passed = PassedTime()
    SystemClock.monotonic = lambda clock: passed.monotonic(clock)  # type: ignore[assignment, method-assign]
    sys.exit(daemon.main(vlan_links=VlanStandIn()))
