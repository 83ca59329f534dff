"""The run's history: one JSON line per thing that happened, counted by kind, on the run's clock. Written as it happens, for a run
that is killed must leave its story behind."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from lab.chaos.expected_state import Violation


class History:
    """Thread-safe; its lock is a leaf. The clock begins with `start`."""

    def __init__(self, path: Path | None = None, *, echo: bool = False) -> None:
        """Write to `path`, if any; `echo` prints violations and what the nemesis does."""
        self._lock = threading.Lock()
        self._file = path.open("w", encoding="utf-8") if path is not None else None
        self._echo = echo
        self._began = time.monotonic()
        self.counts: Counter[str] = Counter()
        self._violations: list[Violation] = []

    def start(self) -> None:
        """Zero the clock."""
        self._began = time.monotonic()

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def note(self, what: str, *, node: str = "", counted: str = "", **details: Any) -> None:
        """Record that something happened; `counted` is the name under which the report counts it."""
        line = {"at_s": round(self.now(), 3), "node": node, "what": what} | details
        with self._lock:
            if counted:
                self.counts[counted] += 1
            if self._file is not None:
                self._file.write(json.dumps(line, default=str) + "\n")
                self._file.flush()

    def say(self, text: str, *, node: str = "", counted: str = "", **details: Any) -> None:
        """Record, and print when a person watches."""
        self.note(text, node=node, counted=counted, **details)
        if self._echo:
            print(f"{self.now():7.1f} {node or 'cloud':<7} {text}", flush=True)

    def violate(self, violation: Violation) -> None:
        """Record a broken invariant."""
        with self._lock:
            self._violations.append(violation)
        self.note("VIOLATION", counted="violation", violation=str(violation))
        if self._echo:
            print(f"VIOLATION {violation}", flush=True)

    @property
    def violations(self) -> list[Violation]:
        """Those so far, in order."""
        with self._lock:
            return list(self._violations)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None
