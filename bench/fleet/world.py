"""Virtual time: one queue of events, and threads that are greenlets.

The shipped executor blocks: in EC2 calls, in sleeps, in waiting for a trigger. Here each node's pool thread is a greenlet that
gives way to the queue at those three points and at no other, so that thousands of nodes run in one operating system thread, in
one order, which a seed decides. No lock of the daemon is held at those points (I10), or the simulation would stand still."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from greenlet import getcurrent, greenlet

from ipamd.core.demand import Demand
from ipamd.ports.process import Clock

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class World(Clock):
    """The queue, and the clock of all nodes. Implements `Clock`; seconds since the trace's begin."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self._hub = getcurrent()
        self._now_at: tuple[float, datetime] = (0.0, EPOCH)

    def now(self) -> datetime:
        """Aware UTC."""
        if self._now_at[0] != self.now_s:
            self._now_at = (self.now_s, EPOCH + timedelta(seconds=self.now_s))
        return self._now_at[1]

    def monotonic(self) -> float:
        """Seconds."""
        return self.now_s

    def at(self, at_s: float, do: Callable[[], object]) -> None:
        """Do something at a moment; what is due at one moment is done in the order in which it was asked for."""
        self._count += 1
        heapq.heappush(self._queue, (max(at_s, self.now_s), self._count, do))

    def spawn(self, at_s: float, body: Callable[[], object]) -> None:
        """Run a thread body from a moment on."""
        self.at(at_s, greenlet(body, parent=self._hub).switch)

    def sleep(self, seconds: float) -> None:
        """Block the calling thread; others run meanwhile."""
        self.at(self.now_s + max(seconds, 0.0), getcurrent().switch)
        self._hub.switch()

    def drive(self, at_s: float, steps: Iterator[float]) -> None:
        """Run what yields the seconds for which it waits, from a moment on: cheaper than a thread."""

        def step() -> None:
            wait_s = next(steps, None)
            if wait_s is not None:
                self.at(self.now_s + wait_s, step)

        self.at(at_s, step)

    def park(self) -> None:
        """Block the calling thread until something switches to it."""
        self._hub.switch()

    def run(self, *, until_s: float, is_done: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until a moment, or until `is_done` after an event."""
        queue = self._queue
        while queue and queue[0][0] <= until_s:
            self.now_s, _, do = heapq.heappop(queue)
            do()
            if is_done():
                return
        self.now_s = max(self.now_s, until_s)


class VirtualDemand(Demand):
    """The shipped `Demand` with the waits of the pool's thread in virtual time. `on_supply` is called when addresses appeared."""

    def __init__(self, world: World, *, on_supply: Callable[[], None]) -> None:
        super().__init__()
        self._world = world
        self._on_supply = on_supply
        self._is_triggered = False
        self._sleeper: greenlet | None = None
        self._wait_count = 0

    def trigger(self) -> None:
        """See the base class."""
        self._is_triggered = True
        if self._sleeper is not None:
            sleeper, self._sleeper = self._sleeper, None
            self._world.at(self._world.now_s, sleeper.switch)

    def wait_triggered(self, timeout_s: float | None) -> bool:
        """Sleep until triggered, as the pool's loop does; returns whether it was."""
        if not self._is_triggered:
            self._wait_count += 1
            self._sleeper = getcurrent()
            if timeout_s is not None:
                this_wait = self._wait_count
                self._world.at(self._world.now_s + timeout_s, lambda: self._time_out(this_wait))
            self._world.park()
        was_triggered, self._is_triggered = self._is_triggered, False
        return was_triggered

    def coalesce(self, timeout_s: float) -> None:
        """See the base class."""
        if not self.waiting()[0]:
            self._world.sleep(timeout_s)

    def take(self, *, is_demand: bool = True, pool: str = "") -> None:
        """See the base class."""
        super().take(is_demand=is_demand, pool=pool)
        self.trigger()

    def join(self, *, is_demand: bool = True, pool: str = "") -> int:
        """See the base class."""
        generation = super().join(is_demand=is_demand, pool=pool)
        self.trigger()
        return generation

    def announce_supply(self) -> None:
        """See the base class."""
        super().announce_supply()
        self._on_supply()

    def _time_out(self, wait: int) -> None:
        if self._sleeper is not None and wait == self._wait_count:
            sleeper, self._sleeper = self._sleeper, None
            sleeper.switch()
