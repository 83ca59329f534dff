"""EC2 calls with budget and retries: one home for what happens between an attempt and its caller.

An error tells whether any attempt may have taken effect (I9). NotFound of an object that we created just now is not believed
(I11). Each attempt is paid for from the API's budget (I13).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ipamd.cloud.budget import CallBudget
from ipamd.cloud.client import Ec2Client
from ipamd.cloud.errors import AttemptError, ThrottledAttempt, UnansweredAttempt, UnseenAttempt
from ipamd.cloud.retries import RetryPolicy
from ipamd.cloud.statistics import CallStatistics, CallsUnderWay
from ipamd.model.call_report import CallReport
from ipamd.model.errors import CloudDeniedError, CloudError, CloudNotFoundError, ThrottledError, log_text
from ipamd.ports import Clock

FRESH_S = 30.0
"""For this long after we created an object its NotFound is not believed. Ours: EC2 promises no bound; seconds are usual.

Source: https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html.
"""

THROTTLING_OVER_S = 3600.0
"""After this long without a throttled call nothing is left of it. Ours: longer than any pause that it causes."""

log = logging.getLogger(__name__)


class Ec2Calls:
    """Safe from any thread. `under_way`: the calls that are being made or retried now."""

    def __init__(self, client: Ec2Client, *, clock: Clock, sleep: Callable[[float], None]) -> None:
        self._client = client
        self._budget = CallBudget(clock.monotonic)
        self._statistics = CallStatistics(clock)
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._made: dict[str, float] = {}
        self._denied: dict[str, str] = {}
        self._throttling: tuple[float, float] | None = None
        self.under_way = CallsUnderWay(clock.monotonic)

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
            except UnansweredAttempt:
                is_unanswered = True
                raise

        try:
            with self.under_way.call(api, subject):
                answer = policy.retrying(self._clock, self._sleep)(self.under_way.noting(attempt))
        except (AttemptError, CloudError) as failed:
            error = failed.error if isinstance(failed, AttemptError) else failed
            error.may_have_happened = is_unanswered
            if isinstance(error, CloudDeniedError):
                self._tell_denial(api, error)
            raise
        if self._denied.pop(api, None) is not None:
            log.warning("EC2 allows %s again", api)
        return answer

    def _tell_denial(self, api: str, error: CloudDeniedError) -> None:
        """Log a denial once until it changes, whatever the caller makes of it: somebody must change the node's role."""
        if self._denied.get(api) != error.code:
            log.warning("%s", log_text(error))
        self._denied[api] = error.code

    def _attempt(self, api: str, subject: str, params: Mapping[str, Any], about: str) -> Mapping[str, Any]:
        """Wait for the budget, make one attempt, and report its outcome to the budget."""
        try:
            wait_s = self._budget.reserve(api)
        except ThrottledError:
            self._statistics.held_back(api)
            raise
        if wait_s > 0:
            self._sleep(wait_s)
        try:
            with self._statistics.attempt(api):
                answer = self._client.call(api, subject, params)
        except ThrottledAttempt:
            self._budget.throttled(api)
            self._note_throttled()
            raise
        except AttemptError as failed:
            if isinstance(failed.error, CloudNotFoundError) and self._is_fresh(about):
                raise UnseenAttempt(failed.error) from failed
            raise
        self._budget.succeeded(api)
        return answer

    def throttling(self) -> tuple[float, float] | None:
        """When EC2 began to throttle, and when it last did, any API; None if that is over."""
        with self._lock:
            known = self._throttling
        return None if known is None or self._clock.monotonic() - known[1] >= THROTTLING_OVER_S else known

    def reports(self) -> Mapping[str, CallReport]:
        """What became of the calls of each API since the start."""
        return self._statistics.reports(self._budget)

    def _note_throttled(self) -> None:
        began = self.throttling()
        now = self._clock.monotonic()
        with self._lock:
            self._throttling = (now if began is None else began[0], now)

    def remember(self, made_id: str) -> None:
        """Take note of an object that we created just now."""
        now = self._clock.monotonic()
        with self._lock:
            self._made = {key: at for key, at in self._made.items() if now - at < FRESH_S}
            self._made[made_id] = now

    def forget(self, made_id: str) -> None:
        """Take note that it is gone."""
        with self._lock:
            self._made.pop(made_id, None)

    def _is_fresh(self, object_id: str) -> bool:
        with self._lock:
            made_at = self._made.get(object_id)
        return made_at is not None and self._clock.monotonic() - made_at < FRESH_S
