"""The call budget: a burst, a rate, halving on throttling, recovery on success, and no API pays for another (I13)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipamd.cloud import budget as limits
from ipamd.cloud.budget import CallBudget
from ipamd.model.errors import ThrottledError
from ipamd.model.failures import FailureCode
from tests.errors import failed
from tests.unit.cloud.clocks import FakeClock


def make(clock: FakeClock, *, jitter: float = 0.0) -> CallBudget:
    """A budget whose jitter is fixed."""
    return CallBudget(clock.monotonic, draw=lambda: jitter)


def test_a_burst_is_free_and_then_calls_are_spaced() -> None:
    """From rest `burst` calls go at once; the next ones wait for the refill, each for its own token."""
    clock = FakeClock()
    budget = make(clock)
    assert [budget.reserve("A") for _ in range(limits.BURST)] == [0.0] * limits.BURST
    assert [budget.reserve("A") for _ in range(3)] == pytest.approx([1.0, 2.0, 3.0])


def test_throttling_halves_the_rate_down_to_the_floor() -> None:
    """Each throttled answer halves the rate, but never below the floor: the end of throttling is noticed. Nor below what makes the
    pause a part of the time that throttling has lasted: where EC2 needs 20 s for a fleet no node pauses for 16 s."""
    clock = FakeClock()
    budget = make(clock)
    rates = []
    for _ in range(8):
        budget.throttled("A")
        rates.append(budget.rate_per_s("A"))
        clock.elapsed_s += 20.0
    longest_s = [max(2.0, limits.PAUSE_SHARE * 20.0 * number) for number in range(8)]
    assert rates[0] == 0.5
    assert [1.0 / rate for rate in rates] == pytest.approx([2.0, 3.0, 6.0, 9.0, 12.0, 15.0, 18.0, 20.0])
    assert all(1.0 / rate <= longest for rate, longest in zip(rates, longest_s, strict=True))


def test_throttling_that_is_long_over_begins_anew() -> None:
    """After minutes without a throttled answer the next one is the first again: its pause is short, whatever there was before."""
    clock = FakeClock()
    budget = make(clock)
    for _ in range(30):
        budget.throttled("A")
        clock.elapsed_s += 20.0
    assert budget.rate_per_s("A") == limits.FLOOR_PER_S
    clock.elapsed_s += limits.EPISODE_S
    budget.throttled("A")
    assert budget.rate_per_s("A") == pytest.approx(limits.RATE_PER_S / 2)


def test_calls_in_flight_together_halve_once() -> None:
    """Ten throttled answers of one moment are one piece of news."""
    clock = FakeClock()
    budget = make(clock)
    for _ in range(10):
        budget.throttled("A")
    assert budget.rate_per_s("A") == pytest.approx(limits.RATE_PER_S / 2)


def test_success_recovers_to_the_best_rate_and_not_beyond() -> None:
    """Successes add up to the best rate, so that one bad minute does not slow a node for the day."""
    clock = FakeClock()
    budget = make(clock)
    for _ in range(6):
        budget.throttled("A")
        clock.elapsed_s += 1.0
    for _ in range(50):
        budget.succeeded("A")
    assert budget.rate_per_s("A") == limits.RATE_PER_S


def test_one_throttled_api_never_stops_the_others() -> None:
    """With one API at its floor and refused, another still has its whole burst (I13)."""
    clock = FakeClock()
    budget = make(clock)
    for _ in range(20):
        clock.elapsed_s += 10.0
        budget.throttled("CreateNetworkInterface")
    assert budget.reserve("CreateNetworkInterface") == pytest.approx(20.0)
    with pytest.raises(ThrottledError, check=failed(FailureCode.CALL_HELD_BACK, api="CreateNetworkInterface")):
        budget.reserve("CreateNetworkInterface")
    assert [budget.reserve("UnassignPrivateIpAddresses") for _ in range(limits.BURST)] == [0.0] * limits.BURST


def test_a_refused_caller_takes_no_token() -> None:
    """Refusals do not push the queue further back: once time has passed, the next caller is served."""
    clock = FakeClock()
    budget = make(clock)
    for _ in range(limits.BURST + int(limits.MAX_WAIT_S)):
        budget.reserve("A")
    for _ in range(100):
        with pytest.raises(ThrottledError):
            budget.reserve("A")
    clock.elapsed_s += 5.0
    assert budget.reserve("A") <= limits.MAX_WAIT_S


def test_waits_are_jittered_upwards() -> None:
    """Jitter only ever lengthens a wait, so that the rate holds: by as much again, and by `jitter_s` at most."""
    clock = FakeClock()
    budget = make(clock, jitter=1.0)
    for _ in range(limits.BURST):
        assert budget.reserve("A") == 0.0
    waits_s = [budget.reserve("A") for _ in range(8)]
    assert waits_s == pytest.approx([2.0, 4.0, 6.0, 8.0, 10.0, 11.0, 12.0, 13.0])


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.floats(0, 5)),
        st.tuples(st.just("throttled"), st.floats(0, 5)),
        st.tuples(st.just("succeeded"), st.floats(0, 5)),
        st.tuples(st.just("pause"), st.floats(0, 120)),
    ),
    max_size=80,
)


@given(steps=STEPS, jitter=st.floats(0, 1, exclude_max=True))
def test_the_rate_holds_whatever_happens(steps: list[tuple[str, float]], jitter: float) -> None:
    """In any window, calls go out no faster than a burst plus the best rate; waits and rates stay in their bounds (I13)."""
    clock = FakeClock()
    budget = make(clock, jitter=jitter)
    sent: list[float] = []
    for step, pause_s in steps:
        if step == "call":
            try:
                wait_s = budget.reserve("A")
            except ThrottledError:
                wait_s = None
            if wait_s is not None:
                assert 0.0 <= wait_s <= limits.MAX_WAIT_S + limits.JITTER_S
                sent.append(clock.monotonic() + wait_s)
        elif step == "throttled":
            budget.throttled("A")
        elif step == "succeeded":
            budget.succeeded("A")
        assert limits.FLOOR_PER_S <= budget.rate_per_s("A") <= limits.RATE_PER_S
        clock.elapsed_s += pause_s
    sent.sort()
    for first, began in enumerate(sent):
        for last in range(first, len(sent)):
            window_s = sent[last] - began + limits.JITTER_S  # which may move neighbours together
            assert last - first + 1 <= limits.BURST + limits.RATE_PER_S * window_s + 1e-6 + 1
