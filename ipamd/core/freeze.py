"""The causes that freeze the pool. The service that notices a cause sets it here, and the planner and all reports read it here.

Several causes may be in force at once, and each ends independently: an operator's `thaw` does not end a freeze by a notice of EC2. If
the source of a cause, such as instance metadata, does not answer, the cause stays as it is (I11).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from datetime import datetime

from ipamd.core.demand import Demand
from ipamd.core.health import Health
from ipamd.model.conditions import ConditionCode, problem_of
from ipamd.model.freeze import NOTICES, SHARED, FreezeCause, Freezing, barred_enis, may_grow_for_adds
from ipamd.model.words import printable
from ipamd.ports.process import Clock

CONDITION = "frozen"

REASON_MAX = 200
"""The largest number of characters of a reason. Ours: the reason must be short, because the pool's sentence in the status and the
refusal of every ADD contain it."""

NO_REASON = "no reason given"

log = logging.getLogger(__name__)


class Freeze:
    """The causes in force. Safe from any thread. Readers need no lock.

    A change is reported while the lock is held, so that reports come in the order of the changes.
    """

    def __init__(self, *, clock: Clock, health: Health, demand: Demand) -> None:
        self._clock = clock
        self._health = health
        self._demand = demand
        self._lock = threading.Lock()
        self._causes: Mapping[FreezeCause, Freezing] = {}
        self._other_daemon_seen_s: float | None = None

    def set(self, cause: FreezeCause, reason: str, *, since_at: datetime | None = None) -> None:
        """Put a cause in force, or change its reason.

        `since_at`: the time at which the cause began; None if it begins now, or if its time must not change.
        """
        text = printable(reason.strip(), most=REASON_MAX) or NO_REASON
        with self._lock:
            before = self._causes.get(cause)
            if since_at is None:
                since_at = self._clock.now() if before is None else before.since_at
            self._causes = {**self._causes, cause: Freezing(cause, text, since_at)}
            if before is None or before.reason != text:
                barred = barred_enis(may_grow_for_adds=may_grow_for_adds({cause}))
                log.warning("pool frozen barred=%s cause=%s reason=%s", barred, cause, text)
                self._publish()

    def clear(self, cause: FreezeCause) -> None:
        """End a cause. A cause that is not in force is not an error."""
        with self._lock:
            if cause in self._causes:
                self._causes = {other: freezing for other, freezing in self._causes.items() if other != cause}
                log.warning("freeze ended cause=%s left=%s", cause, self.reason or "none")
                self._publish()

    def follow_notices(self, announced: Mapping[FreezeCause, str]) -> None:
        """Set the causes that metadata announces at present, and clear the notices that it does not announce any more.

        `announced`: the reason of each announced cause.
        """
        for cause in sorted(NOTICES):
            if cause in announced:
                self.set(cause, announced[cause])
            else:
                self.clear(cause)

    def in_force(self) -> tuple[Freezing, ...]:
        """Return the causes that are in force, in the order of their names."""
        return tuple(freezing for _, freezing in sorted(self._causes.items()))

    @property
    def reason(self) -> str:
        """Every cause with its reason, for the planner; "" while the pool is not frozen."""
        return "; ".join(map(str, self.in_force()))

    @property
    def may_grow_for_adds(self) -> bool:
        """Whether an ENI for which an ADD waits may still be created: no cause in force forbids it."""
        return may_grow_for_adds(self._causes)

    @property
    def is_shared(self) -> bool:
        """Whether another daemon may use this node's ENIs, because amazon-vpc-cni-k8s is on the node, or the node is exported to
        it.
        """
        return not SHARED.isdisjoint(self._causes)

    def note_other_daemon(self, seen_s: float) -> None:
        """Record when amazon-vpc-cni-k8s was last seen, in seconds of the monotonic clock.

        The record stays after the freeze has ended.
        """
        with self._lock:
            if self._other_daemon_seen_s is None or seen_s > self._other_daemon_seen_s:
                self._other_daemon_seen_s = seen_s

    def other_daemon_seen_since(self, since_s: float) -> bool:
        """Whether amazon-vpc-cni-k8s was seen at this time of the monotonic clock or later."""
        seen_s = self._other_daemon_seen_s
        return seen_s is not None and seen_s >= since_s

    def _publish(self) -> None:
        """Report the condition, and wake the pool maintainer."""
        reason, barred = self.reason, barred_enis(may_grow_for_adds=self.may_grow_for_adds)
        self._health.report(CONDITION, problem_of(ConditionCode.POOL_FROZEN, reason, barred=barred))
        self._demand.trigger()
