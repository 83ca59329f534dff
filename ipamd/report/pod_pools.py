"""Report each pool of the node: its addresses, its share of the ENIs, and the reason why it cannot grow."""

from __future__ import annotations

from ipamd.model.blocked import Blocked
from ipamd.model.capacity import most_addresses
from ipamd.model.placement import free_places
from ipamd.model.pod_pools import NO_POOLS, pool_word
from ipamd.model.pool_counts import Stock, assignable_count, counts_of_pool
from ipamd.model.record import dataclass
from ipamd.report.sources import Sources


@dataclass(frozen=True, slots=True)
class PodPoolReport:
    """The state of one pool.

    `name`: the name of the pool, for people.
    `eni_limit`, `address_limit`: the largest number of ENIs and addresses that it may have at present; 0 before the node's limits are
        known.
    `assignable_count`: free addresses that can be assigned to a pod at present.
    `waiting_count`: ADDs that wait for an address of the pool.
    `last_cycle`: a sentence about the last cycle of the pool maintainer.
    `blocked`: why the pool cannot grow, in one word.
    `share`: what bounds the number of its ENIs besides the limit of the instance type, in words.
    """

    name: str
    eni_count: int
    eni_limit: int
    total_count: int
    free_count: int
    assigned_count: int
    cooling_count: int
    assignable_count: int
    waiting_count: int
    address_limit: int
    last_cycle: str
    blocked: Blocked
    share: str


def pod_pool_reports(sources: Sources) -> list[PodPoolReport]:
    """Report every pool, the node's own first. Returns: [] unless the network file names pools."""
    if sources.pool.pools == NO_POOLS:
        return []
    stock = sources.datastore.stock()
    return [_report(sources, stock, name) for name in sources.pool.pools.names]


def _report(sources: Sources, stock: Stock, name: str) -> PodPoolReport:
    counts, status, snapshot = counts_of_pool(stock, name), sources.demand.status_of(name), sources.pool.preview(name)
    eni_count = sum(entry.eni.managed and entry.eni.pool == name and not entry.has_left for entry in stock.enis)
    eni_limit, address_limit, share = 0, 0, ""
    if snapshot is not None:
        settings = sources.pool.settings_of(name)
        eni_limit, address_limit, share = (
            eni_count + free_places(snapshot, settings),
            most_addresses(snapshot, settings),
            snapshot.share,
        )
    return PodPoolReport(
        name=pool_word(name),
        eni_count=eni_count,
        eni_limit=eni_limit,
        total_count=counts.total,
        free_count=counts.free,
        assigned_count=counts.assigned,
        cooling_count=counts.cooling,
        assignable_count=assignable_count(stock, name),
        waiting_count=sources.demand.waiting_count_of(name),
        address_limit=address_limit,
        last_cycle=status.sentence,
        blocked=status.kind,
        share=share,
    )
