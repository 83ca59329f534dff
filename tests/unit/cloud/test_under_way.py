"""What EC2 is being asked now is visible while it is being asked, with the newest refusal."""

from __future__ import annotations

import pytest

from ipamd.cloud.errors import AttemptError
from ipamd.cloud.statistics import CallsUnderWay
from ipamd.model.cloud import CallUnderWay
from ipamd.model.errors import ThrottledError
from tests.unit.cloud.clocks import FakeClock


def test_a_call_is_seen_with_its_last_refusal_until_it_ends() -> None:
    """Age and refusals count the whole call, its retries included; afterwards nothing is left, not even after an error."""
    clock = FakeClock()
    calls = CallsUnderWay(clock.monotonic)
    words = iter(["slow down", "slower"])

    def refused() -> None:
        raise AttemptError(ThrottledError("EC2 X failed for y", details=next(words)))

    with calls.call("X", "y"):
        assert calls.list() == (CallUnderWay("X", "y", 0.0),)
        for _ in range(2):
            with pytest.raises(AttemptError):
                calls.noting(refused)()
            clock.sleep(1.5)
        assert calls.list() == (CallUnderWay("X", "y", 3.0, 2, "EC2 X failed for y: slower"),)
        assert calls.noting(lambda: 7)() == 7
    assert calls.list() == ()
    with pytest.raises(ThrottledError), calls.call("X", "y"):
        raise ThrottledError("the last attempt")
    assert calls.list() == ()


def test_a_refusal_outside_a_call_is_only_passed_on() -> None:
    """Nothing is under way, so nothing is remembered."""
    calls = CallsUnderWay(lambda: 0.0)

    def refused() -> None:
        raise AttemptError(ThrottledError("no"))

    with pytest.raises(AttemptError):
        calls.noting(refused)()
    assert calls.list() == ()
