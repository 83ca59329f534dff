"""The causes that freeze the pool, in one place: whoever notices one sets it, the planner and every report read it.

Several may be in force at once, and each ends alone: an operator's `thaw` does not undo what EC2 announced. What is not known is no
change: a source that does not answer leaves its causes as they are (I11).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from datetime import datetime

from ipamd.core.demand import Demand
from ipamd.core.health import Health
from ipamd.model.freeze import NOTICES, FreezeCause, Freezing, barred_enis, is_ahead_of_need
from ipamd.model.words import printable
from ipamd.ports import Clock

CONDITION = "frozen"

REASON_MAX = 200
"""Characters of a reason. Ours: it is part of the pool's sentence and of every ADD's refusal."""

UNSAID = "no reason given"

log = logging.getLogger(__name__)


class Freeze:
    """Safe from any thread. The causes are replaced whole, so who reads them needs no lock; who changes them tells under it."""

    def __init__(self, *, clock: Clock, health: Health, demand: Demand) -> None:
        self._clock = clock
        self._health = health
        self._demand = demand
        self._lock = threading.Lock()
        self._causes: Mapping[FreezeCause, Freezing] = {}

    def set(self, cause: FreezeCause, reason: str, *, since_at: datetime | None = None) -> None:
        """Put a cause in force, or change its reason; it keeps the time at which it came unless `since_at` says another."""
        text = printable(reason.strip(), most=REASON_MAX) or UNSAID
        with self._lock:
            known = self._causes.get(cause)
            since_at = since_at or (known.since_at if known is not None else self._clock.now())
            self._causes = {**self._causes, cause: Freezing(cause, text, since_at)}
            if known is None or known.reason != text:
                what = barred_enis(is_ahead_of_need=is_ahead_of_need({cause}))
                log.warning("the pool is frozen, nothing is released barred=%s cause=%s reason=%s", what, cause, text)
                self._tell()

    def clear(self, cause: FreezeCause) -> None:
        """End a cause; one that is not in force is fine."""
        with self._lock:
            if cause in self._causes:
                self._causes = {other: freezing for other, freezing in self._causes.items() if other != cause}
                log.warning("the pool's freeze has ended cause=%s left=%s", cause, self.reason or "none")
                self._tell()

    def follow_notices(self, told: Mapping[FreezeCause, str]) -> None:
        """Take over everything that metadata announces now: what it no longer announces has ended."""
        for cause in sorted(NOTICES):
            if cause in told:
                self.set(cause, told[cause])
            else:
                self.clear(cause)

    def in_force(self) -> tuple[Freezing, ...]:
        """The causes that are in force, in the order of their names."""
        return tuple(freezing for _, freezing in sorted(self._causes.items()))

    @property
    def reason(self) -> str:
        """Every cause with its reason, for the planner; "" while the pool is not frozen."""
        return "; ".join(map(str, self.in_force()))

    @property
    def is_ahead_of_need(self) -> bool:
        """Whether all causes in force let an ADD have the ENI that it waits for."""
        return is_ahead_of_need(self._causes)

    def _tell(self) -> None:
        reason, what = self.reason, barred_enis(is_ahead_of_need=self.is_ahead_of_need)
        self._health.report(CONDITION, reason and f"{CONDITION}: {what} and nothing is released: {reason}")
        self._demand.trigger()  # with it another plan may be right
