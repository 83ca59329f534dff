"""Let ADDs that find the pool empty wait for the pool maintainer without polling.

A waiting ADD wakes the maintainer. Free addresses, and each new status of the pool, wake the waiting ADDs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime

from ipamd.model.blocked import Blocked
from ipamd.model.cause import Cause, cause_of_text
from ipamd.model.growth_state import GrowthRefusal
from ipamd.model.record import dataclass
from ipamd.ports.cloud import Ec2
from ipamd.ports.process import Clock

THROTTLED_S = 60.0
"""For this many seconds after a throttled call, a delay of the pool is attributed to throttling. Ours: no ADD waits longer than this,
so an earlier throttled call delays none of the ADDs that wait now."""

WAIT = "wait: calls that pods need are retried; if it lasts, ask AWS for a higher limit, or lower the warm targets"
"""The next step while EC2 throttles."""

GROWS = "wait: the pool grows by itself; `ipamctl plan` shows what it asks EC2 for"
"""The next step while the pool can grow."""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """The latest status that the pool maintainer published.

    `generation`: the status takes into account the ADDs that began to wait up to this generation (`Demand.join`).
    `sentence`: a sentence about the last cycle of the maintainer.
    `blocked`: why the pool cannot grow, None if it can.
    `retry_deadline`: the time, in seconds of the monotonic clock, at which a blocked pool tries again by itself; None if it does not.
    `excess_count`: the number of free addresses above the target.
    `retention_reason`: why the free addresses above the target are not released; "" if there are none, or they are released.
    `kind`: why a waiting ADD gets no address now, in one word.
    """

    generation: int = 0
    sentence: str = "the pool loop has not run yet"
    blocked: GrowthRefusal | None = None
    retry_deadline: float | None = None
    excess_count: int = 0
    retention_reason: str = ""
    kind: Blocked = Blocked.GROWING

    def shortage(self, delayed_by: Blocked = Blocked.GROWING) -> Cause:
        """Return why there is no free address now. `delayed_by`: the result of `delay`."""
        if self.blocked is not None:
            return self.blocked.timed_cause
        sentence = self.sentence
        if delayed_by is Blocked.THROTTLED:
            sentence = f"EC2 throttles it: {sentence}"
        return cause_of_text(sentence)

    def step(self, delayed_by: Blocked = Blocked.GROWING) -> str:
        """Return what an operator can do about the shortage. `delayed_by`: the result of `delay`."""
        if self.blocked is not None:
            return self.blocked.next_step
        if delayed_by is Blocked.THROTTLED:
            return WAIT
        return GROWS


NOT_PLANNED = PoolStatus()
"""The status of a pool before its first plan."""


def delay(ec2: Ec2, clock: Clock) -> Blocked:
    """Return why the growth of a pool takes time: THROTTLED while EC2 throttles its calls, otherwise GROWING."""
    throttling = ec2.throttling()
    is_throttled = throttling is not None and clock.monotonic() - throttling[1] < THROTTLED_S
    if is_throttled:
        return Blocked.THROTTLED
    return Blocked.GROWING


class _PoolDemand:
    """The demand for addresses of one pool.

    Both counts leave out the ADDs for which the pool must not grow (`is_demand=False` at `Demand.join` and `Demand.take`).

    `waiting_count`: the number of ADDs that wait for an address.
    `served_count`: the number of ADDs that got an address since the start.
    `status`: the last status that was published.
    `short_since`: the time of the first plan that found no free address, None while there is one.
    """

    __slots__ = ("served_count", "short_since", "status", "waiting_count")

    def __init__(self) -> None:
        self.waiting_count = 0
        self.served_count = 0
        self.status = NOT_PLANNED
        self.short_since: datetime | None = None


class Demand:
    """Counts waiting ADDs, wakes the pool maintainer, and wakes the ADDs when addresses become free. Safe from any thread.

    `announcement_count` counts the calls of `announce_supply`. An ADD reads it before it tries to reserve an address, and passes it to
    `wait`, so that it does not miss an announcement in between. Reading this count, or the values of a pool, needs no lock. The node's
    own pool has the empty name. `triggered` is set to wake the maintainer.
    """

    def __init__(self, *, on_supply: Callable[[], None] = lambda: None) -> None:
        """`on_supply`: called when addresses become free."""
        self._on_supply = on_supply
        self._changed = threading.Condition()
        self.triggered = threading.Event()
        self._waiting = 0
        self._generation = 0
        self.announcement_count = 0
        self._own = _PoolDemand()
        self._pools = {"": self._own}

    @property
    def status(self) -> PoolStatus:
        """The last status of the node's own pool."""
        return self._own.status

    def status_of(self, pool: str) -> PoolStatus:
        """Return the last status of a pool."""
        return self._of(pool).status

    def served_count_of(self, pool: str) -> int:
        """Return how many ADDs got an address of a pool since the start, without those with `is_demand=False`."""
        return self._of(pool).served_count

    def waiting_count_of(self, pool: str) -> int:
        """Return how many ADDs wait for an address of a pool, without those with `is_demand=False`."""
        return self._of(pool).waiting_count

    def _of(self, pool: str) -> _PoolDemand:
        """Return the record of a pool. No record is removed; their number is bounded, because the network file names the pools."""
        record = self._pools.get(pool)
        if record is None:
            record = self._pools.setdefault(pool, _PoolDemand())  # atomic, so two threads get the same record
        return record

    def trigger(self) -> None:
        """Wake the pool maintainer, because something that it plans with has changed."""
        self.triggered.set()

    def coalesce(self, timeout_s: float) -> None:
        """Wait for `timeout_s` seconds, so that several triggers cause one cycle. A waiting ADD ends the wait.

        Only the maintainer's thread may call it.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting > 0, timeout=timeout_s)

    def take(self, *, is_demand: bool = True, pool: str = "") -> None:
        """Wake the pool maintainer after an ADD got an address.

        `is_demand`: whether the ADD counts in `served_count_of`. The ADD does not count if the pod has other recorded sandboxes.
        """
        with self._changed:
            self._of(pool).served_count += int(is_demand)
        self.triggered.set()

    def join(self, *, is_demand: bool = True, pool: str = "") -> int:
        """Begin the wait of an ADD. Returns: the first generation whose status takes this ADD into account.

        `is_demand`: whether the pool may grow for the ADD. It must not grow if an earlier sandbox of the pod is recorded, or if
        the address of an earlier sandbox is cooling. The caller must pass the same value, and the same pool, to `leave`.
        """
        with self._changed:
            self._waiting += int(is_demand)
            self._of(pool).waiting_count += int(is_demand)
            self._generation += 1
            self._changed.notify_all()
            self.triggered.set()
            return self._generation

    def leave(self, *, is_demand: bool = True, pool: str = "") -> None:
        """End the wait of an ADD, and wake the maintainer: work that it puts off while an ADD waits may be due now."""
        with self._changed:
            self._waiting -= int(is_demand)
            self._of(pool).waiting_count -= int(is_demand)
        self.triggered.set()

    def waiting(self) -> tuple[int, int]:
        """Return how many ADDs wait for an address of any pool, without those with `is_demand=False`, and the latest generation."""
        with self._changed:
            return self._waiting, self._generation

    def announce_supply(self) -> None:
        """Wake the waiting ADDs, because addresses became free."""
        with self._changed:
            self.announcement_count += 1
            self._changed.notify_all()
        self._on_supply()

    def record_supply(self, free_count: int, at: datetime, pool: str = "") -> None:
        """Record how many free addresses a plan found. A shortage goes on while ADDs wait, because they take each address that comes.

        `at`: the time of the plan.
        """
        with self._changed:
            record = self._of(pool)
            if free_count and not (record.short_since and record.waiting_count):
                record.short_since = None
            elif record.short_since is None:
                record.short_since = at

    @property
    def short_since(self) -> datetime | None:
        """The time of the first plan that found no free address in the node's own pool; None if the last plan found one."""
        return self._own.short_since

    def publish(self, status: PoolStatus, pool: str = "") -> None:
        """Publish the maintainer's decision about a pool, and wake the waiting ADDs."""
        with self._changed:
            self._of(pool).status = status
            self._changed.notify_all()

    def wait(self, *, seen_announcement_count: int, seen_status: PoolStatus, timeout_s: float, pool: str = "") -> None:
        """Sleep until supply is announced, the status of the pool changes, or the time is up.

        `seen_announcement_count`, `seen_status`: as the caller read them before. If they have changed since, `wait` returns at once.
        """
        record = self._of(pool)

        def is_changed() -> bool:
            return self.announcement_count != seen_announcement_count or record.status is not seen_status

        with self._changed:
            self._changed.wait_for(is_changed, timeout=timeout_s)
