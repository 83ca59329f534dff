"""The causes that freeze the pool. While the pool is frozen, nothing is released and, with one exception, no ENI is created. Pure.

A node that is being drained, or that EC2 is about to end, needs no further ENI, and its addresses are released with the instance.
So it makes no API calls for new ENIs and for releases: EC2's limits of calls are for the whole account, and other nodes need these
calls. Addresses and prefixes on attached ENIs are still requested, because pods may wait for them.

The exception is a rebalance recommendation: EC2 may let the instance run for days after it, and pods are scheduled to the node until
it is drained. So an ENI is created if an ADD waits for it, but not ahead of need. After a spot interruption notice the node has only
two minutes, which a new ENI and the start of a pod would use up. So an ADD that needs a new ENI is refused at once, and the pod starts
elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from enum import StrEnum

from ipamd.model.record import dataclass


class FreezeCause(StrEnum):
    """Why the pool is frozen: the label of the metric `ipamd_pool_frozen`. Each cause ends independently of the others."""

    SHUTDOWN = "shutdown"
    OPERATOR = "operator"
    DRAIN_HOOK = "drain-hook"
    SPOT_INTERRUPTION = "spot-interruption"
    REBALANCE = "rebalance-recommendation"
    EXPORT = "export"
    AWS_NODE = "aws-node"
    SETTING = "setting"


NOTICES = frozenset({FreezeCause.SPOT_INTERRUPTION, FreezeCause.REBALANCE})
"""Causes that instance metadata announces."""

SHARED = frozenset({FreezeCause.AWS_NODE, FreezeCause.EXPORT})
"""Causes under which another daemon may assign the addresses of our ENIs."""

ALLOW_GROWTH_FOR_ADDS = frozenset({FreezeCause.REBALANCE})
"""Causes that stop only ENIs for which no ADD waits. Reason: after a rebalance recommendation the interruption may follow at once,
later, or never. Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html."""


def may_grow_for_adds(causes: Collection[FreezeCause]) -> bool:
    """Whether an ENI for which an ADD waits may still be created: none of these causes forbids it."""
    return ALLOW_GROWTH_FOR_ADDS.issuperset(causes)


def barred_enis(*, may_grow_for_adds: bool) -> str:
    """Return a phrase that says which ENIs are not created during a freeze."""
    return f"no new ENI{' that no ADD waits for' if may_grow_for_adds else ''}"


@dataclass(frozen=True, slots=True)
class Freezing:
    """A cause that freezes the pool now.

    `reason`: the cause in words.
    `since_at`: when this daemon noticed the cause (aware UTC). The time of an operator's freeze survives a restart.
    """

    cause: FreezeCause
    reason: str
    since_at: datetime

    def __str__(self) -> str:
        return f"{self.cause}: {self.reason}"
