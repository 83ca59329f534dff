"""The causes that freeze the pool: while it is frozen, no ENI is created and nothing is released. Pure values.

A node that is being drained, or that EC2 is about to end, needs no further ENI, and its addresses are released with the instance.
So its API calls are left to other nodes. Addresses and prefixes on attached ENIs are still requested, because pods may wait for
them.

A rebalance recommendation stops less: EC2 may let the instance run for days after it, and pods are scheduled to the node until it is
drained. No ENI is created ahead of need, but one is created if an ADD waits for it. After an interruption notice the node has two
minutes, of which a new ENI takes some seconds and a pod's start the rest: the ADD is refused at once, and the pod starts elsewhere.
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
"""Causes that stop only spare growth: ENIs for which an ADD waits are still created. Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html:
the interruption may follow at once, later, or never."""


def may_grow_for_adds(causes: Collection[FreezeCause]) -> bool:
    """Whether waiting ADDs may still grow the pool under all of these causes."""
    return ALLOW_GROWTH_FOR_ADDS.issuperset(causes)


def barred_enis(*, may_grow_for_adds: bool) -> str:
    """Return a phrase for the ENIs that a freeze stops."""
    return f"no new ENI{' that no ADD waits for' if may_grow_for_adds else ''}"


@dataclass(frozen=True, slots=True)
class Freezing:
    """An active cause. `since_at`: when this daemon noticed it, aware UTC; the time of an operator's freeze survives a restart."""

    cause: FreezeCause
    reason: str
    since_at: datetime

    def __str__(self) -> str:
        return f"{self.cause}: {self.reason}"
