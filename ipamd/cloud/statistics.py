"""Counts EC2 attempts by API: how they ended, what they took, what the node's own budget held back.

Labels of metrics are made of it, so the codes that are told apart are bounded: what answers may be anything, and a proxy that invents
a code for each answer must not fill a monitoring system.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

from ipamd.cloud.budget import CallBudget
from ipamd.cloud.errors import AttemptError, BusyAttempt, ThrottledAttempt, UnansweredAttempt, UnsentAttempt
from ipamd.model.call_report import ANSWERED, ATTEMPT_BUCKETS_MS, OTHER, UNANSWERED, CallReport, Outcome, StatusReport
from ipamd.model.cloud import CallUnderWay
from ipamd.model.errors import (
    CloudDeniedError,
    CloudError,
    CloudNotFoundError,
    CloudQuotaError,
    EniLimitError,
    SubnetExhaustedError,
    log_text,
)
from ipamd.ports import Clock

CODES_MAX = 24
"""Codes of EC2 that are told apart, over all APIs; the first ones met. Ours: `errors.py` knows about as many."""

CODE = re.compile(r"[A-Za-z][A-Za-z0-9.]{0,63}\Z")
"""What a code of EC2 looks like. Ours, from https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html."""

BY_ATTEMPT: tuple[tuple[type[AttemptError], Outcome], ...] = (
    (ThrottledAttempt, Outcome.THROTTLED),
    (BusyAttempt, Outcome.BUSY),
    (UnansweredAttempt, Outcome.UNANSWERED),
    (UnsentAttempt, Outcome.UNSENT),
)
BY_ERROR: tuple[tuple[type[CloudError], Outcome], ...] = (
    (SubnetExhaustedError, Outcome.SUBNET_FULL),
    (EniLimitError, Outcome.LIMIT),
    (CloudQuotaError, Outcome.QUOTA),
    (CloudDeniedError, Outcome.DENIED),
    (CloudNotFoundError, Outcome.NOT_FOUND),
)


@dataclass(slots=True)
class _Api:
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    statuses: dict[str, StatusReport] = field(default_factory=dict)
    buckets: list[int] = field(default_factory=lambda: [0] * len(ATTEMPT_BUCKETS_MS))
    held_back_count: int = 0


class CallStatistics:
    """Safe from any thread; its lock is a leaf."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._apis: dict[str, _Api] = {}
        self._codes: set[str] = set()

    @contextmanager
    def attempt(self, api: str) -> Iterator[None]:
        """Time one attempt and count how it ended; its error passes on."""
        began_s = self._clock.monotonic()
        try:
            yield
        except AttemptError as failed:
            self._note(api, began_s, outcome_of(failed), failed.error.code)
            raise
        self._note(api, began_s, Outcome.OK, ANSWERED)

    def held_back(self, api: str) -> None:
        """Count a call that the node's own budget refused."""
        with self._lock:
            self._apis.setdefault(api, _Api()).held_back_count += 1

    def reports(self, budget: CallBudget) -> Mapping[str, CallReport]:
        """One report for each API that was called, or was to be, since the start; with what is left of its budget."""
        with self._lock:
            return {api: _report(known, budget.left_count(api), budget.rate_per_s(api)) for api, known in self._apis.items()}

    def _note(self, api: str, began_s: float, outcome: Outcome, code: str) -> None:
        took_ms = (self._clock.monotonic() - began_s) * 1000
        with self._lock:
            known, status = self._apis.setdefault(api, _Api()), self._status(outcome, code)
            known.outcomes[outcome] += 1
            before = known.statuses.get(status, StatusReport(0, 0.0))
            known.statuses[status] = StatusReport(before.count + 1, before.total_ms + took_ms)
            for index, bound_ms in enumerate(ATTEMPT_BUCKETS_MS):
                known.buckets[index] += took_ms <= bound_ms

    def _status(self, outcome: Outcome, code: str) -> str:
        """The status to count under; the lock is held."""
        if outcome is Outcome.OK or not code:
            return ANSWERED if outcome is Outcome.OK else UNANSWERED
        if code not in self._codes and (len(self._codes) >= CODES_MAX or not CODE.match(code)):
            return OTHER
        self._codes.add(code)
        return code


def outcome_of(failed: AttemptError) -> Outcome:
    """How a failed attempt ended. Concurrency: pure."""
    for kind, outcome in BY_ATTEMPT:
        if isinstance(failed, kind):
            return outcome
    if not failed.error.code:
        return Outcome.UNSENT  # no credentials, or botocore refused the request
    return next((outcome for kind, outcome in BY_ERROR if isinstance(failed.error, kind)), Outcome.REFUSED)


def _report(known: _Api, left_count: float, rate_per_s: float) -> CallReport:
    return CallReport(
        outcomes=dict(known.outcomes),
        statuses=dict(known.statuses),
        buckets=tuple(known.buckets),
        count=known.outcomes.total(),
        total_ms=sum(status.total_ms for status in known.statuses.values()),
        left_count=left_count,
        rate_per_s=rate_per_s,
        held_back_count=known.held_back_count,
    )


# Which EC2 calls are being made or retried now: one call with its retries may take half a minute, and says nothing until it ends.
#
# `ipamctl status` reads it, so that a refusal is seen when it comes and not when the last retry has failed.


P = ParamSpec("P")
T = TypeVar("T")


class CallsUnderWay:
    """The calls of all threads; a thread makes one at a time. Safe from any thread; its lock is a leaf."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._by_thread: dict[int, tuple[float, CallUnderWay]] = {}  # with the beginning of each

    @contextmanager
    def call(self, api: str, subject: str) -> Iterator[None]:
        """Count a call of this thread as under way, its retries included."""
        with self._lock:
            self._by_thread[threading.get_ident()] = self._monotonic(), CallUnderWay(api, subject, age_s=0.0)
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
                    known = self._by_thread.get(threading.get_ident())
                    if known is not None:
                        began_s, call = known
                        count, last = call.refusal_count + 1, log_text(failed.error)
                        self._by_thread[threading.get_ident()] = began_s, replace(call, refusal_count=count, last_refusal=last)
                raise

        return noted

    def list(self) -> tuple[CallUnderWay, ...]:
        """All calls, oldest first."""
        now = self._monotonic()
        with self._lock:
            calls = sorted(self._by_thread.values(), key=lambda one: one[0])
        return tuple(replace(call, age_s=now - began_s) for began_s, call in calls)
