"""The limits that EC2 sets for a whole account: request buckets, and the form of a list of ENIs in a large account.

Buckets are per account, region and action: "Request throttling for the Amazon EC2 API" (EC2 developer guide). In a large account EC2
refuses a list that is neither paged nor filtered by one of six filters; attachment.instance-id is not one of them (API reference of
DescribeNetworkInterfaces; seen in amazon-vpc-resource-controller-k8s 188). Each page costs a call (403 of the same project).
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
"""API -> tokens that are refilled in a second, and the size of the bucket. Other APIs have 20 and 100 for Describes and Gets, and 5
and 50 for changes such as Attach and Detach."""

DEEP_FILTERS = frozenset({"group-id", "mac-address", "private-dns-name", "private-ip-address", "subnet-id", "vpc-id"})
_REFUSAL_CODE = "OperationNotPermitted"  # ours: EC2's code is unknown; the reference says only "fails", and no report quotes it


@dataclass(frozen=True)
class LargeAccount:
    """The limits of DescribeNetworkInterfaces in a large account.

    `page_size`: most entries of a page, even if the request asks for more; 0 for no limit.
    `sparse`: whether EC2 divides the list into pages before it applies the filters, so that an empty page need not be the last.
    `code`: the code with which a list is refused that is neither paged nor filtered.
    """

    page_size: int = 0
    sparse: bool = False
    code: str = _REFUSAL_CODE


class Bucket:
    """A token bucket. Not thread-safe: the caller (`Faults`) holds its lock."""

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
    """Make the bucket of an API. Returns: its name, and the bucket.

    Args:
        is_bare: whether the request is neither filtered nor paged.
        scale: factor of rate and size. With a factor below 1 a single node is throttled like a node of a fleet.
        now: the clock's time in seconds.
    """
    name = BARE_DESCRIBE if is_bare and api == "DescribeNetworkInterfaces" else api
    usual = _DESCRIBE if api.startswith(("Describe", "Get")) else _OTHER_CHANGE
    rate_per_s, burst = DOCUMENTED.get(name, usual)
    return name, Bucket(rate_per_s * scale, max(1.0, burst * scale), now)


def read_large_account(reader: Reader) -> LargeAccount:
    """Read the object under `large_account`."""
    return LargeAccount(reader.optional_count("page_size") or 0, reader.flag("sparse"), reader.text("code", _REFUSAL_CODE))
