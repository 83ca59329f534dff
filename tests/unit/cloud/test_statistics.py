"""EC2 attempts are counted by API and by how they ended, and no answer can make the number of labels grow without bound."""

from __future__ import annotations

from contextlib import suppress

import pytest

from ipamd.cloud import errors
from ipamd.cloud.budget import BudgetLimits, CallBudget
from ipamd.cloud.statistics import CODES_MAX, CallStatistics, outcome_of
from ipamd.model.call_report import ANSWERED, OTHER, UNANSWERED, CallReport, Outcome, StatusReport
from ipamd.model.errors import CloudError
from tests.unit.cloud.clocks import FakeClock

API = "AssignPrivateIpAddresses"


def refusal(code: str) -> errors.AttemptError:
    """EC2 refuses with a code."""
    return errors.refused(API, "eni-1", code=code, message="no", status=400)


class Counted:
    """Statistics with a clock and a budget."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.statistics = CallStatistics(self.clock)
        self.budget = CallBudget(self.clock.monotonic, limits=BudgetLimits(burst=5))

    def attempt(self, took_s: float, failed: errors.AttemptError | None = None) -> None:
        """One attempt that takes so long, and ends so."""
        with suppress(errors.AttemptError), self.statistics.attempt(API):
            self.clock.sleep(took_s)
            if failed is not None:
                raise failed

    def report(self) -> CallReport:
        """The report of the one API."""
        return self.statistics.reports(self.budget)[API]


def test_attempts_are_timed_and_told_apart() -> None:
    """Time by bucket, cumulative; count and time by EC2's code; an answer that never came has no code."""
    counted = Counted()
    counted.attempt(0.04)
    counted.attempt(0.3, refusal("RequestLimitExceeded"))
    counted.attempt(6.0, errors.UnansweredAttempt(CloudError("lost")))
    report = counted.report()
    assert report.buckets == (1, 1, 1, 2, 2)
    assert (report.count, round(report.total_ms)) == (3, 6340)
    assert report.outcomes == {Outcome.OK: 1, Outcome.THROTTLED: 1, Outcome.UNANSWERED: 1}
    assert {code: (told.count, round(told.total_ms)) for code, told in report.statuses.items()} == {
        ANSWERED: (1, 40),
        "RequestLimitExceeded": (1, 300),
        UNANSWERED: (1, 6000),
    }


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("RequestLimitExceeded", Outcome.THROTTLED),
        ("InsufficientFreeAddressesInSubnet", Outcome.SUBNET_FULL),
        ("InsufficientCidrBlocks", Outcome.SUBNET_FULL),
        ("PrivateIpAddressLimitExceeded", Outcome.LIMIT),
        ("NetworkInterfaceLimitExceeded", Outcome.QUOTA),
        ("UnauthorizedOperation", Outcome.DENIED),
        ("InvalidNetworkInterfaceID.NotFound", Outcome.NOT_FOUND),
        ("IncorrectState", Outcome.BUSY),
        ("InternalError", Outcome.UNANSWERED),
        ("NobodyKnowsThisCode", Outcome.REFUSED),
    ],
)
def test_every_kind_of_refusal_has_its_outcome(code: str, outcome: Outcome) -> None:
    """By the class that the table of codes gives it."""
    assert outcome_of(refusal(code)) is outcome


def test_what_was_never_sent_is_unsent() -> None:
    """No connection, or no credentials."""
    assert outcome_of(errors.UnsentAttempt(CloudError("no route"))) is Outcome.UNSENT
    assert outcome_of(errors.AttemptError(errors.no_credentials("not called", "none"))) is Outcome.UNSENT


def test_codes_beyond_a_number_share_a_label() -> None:
    """Whatever answers may invent codes: the first ones are told apart, and what does not look like a code never is."""
    counted = Counted()
    for number in range(CODES_MAX + 50):
        counted.attempt(0.0, refusal(f"Code{number}"))
    counted.attempt(0.0, refusal('a"} 1\nforged{x="'))
    statuses = counted.report().statuses
    assert len(statuses) == CODES_MAX + 1
    assert statuses[OTHER] == StatusReport(51, 0.0)
    assert "Code0" in statuses


def test_the_budget_is_told() -> None:
    """What is left of it, how fast it fills, and what it refused."""
    counted = Counted()
    counted.attempt(0.0)
    counted.budget.reserve(API)
    counted.budget.throttled(API)
    counted.statistics.held_back(API)
    report = counted.report()
    assert (report.left_count, report.rate_per_s, report.held_back_count) == (0.0, 0.5, 1)
    for _ in range(9):
        counted.budget.reserve(API)
    assert counted.report().left_count < 0
