"""Virtual time: one queue of events, and threads that are greenlets.

The daemon's executor blocks in EC2 calls, in sleeps, and while it waits for a trigger. Here each node's pool thread is a greenlet. At
these three points, and nowhere else, it lets the queue continue. So thousands of nodes run in one operating system thread, in an order
that only the seed decides. The daemon holds no lock at these points (I10); otherwise the simulation would stop."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from greenlet import getcurrent, greenlet

from ipamd.core.demand import Demand
from ipamd.ports.process import Clock

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class World(Clock):
    """The queue of events, and the clock of all nodes (`Clock`). Times are seconds since the trace's begin."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self._hub = getcurrent()
        self._now_at: tuple[float, datetime] = (0.0, EPOCH)

    def now(self) -> datetime:
        """Return the virtual time as aware UTC."""
        if self._now_at[0] != self.now_s:
            self._now_at = (self.now_s, EPOCH + timedelta(seconds=self.now_s))
        return self._now_at[1]

    def monotonic(self) -> float:
        """Return the virtual time in seconds."""
        return self.now_s

    def at(self, at_s: float, do: Callable[[], object]) -> None:
        """Call `do` at a time. Calls for the same time are made in the order in which they were scheduled."""
        self._count += 1
        heapq.heappush(self._queue, (max(at_s, self.now_s), self._count, do))

    def spawn(self, at_s: float, body: Callable[[], object]) -> None:
        """Start a greenlet that runs `body`, at a time."""
        self.at(at_s, greenlet(body, parent=self._hub).switch)

    def sleep(self, seconds: float) -> None:
        """Block the calling greenlet. Others run meanwhile."""
        self.at(self.now_s + max(seconds, 0.0), getcurrent().switch)
        self._hub.switch()

    def drive(self, at_s: float, steps: Iterator[float]) -> None:
        """Run a generator that yields the seconds for which it waits, from a time on. This is cheaper than a greenlet."""

        def step() -> None:
            wait_s = next(steps, None)
            if wait_s is not None:
                self.at(self.now_s + wait_s, step)

        self.at(at_s, step)

    def park(self) -> None:
        """Block the calling greenlet until something switches to it."""
        self._hub.switch()

    def run(self, *, until_s: float, is_done: Callable[[], bool] = lambda: False) -> None:
        """Handle events until a time, or until `is_done` returns true after an event."""
        queue = self._queue
        while queue and queue[0][0] <= until_s:
            self.now_s, _, do = heapq.heappop(queue)
            do()
            if is_done():
                return
        self.now_s = max(self.now_s, until_s)


class VirtualDemand(Demand):
    """The daemon's `Demand`, with the waits of the pool's thread in virtual time. `on_supply`: called when new addresses are free."""

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
        """Sleep until the next trigger, as the pool's loop does. Returns: whether one came before the timeout."""
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
