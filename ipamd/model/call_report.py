"""What became of the EC2 calls of one API since the start: for metrics, in labels that cannot grow without bound. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ipamd.model.record import dataclass, field

ATTEMPT_BUCKETS_MS = (50, 100, 250, 1000, 5000)
"""Upper bounds of the time of one attempt. Ours: few, because each costs a series for every API; the last is HTTP_TIMEOUT's default
divided by two: what is slower is near its end."""

ANSWERED = "200"
"""Status of an attempt that EC2 carried out."""

UNANSWERED = ""
"""Status of an attempt without an answer of EC2: nobody knows what happened, or nothing was sent."""

OTHER = "other"
"""Status that stands for all codes beyond those that are told apart."""


class Outcome(StrEnum):
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
    """Attempts of one status: EC2's code, ANSWERED, UNANSWERED or OTHER. `total_ms`: what they took together."""

    count: int
    total_ms: float


@dataclass(frozen=True, slots=True)
class CallReport:
    """One API. One attempt is one HTTP request, or none if it could not be sent.

    `buckets`: attempts that took no longer than each of ATTEMPT_BUCKETS_MS, cumulative; `count`, `total_ms`: of all.
    `left_count`: calls that this node may make at once by its own budget, `rate_per_s`: how fast it gets more. `held_back_count`:
    calls that the budget refused.
    """

    outcomes: Mapping[Outcome, int] = field(default_factory=dict)
    statuses: Mapping[str, StatusReport] = field(default_factory=dict)
    buckets: tuple[int, ...] = (0,) * len(ATTEMPT_BUCKETS_MS)
    count: int = 0
    total_ms: float = 0.0
    left_count: float = 0.0
    rate_per_s: float = 0.0
    held_back_count: int = 0
