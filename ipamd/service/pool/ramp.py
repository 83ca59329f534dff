"""Notice that ADDs come one after the other, so that one EC2 call serves several of them.

The pool loop is woken after every ADD. Asking for one address each time costs one call for each pod, and EC2's limits are for the
whole account. Whether demand lasts is judged by two windows, so that a burst, which is over when it is seen, leaves no addresses
behind that nobody needs.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

WINDOW_S = 5.0
"""Demand lasts if ADDs took addresses in this window and in the one before it. Ours: amazon-vpc-cni-k8s looks every 5 s
(pkg/ipamd/ipamd.go, StartNodeIPPoolManager) and so gathers the ADDs of 5 s in one call."""

SETTLE_S = WINDOW_S
"""After the last ADD the pool is topped up to WARM_IP_TARGET this much later, unless it is low before. Ours: as above."""


class Ramp:
    """Counts served ADDs over time. Used by the pool's thread."""

    def __init__(self, *, draw: Callable[[], float] = random.random) -> None:
        """`draw`: 0.0 to 1.0, this node's part of a spare ENI's delay."""
        self._served_count: int | None = None
        self._last_s = float("-inf")
        self._part = 1.0 + draw()
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, served_count: int, *, now_s: float) -> None:
        """Record how many ADDs were served since start, at a monotonic point."""
        new = served_count - (served_count if self._served_count is None else self._served_count)
        self._served_count = served_count
        if new > 0:
            self._seen.append((now_s, new))
            self._last_s = now_s
        while self._seen and now_s - self._seen[0][0] > 2 * WINDOW_S:
            self._seen.popleft()

    def lasting_count(self, *, now_s: float) -> int:
        """Addresses that the next window will take if the last two tell; 0 if one of them had no ADD."""
        newer = sum(count for at, count in self._seen if now_s - at <= WINDOW_S)
        older = sum(count for at, count in self._seen if WINDOW_S < now_s - at <= 2 * WINDOW_S)
        return min(newer, older)

    def settles_in_s(self, *, now_s: float) -> float:
        """Seconds until the last ADD is long enough ago; 0 if it is."""
        return max(self._seen[-1][0] + SETTLE_S - now_s, 0.0) if self._seen else 0.0

    def spare_eni_settles_in_s(self, *, delay_s: float, now_s: float) -> float:
        """Seconds until the last ADD is once to twice `delay_s` ago, so that a spare ENI may be asked for; 0 if it is."""
        return max(self._last_s + delay_s * self._part - now_s, 0.0)
