"""Decide when the next pass is due after a change: soon, and less often while passes find nothing to repair.

A pass compares the host's network, or a part of it, with the expected state, and repairs the differences (`network.py`).
"""

from __future__ import annotations

from enum import StrEnum

from ipamd.core.backoffs import soonest_s
from ipamd.ports.process import Clock

COALESCE_S = 0.2
"""Seconds from the first change to the pass for it. Ours: much shorter than the second within which a change must be repaired, and
longer than a burst of changes."""

GAP_MAX_S = 5.0
"""Longest gap, in seconds, between a pass that found nothing to repair and the next pass that follows a change. Ours: long enough that
passes cost little even if something changes all the time."""

CALM_S = 60.0
"""If two passes without a repair ended more than this many seconds apart, the gap after the second is the shortest gap
(COALESCE_S). Ours: after a minute without changes the next change is most likely not part of a flood."""


class PassScope(StrEnum):
    """The part of the host that a pass compares.

    EVERYTHING: the whole routing of the host, and our nftables tables.
    LINKS: our nftables tables, after a change of other software's links, which the tables name. A sandbox may have made such a link,
        so this pass is not delayed after passes that found nothing to repair.
    TABLE: our nftables tables.
    CHECK: only whether our nftables tables are unchanged. If the kernel does not answer, a TABLE pass follows.
    OTHER_SOFTWARE: the filters of other software. It is marked only while there are findings about them, so that the condition ends
        soon after they are mended. kube-proxy changes nftables all the time, so a new finding waits for the next pass by the clock.
    """

    EVERYTHING = "everything"
    LINKS = "links"
    TABLE = "table"
    CHECK = "check"
    OTHER_SOFTWARE = "other software"


class Triggers:
    """The scopes that are due, and when.

    Any thread may call `mark`. Only the thread that makes the passes may call the other methods.
    No lock is needed, because single operations of dictionaries are atomic. If a scope is marked while `take` removes it, the pass
    that follows includes the change.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: dict[PassScope, float] = {}
        self._gaps: dict[PassScope, tuple[float, float]] = {}
        """Scope -> monotonic time at which the last pass without a repair ended, and the seconds from then until the next pass may
        begin."""

    def mark(self, scope: PassScope) -> None:
        """Schedule a pass of a scope in which something has changed: soon, or when the gap after the last pass is over."""
        ended_s, gap_s = self._gaps.get(scope, (0.0, 0.0))
        self._due.setdefault(scope, max(self._clock.monotonic() + COALESCE_S, ended_s + gap_s))

    def wait_s(self) -> float | None:
        """Return the seconds until a scope is due; None if nothing is marked."""
        now_s = self._clock.monotonic()
        return soonest_s(max(at_s - now_s, 0.0) for at_s in tuple(self._due.values()))

    def take(self) -> frozenset[PassScope]:
        """Remove and return the scopes that are due now."""
        now_s = self._clock.monotonic()
        due_scopes = frozenset(scope for scope in PassScope if self._due.get(scope, float("inf")) <= now_s)
        for scope in due_scopes:
            del self._due[scope]
        return due_scopes

    def done(self, scope: PassScope, *, has_repaired: bool) -> None:
        """Record the end of a pass that followed a change. If it repaired nothing, the next pass waits longer."""
        if has_repaired:
            self._gaps.pop(scope, None)
            return
        now_s = self._clock.monotonic()
        ended_s, gap_s = self._gaps.get(scope, (float("-inf"), 0.0))
        next_gap_s = min(gap_s * 2, GAP_MAX_S)
        if now_s - ended_s > CALM_S:
            next_gap_s = COALESCE_S
        self._gaps[scope] = now_s, next_gap_s
