"""Counts of the EC2 calls of one API since the start, for metrics, with a bounded set of labels. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ipamd.model.record import dataclass, field

ATTEMPT_BUCKETS_MS = (50, 100, 250, 1000, 5000)
"""Upper bounds of the buckets for the time of one attempt, in milliseconds. Ours: few bounds, because each costs a time series for
every API. The last bound is half of HTTP_TIMEOUT's default: a slower attempt is near its timeout."""

ANSWERED = "200"
"""Status of an attempt that EC2 carried out."""

UNANSWERED = ""
"""Status of an attempt without an answer of EC2: it was sent with an unknown effect, or not sent."""

OTHER = "other"
"""Status of all attempts with a code of EC2 that has no count of its own, because too many other codes have one already."""


class CallOutcome(StrEnum):
    """How one attempt ended: the label of a metric. `ipamd/cloud/errors.py` has the codes of EC2 for each.

    OK: EC2 carried the call out.
    LIMIT: the ENI or the instance is full.
    QUOTA: the account's quota of ENIs is used up.
    BUSY: the object is in use or changing state.
    UNANSWERED: the attempt was sent, and its effect is unknown.
    UNSENT: the attempt could not be sent.
    REFUSED: any other refusal of EC2.
    """

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
    """The attempts of one status, which is EC2's code, ANSWERED, UNANSWERED or OTHER.

    `count`: the number of attempts.
    `total_ms`: their total duration in milliseconds.
    """

    count: int
    total_ms: float


@dataclass(frozen=True, slots=True)
class CallReport:
    """The calls of one API since the start. One attempt is one HTTP request, or none if the request could not be sent.

    `outcomes`: the number of attempts by outcome.
    `statuses`: the attempts by status.
    `buckets`: for each bound of ATTEMPT_BUCKETS_MS the number of attempts that took no longer (cumulative).
    `count`, `total_ms`: the number of all attempts, and their total duration in milliseconds.
    `left_count`: how many calls the node's own budget still allows at once.
    `rate_per_s`: by how many calls the budget grows each second.
    `held_back_count`: the calls that the budget refused.
    """

    outcomes: Mapping[CallOutcome, int] = field(default_factory=dict)
    statuses: Mapping[str, StatusReport] = field(default_factory=dict)
    buckets: tuple[int, ...] = (0,) * len(ATTEMPT_BUCKETS_MS)
    count: int = 0
    total_ms: float = 0.0
    left_count: float = 0.0
    rate_per_s: float = 0.0
    held_back_count: int = 0
