"""Let ADDs that find the pool empty wait for the pool maintainer without polling.

A waiting ADD wakes the maintainer. New addresses wake the ADDs, and so does a status that says that the pool cannot grow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ipamd.model.pool import Blocked
from ipamd.model.record import dataclass
from ipamd.ports import Clock, Ec2

THROTTLED_S = 60.0
"""After a throttled answer whatever is late is late because of it. Ours: as long as an ADD waits at most."""

WAIT = "wait: what pods wait for is asked for again and again; if it lasts, ask AWS for a higher limit, or lower the warm targets"
"""What to do while EC2 throttles."""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """The latest status that the pool maintainer published.

    `generation`: the latest demand that it takes into account. `blocked_by`: why the pool cannot grow, empty if it can.
    `retry_deadline`: the monotonic point at which a blocked pool tries again by itself; None if it does not. `next_step`: what helps.
    `excess_count`: free addresses above the target, `kept`: why they are kept. `kind`: `blocked_by` in one word.
    """

    generation: int = 0
    sentence: str = "the pool loop has not run yet"
    blocked_by: str = ""
    retry_deadline: float | None = None
    next_step: str = ""
    excess_count: int = 0
    kept: str = ""
    kind: Blocked = Blocked.GROWING

    def shortage(self, delayed_by: Blocked) -> str:
        """Why there is no address now; `delayed_by`: see `delay`."""
        throttled = "EC2 throttles it: " if delayed_by is Blocked.THROTTLED else ""
        return self.blocked_by or f"{throttled}{self.sentence}"

    def cause(self, delayed_by: Blocked = Blocked.GROWING) -> str:
        """The same with the next step if one is known: for people."""
        is_throttled = delayed_by is Blocked.THROTTLED and not self.blocked_by
        step = self.next_step or (WAIT if is_throttled else "")
        return f"{self.shortage(delayed_by)}; next: {step}" if step else self.shortage(delayed_by)


def delay(ec2: Ec2, clock: Clock) -> Blocked:
    """What delays a pool that is not kept from growing: EC2 throttles the calls that are being repeated, or growing takes its time."""
    throttling = ec2.throttling()
    is_throttled = throttling is not None and clock.monotonic() - throttling[1] < THROTTLED_S
    return Blocked.THROTTLED if is_throttled else Blocked.GROWING


class Demand:
    """Counts waiting ADDs, wakes the pool maintainer (`triggered`), and the ADDs when addresses appear. Safe from any thread.

    One number or status is read without the lock: each is replaced whole. `served_count`: ADDs that took an address since start.
    `supply_count` grows with every announcement: read it before trying, wait on it after. `status`: published last.
    """

    def __init__(self, *, on_supply: Callable[[], None] = lambda: None) -> None:
        """`on_supply` is called when addresses appear."""
        self._on_supply = on_supply
        self._changed = threading.Condition()
        self.triggered = threading.Event()
        self._waiting = 0
        self._generation = 0
        self.supply_count = 0
        self.served_count = 0
        self.status = PoolStatus()

    def trigger(self) -> None:
        """Wake the pool maintainer: something changed."""
        self.triggered.set()

    def coalesce(self, timeout_s: float) -> None:
        """Wait a moment so that several triggers cause one cycle, but not while an ADD waits. For the maintainer's thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting > 0, timeout=timeout_s)

    def take(self) -> None:
        """Count an ADD that took an address, and wake the pool maintainer."""
        with self._changed:
            self.served_count += 1
        self.triggered.set()

    def join(self) -> int:
        """Start to wait, as an ADD; returns the generation from which on a status takes this ADD into account."""
        with self._changed:
            self._waiting += 1
            self._generation += 1
            self._changed.notify_all()
            self.triggered.set()
            return self._generation

    def leave(self) -> None:
        """End the wait of an ADD: what it held up may go on."""
        with self._changed:
            self._waiting -= 1
        self.triggered.set()

    def waiting(self) -> tuple[int, int]:
        """How many ADDs wait, and the latest generation."""
        with self._changed:
            return self._waiting, self._generation

    def announce_supply(self) -> None:
        """Wake the waiting ADDs: addresses became free."""
        with self._changed:
            self.supply_count += 1
            self._changed.notify_all()
        self._on_supply()

    def publish(self, status: PoolStatus) -> None:
        """Publish what the maintainer decided."""
        with self._changed:
            self.status = status
            self._changed.notify_all()

    def wait(self, *, seen_supply: int, seen_status: PoolStatus, timeout_s: float) -> None:
        """Sleep until supply was announced, the status changed, or time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self.supply_count != seen_supply or self.status is not seen_status, timeout=timeout_s)
