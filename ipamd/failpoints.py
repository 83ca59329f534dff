"""Named points between two effects, at which a test can kill or pause the daemon. They do nothing in production.

`VPC_IPAMD_FAILPOINT=name` kills the process with SIGKILL when it reaches the point, and `name:3` when it reaches the point for the
third time. `name=pause` makes the thread create the file `failpoint.hold` in the run directory, and wait until it is removed, but
HOLD_TIMEOUT_S seconds at most. A module lists the names of its failpoints in `FAILPOINTS`, and tests/crash requires a test of each.
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
"""After this time a paused thread continues by itself, so that a forgotten hold file does not block it for ever. Ours: a test does
between pause and removal what takes seconds, and a test that is killed in between must not leave a daemon that hangs for longer."""


class ArmedFailpoint:
    """Kills the process or pauses the thread when the process reaches the named point for the COUNT-th time, and never again."""

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
        """Kill or pause, if `name` is the armed point and the process reaches it for the COUNT-th time."""
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
