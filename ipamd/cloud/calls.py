"""EC2 calls with budget and retries: one home for what happens between an attempt and its caller, and for what is counted of it.

An error tells whether any attempt may have taken effect (I9). NotFound of an object that we created just now is not believed
(I11). Each attempt is paid for from the API's budget (I13). Labels of metrics are made of the counts, so the codes that are told
apart are bounded: what answers may be anything, and a proxy that invents a code for each answer must not fill a monitoring system.
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
from ipamd.model.call_report import ANSWERED, ATTEMPT_BUCKETS_MS, OTHER, UNANSWERED, CallReport, Outcome, StatusReport
from ipamd.model.cloud import CallUnderWay
from ipamd.model.errors import CloudDeniedError, CloudError, ThrottledError, log_text
from ipamd.model.record import dataclass, field, replace
from ipamd.ports import Clock

FRESH_S = 30.0
"""For this long after we created an object its NotFound is not believed. Ours: EC2 promises no bound; seconds are usual.

Source: https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html.
"""

THROTTLING_OVER_S = 3600.0
"""After this long without a throttled call nothing is left of it. Ours: longer than any pause that it causes."""

CODES_MAX = 24
"""Codes of EC2 that are told apart, over all APIs; the first ones met. Ours: `errors.py` knows about as many."""

CODE = re.compile(r"[A-Za-z][A-Za-z0-9.]{0,63}\Z")
"""What a code of EC2 looks like. Ours, from https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Api:
    """What became of the attempts of one API."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    statuses: dict[str, StatusReport] = field(default_factory=dict)
    buckets: list[int] = field(default_factory=lambda: [0] * len(ATTEMPT_BUCKETS_MS))
    held_back_count: int = 0


class Ec2Calls:
    """Safe from any thread. Its one lock guards the budget too; it is a leaf, and is never held across a call or a wait."""

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
        self._under_way: dict[int, tuple[float, CallUnderWay]] = {}  # by thread, which makes one at a time, with its beginning

    def call(
        self, api: str, subject: str, params: Mapping[str, Any], policy: RetryPolicy, *, about: str = ""
    ) -> Mapping[str, Any]:
        """Call with retries. Raises: an error of `ipamd/model/errors.py`."""
        try:
            return self.attempts(api, subject, params, policy, about=about)
        except AttemptError as failed:
            raise failed.error from failed

    def attempts(
        self, api: str, subject: str, params: Mapping[str, Any], policy: RetryPolicy, *, about: str
    ) -> Mapping[str, Any]:
        """Attempt with retries. An error says whether any attempt may have taken effect: the last refusal may be of a repetition."""
        is_unanswered = False

        def attempt() -> Mapping[str, Any]:
            nonlocal is_unanswered
            try:
                return self._attempt(api, subject, params, about)
            except AttemptError as failed:
                is_unanswered = is_unanswered or failed.outcome is Outcome.UNANSWERED
                raise

        with self._lock:
            self._under_way[threading.get_ident()] = self._clock.monotonic(), CallUnderWay(api, subject, age_s=0.0)
        try:
            answer: Mapping[str, Any] = policy.retrying(self._clock, self._sleep)(attempt)
        except (AttemptError, CloudError) as failed:
            error = failed.error if isinstance(failed, AttemptError) else failed
            error.may_have_happened = is_unanswered
            if isinstance(error, CloudDeniedError):
                # Logged once until it changes, whatever the caller makes of it: somebody must change the node's role.
                if self._denied.get(api) != error.code:
                    log.warning("EC2 denies a call api=%s error=%s", api, log_text(error))
                self._denied[api] = error.code
            raise
        finally:
            with self._lock:
                del self._under_way[threading.get_ident()]
        if self._denied.pop(api, None) is not None:
            log.warning("EC2 allows a call again api=%s", api)
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
        began_s = self._clock.monotonic()
        try:
            answer = self._client.call(api, subject, params)
        except AttemptError as failed:
            self._count(api, began_s, failed.outcome or Outcome.UNSENT, failed.error)
            if failed.outcome is Outcome.NOT_FOUND and self._clock.monotonic() - self._made.get(about, float("-inf")) >= FRESH_S:
                raise failed.error from failed
            raise
        self._count(api, began_s, Outcome.OK, None)
        return answer

    def _count(self, api: str, began_s: float, outcome: Outcome, error: CloudError | None) -> None:
        """Keep how one attempt ended: for the budget, for metrics, for whoever asks what is under way."""
        now_s, code = self._clock.monotonic(), ANSWERED if error is None else error.code
        took_ms, thread = (now_s - began_s) * 1000, threading.get_ident()
        with self._lock:
            if error is None:
                self._budget.succeeded(api)
            else:
                call_began_s, call = self._under_way[thread]
                call = replace(call, refusal_count=call.refusal_count + 1, last_refusal=log_text(error))
                self._under_way[thread] = call_began_s, call
            if outcome is Outcome.THROTTLED:
                self._budget.throttled(api)
                self._throttling = ((self.throttling() or (now_s,))[0], now_s)
            if code not in (ANSWERED, UNANSWERED):
                code = code if code in self._codes or (len(self._codes) < CODES_MAX and CODE.match(code)) else OTHER
                self._codes |= {code} - {OTHER}
            known = self._apis[api]
            known.outcomes[outcome] += 1
            before = known.statuses.get(code, StatusReport(0, 0.0))
            known.statuses[code] = StatusReport(before.count + 1, before.total_ms + took_ms)
            for index, bound_ms in enumerate(ATTEMPT_BUCKETS_MS):
                known.buckets[index] += took_ms <= bound_ms

    def rest(self, *, is_wanted: bool) -> None:
        """See the port."""
        self._client.rest(is_wanted=is_wanted)

    def throttling(self) -> tuple[float, float] | None:
        """When EC2 began to throttle, and when it last did, any API; None if that is over."""
        known = self._throttling
        return None if known is None or self._clock.monotonic() - known[1] >= THROTTLING_OVER_S else known

    def calls_under_way(self) -> tuple[CallUnderWay, ...]:
        """The calls that are being made or retried now, oldest first: one may take half a minute, and says nothing until it ends."""
        now = self._clock.monotonic()
        with self._lock:
            calls = sorted(self._under_way.values(), key=lambda one: one[0])
        return tuple(replace(call, age_s=now - began_s) for began_s, call in calls)

    def call_reports(self) -> Mapping[str, CallReport]:
        """What became of the calls of each API that was called, or was to be, since the start; with what is left of its budget."""
        with self._lock:
            return {
                api: CallReport(
                    outcomes=dict(known.outcomes),
                    statuses=dict(known.statuses),
                    buckets=tuple(known.buckets),
                    count=known.outcomes.total(),
                    total_ms=sum(status.total_ms for status in known.statuses.values()),
                    left_count=self._budget.left_count(api),
                    rate_per_s=self._budget.rate_per_s(api),
                    held_back_count=known.held_back_count,
                )
                for api, known in self._apis.items()
            }

    def remember(self, made_id: str) -> None:
        """Take note of an object that we created just now."""
        now = self._clock.monotonic()
        with self._lock:
            self._made = {key: at for key, at in self._made.items() if now - at < FRESH_S} | {made_id: now}

    def forget(self, made_id: str) -> None:
        """Take note that it is gone."""
        with self._lock:
            self._made.pop(made_id, None)
