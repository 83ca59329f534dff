"""EC2 calls with budget, retries and counters.

An error says whether any attempt may have taken effect (I9). NotFound of an object that we created just now is not believed (I11).
Each attempt takes a token of the API's budget (I13). The counted codes become labels of metrics, so their number is bounded: a proxy
that invents a code for each answer must not fill a monitoring system.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from ipamd.cloud.budget import CallBudget
from ipamd.cloud.client import Ec2Client
from ipamd.cloud.errors import AttemptError
from ipamd.cloud.retries import RetryPolicy
from ipamd.model.call_report import ANSWERED, ATTEMPT_BUCKETS_MS, OTHER, UNANSWERED, CallOutcome, CallReport, StatusReport
from ipamd.model.cloud import CallUnderWay
from ipamd.model.errors import CloudDeniedError, CloudError, ThrottledError, cause_of_error, log_text
from ipamd.model.record import dataclass, field, replace
from ipamd.ports.process import Clock

FRESH_S = 30.0
"""For this long after we created an object, EC2's NotFound for it is not believed. Ours: longer than the seconds that are usual,
because EC2 promises no bound.

Source: https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html.
"""

THROTTLING_OVER_S = 3600.0
"""Throttling is reported for this long after the last throttled call. Ours: longer than any pause that throttling causes."""

CODES_MAX = 24
"""The largest number of codes of EC2 that are counted by name, over all APIs: the first ones that occur. Ours: enough, because a node
meets only some of the codes in `errors.py`."""

CODE = re.compile(r"[A-Za-z][A-Za-z0-9.]{0,63}\Z")
"""The form of an EC2 code. Ours, from https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html."""

RELEASING = frozenset({"DetachNetworkInterface", "UnassignPrivateIpAddresses", "UnassignIpv6Addresses"})
"""APIs that take an ENI or addresses from the instance."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Api:
    """Results of the attempts of one API."""

    outcomes: Counter[CallOutcome] = field(default_factory=Counter)
    statuses: dict[str, StatusReport] = field(default_factory=dict)
    buckets: list[int] = field(default_factory=lambda: [0] * len(ATTEMPT_BUCKETS_MS))
    held_back_count: int = 0


