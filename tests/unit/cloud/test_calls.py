"""What becomes of EC2 calls is counted and visible meanwhile, and no answer can make the number of labels grow without bound."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest

from ipamd.cloud import errors
from ipamd.cloud.budget import BURST, JITTER_S
from ipamd.cloud.calls import CODES_MAX, Ec2Calls
from ipamd.cloud.client import Ec2Client
from ipamd.cloud.credential_errors import MISSING, MissingCredentials, Party
from ipamd.cloud.errors import AttemptError
from ipamd.cloud.retries import HURRIED, IDEMPOTENT
from ipamd.model.call_report import ANSWERED, OTHER, UNANSWERED, CallOutcome, CallReport
from ipamd.model.cause import Ec2Refusal
from ipamd.model.cloud import CallUnderWay
from ipamd.model.errors import CloudError, ThrottledError
from ipamd.settings import CloudConfig
from tests.unit.cloud.clocks import FakeClock

API = "AssignPrivateIpAddresses"


def refusal(code: str, message: str = "no") -> AttemptError:
    """EC2 refuses with a code."""
    return errors.refused(API, "eni-1", code=code, message=message, status=400)


class Scripted(Ec2Client):
    """Each attempt takes so long, and ends so; `seen` is asked for at its end."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(CloudConfig(), region=str)
        self.clock = clock
        self.script: list[tuple[float, AttemptError | None]] = []
        self.at_end: Callable[[], None] = lambda: None

    def call(self, api: str, subject: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the base class."""
        took_s, failed = self.script.pop(0)
        self.clock.sleep(took_s)
        self.at_end()
        if failed is not None:
            raise failed
        return {}


class Counted:
    """Calls of one API."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.client = Scripted(self.clock)
        self.calls = Ec2Calls(self.client, clock=self.clock, sleep=self.clock.sleep)

    def attempt(self, took_s: float, failed: AttemptError | None = None) -> None:
        """One attempt."""
        self.client.script = [(took_s, failed)]
        with suppress(CloudError):
            self.calls.call(API, "eni-1", {}, HURRIED)

    def report(self) -> CallReport:
        """The report of the one API."""
        return self.calls.call_reports()[API]


@pytest.fixture
def counted() -> Counted:
    """Nothing was called yet."""
    return Counted()


def test_attempts_are_timed_and_told_apart(counted: Counted) -> None:
    """Time by bucket, cumulative; count and time by EC2's code; an answer that never came has no code."""
    counted.attempt(0.04)
    counted.attempt(0.3, refusal("RequestLimitExceeded"))
    counted.attempt(6.0, AttemptError(CloudError("lost"), CallOutcome.UNANSWERED))
    counted.attempt(0.0, errors.without_credentials(API, "eni-1", MissingCredentials(Party.METADATA, MISSING, "none")))
    report = counted.report()
    assert report.buckets == (2, 2, 2, 3, 3)
    assert (report.count, round(report.total_ms)) == (4, 6340)
    assert report.outcomes == {CallOutcome.OK: 1, CallOutcome.THROTTLED: 1, CallOutcome.UNANSWERED: 1, CallOutcome.UNSENT: 1}
    assert {code: (told.count, round(told.total_ms)) for code, told in report.statuses.items()} == {
        ANSWERED: (1, 40),
        "RequestLimitExceeded": (1, 300),
        UNANSWERED: (2, 6000),
    }


def test_codes_beyond_a_number_share_a_label(counted: Counted) -> None:
    """Whatever answers may invent codes: the first ones are told apart, and what does not look like a code never is."""
    counted.attempt(0.0, refusal('a"} 1\nforged{x="'))
    for number in range(CODES_MAX + 50):
        counted.attempt(0.0, refusal(f"Code{number}"))
    statuses = counted.report().statuses
    assert len(statuses) == CODES_MAX + 1
    assert (statuses[OTHER].count, statuses["Code0"].count) == (51, 1)


def test_the_budget_is_told(counted: Counted) -> None:
    """What is left of it, how fast it fills, and what it refused."""
    for _ in range(3):
        counted.attempt(0.0, refusal("RequestLimitExceeded"))
        counted.clock.sleep(1.0)
    report = counted.report()
    assert (report.rate_per_s, report.held_back_count) == (0.5, 0)
    assert report.left_count < 2
    began_s, last_s = counted.calls.throttling() or (0.0, 0.0)
    assert (began_s, last_s) == (1000.0, pytest.approx(counted.clock.monotonic() - 1.0))
    counted.clock.sleep(3600.0)
    assert counted.calls.throttling() is None


def test_a_call_is_seen_with_its_last_refusal_until_it_ends(counted: Counted) -> None:
    """Age and refusals count the whole call, its retries included; afterwards nothing is left, not even after an error."""
    seen: list[tuple[CallUnderWay, ...]] = []
    counted.client.at_end = lambda: seen.append(counted.calls.calls_under_way())
    counted.client.script = [(1.0, refusal("InternalError", "slow")), (1.0, refusal("InternalError", "slower")), (1.0, None)]
    assert counted.calls.call(API, "eni-1", {}, IDEMPOTENT) == {}
    assert seen[0] == (CallUnderWay(API, "eni-1", 1.0),)
    ((last,),) = seen[2:]
    assert (last.refusal_count, last.age_s) == (2, pytest.approx(counted.clock.elapsed_s))
    assert last.last_refusal is not None
    assert last.last_refusal.refusals == (Ec2Refusal(API, "eni-1", "InternalError", "any text"),)
    assert counted.calls.calls_under_way() == ()
    counted.client.script = [(0.0, refusal("RequestLimitExceeded"))]
    with pytest.raises(ThrottledError):
        counted.calls.call(API, "eni-1", {}, HURRIED)
    assert counted.calls.calls_under_way() == ()


def test_not_found_of_what_we_made_just_now_is_not_believed(counted: Counted) -> None:
    """It is asked for again (I11); of anything else it is the answer."""
    gone = refusal("InvalidNetworkInterfaceID.NotFound")
    counted.calls.remember("eni-1")
    counted.client.script = [(0.0, gone), (0.0, None)]
    assert counted.calls.call(API, "eni-1", {}, IDEMPOTENT, about="eni-1") == {}
    for _ in ("gone by our own hand", "never made"):
        counted.calls.forget("eni-1")
        counted.client.script = [(0.0, gone), (0.0, None)]
        with pytest.raises(CloudError):
            counted.calls.call(API, "eni-1", {}, IDEMPOTENT, about="eni-1")
        assert len(counted.client.script) == 1


def test_threads_never_share_a_token() -> None:
    """Forty threads at once get a burst of free tokens and no more, the others each a place of its own in the queue."""
    clock = FakeClock()
    waits: list[float] = []
    client = Scripted(clock)
    client.script = [(0.0, None)] * (BURST + 15)
    calls = Ec2Calls(client, clock=clock, sleep=waits.append)
    threads = [threading.Thread(target=calls.call, args=(API, "eni-1", {}, HURRIED)) for _ in client.script]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls.call_reports()[API].left_count == -15
    assert all(number <= wait_s <= number + JITTER_S + number for number, wait_s in enumerate(sorted(waits), start=1))
    assert calls.call_reports()[API].outcomes == {CallOutcome.OK: BURST + 15}
