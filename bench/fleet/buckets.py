"""EC2's request limits: a token bucket for each account, region and action.

Source: https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html, request token bucket sizes and refill rates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

SIZES: Mapping[str, tuple[float, float]] = {
    "CreateNetworkInterface": (100.0, 5.0),
    "DeleteNetworkInterface": (100.0, 5.0),
    "AssignPrivateIpAddresses": (100.0, 5.0),
    "UnassignPrivateIpAddresses": (100.0, 5.0),
    "ModifyNetworkInterfaceAttribute": (100.0, 5.0),
    "CreateTags": (100.0, 10.0),
    "AttachNetworkInterface": (50.0, 5.0),
    "DetachNetworkInterface": (50.0, 5.0),
}
"""Action that changes something -> tokens of a full bucket, and tokens per second. Attach and Detach have no row of their own in the
source, so they have the numbers for other mutating actions."""

DESCRIBE = (100.0, 20.0)
"""The same for a Describe with a filter or with pages. All Describes of the daemon are such."""


def size_of(api: str) -> tuple[float, float]:
    """Return the tokens of an action's full bucket, and its tokens per second."""
    return SIZES.get(api, DESCRIBE)


def is_mutating(api: str) -> bool:
    """Whether an action changes something. EC2 limits such actions more than Describes."""
    return not api.startswith("Describe")


class Buckets:
    """All buckets of one account and region. `is_open`: whether no call is refused, for the warm-up of a fleet."""

    def __init__(self) -> None:
        self.is_open = False
        self.throttled: Counter[str] = Counter()
        self._tokens: dict[str, tuple[float, float]] = {}

    def take(self, api: str, *, now_s: float) -> bool:
        """Take a token of an action; False if there is none."""
        if self.is_open:
            return True
        size, refill_per_s = size_of(api)
        tokens, filled_s = self._tokens.get(api, (size, now_s))
        tokens = min(size, tokens + (now_s - filled_s) * refill_per_s)
        is_there = tokens >= 1.0
        self._tokens[api] = (tokens - 1.0 if is_there else tokens, now_s)
        if not is_there:
            self.throttled[api] += 1
        return is_there


def bound_s(api: str, count: int) -> float:
    """Return the shortest time in which EC2 accepts `count` calls of an action, if the bucket is full at the beginning."""
    size, refill_per_s = size_of(api)
    return max(count - size, 0.0) / refill_per_s
