"""What an account's size and age change: its request buckets, and how a list of ENIs must be asked for when there are many.

Buckets are per account, region and action: "Request throttling for the Amazon EC2 API" (EC2 developer guide). A large account is
refused a list that is neither paged nor filtered by one of six filters, of which attachment.instance-id is none: API reference of
DescribeNetworkInterfaces; seen in amazon-vpc-resource-controller-k8s 188. Pages cost calls: the same project, 403.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lab.vpc.spec_reader import Reader

BARE_DESCRIBE = "a Describe with neither filter nor page"
_DESCRIBE = (20.0, 100)
_OTHER_CHANGE = (5.0, 50)
DOCUMENTED: Mapping[str, tuple[float, int]] = {
    "CreateNetworkInterface": (5.0, 100),
    "DeleteNetworkInterface": (5.0, 100),
    "AssignPrivateIpAddresses": (5.0, 100),
    "UnassignPrivateIpAddresses": (5.0, 100),
    "ModifyNetworkInterfaceAttribute": (5.0, 100),
    "CreateTags": (10.0, 100),
    BARE_DESCRIBE: (10.0, 50),
}
"""Tokens per second, and how many at most. The rest: Describes and Gets 20 and 100, other changes (Attach, Detach) 5 and 50."""

DEEP_FILTERS = frozenset({"group-id", "mac-address", "private-dns-name", "private-ip-address", "subnet-id", "vpc-id"})
_REFUSAL_CODE = "OperationNotPermitted"  # ours, because: the reference says "fails", and no report quotes the code


@dataclass(frozen=True)
class LargeAccount:
    """How DescribeNetworkInterfaces is limited. `page_size`: entries of a page at most, whatever was asked for (0: no limit);
    `sparse`: pages are cut before filters apply, so that a page may be empty and yet not the last."""

    page_size: int = 0
    sparse: bool = False
    code: str = _REFUSAL_CODE


class Bucket:
    """A token bucket. Not thread-safe: the lock of Faults is around it."""

    def __init__(self, rate_per_s: float, burst: float, now: float) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._tokens = burst
        self._filled_at = now

    def admits(self, now: float) -> bool:
        """Take a token; False when there is none."""
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate_per_s)
        self._filled_at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


def documented_bucket(api: str, *, is_bare: bool, scale: float, now: float) -> tuple[str, Bucket]:
    """Make the bucket of an API, with the name under which it is kept; `scale` below 1 lets one node feel what a fleet feels."""
    name = BARE_DESCRIBE if is_bare and api == "DescribeNetworkInterfaces" else api
    usual = _DESCRIBE if api.startswith(("Describe", "Get")) else _OTHER_CHANGE
    rate_per_s, burst = DOCUMENTED.get(name, usual)
    return name, Bucket(rate_per_s * scale, max(1.0, burst * scale), now)


def read_large_account(reader: Reader) -> LargeAccount:
    """Read the object under `large_account`."""
    return LargeAccount(reader.optional_count("page_size") or 0, reader.flag("sparse"), reader.text("code", _REFUSAL_CODE))
