"""The one way in which loops wait before they try again."""

from __future__ import annotations

from ipamd.core.backoff import Backoff


def test_pauses_double_up_to_the_cap_and_start_over() -> None:
    """0.5, 1, 2, ... never more than the cap; after a success the first pause again."""
    backoff = Backoff(first_s=0.5, max_s=3.0)
    assert [backoff.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next_s() == 0.5


def test_a_thousand_failures_do_not_overflow() -> None:
    """A loop that fails for weeks still gets its cap."""
    backoff = Backoff(first_s=0.5, max_s=30.0)
    assert [backoff.next_s() for _ in range(5000)][-1] == 30.0
