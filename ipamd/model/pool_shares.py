"""Share the ENIs of a node between its pools, so that no pool prevents the growth of another (docs/adr/0084). Pure.

The rule, for a pool that wants another ENI:

1. Up to its reservation it may take any free place. If a node is too small for all reservations, pools with waiting ADDs come first.
2. Beyond its reservation it takes only places that no other pool needs for its own reservation, even if an ADD of the pool waits.
3. It gets no ENI beyond its `maxEnis`.

The reservation of the node's own pool is one ENI. This is the primary ENI, if pods may have its addresses. An ENI that gets no new
pods does not count towards a reservation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ipamd.model.eni import Eni
from ipamd.model.growth_state import PendingEni
from ipamd.model.network_cards import card_of_pool
from ipamd.model.placement import free_places
from ipamd.model.pod_pools import OWN, PodPools, pool_word
from ipamd.model.pool_counts import EniStock, PoolCounts, Stock
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import PoolSnapshot
from ipamd.model.record import astuple, dataclass, replace

OWN_RESERVED = 1
"""The reservation of the node's own pool: how many ENIs the pools of pods must leave to it. Ours: with one ENI its pods can start, and
a small instance type, which has few places, still has some for the other pools."""


@dataclass(frozen=True, slots=True)
class PoolClaim:
    """How many ENIs a pool has, and how many it may have.

    eni_count: the number of its ENIs that serve new pods or are being created.
    reserved: how many ENIs other pools must leave to it (`reservedEnis` in the network file).
    most: how many ENIs it may have (`maxEnis` in the network file); 0: no cap.
    """

    name: str
    eni_count: int
    reserved: int
    most: int = 0

    @property
    def unmet(self) -> int:
        """How many ENIs the pool lacks to fill its reservation."""
        return max(self.reserved - self.eni_count, 0)


def stock_of_pool(stock: Stock, pool: str, pools: PodPools) -> Stock:
    """Return the stock for the planner of one pool: ENIs of other pools take places, and count as not managed.

    An ENI whose pool the file does not name is planned with the node's own pool, which releases it, because the ENI is excluded and no
    pod gets its addresses. ENIs of other network cards take no places on the pool's card, and are left out.
    """
    enis = []
    for eni_stock in stock.enis:
        if eni_stock.eni.network_card != card_of_pool(pool):
            continue
        if not eni_stock.eni.managed or _planned_by(eni_stock.eni, pools) == pool:
            enis.append(eni_stock)
        elif not eni_stock.has_left:
            enis.append(replace(eni_stock, eni=replace(eni_stock.eni, managed=False)))
    tallies = [astuple(eni_stock.counts) for eni_stock in enis if eni_stock.eni.managed]
    return Stock(tuple(enis), PoolCounts(*map(sum, zip(*tallies, strict=True))))


def other_pool_eni_count(stock: Stock, pool: str, pools: PodPools) -> int:
    """Count the ENIs of other pools that take places on the pool's network card."""
    on_card = [eni_stock for eni_stock in stock.enis if eni_stock.eni.network_card == card_of_pool(pool)]
    return sum(_is_taking(eni_stock) and _planned_by(eni_stock.eni, pools) != pool for eni_stock in on_card)


def claims(stock: Stock, pools: PodPools, pending: Iterable[PendingEni] = ()) -> tuple[PoolClaim, ...]:
    """Return for each pool of network card 0 how many ENIs it has and may have, the node's own pool first.

    Pools of further network cards are left out: each of these cards has only one pool, so nothing is shared there.

    Args:
        pending: ENIs that EC2 may have created; they count as ENIs of their pool.
    """
    names = [name for name in pools.names if not card_of_pool(name)]
    counts = dict.fromkeys(names, 0)
    for eni_stock in stock.enis:
        if _is_taking(eni_stock) and not eni_stock.eni.excluded and eni_stock.eni.pool in counts:
            counts[eni_stock.eni.pool] += 1
    for eni in pending:
        if eni.pool in counts:
            counts[eni.pool] += 1
    made = [PoolClaim(OWN, counts[OWN], OWN_RESERVED)]
    for name in names[1:]:
        pool = pools.by_name[name]
        made.append(PoolClaim(pool.name, counts[pool.name], pool.reserved_enis, pool.max_enis))
    return tuple(made)


def with_share(snapshot: PoolSnapshot, settings: PoolSettings, claims_of_all: Collection[PoolClaim]) -> PoolSnapshot:
    """Return the snapshot with the number of ENIs that the pool's share of the free places allows, and the reason.

    Args:
        claims_of_all: the result of `claims`, with the pool of the snapshot among them.
    """
    own = next(claim for claim in claims_of_all if claim.name == snapshot.pool)
    others = [claim for claim in claims_of_all if claim.name != snapshot.pool]
    place_count = free_places(snapshot, settings)
    cap, share = _share(own, others, place_count)
    return replace(snapshot, place_cap=cap, share=share)


def most_pods(max_pods: int, stock: Stock, pool: str) -> int:
    """Return how many addresses a pool may have: maxPods less the pods with addresses of other pools, at least 1; 0: no bound.

    Free addresses of other pools are not subtracted, because a pool that keeps many free addresses must not prevent the growth of
    another pool. Addresses on other network cards are not subtracted either, because their pods have an address on card 0 too.
    """
    if not max_pods:
        return 0
    in_use_count = 0
    for eni_stock in stock.enis:
        is_other_pod = eni_stock.eni.pool != pool and card_of_pool(eni_stock.eni.pool) == card_of_pool(pool)
        if eni_stock.eni.managed and is_other_pod:
            in_use_count += eni_stock.counts.in_use
    return max(max_pods - in_use_count, 1)


def _share(own: PoolClaim, others: Collection[PoolClaim], place_count: int) -> tuple[int, str]:
    """Return how many further ENIs a pool may get, and the bound of this number in words; "" if only the free places bound it."""
    cap, reason = place_count, ""
    kept_for = [claim for claim in others if claim.unmet]
    kept_count = sum(claim.unmet for claim in kept_for)
    allowed = max(place_count - kept_count, min(own.unmet, place_count))
    if allowed < cap:
        names = ", ".join(pool_word(claim.name) for claim in kept_for)
        cap, reason = allowed, f"the other free places are reserved for pool {names}"
    if own.most and own.most - own.eni_count < cap:
        cap = max(own.most - own.eni_count, 0)
        reason = f"its maxEnis is {own.most}"
    return cap, reason


def _planned_by(eni: Eni, pools: PodPools) -> str:
    """Return the pool whose planner decides about an ENI."""
    if eni.pool in pools.by_name:
        return eni.pool
    return OWN


def _is_taking(eni_stock: EniStock) -> bool:
    """Whether an ENI is for pods and takes a place on the instance."""
    return eni_stock.eni.managed and not eni_stock.has_left
