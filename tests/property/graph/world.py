"""Simulated time for code that was written for threads: every thread is a greenlet, and time moves when all of them wait.

`installed` puts virtual `threading`, `time` and `select` into the modules of `ipamd` for as long as a run lasts, so the shipped
life of the daemon (start, loops, time-outs, wake-ups) runs unchanged, in one order that a seed decides, hours within a second.
Rejected: the loops driven by hand, turn by turn. That needs the names of their insides, and what is between the loops (who wakes
whom, when the next turn is due) would not be under test. `bench/fleet/world.py` is the smaller sister that simulates thousands of
pools.

A life is one process: `kill` ends all its greenlets, and whatever it still holds reaches nothing any more (`Gate`).
"""

from __future__ import annotations

import contextlib
import heapq
import queue
import select
import sys
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

from tests.fakes.clock import FakeClock

POLL_AGAIN_S = 30.0
"""Real descriptors are asked again after so many simulated seconds: inotify reports at once what a run changes on the disk."""


LATE_S = 0.0005
"""A wait ends so much after its time, as a real one does: what is left of a pause is never smaller than the clock can tell."""

SPIN_COUNT = 20_000
"""So many events at one instant are a loop that does not wait."""

Waiters = deque[Callable[[], bool]]
"""What wakes each thread that waits for something; it returns False for one that is gone."""


def wake_one(waiters: Waiters) -> None:
    """Wake the first that is still there."""
    while waiters and not waiters.popleft()():
        pass


def wake_all(waiters: Waiters) -> None:
    """Wake everyone."""
    while waiters:
        waiters.popleft()()


class Killed(BaseException):
    """The process is gone: not an Exception, so that no loop goes on after it."""


class TimeStandsError(Exception):
    """Some thread works again and again and never waits."""


