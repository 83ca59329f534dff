"""Counts of the EC2 calls of one API since the start, for metrics, with a bounded set of labels. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ipamd.model.record import dataclass, field

ATTEMPT_BUCKETS_MS = (50, 100, 250, 1000, 5000)
"""Upper bounds of the time of one attempt. Ours: few, because each costs a series for every API; the last is half of HTTP_TIMEOUT's
default: a slower attempt is near its timeout."""

ANSWERED = "200"
"""Status of an attempt that EC2 carried out."""

UNANSWERED = ""
"""Status of an attempt without an answer of EC2: it was sent with an unknown effect, or not sent."""

OTHER = "other"
"""Status that stands for all codes that have no status of their own."""


class CallOutcome(StrEnum):
    """How one attempt ended."""

    OK = "ok"
    THROTTLED = "throttled"
    SUBNET_FULL = "subnet-full"
    LIMIT = "limit"
    QUOTA = "quota"
    DENIED = "denied"
    NOT_FOUND = "not-found"
    BUSY = "busy"
    UNANSWERED = "unanswered"
    UNSENT = "unsent"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class StatusReport:
    """Attempts of one status: EC2's code, ANSWERED, UNANSWERED or OTHER. `total_ms`: their total duration."""

    count: int
    total_ms: float


@dataclass(frozen=True, slots=True)
class CallReport:
    """One API. One attempt is one HTTP request, or none if it could not be sent.

    `buckets`: attempts that took no longer than each of ATTEMPT_BUCKETS_MS, cumulative.
    `count`, `total_ms`: of all.
    `left_count`: calls that this node may make at once by its own budget.
    `rate_per_s`: how fast the budget grows.
    `held_back_count`: calls that the budget refused.
    """

    outcomes: Mapping[CallOutcome, int] = field(default_factory=dict)
    statuses: Mapping[str, StatusReport] = field(default_factory=dict)
    buckets: tuple[int, ...] = (0,) * len(ATTEMPT_BUCKETS_MS)
    count: int = 0
    total_ms: float = 0.0
    left_count: float = 0.0
    rate_per_s: float = 0.0
    held_back_count: int = 0
