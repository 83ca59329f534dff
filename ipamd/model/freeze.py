"""Why the pool is frozen: no new ENI, and nothing is given back. Pure values.

A node that is being drained, or that EC2 is about to end, needs no other ENI, and what it gives back goes with it anyway: the calls
are left to nodes that stay. Addresses and prefixes on attached ENIs are still asked for: an ADD that waits is a pod that waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


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


@dataclass(frozen=True, slots=True)
class Freezing:
    """One cause that is in force. `since_at`: when this daemon noticed it, aware UTC; an operator's keeps its time over a restart."""

    cause: FreezeCause
    reason: str
    since_at: datetime

    def __str__(self) -> str:
        return f"{self.cause}: {self.reason}"
