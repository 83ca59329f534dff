"""The counts of the pool. The datastore updates the counts at each change, so that readers need not loop over all addresses."""

from __future__ import annotations

from ipamd.model.eni import Eni, EniState
from ipamd.model.record import astuple, dataclass
from ipamd.model.words import pool_size, usable


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """The number of addresses in each state: of one ENI, or of all managed ENIs.

    `lost`: the addresses that EC2 does not show any more. They are not in the counts of the states.
    `lost_in_use`: how many of the lost addresses a sandbox has.
    `withheld`: how many of the free addresses an ADD does not get for now, or only if it asks for them: an answer of EC2 lacked them,
        their release has begun, or they are pinned (kept for a pod, or in a range that is set apart).
    """

    free: int = 0
    reserved: int = 0
    assigned: int = 0
    cooling: int = 0
    quarantined: int = 0
    lost: int = 0
    lost_in_use: int = 0
    withheld: int = 0

    @property
    def total(self) -> int:
        """All addresses, in any state."""
        return self.free + self.reserved + self.assigned + self.cooling + self.quarantined + self.lost

    @property
    def in_use(self) -> int:
        """Addresses that a sandbox has, or that an ADD has reserved for one."""
        return self.assigned + self.reserved + self.lost_in_use

    def __str__(self) -> str:
        withheld = f" (of which {usable(self.withheld)} held back)" if self.withheld else ""
        lost = f", {self.lost} lost" if self.lost else ""
        return (
            f"{pool_size(self.total)}: {self.assigned} assigned, {self.reserved} reserved, {self.cooling} cooling, "
            f"{self.quarantined} quarantined, {usable(self.free)} free{withheld}{lost}"
        )


@dataclass(frozen=True, slots=True)
class EniStock:
    """One ENI with the counts of its addresses.

    `used_slot_count`: the number of single addresses and prefixes on it; lost addresses use no slot.
    `prefix_count`: the number of prefixes with at least one address that is not lost.
    `free_prefix_count`: the number of prefixes whose addresses are all free and not withheld.
    """

    eni: Eni
    counts: PoolCounts
    used_slot_count: int
    prefix_count: int
    free_prefix_count: int

    @property
    def has_left(self) -> bool:
        """Whether EC2 does not show the ENI any more: it is being detached, and all its addresses are lost. As long as EC2 shows an
        ENI that is being detached, it also shows the ENI's addresses, so they are not lost.
        """
        return self.eni.state is EniState.DETACHING and 0 < self.counts.total == self.counts.lost


@dataclass(frozen=True, slots=True)
class Stock:
    """All ENIs, by network card and device index. `counts`: the sum over the managed ENIs."""

    enis: tuple[EniStock, ...]
    counts: PoolCounts


def assignable_count(stock: Stock, pool: str = "") -> int:
    """Count the addresses of a pool that an ADD can get now: free, not withheld, and on an ENI that gives addresses (I7)."""
    count = 0
    for eni_stock in stock.enis:
        if eni_stock.eni.gives_addresses and eni_stock.eni.pool == pool:
            count += eni_stock.counts.free - eni_stock.counts.withheld
    return count


def counts_of_pool(stock: Stock, pool: str) -> PoolCounts:
    """Add up the counts of the managed ENIs of a pool."""
    tallies = [astuple(eni_stock.counts) for eni_stock in stock.enis if eni_stock.eni.managed and eni_stock.eni.pool == pool]
    return PoolCounts(*map(sum, zip(*tallies, strict=True)))
