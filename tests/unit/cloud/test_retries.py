"""Retries are bounded, jittered and named; the clock is the one that was given."""

from __future__ import annotations

import pytest

from ipamd.cloud import retries
from ipamd.cloud.errors import AttemptError
from ipamd.cloud.metadata import POLICY
from ipamd.cloud.retries import RetryPolicy
from ipamd.model.call_report import CallOutcome
from ipamd.model.errors import CloudError
from tests.unit.cloud.clocks import FakeClock

RETRIED = {
    "IDEMPOTENT": {CallOutcome.THROTTLED, CallOutcome.UNSENT, CallOutcome.UNANSWERED, CallOutcome.NOT_FOUND},
    "UNHURRIED": {CallOutcome.UNSENT, CallOutcome.UNANSWERED, CallOutcome.NOT_FOUND},
    "AT_MOST_ONCE": {CallOutcome.THROTTLED, CallOutcome.UNSENT, CallOutcome.NOT_FOUND},
    "SETTLING": {CallOutcome.THROTTLED, CallOutcome.UNSENT, CallOutcome.UNANSWERED, CallOutcome.NOT_FOUND, CallOutcome.BUSY},
    "ATTACHING": {CallOutcome.BUSY},
    "HURRIED": set(),
}


class Failing:
    """A call that fails for ever, or `times` times, and takes `seconds` each."""

    def __init__(self, clock: FakeClock, outcome: CallOutcome | None, *, times: int = 10**6, seconds: float = 0.0) -> None:
        self.clock, self.outcome, self.times, self.seconds = clock, outcome, times, seconds
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        self.clock.elapsed_s += self.seconds
        if self.calls <= self.times:
            raise AttemptError(CloudError("failed"), self.outcome)
        return "answer"


@pytest.mark.parametrize("outcome", [None, *CallOutcome])
@pytest.mark.parametrize("name", RETRIED)
def test_only_named_outcomes_are_retried(name: str, outcome: CallOutcome | None) -> None:
    """A lost answer of a call without token, a refusal and anything unnamed is never sent twice (I9)."""
    clock = FakeClock()
    call = Failing(clock, outcome, times=1)
    policy: RetryPolicy = getattr(retries, name)
    if outcome in RETRIED[name]:
        assert policy.retrying(clock, clock.sleep)(call) == "answer"
        assert call.calls == 2
    else:
        with pytest.raises(AttemptError):
            policy.retrying(clock, clock.sleep)(call)
        assert call.calls == 1


@pytest.mark.parametrize("policy", [retries.IDEMPOTENT, retries.AT_MOST_ONCE, retries.SETTLING, POLICY])
def test_retries_end_and_waits_are_jittered(policy: RetryPolicy) -> None:
    """Every policy stops by count, every wait is within its doubling cap, and no two runs wait alike (I13)."""
    runs = []
    for _ in range(20):
        clock = FakeClock()
        call = Failing(clock, CallOutcome.UNSENT)
        with pytest.raises(AttemptError):
            policy.retrying(clock, clock.sleep)(call)
        assert call.calls <= policy.attempts
        assert len(clock.slept) == call.calls - 1
        for number, wait_s in enumerate(clock.slept):
            assert 0 <= wait_s <= min(policy.wait_cap_s, policy.first_wait_s * 2**number)
        assert sum(clock.slept) <= policy.total_s + policy.wait_cap_s
        runs.append(tuple(clock.slept))
    assert len(set(runs)) == len(runs)


@pytest.mark.parametrize("policy", [retries.IDEMPOTENT, retries.AT_MOST_ONCE, retries.SETTLING, POLICY])
def test_slow_attempts_count_against_the_time_limit(policy: RetryPolicy) -> None:
    """Attempts that hang use up the time: no policy goes on after its total, whatever is left of its count."""
    clock = FakeClock()
    call = Failing(clock, CallOutcome.UNSENT, seconds=policy.total_s * 0.6)
    with pytest.raises(AttemptError):
        policy.retrying(clock, clock.sleep)(call)
    assert call.calls == 2
