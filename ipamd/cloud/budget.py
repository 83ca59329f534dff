"""How often this node may call each EC2 API: a token bucket per API that gives way when EC2 throttles (I13).

EC2's limits belong to the whole account, so a node can only be modest and react: additive increase on success, halving on
a throttled answer. Each API has a bucket of its own, as at EC2, and one throttled API never stops the others. Rejected: a
bucket for all calls together, where a throttled Create would hold back the Unassign that ends the shortage.
Concurrency: one lock, never held while waiting; the caller sleeps.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from ipamd.model.errors import ThrottledError


@dataclass(frozen=True)
class BudgetLimits:
    """How fast one API may be called. Rates in calls per second."""

    burst: int = 10
    """Calls at once from rest. Ours: a node with 8 ENIs grows from nothing without a pause, and ten nodes that start
    together stay within EC2's bucket of 100 (EC2 developer guide, "Request throttling")."""

    rate_per_s: float = 1.0
    """Refill at best. Ours: a fifth of the 5 per second that EC2 documents as its slowest refill of one API."""

    floor_per_s: float = 0.05
    """Refill at worst. Ours: one call in 20 s still finds out that throttling has ended."""

    step_per_s: float = 0.1
    """Added by each success. Ours: about ten good calls lead from the floor back to the best rate."""

    cut: float = 0.5
    """Factor at a throttled answer: the usual halving of AIMD (Chiu and Jain, 1989)."""

    cut_interval_s: float = 1.0
    """One halving at most in this time. Ours: calls in flight together are one piece of news, not several."""

    max_wait_s: float = 20.0
    """Longest wait for a token before the caller is refused. Ours: one call at the floor rate."""


class CallBudget:
    """The buckets of all APIs; a bucket is made at the first call of its API."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        *,
        limits: BudgetLimits | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._monotonic = monotonic
        self._limits = limits or BudgetLimits()
        self._draw = draw
        self._lock = threading.Lock()
        self._buckets: dict[str, _Bucket] = {}

    def reserve(self, api: str) -> float:
        """Take a token of an API, from the future if need be.

        Returns: seconds that the caller must sleep first (0 if a token was there), jittered upwards.
        Raises: ThrottledError if the wait would exceed `max_wait_s`; no token is taken.
        """
        with self._lock:
            wait_s = self._refilled(api).take(self._limits.max_wait_s)
            if wait_s is None:
                rate_per_s = self._buckets[api].rate_per_s
        if wait_s is None:
            raise ThrottledError(
                f"{api} is held back by this node's own call budget",
                details=f"{rate_per_s:.2f} calls/s after throttled answers; it recovers with each success, try again later",
            )
        return wait_s + min(wait_s, 1.0) * self._draw()

    def throttled(self, api: str) -> None:
        """Halve the API's rate and empty its bucket."""
        with self._lock:
            self._refilled(api).slow_down(self._monotonic(), self._limits)

    def succeeded(self, api: str) -> None:
        """Raise the API's rate by one step."""
        with self._lock:
            bucket = self._refilled(api)
            bucket.rate_per_s = min(self._limits.rate_per_s, bucket.rate_per_s + self._limits.step_per_s)

    def rate_per_s(self, api: str) -> float:
        """The present refill of one API, for status and metrics."""
        with self._lock:
            return self._refilled(api).rate_per_s

    def _refilled(self, api: str) -> _Bucket:
        now = self._monotonic()
        bucket = self._buckets.get(api)
        if bucket is None:
            bucket = self._buckets[api] = _Bucket(float(self._limits.burst), self._limits.rate_per_s, now)
        bucket.refill(now, self._limits.burst)
        return bucket


@dataclass(slots=True)
class _Bucket:
    """Tokens go below zero while callers wait for tokens they have taken from the future."""

    tokens: float
    rate_per_s: float
    filled_at: float
    cut_at: float = float("-inf")

    def refill(self, now: float, burst: int) -> None:
        gained = max(now - self.filled_at, 0.0) * self.rate_per_s
        self.tokens = min(float(burst), self.tokens + gained)
        self.filled_at = now

    def take(self, max_wait_s: float) -> float | None:
        wait_s = max((1.0 - self.tokens) / self.rate_per_s, 0.0)
        if wait_s > max_wait_s:
            return None
        self.tokens -= 1.0
        return wait_s

    def slow_down(self, now: float, limits: BudgetLimits) -> None:
        self.tokens = min(self.tokens, 0.0)
        if now - self.cut_at >= limits.cut_interval_s:
            self.rate_per_s = max(limits.floor_per_s, self.rate_per_s * limits.cut)
            self.cut_at = now