class Ec2Calls:
    """Makes EC2 calls with retries, within the budget, and counts them. Safe from any thread.

    Its one lock guards the budget too. No other lock is taken inside it, and it is never held during a call or a wait.
    """

    def __init__(self, client: Ec2Client, *, clock: Clock, sleep: Callable[[float], None]) -> None:
        self._client = client
        self._budget = CallBudget(clock.monotonic)
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._apis: defaultdict[str, _Api] = defaultdict(_Api)
        self._codes: set[str] = set()
        self._made: dict[str, float] = {}
        self._denied: dict[str, str] = {}
        self._throttling: tuple[float, float] | None = None
        self.before_release: Callable[[], None] = lambda: None
        """See `Ec2.before_release`."""
        self._under_way: dict[int, tuple[float, CallUnderWay]] = {}
        """(time at which it began, call), by thread: each makes one call at a time."""

    def call(
        self, api: str, subject: str, params: Mapping[str, Any], policy: RetryPolicy, *, about: str = ""
    ) -> Mapping[str, Any]:
        """Call with retries. `about`: the ID of the object that must exist; its NotFound is retried for FRESH_S after we created it.
        Raises: an error of `ipamd/model/errors.py`.
        """
        try:
            return self.attempts(api, subject, params, policy, about=about)
        except AttemptError as failed:
            raise failed.error from failed

    def attempts(
        self, api: str, subject: str, params: Mapping[str, Any], policy: RetryPolicy, *, about: str
    ) -> Mapping[str, Any]:
        """Attempt with retries. An error says whether any of the attempts, not only the last one, may have taken effect."""
        is_unanswered = False

        def attempt() -> Mapping[str, Any]:
            nonlocal is_unanswered
            try:
                return self._attempt(api, subject, params, about)
            except AttemptError as failed:
                is_unanswered = is_unanswered or failed.outcome is CallOutcome.UNANSWERED
                raise

        with self._lock:
            self._under_way[threading.get_ident()] = self._clock.monotonic(), CallUnderWay(api, subject, age_s=0.0)
        try:
            answer: Mapping[str, Any] = policy.retrying(self._clock, self._sleep)(attempt)
        except (AttemptError, CloudError) as failed:
            error = failed.error if isinstance(failed, AttemptError) else failed
            error.may_have_happened = is_unanswered
            if isinstance(error, CloudDeniedError):
                # Logged here, once per code, because somebody must change the node's role.
                if self._denied.get(api) != error.code:
                    log.warning("EC2 denied a call api=%s error=%s", api, log_text(error))
                self._denied[api] = error.code
            raise
        finally:
            with self._lock:
                del self._under_way[threading.get_ident()]
        if self._denied.pop(api, None) is not None:
            log.warning("EC2 allowed a denied call again api=%s", api)
        return answer

    def _attempt(self, api: str, subject: str, params: Mapping[str, Any], about: str) -> Mapping[str, Any]:
        """Wait for the budget, and make one attempt. Raises: AttemptError; CloudError if no other attempt may follow."""
        with self._lock:
            try:
                wait_s = self._budget.reserve(api)
            except ThrottledError:
                self._apis[api].held_back_count += 1
                raise
        if wait_s > 0:
            self._sleep(wait_s)
        if api in RELEASING:
            self.before_release()
        began_s = self._clock.monotonic()
        try:
            answer = self._client.call(api, subject, params)
        except AttemptError as failed:
            self._count(api, began_s, failed.outcome or CallOutcome.UNSENT, failed.error)
            if (
                failed.outcome is CallOutcome.NOT_FOUND
                and self._clock.monotonic() - self._made.get(about, float("-inf")) >= FRESH_S
            ):
                raise failed.error from failed
            raise
        self._count(api, began_s, CallOutcome.OK, None)
        return answer

    def _count(self, api: str, began_s: float, outcome: CallOutcome, error: CloudError | None) -> None:
        """Record the end of one attempt for the budget, for metrics, and for the list of calls under way."""
        now_s = self._clock.monotonic()
        took_ms = (now_s - began_s) * 1000
        thread = threading.get_ident()
        with self._lock:
            if error is None:
                self._budget.succeeded(api)
            else:
                call_began_s, call = self._under_way[thread]
                call = replace(call, refusal_count=call.refusal_count + 1, last_refusal=cause_of_error(error, is_advised=True))
                self._under_way[thread] = call_began_s, call
            if outcome is CallOutcome.THROTTLED:
                self._budget.throttled(api)
                self._throttling = ((self.throttling() or (now_s,))[0], now_s)
            code = ANSWERED if error is None else self._bounded_code(error.code)
            counts = self._apis[api]
            counts.outcomes[outcome] += 1
            before = counts.statuses.get(code, StatusReport(0, 0.0))
            counts.statuses[code] = StatusReport(before.count + 1, before.total_ms + took_ms)
            for index, bound_ms in enumerate(ATTEMPT_BUCKETS_MS):
                counts.buckets[index] += took_ms <= bound_ms

    def _bounded_code(self, code: str) -> str:
        """Return the code under which an error is counted: OTHER if it does not have the form of EC2's codes, or if it is new and
        CODES_MAX codes are counted already. The lock is held.
        """
        if code in (ANSWERED, UNANSWERED) or code in self._codes:
            return code
        if len(self._codes) >= CODES_MAX or not CODE.match(code):
            return OTHER
        self._codes.add(code)
        return code

    def release_idle(self, *, is_needed_soon: bool) -> None:
        """See `Ec2.release_idle`."""
        self._client.release_idle(is_needed_soon=is_needed_soon)

    def throttling(self) -> tuple[float, float] | None:
        """Return when EC2 began to throttle any API, and when it last did; None if it did not in the last THROTTLING_OVER_S."""
        throttling = self._throttling
        if throttling is None or self._clock.monotonic() - throttling[1] >= THROTTLING_OVER_S:
            return None
        return throttling

    def calls_under_way(self) -> tuple[CallUnderWay, ...]:
        """Return the calls that are being made or retried now, oldest first. A call may take half a minute."""
        now = self._clock.monotonic()
        with self._lock:
            calls = sorted(self._under_way.values(), key=lambda began_and_call: began_and_call[0])
        return tuple(replace(call, age_s=now - began_s) for began_s, call in calls)

    def call_reports(self) -> Mapping[str, CallReport]:
        """Return the results of the calls since the start, and what is left of the budget, of each API that was used or held back."""
        with self._lock:
            return {
                api: CallReport(
                    outcomes=dict(counts.outcomes),
                    statuses=dict(counts.statuses),
                    buckets=tuple(counts.buckets),
                    count=counts.outcomes.total(),
                    total_ms=sum(status.total_ms for status in counts.statuses.values()),
                    left_count=self._budget.left_count(api),
                    rate_per_s=self._budget.rate_per_s(api),
                    held_back_count=counts.held_back_count,
                )
                for api, counts in self._apis.items()
            }

    def remember(self, made_id: str) -> None:
        """Record that we created an object just now: for FRESH_S, EC2's NotFound for it may only be a lag."""
        now = self._clock.monotonic()
        with self._lock:
            self._made = {key: at for key, at in self._made.items() if now - at < FRESH_S} | {made_id: now}

    def forget(self, made_id: str) -> None:
        """End what `remember` recorded of an object, because we deleted it: EC2's NotFound for it is believed again."""
        with self._lock:
            self._made.pop(made_id, None)
