"""The threads that serve requests: one permanent thread, and further threads that start while requests wait and end when idle.

If a thread cannot be started (the pids limit is reached, or there is no memory), requests are only delayed. grpcio dispatches
requests by a single thread, and an exception from `submit` would end it, after which no request would be answered. So `submit` never
raises: the request stays in the queue until a thread serves it, and the start of a further thread is retried whenever a request
arrives or ends. Rejected: `ThreadPoolExecutor`, which raises in `submit` and keeps every thread that it started. Both
behaviours could be changed only through private names of that class.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

IDLE_S = 15.0
"""Time after which a thread without work ends, except the last thread. Ours: the exact time matters little, because starting a thread
again takes 0.1 ms, and keeping it costs 0.1 MiB."""


class _Request:
    """A queued call, and the future that gets its outcome."""

    __slots__ = ("_args", "_function", "_kwargs", "future")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.future: Future[Any] = Future()
        self._function = function
        self._args = args
        self._kwargs = kwargs

    def run(self) -> None:
        """Make the call, unless its future was cancelled. The future gets the result or the exception."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._function(*self._args, **self._kwargs)
        except BaseException as error:  # noqa: BLE001  # top of a request: it must not end the thread
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class RequestThreads(Executor):
    """An executor of at most `most` daemon threads. Safe from any thread."""

    idle_s = IDLE_S

    def __init__(self, most: int, name: str, *, on_rest: Callable[[], None] = lambda: None) -> None:
        """Start the permanent thread.

        `on_rest`: called by the last thread that ends for want of work, when only the permanent thread is left. It must not raise.
        Raises: RuntimeError if the thread cannot be started.
        """
        self._most = most
        self._name = name
        self._on_rest = on_rest
        self._least = 1
        self._queue: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._changed = threading.Condition(threading.Lock())
        self._open_count = 0
        self._is_short = False
        self.thread_count = 1
        """Number of threads that exist or are being started."""
        self.ended_count = 0
        """Number of requests that have ended since the executor was made."""
        self._start_thread()

    def lacks_threads(self) -> bool:
        """Whether a further thread cannot be started.

        If the last attempt failed, this method tries again. Otherwise the answer would stay True after the cause has ended, until a
        request needs a further thread.
        """
        with self._changed:
            is_tried = self._is_short and self.thread_count < self._most
            if is_tried:
                self.thread_count += 1
        if is_tried:
            self._add_thread()
        return self._is_short

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call. It raises nothing, not even after `shutdown`: grpcio still submits requests that it accepted before."""
        request = _Request(fn, args, kwargs)
        with self._changed:  # count and queue together, because a thread that ends reads both
            self._open_count += 1
            self._queue.put(request)
            is_needed = self._reserve_thread()
        if is_needed:
            self._add_thread()
        return request.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End every thread once it has no work. With `wait` this method returns when all threads have ended."""
        with self._changed:
            self._least = 0
        if cancel_futures:
            self._cancel_queued()
        self._queue.put(None)  # wakes one waiting thread; each thread that ends wakes the next
        if wait:
            with self._changed:
                self._changed.wait_for(lambda: self.thread_count == 0)

    def _cancel_queued(self) -> None:
        while True:
            try:
                request = self._queue.get_nowait()
            except queue.Empty:
                return
            if request is not None:
                request.future.cancel()
                request.run()  # wakes the caller that waits for the future
                self._count_ended()

    def _reserve_thread(self) -> bool:
        """Count a further thread if requests wait for one; the caller holds the lock. Returns: whether the caller must start it."""
        if self.thread_count >= min(self._open_count, self._most):
            return False
        self.thread_count += 1
        return True

    def _add_thread(self) -> None:
        """Start a thread that `_reserve_thread` counted. If that fails, the requests wait for the existing threads."""
        try:
            self._start_thread()
        except Exception as error:  # noqa: BLE001  # nothing may be raised into grpcio's thread
            with self._changed:
                self.thread_count -= 1
                was_short, self._is_short = self._is_short, True
                self._changed.notify_all()
            if not was_short:
                log.warning(
                    "no further thread can be made, requests wait name=%s count=%d error=%s", self._name, self.thread_count, error
                )
        else:
            if self._is_short:
                self._is_short = False
                log.info("threads can be made again name=%s", self._name)

    def _start_thread(self) -> None:
        threading.Thread(target=self._serve, name=self._name, daemon=True).start()

    def _serve(self) -> None:
        """Thread body: carry out queued calls until `_may_end` is true."""
        while True:
            try:
                request = self._queue.get(timeout=self._patience_s())
            except queue.Empty:
                request = None
            if request is not None:
                request.run()
                del request  # else it would stay in memory until the next request arrives
                if self._count_ended():
                    self._add_thread()
            elif self._may_end():
                return

    def _patience_s(self) -> float | None:
        """How long a thread waits for work before it may end; None, without limit, if it is the last thread; 0 after `shutdown`."""
        if self._least == 0:
            return 0.0
        if self.thread_count <= self._least:
            return None
        return self.idle_s

    def _count_ended(self) -> bool:
        """Count a request that has ended. Returns: whether the caller must start a thread, which is counted already."""
        with self._changed:
            self.ended_count += 1
            self._open_count -= 1
            return self._reserve_thread()

    def _may_end(self) -> bool:
        """Whether this thread may end: no request is queued, and another thread remains or `shutdown` was called.

        If the thread may end, it is not counted any more. If only the permanent thread is left then, `on_rest` is called.
        """
        with self._changed:
            if not self._queue.empty() or self.thread_count <= self._least:
                return False
            self.thread_count -= 1
            if self._least == 0 and self.thread_count:
                self._queue.put(None)
            self._changed.notify_all()
            is_at_rest = self.thread_count == self._least
        if is_at_rest and self._least:
            self._on_rest()
        return True
