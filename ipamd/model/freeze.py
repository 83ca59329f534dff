"""Why the pool is frozen: no new ENI, and nothing is released. Pure values.

A node that is being drained, or that EC2 is about to end, needs no other ENI, and what it releases goes with it anyway: the calls
are left to nodes that stay. Addresses and prefixes on attached ENIs are still asked for: an ADD that waits is a pod that waits.

A rebalance recommendation stops less: EC2 may let the instance run for days after it, and until somebody drains the node pods are
scheduled to it. No ENI is made ahead of need, and one that an ADD waits for is. After an interruption notice the node has two minutes,
of which a new ENI takes some seconds and a pod's start the rest: there the pod is refused at once and comes up elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from enum import StrEnum

from ipamd.model.record import dataclass


class FreezeCause(StrEnum):
    """Who froze the pool: the label of the metric `ipamd_pool_frozen`. Each cause ends by itself; they do not know each other."""

    SHUTDOWN = "shutdown"
    OPERATOR = "operator"
    DRAIN_HOOK = "drain-hook"
    SPOT_INTERRUPTION = "spot-interruption"
    REBALANCE = "rebalance-recommendation"
    EXPORT = "export"
    AWS_NODE = "aws-node"


NOTICES = frozenset({FreezeCause.SPOT_INTERRUPTION, FreezeCause.REBALANCE})
"""What instance metadata announces."""

AHEAD_OF_NEED = frozenset({FreezeCause.REBALANCE})
"""Causes that stop only what no ADD waits for. Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html:
the interruption may follow at once, later, or never."""


def is_ahead_of_need(causes: Collection[FreezeCause]) -> bool:
    """Whether what an ADD waits for may be done under all of these."""
    return AHEAD_OF_NEED.issuperset(causes)


def barred_enis(*, is_ahead_of_need: bool) -> str:
    """Say which ENIs a freeze stops."""
    return f"no new ENI{' that no ADD waits for' if is_ahead_of_need else ''}"


@dataclass(frozen=True, slots=True)
class Freezing:
    """One cause that is in force. `since_at`: when this daemon noticed it, aware UTC; an operator's keeps its time over a restart."""

    cause: FreezeCause
    reason: str
    since_at: datetime

    def __str__(self) -> str:
        return f"{self.cause}: {self.reason}"
