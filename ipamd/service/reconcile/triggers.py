"""When the next pass over the host is due after a change: at once, and less often while changes mean nothing.

A burst of changes makes one pass, COALESCE_S after its first. Passes that a change asked for and that found nothing to repair make the
next one wait longer, up to GAP_MAX_S, so that software which changes the host without pause costs little (kube-proxy rewrites
nftables every second on a busy cluster).
"""

from __future__ import annotations

import threading
from enum import StrEnum

from ipamd.ports import Clock
from ipamd.service.backoff import Backoff, soonest_s

COALESCE_S = 0.2
"""From the first change to its pass. Ours: short against the second in which it must be repaired, long against a burst."""

GAP_MAX_S = 5.0
"""Longest gap between two passes that changes ask for. Ours."""

CALM_S = 60.0
"""After so long without a pass for nothing the next change is looked at at once again. Ours."""


class Scope(StrEnum):
    """What a pass looks at. Everything includes the nftables table."""

    EVERYTHING = "everything"
    TABLE = "table"


class _Gap:
    """The growing gap of one scope."""

    def __init__(self) -> None:
        self.backoff = Backoff(first_s=COALESCE_S, max_s=GAP_MAX_S)
        self.earliest_monotonic_s = 0.0
        self.vain_monotonic_s = float("-inf")


class Triggers:
    """The scopes that are due, and when. `mark` from any thread; the rest from the thread that makes the passes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._due: dict[Scope, float] = {}
        self._gaps = {scope: _Gap() for scope in Scope}

    def mark(self, scope: Scope) -> None:
        """Something of a scope changed: a pass is due soon."""
        with self._lock:
            if scope not in self._due:
                self._due[scope] = max(self._clock.monotonic() + COALESCE_S, self._gaps[scope].earliest_monotonic_s)
        self._wake.set()

    def wake(self) -> None:
        """End a running `wait`."""
        self._wake.set()

    def wait(self, longest_s: float) -> None:
        """Sleep until something is due, at most `longest_s`; may return early."""
        with self._lock:
            now_s = self._clock.monotonic()
            wait_s = soonest_s([longest_s, *(max(at_s - now_s, 0.0) for at_s in self._due.values())]) or 0.0
        if wait_s > 0.0:
            self._wake.wait(wait_s)
        self._wake.clear()

    def take(self) -> frozenset[Scope]:
        """The scopes that are due now; they are due no more."""
        now_s = self._clock.monotonic()
        with self._lock:
            due = frozenset(scope for scope, at_s in self._due.items() if at_s <= now_s)
            for scope in due:
                del self._due[scope]
        return due

    def done(self, scope: Scope, *, has_repaired: bool) -> None:
        """A pass that was asked for has ended: one for nothing makes the next wait longer."""
        now_s = self._clock.monotonic()
        with self._lock:
            gap = self._gaps[scope]
            if has_repaired or now_s - gap.vain_monotonic_s > CALM_S:
                gap.backoff.reset()
            if not has_repaired:
                gap.vain_monotonic_s = now_s
            gap.earliest_monotonic_s = now_s + gap.backoff.next_s()
