"""Live progress: one line per step and finding with the time since the start, for a terminal or a log.

On a terminal a counter rewrites its line; in a log it writes a line at every quarter, so that the log stays short.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TextIO

from lab.demo.checks import Check

ERASE_LINE = "\r\x1b[K"  # ECMA-48: carriage return, erase to the end of the line
LONG_COUNT, LONG_COUNT_LINES = (
    20,
    4,
)  # ours, because: in a log a line at every quarter of a long count, and at the end of a short one


class Progress:
    """Writes lines to one stream. Concurrency: any thread."""

    def __init__(self, out: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._started = clock()
        self._is_terminal = out.isatty()
        self._is_counting = False
        self._lock = threading.Lock()  # a leaf

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started

    def step(self, title: str) -> None:
        """A new step begins."""
        self._line(f"== {title}")

    def say(self, text: str) -> None:
        """Something worth seeing happened within the step."""
        self._line(f"   {text}")

    def check(self, check: Check) -> None:
        """A check was made."""
        self._line(f"   {'ok  ' if check.ok else 'FAIL'} {check.name}: {check.detail}")

    def text(self, text: str) -> None:
        """A block without times: a table, the end of a log."""
        with self._lock:
            self._end_counter()
            self._write(text + "\n")

    def counter(self, what: str, total: int) -> Counter:
        """Count to `total` things."""
        return Counter(self, what, total)

    def count(self, what: str, done: int, total: int) -> None:
        """Show a counter; called by `Counter`."""
        line = f"[{self.elapsed_s:6.1f} s]    {what}: {done} of {total}"
        with self._lock:
            if self._is_terminal:
                self._is_counting = done < total
                self._write(f"{ERASE_LINE}{line}{'' if self._is_counting else chr(10)}")
            elif _is_mark(done, total):
                self._write(line + "\n")

    def _line(self, text: str) -> None:
        line = f"[{self.elapsed_s:6.1f} s] {text}\n"
        with self._lock:
            self._end_counter()
            self._write(line)

    def _end_counter(self) -> None:
        if self._is_counting:
            self._is_counting = False
            self._write("\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _is_mark(done: int, total: int) -> bool:
    lines = LONG_COUNT_LINES if total >= LONG_COUNT else 1
    return done * lines // total > (done - 1) * lines // total


class Counter:
    """A running count of things done. Concurrency: any thread."""

    def __init__(self, progress: Progress, what: str, total: int) -> None:
        """Prefer `Progress.counter`."""
        self._progress = progress
        self._what = what
        self._total = total
        self._done = 0
        self._lock = threading.Lock()  # before the progress's own

    def one_more(self) -> None:
        """One more is done."""
        with self._lock:
            self._done += 1
            self._progress.count(self._what, self._done, self._total)
