"""Let ADDs that find the pool empty wait for the pool maintainer without polling.

The maintainer is woken by the first waiting ADD, and every ADD by new addresses or by the news that none can come.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """What the pool maintainer said last.

    `generation`: the latest demand that this status has taken into account. `blocked_by`: why the pool cannot grow, empty if it can.
    `retry_deadline`: the monotonic point at which a blocked pool tries again by itself; None if it does not.
    """

    generation: int = 0
    sentence: str = "the pool loop has not run yet"
    blocked_by: str = ""
    retry_deadline: float | None = None


class Demand:
    """Counts waiting ADDs, wakes the pool maintainer, and wakes the ADDs when addresses appear. Safe from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._wake = threading.Event()
        self._waiting = 0
        self._generation = 0
        self._supply = 0
        self._status = PoolStatus()

    def trigger(self) -> None:
        """Have the pool maintainer look: something changed."""
        self._wake.set()

    def wait_triggered(self, timeout_s: float | None) -> bool:
        """Sleep until triggered; returns whether it was. For the maintainer's thread."""
        is_triggered = self._wake.wait(timeout_s)
        self._wake.clear()
        return is_triggered

    def coalesce(self, timeout_s: float) -> None:
        """Let more triggers gather, unless an ADD waits. For the maintainer's thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting > 0, timeout=timeout_s)

    def join(self) -> int:
        """Begin to wait, as an ADD; returns the generation that a status must have reached to speak for it."""
        with self._changed:
            self._waiting += 1
            self._generation += 1
            generation = self._generation
            self._changed.notify_all()
        self._wake.set()
        return generation

    def leave(self) -> None:
        """End the wait of an ADD."""
        with self._changed:
            self._waiting -= 1

    def waiting(self) -> tuple[int, int]:
        """How many ADDs wait, and the latest generation."""
        with self._changed:
            return self._waiting, self._generation

    def announce_supply(self) -> None:
        """Let the waiting ADDs try: addresses became free."""
        with self._changed:
            self._supply += 1
            self._changed.notify_all()

    def publish(self, status: PoolStatus) -> None:
        """Publish what the maintainer decided."""
        with self._changed:
            self._status = status
            self._changed.notify_all()

    def status(self) -> PoolStatus:
        """What the pool maintainer said last."""
        with self._changed:
            return self._status

    def supply_count(self) -> int:
        """A number that grows with every announcement; read it before trying, wait on it after."""
        with self._changed:
            return self._supply

    def wait(self, *, seen_supply: int, seen_status: PoolStatus, timeout_s: float) -> None:
        """Sleep until supply was announced, the status changed, or time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self._supply != seen_supply or self._status is not seen_status, timeout=timeout_s)
