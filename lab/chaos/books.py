"""What the kubelets know: which sandbox got which address, since when, and what is under way. The observer judges by it.

Two of the invariants are judged here and at once, because the kubelet's knowledge suffices and no tolerance is needed: an address
that a living sandbox has was given again (I1), or one was given again before it can have cooled (I8). Times are conservative: a
removal is dated before the call, a creation after it, so that the daemon never has less time than it seems.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Life:
    """One sandbox that the runtime promised. `leaving_at`: its removal was asked; `gone_at`: its removal was answered."""

    node: str
    pod: str
    sandbox_id: str
    address: str
    netns_path: str
    born_at: float
    leaving_at: float | None = None
    gone_at: float | None = None

    @property
    def lives(self) -> bool:
        """Nobody has asked for its removal."""
        return self.leaving_at is None


@dataclass(frozen=True)
class Violation:
    """A broken promise: which, when (seconds of the run), about what, and in one sentence how it shows."""

    invariant: str
    at_s: float
    subject: str
    what: str

    def __str__(self) -> str:
        return f"{self.invariant} at {self.at_s:.1f} s: {self.subject}: {self.what}"


@dataclass(frozen=True)
class View:
    """The books at one moment. `running`: when each creation under way began, by node."""

    lives: dict[str, Life]
    running: dict[str, tuple[float, ...]]


class Books:
    """Thread-safe; its lock is a leaf, `report` is called outside it."""

    def __init__(self, *, clock: Callable[[], float], cooldown_s: float, report: Callable[[Violation], None]) -> None:
        self._clock = clock
        self._cooldown_s = cooldown_s
        self._report = report
        self._lock = threading.Lock()
        self._lives: dict[str, Life] = {}
        self._running: dict[int, tuple[str, float]] = {}
        self._ids = itertools.count()
        self._lost_at: dict[str, float] = {}

    def began(self, node: str) -> int:
        """A creation is about to be asked; give the ticket back with `ended`."""
        with self._lock:
            ticket = next(self._ids)
            self._running[ticket] = (node, self._clock())
            return ticket

    def ended(self, ticket: int) -> None:
        """That creation was answered, whatever the answer."""
        with self._lock:
            del self._running[ticket]

    def born(self, life: Life) -> None:
        """A sandbox was promised an address; judged at once (I1, I8)."""
        with self._lock:
            others = [other for other in self._lives.values() if other.address == life.address]
            self._lives[life.sandbox_id] = life
            lost_at = self._lost_at.get(life.node, -1.0)
        for other in others:
            subject = f"{life.address} of {life.node}/{life.pod}"
            if other.leaving_at is None:
                self._report(Violation("I1", life.born_at, subject, f"{other.node}/{other.pod} has it and lives"))
            elif lost_at < other.leaving_at and life.born_at - other.leaving_at < self._cooldown_s:
                after_s = life.born_at - other.leaving_at
                what = f"given {after_s:.2f} s after the removal of {other.node}/{other.pod}, before it can have cooled"
                self._report(Violation("I8", life.born_at, subject, what))

    def leaving(self, sandbox_id: str) -> None:
        """Its removal is about to be asked."""
        self._change(sandbox_id, lambda life: replace(life, leaving_at=life.leaving_at or self._clock()))

    def gone(self, sandbox_id: str) -> None:
        """Its removal was answered: done."""
        self._change(sandbox_id, lambda life: replace(life, gone_at=self._clock()))

    def lost_datastore(self, node: str) -> None:
        """The node's record of what cools was destroyed on purpose: I8 is not asked of what cooled then."""
        with self._lock:
            self._lost_at[node] = self._clock()

    def living(self, node: str) -> list[Life]:
        """Sandboxes of a node that nobody has asked to remove, oldest first."""
        with self._lock:
            return [life for life in self._lives.values() if life.node == node and life.lives]

    def view(self) -> View:
        """A copy of everything."""
        with self._lock:
            running: dict[str, tuple[float, ...]] = {}
            for node, at in self._running.values():
                running[node] = (*running.get(node, ()), at)
            return View(dict(self._lives), running)

    def _change(self, sandbox_id: str, change: Callable[[Life], Life]) -> None:
        with self._lock:
            life = self._lives.get(sandbox_id)
            if life is not None:
                self._lives[sandbox_id] = change(life)