class Life:
    """One process: its greenlets, and whether it has ended."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_over = False
        self.threads: list[greenlet] = []


class World(FakeClock):
    """The queue of what happens, the clock, and the life that runs. What goes wrong in a thread is in `failures`."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = Random(f"world/{seed}")
        self.life = Life(0)
        self.failures: list[str] = []
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self._spin_count = 0
        self._latest: greenlet | None = None
        self._hub = getcurrent()
        self._life_of: dict[greenlet, Life] = {}

    def at(self, at_s: float, do: Callable[[], object]) -> None:
        """Do something at a moment; what is due at one moment is done in the order in which it was asked for."""
        self._count += 1
        heapq.heappush(self._queue, (max(at_s, self._monotonic), self._count, do))

    def spawn(self, body: Callable[[], object], *, name: str = "") -> greenlet:
        """Run a thread body in the life that runs now."""
        life = self._life_of.get(getcurrent(), self.life)

        def run() -> None:
            try:
                body()
            except Killed:
                pass
            except Exception as error:  # noqa: BLE001  # as in a thread: it ends, and someone should know
                if not life.is_over:
                    self.failures.append(f"thread {name or body} died: {type(error).__name__}: {error}")
            finally:
                self._life_of.pop(thread, None)

        thread = greenlet(run, parent=self._hub)
        self._life_of[thread] = life
        life.threads.append(thread)
        self.at(self._monotonic, lambda: None if life.is_over else thread.switch())
        return thread

    @property
    def is_in_hub(self) -> bool:
        """Whether no thread runs: the hub must not wait."""
        return getcurrent() is self._hub

    @property
    def is_dead(self) -> bool:
        """Whether the calling thread's life is over."""
        life = self._life_of.get(getcurrent())
        return life is not None and life.is_over

    def park(self, timeout_s: float | None, waiters: Waiters | None = None) -> bool:
        """Block the calling thread until somebody calls what this puts into `waiters`. Returns: whether it was in time."""
        if self.is_in_hub:
            raise RuntimeError("the hub of the simulation would wait")
        if self.is_dead:
            raise Killed
        thread, is_woken = getcurrent(), False

        def resume() -> None:
            if not thread.dead:
                self._latest = thread
                thread.switch()

        def wake() -> bool:
            nonlocal is_woken
            if thread.dead:
                return False
            is_woken = True
            self.at(self._monotonic, resume)
            return True

        def time_out() -> None:
            if not is_woken and not thread.dead:
                if waiters is not None:
                    waiters.remove(wake)
                resume()

        if timeout_s is not None:
            self.at(self._monotonic + max(timeout_s, 0.0) + LATE_S, time_out)
        if waiters is not None:
            waiters.append(wake)
        self._hub.switch()
        if self.is_dead:
            raise Killed
        return is_woken

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        self.park(seconds)

    def run(self, until_s: float, *, is_over: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until a moment, or until `is_over` after an event."""
        while self._queue and self._queue[0][0] <= until_s:
            at_s, _, do = heapq.heappop(self._queue)
            self._spin_count = self._spin_count + 1 if at_s <= self._monotonic else 0
            if self._spin_count > SPIN_COUNT:
                where = traceback.format_stack(self._latest.gr_frame, limit=12) if self._latest is not None else []
                raise TimeStandsError(f"time does not pass: {SPIN_COUNT} events at one instant\n{''.join(where)}")
            self.advance(max(at_s - self._monotonic, 0.0))
            do()
            if is_over():
                return
        self.advance(max(until_s - self._monotonic, 0.0))

    def kill(self) -> None:
        """End the life that runs: its threads unwind, and reach nothing any more. For the hub."""
        life = self.life
        life.is_over = True
        for thread in life.threads:
            if not thread.dead and thread is not getcurrent():
                with contextlib.suppress(Killed):  # one that has not begun
                    thread.throw(Killed)
                self._life_of.pop(thread, None)
        life.threads.clear()
        self.life = Life(life.number + 1)


class Gate:
    """What a life sees of a fake that outlives it. `passing` is called with the method's name before and after each call."""

    def __init__(self, target: Any, life: Life, passing: Callable[[str], None] = lambda name: None) -> None:
        self._target, self._life, self._passing = target, life, passing

    def __getattr__(self, name: str) -> Any:
        if self._life.is_over:
            raise Killed
        found = getattr(self._target, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._life.is_over:
                raise Killed
            self._passing(name)
            answer = found(*args, **kwargs)
            self._passing(name)
            return answer

        return call


_worlds: list[World] = []


class _Lock:
    """`threading.Lock`, first come first served; reentrant as `_RLock`."""

    is_reentrant = False

    def __init__(self) -> None:
        self._world = _worlds[-1]
        self._owner: greenlet | None = None
        self._depth = 0
        self._waiters: Waiters = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = getcurrent()
        if self._owner is None:  # the usual case, a million times
            self._owner, self._depth = me, 1
            return True
        if self.is_reentrant and self._owner is me:
            self._depth += 1
            return True
        deadline_s = self._world.monotonic() + timeout if timeout >= 0 else None
        while self._owner is not None:
            if self._world.is_dead:
                return True  # its process is gone: nobody minds
            if not blocking:
                return False
            left_s = None if deadline_s is None else deadline_s - self._world.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            self._world.park(left_s, self._waiters)
        self._owner, self._depth = me, 1
        return True

    def release(self) -> None:
        if self._owner is not getcurrent() and self.is_reentrant:
            if self._world.is_dead:
                return
            raise RuntimeError("released by another thread")
        self._depth -= 1
        if self._depth <= 0:
            self._owner = None
            if self._waiters:
                wake_one(self._waiters)

    def locked(self) -> bool:
        return self._owner is not None

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


class _RLock(_Lock):
    is_reentrant = True


class _Condition:
    """`threading.Condition`."""

    def __init__(self, lock: _Lock | None = None) -> None:
        self._world = _worlds[-1]
        self._lock = lock or _RLock()
        self._waiters: Waiters = deque()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        self._lock.release()
        try:
            return self._world.park(timeout, self._waiters)
        finally:
            self._lock.acquire()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        deadline_s = None if timeout is None else self._world.monotonic() + timeout
        while not (result := predicate()):
            left_s = None if deadline_s is None else deadline_s - self._world.monotonic()
            if left_s is not None and left_s <= 0:
                break
            self.wait(left_s)
        return result

    def notify(self, n: int = 1) -> None:
        for _ in range(n):
            wake_one(self._waiters)

    def notify_all(self) -> None:
        wake_all(self._waiters)


class _Event:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._world = _worlds[-1]
        self._is_set = False
        self._waiters: Waiters = deque()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        wake_all(self._waiters)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            self._world.park(timeout, self._waiters)
        return self._is_set


class _Semaphore:
    """`threading.BoundedSemaphore`."""

    def __init__(self, value: int = 1) -> None:
        self._world = _worlds[-1]
        self._value = value
        self._waiters: Waiters = deque()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        while self._value <= 0:
            if not blocking or not (self._world.park(timeout, self._waiters) or timeout is None):
                return False
        self._value -= 1
        return True

    def release(self, n: int = 1) -> None:
        self._value += n
        wake_one(self._waiters)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Thread:
    """`threading.Thread`."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name, self.daemon, self._world = name or "", daemon, _worlds[-1]
        self._body, self._args, self._kwargs = target, args, kwargs or {}
        self._ended = _Event()
        self._thread: greenlet | None = None

    def start(self) -> None:
        self._thread = self._world.spawn(self._run, name=self.name)

    def run(self) -> None:
        if self._body is not None:
            self._body(*self._args, **self._kwargs)

    def _run(self) -> None:
        try:
            self.run()
        finally:
            self._ended.set()

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        return self._thread is not None and not self._ended.is_set()

    @property
    def ident(self) -> int:
        return id(self._thread)


class _Timer(_Thread):
    """`threading.Timer`."""

    def __init__(self, interval: float, function: Callable[..., object], args: Any = None, kwargs: Any = None) -> None:
        super().__init__(target=function, args=tuple(args or ()), kwargs=kwargs or {})
        self._interval_s, self._cancelled = interval, _Event()

    def cancel(self) -> None:
        self._cancelled.set()

    def run(self) -> None:
        if not self._cancelled.wait(self._interval_s):
            super().run()


class VirtualQueue:
    """`queue.Queue` without a size."""

    def __init__(self, maxsize: int = 0) -> None:  # as the real one
        self._world = _worlds[-1]
        self._items: deque[Any] = deque()
        self._waiters: Waiters = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        wake_all(self._waiters)

    def get(self, *, timeout: float | None = None) -> Any:
        deadline_s = None if timeout is None else self._world.monotonic() + timeout
        while not self._items:
            if deadline_s is not None and self._world.monotonic() >= deadline_s:
                raise queue.Empty
            self._world.park(deadline_s, self._waiters)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


class _Poll:
    """`select.poll` over real descriptors, which wait in simulated time."""

    def __init__(self) -> None:
        self._real, self._world = select.poll(), _worlds[-1]
        self.register, self.unregister, self.modify = self._real.register, self._real.unregister, self._real.modify

    def poll(self, timeout_ms: float | None = None) -> list[tuple[int, int]]:
        deadline_s = None if timeout_ms is None or timeout_ms < 0 else self._world.monotonic() + timeout_ms / 1000
        while not (ready := self._real.poll(0)):
            left_s = POLL_AGAIN_S if deadline_s is None else deadline_s - self._world.monotonic()
            if left_s <= 0:
                break
            self._world.sleep(min(left_s, POLL_AGAIN_S))
        return ready


class _Module:
    """A module with some of its names replaced."""

    def __init__(self, real: Any, **replaced: Any) -> None:
        self._real = real
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


PRIMITIVES = {
    threading.Lock: _Lock,
    threading.RLock: _RLock,
    threading.Condition: _Condition,
    threading.Event: _Event,
    threading.BoundedSemaphore: _Semaphore,
    threading.Semaphore: _Semaphore,
}
PATCHED = ("ipamd.", "tests.fakes.runtime", "tests.fakes.host_network")
REAL = frozenset({"ipamd.host.plugins", "ipamd.host.plugin_versions", "ipamd.host.plugin_bundle"})
"""They ask real processes, for as long as these take."""


@contextlib.contextmanager
def installed(world: World) -> Iterator[None]:
    """Have the modules of `ipamd` wait in the time of `world`. For one run at a time, in one real thread."""
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith(PATCHED) and name not in REAL and module]
    names = {real.__name__: made for real, made in PRIMITIVES.items() if isinstance(real, type)}
    virtual = {
        "threading": _Module(
            threading,
            **names | {"Lock": _Lock, "RLock": _RLock, "Thread": _Thread, "Timer": _Timer},
            get_ident=lambda: id(getcurrent()),
        ),
        "time": _Module(
            time,
            monotonic=world.monotonic,
            sleep=world.sleep,
            time=lambda: world.now().timestamp(),
            clock_gettime_ns=lambda _: int(world.monotonic() * 1e9),
        ),
        "select": _Module(select, poll=_Poll),
        "queue": _Module(queue, Queue=VirtualQueue, SimpleQueue=VirtualQueue),
        "uuid": _Module(uuid, uuid4=lambda: uuid.UUID(int=world.random.getrandbits(128), version=4)),
    }
    real = {"threading": threading, "time": time, "select": select, "queue": queue, "uuid": uuid}
    changed: list[tuple[Any, str]] = []
    cells: list[tuple[Any, Any]] = []
    _worlds.append(world)
    for module in modules:
        for name, made in virtual.items():
            if getattr(module, name, None) is real[name]:
                setattr(module, name, made)
                changed.append((module, name))
        for thing in vars(module).values():  # a dataclass has kept what makes its fields
            for cell in getattr(getattr(thing, "__init__", None), "__closure__", None) or () if isinstance(thing, type) else ():
                with contextlib.suppress(TypeError, ValueError):
                    if cell.cell_contents in PRIMITIVES:
                        cells.append((cell, cell.cell_contents))
                        cell.cell_contents = PRIMITIVES[cell.cell_contents]
    try:
        yield
    finally:
        _worlds.pop()
        for module, name in changed:
            setattr(module, name, real[name])
        for cell, before in cells:
            cell.cell_contents = before
    late = [
        name
        for name, module in sorted(sys.modules.items())
        if name.startswith(PATCHED)
        and name not in REAL
        and module not in modules
        and any(getattr(module, each, None) is real[each] for each in real)
    ]
    if late:
        raise ImportError(f"imported while a run lasted, so what waits there waited in real time: {', '.join(late)}")
