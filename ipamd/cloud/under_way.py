"""Which EC2 calls are being made or retried now: one call with its retries may take half a minute, and says nothing until it ends.

`ipamctl status` reads it, so that a refusal is seen when it comes and not when the last retry has failed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from ipamd.cloud.errors import AttemptError
from ipamd.model.cloud import CallUnderWay
from ipamd.model.errors import log_text

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class _Call:
    api: str
    subject: str
    began_monotonic_s: float
    refusal_count: int = 0
    last_refusal: str = ""


class CallsUnderWay:
    """The calls of all threads; a thread makes one at a time. Safe from any thread; its lock is a leaf."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._by_thread: dict[int, _Call] = {}

    @contextmanager
    def call(self, api: str, subject: str) -> Iterator[None]:
        """Count a call of this thread as under way, its retries included."""
        with self._lock:
            self._by_thread[threading.get_ident()] = _Call(api, subject, self._monotonic())
        try:
            yield
        finally:
            with self._lock:
                self._by_thread.pop(threading.get_ident(), None)

    def noting(self, attempt: Callable[P, T]) -> Callable[P, T]:
        """Wrap one attempt of the call: a refusal is remembered, and passed on."""

        def noted(*args: P.args, **named: P.kwargs) -> T:
            try:
                return attempt(*args, **named)
            except AttemptError as failed:
                with self._lock:
                    call = self._by_thread.get(threading.get_ident())
                    if call is not None:
                        call.refusal_count, call.last_refusal = call.refusal_count + 1, log_text(failed.error)
                raise

        return noted

    def list(self) -> tuple[CallUnderWay, ...]:
        """All calls, oldest first."""
        now = self._monotonic()
        with self._lock:
            calls = sorted(self._by_thread.values(), key=lambda call: call.began_monotonic_s)
            return tuple(
                CallUnderWay(
                    call.api,
                    call.subject,
                    age_s=now - call.began_monotonic_s,
                    refusal_count=call.refusal_count,
                    last_refusal=call.last_refusal,
                )
                for call in calls
            )
