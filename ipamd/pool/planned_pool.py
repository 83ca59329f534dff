"""The state that the maintainer keeps for each pool: its demand, its last snapshot, and whether it lacks a place for an ENI."""

from __future__ import annotations

import math
from collections.abc import Callable

from ipamd.model.blocked import Blocked
from ipamd.model.ids import EniId
from ipamd.model.plan import Plan
from ipamd.model.pod_pools import OWN, PodPool
from ipamd.model.pool_counts import Stock
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_shares import most_pods
from ipamd.model.pool_snapshot import PoolSnapshot
from ipamd.model.record import replace
from ipamd.model.release import Draining
from ipamd.pool.demand_window import DemandWindow

STARVED_S = 60.0
"""For this long after an ADD of one pool found no place for an ENI, the other pools of its network card keep no surplus. Ours: while
the ADD waits, no ENI is released, so this must outlast the ADD and the pauses of some seconds after which kubelet repeats it."""


class PlannedPool:
    """One pool of the node, with the state that is kept from one cycle to the next.

    Used by the pool's thread. Any thread may read `last_cycle`, which is replaced as one reference.

    `pool`: the pool's definition, None for the node's own pool.
    `window`: the demand that was measured.
    `last_cycle`: a function that makes a snapshot from the EC2 results of the last cycle, and the snapshot of that cycle; None before
        the first one.
    `is_postponed`: whether the last plan postponed an action, so that the pool must be planned again soon.
    `excess_count`: how many addresses the last plan counted above the target.
    `draining`: its ENIs and kinds of addresses that are assigned last.
    """

    def __init__(self, pool: PodPool | None) -> None:
        self.pool = pool
        self.name = pool.name if pool else OWN
        self.window = DemandWindow()
        self.last_cycle: tuple[Callable[..., PoolSnapshot], PoolSnapshot] | None = None
        self.is_postponed = False
        self.excess_count = 0
        self.draining = Draining()
        self._starved_deadline = -math.inf

    def settings(self, own: PoolSettings, stock: Stock) -> PoolSettings:
        """Return the targets of this pool.

        Args:
            own: the targets of the node's own pool, from which those of the other pools are derived.
            stock: the ENIs and addresses of all pools, because the pods of all pools together are bounded by maxPods (`most_pods`).
        """
        max_pods = most_pods(own.max_pods, stock, self.name)
        if self.pool is None:
            return replace(own, max_pods=max_pods)
        return self.pool.settings(own, max_pods=max_pods)

    def note_plan(self, decided: Plan, snapshot: PoolSnapshot, *, now_s: float) -> None:
        """Record whether an ADD waits for an ENI of this pool that has no place on the node (`is_starved`)."""
        is_full = decided.blocked is not None and decided.blocked.kind is Blocked.NODE_FULL
        if is_full and snapshot.waiting_count and not decided.actions:
            self._starved_deadline = now_s + STARVED_S
        elif decided.actions or snapshot.supply_count > 0:
            self._starved_deadline = -math.inf

    def is_starved(self, now_s: float) -> bool:
        """Whether an ADD found no place for an ENI in the last STARVED_S, and no later plan had an action or free addresses."""
        return now_s < self._starved_deadline


def merged(parts: list[Draining]) -> Draining:
    """Join the draining ENIs and kinds of addresses of all pools, because the datastore has one `Draining` for all of them."""
    enis: frozenset[EniId] = frozenset().union(*(part.enis for part in parts))
    return Draining(enis, prefixes=any(part.prefixes for part in parts), singles=any(part.singles for part in parts))
