"""Limit how often this node calls each EC2 API: one token bucket per API, slowed down when EC2 throttles (I13).

EC2's limits apply to the whole account, so even the highest rate of a node is low, and the rate adapts: it falls to half on a
throttled answer, and rises by a fixed step on success. As at EC2, each API has its own bucket, so one throttled API does not stop the
others. Rejected: one bucket for all calls, where a throttled Create would also delay an Unassign, which frees addresses of the subnet.
Concurrency: one thread at a time (`Ec2Calls` has the lock); nothing here waits, the caller sleeps.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from ipamd.model.errors import ThrottledError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.record import dataclass

# How fast one API may be called. Rates in calls per second.

BURST = 10
"""Calls at once after idle time. Ours: a node with 8 ENIs can attach all of them without a pause, and ten nodes that start
together stay within EC2's bucket of 100.

Source of EC2's buckets: https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html.
"""

RATE_PER_S = 1.0
"""Highest refill rate. Ours: a fifth of 5 per second, the slowest refill that EC2 documents for an API (same page)."""

FLOOR_PER_S = 0.05
"""Lowest refill rate. Ours: one call in 20 s still detects the end of throttling."""

PAUSE_SHARE = 0.15
"""The longest pause between two calls of one API while EC2 throttles it, as a part of the time for which EC2 has throttled it so far.
A pause of 2 s, as at half of the full rate, is always allowed, and jitter is added. Ours, from the fleet simulation
(docs/performance.md): EC2 may need twenty seconds or twenty minutes to serve all nodes that share its bucket. With this rule the
nodes use every token that EC2 refills in both cases, and the last node waits only 15 % longer than necessary. With halving alone, 150
nodes pause for 16 s where EC2 needs 20 s to serve all of them."""

EPISODE_S = 150.0
"""Throttling has ended when no call was throttled for this long. Ours: longer than the longest pauses of a caller (60 s) and of this
budget (20 s and its jitter) together."""

JITTER_S = 5.0
"""A wait is lengthened by a random time of up to its own length, but by no more than this. So nodes that were refused together do not
retry together, and few tokens of EC2 remain unused meanwhile."""

STEP_PER_S = 0.1
"""Added to the rate by each success. Ours: about ten successful calls lead from the lowest rate back to the highest."""

CUT = 0.5
"""Factor after a throttled answer: the usual halving of AIMD (Chiu and Jain, 1989)."""

CUT_INTERVAL_S = 1.0
"""At most one halving in this time. Ours: calls that EC2 throttles at the same moment must not reduce the rate several times."""

MAX_WAIT_S = 20.0
"""A call that would have to wait longer than this for a token is refused at once. Ours: this is the time for one token at
the lowest rate, so a call is possible even then."""


class CallBudget:
    """The buckets of all APIs; a bucket is created at the first call of its API."""

    def __init__(self, monotonic: Callable[[], float], *, draw: Callable[[], float] = random.random) -> None:
        self._monotonic = monotonic
        self._draw = draw
        self._buckets: dict[str, _Bucket] = {}

    def reserve(self, api: str) -> float:
        """Take a token of an API, if necessary in advance.

        Returns: seconds that the caller must sleep first (0 if a token is available), with jitter added.
        Raises: ThrottledError if the wait would exceed `MAX_WAIT_S`; no token is taken.
        """
        bucket = self._refilled(api)
        wait_s = max((1.0 - bucket.tokens) / bucket.rate_per_s, 0.0)
        if wait_s > MAX_WAIT_S:
            raise failure(ThrottledError, FailureCode.CALL_HELD_BACK, api=api, rate_per_s=f"{bucket.rate_per_s:.2f}")
        bucket.tokens -= 1.0
        return wait_s + min(wait_s, JITTER_S) * self._draw()

    def throttled(self, api: str) -> None:
        """Empty the API's bucket and halve its rate, but at most once in CUT_INTERVAL_S, and only until the pause between two calls is
        the longest that PAUSE_SHARE and FLOOR_PER_S allow.
        """
        bucket, now = self._refilled(api), self._monotonic()
        if now - bucket.throttled_at >= EPISODE_S:
            bucket.episode_began_at = now
        bucket.throttled_at = now
        bucket.tokens = min(bucket.tokens, 0.0)
        if now - bucket.cut_at >= CUT_INTERVAL_S:
            longest_s = max(PAUSE_SHARE * (now - bucket.episode_began_at), 2.0 / RATE_PER_S)
            bucket.rate_per_s = max(FLOOR_PER_S, bucket.rate_per_s * CUT, 1.0 / longest_s)
            bucket.cut_at = now

    def succeeded(self, api: str) -> None:
        """Raise the API's rate by one step."""
        bucket = self._refilled(api)
        bucket.rate_per_s = min(RATE_PER_S, bucket.rate_per_s + STEP_PER_S)

    def rate_per_s(self, api: str) -> float:
        """Return the current refill rate of one API, for status and metrics."""
        return self._refilled(api).rate_per_s

    def left_count(self, api: str) -> float:
        """Return how many calls of one API can be made at once; negative while callers wait for tokens taken in advance."""
        return self._refilled(api).tokens

    def _refilled(self, api: str) -> _Bucket:
        now, burst = self._monotonic(), float(BURST)
        bucket = self._buckets.setdefault(api, _Bucket(burst, RATE_PER_S, now))
        bucket.tokens = min(burst, bucket.tokens + max(now - bucket.filled_at, 0.0) * bucket.rate_per_s)
        bucket.filled_at = now
        return bucket


@dataclass(slots=True)
class _Bucket:
    """One API's bucket. Tokens are negative while callers wait for tokens that they have taken in advance."""

    tokens: float
    rate_per_s: float
    filled_at: float
    cut_at: float = float("-inf")
    throttled_at: float = float("-inf")
    episode_began_at: float = float("-inf")
