"""Two things at once, told in a fixed order: one request is stopped at a named step while another one runs in a thread.

A story begins the other one at the step, and goes on as soon as it has ended or waits for its turn on a sandbox's lock; so that
the same story is played with the lock and, where a test switches the lock off, without it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from ipamd.core.deadline import StepTimer
from ipamd.ports.process import Clock
from tests.fakes.node import FakeNode

T = TypeVar("T")

BOUND_S = 10.0
"""Real seconds that a thread of a story may take; it needs milliseconds."""


class AtStep(StepTimer):
    """Steps of a request that call `then` when the step `name` begins."""

    def __init__(self, clock: Clock, name: str, then: Callable[[], object]) -> None:
        super().__init__(clock)
        self._name = name
        self._then = then

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """See Steps."""
        if name == self._name:
            self._then()
        with super().step(name):
            yield


class Concurrent(Generic[T]):
    """`work` in a thread. `begin` returns when it has ended or `is_waiting` says so; `end` gives its outcome."""

    def __init__(self, work: Callable[[], T], *, is_waiting: Callable[[], bool]) -> None:
        self._work = work
        self._is_waiting = is_waiting
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.result: T | None = None
        self.error: Exception | None = None

    def begin(self) -> None:
        """Start it."""
        self._thread.start()
        gives_up = time.monotonic() + BOUND_S
        while self._thread.is_alive() and not self._is_waiting():
            assert time.monotonic() < gives_up, "neither ended nor waiting"
            self._thread.join(0.001)

    def end(self) -> T | None:
        """Wait for its end; `error` holds what it raised."""
        self._thread.join(BOUND_S)
        assert not self._thread.is_alive(), f"not ended within {BOUND_S} s"
        return self.result

    def _run(self) -> None:
        try:
            self.result = self._work()
        except Exception as error:  # noqa: BLE001  # the story looks at it
            self.error = error


def queued_on(node: FakeNode, name: str) -> Callable[[], bool]:
    """Whether somebody waits behind the operation that holds sandbox `name`."""
    return lambda: any(holder.key == node.key(name) and holder.waiting_count for holder in node.locks.holders())
