"""Named points between two effects, at which a test can kill or pause the daemon. They do nothing in production.

`VPC_IPAMD_FAILPOINT=name` kills the process with SIGKILL when it reaches the point, `name:3` at the third time. `name=pause` holds
the thread there until the file `failpoint.hold` in the run directory is removed. A module lists the names that it reaches in its
`FAILPOINTS`; tests/crash demands that each is covered.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path

from ipamd.model.errors import SettingsError
from ipamd.ports.process import Failpoint, no_failpoint

ENV = "VPC_IPAMD_FAILPOINT"
HOLD_NAME = "failpoint.hold"
HOLD_TIMEOUT_S = 60.0
"""After this the thread continues by itself, so that a forgotten hold file does not block it for ever. Ours."""


class ArmedFailpoint:
    """Acts once, when its name is reached for the nth time."""

    def __init__(self, text: str, *, run_dir: Path) -> None:
        name, _, action = text.partition("=")
        name, _, count = name.partition(":")
        if action not in ("", "kill", "pause") or not (count or "1").isdigit() or not name:
            raise SettingsError(f"{ENV}={text!r}", details="expected NAME, NAME:COUNT, NAME=kill or NAME=pause")
        self._name = name
        self._count, self._reached = int(count or "1"), itertools.count(1)
        self._pauses = action == "pause"
        self._hold = run_dir / HOLD_NAME

    def __call__(self, name: str) -> None:
        """Act if this is the armed point, for the nth time."""
        if name != self._name or next(self._reached) != self._count:  # `next` is atomic: each thread gets its own number
            return
        if not self._pauses:
            os.kill(os.getpid(), signal.SIGKILL)
        self._hold.touch()
        deadline = time.monotonic() + HOLD_TIMEOUT_S
        while self._hold.exists() and time.monotonic() < deadline:
            time.sleep(0.01)


def from_environment(run_dir: Path) -> Failpoint:
    """Return the failpoint that the environment arms, or one that does nothing. Raises: SettingsError."""
    text = os.environ.get(ENV, "")
    if not text:
        return no_failpoint
    return ArmedFailpoint(text, run_dir=run_dir)
