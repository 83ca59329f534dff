"""Free addresses by ENI and prefix, in the order in which they are assigned, and their counters.

The ENI and the prefix with the most addresses in use come first, so that those with few addresses in use become empty and can be
released. Within a prefix the address that has been free for longest comes first, so that each address stays out of use for as long as
possible (I8). Draining addresses come after all others: those of a draining ENI, and all addresses of a draining kind (in prefixes, or
single; `ipamd/model/release.py`). Suspected addresses come last, because metadata indicates that EC2 has taken them away.
`PoolIndex` decides which addresses are *offered*, that is, may be assigned now, and which are *withheld* from sandboxes.

Counters are updated with each change and not computed when they are read, because every ADD reads them, and a node may have 11,760
addresses.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from datetime import datetime

from ipamd.model.address import Address, AddressState
from ipamd.model.eni import Eni
from ipamd.model.family import Family, IpAddress, IpNetwork, family_of
from ipamd.model.pool_counts import EniStock, PoolCounts
from ipamd.model.record import dataclass, field
from ipamd.model.release import Draining

COUNTED = (*(state.value for state in AddressState), "lost", "lost_in_use", "withheld")
"""Counters of each ENI: the fields of `PoolCounts`, in their order."""

Rank = tuple[bool, bool, int, int]
"""Sort key of a bucket within its ENI: whether its first free address is suspected, whether the bucket is draining, the number of its
addresses in use (negative, so that the most come first), and the prefix as a number."""


@dataclass(slots=True)
class Bucket:
    """The addresses of one prefix, or the addresses of an ENI that are in no prefix.

    `order`: the prefix as a number, -1 for addresses in no prefix.
    `free`: addresses that may be assigned, sorted by (is suspected, free since, address as a number).
    `idle_count`: all free addresses, also those that are withheld or that a unit of work is changing.
    `withheld_count`: how many of the idle addresses are withheld.

    In a /80 only addresses with a row are counted. One row stands for all addresses without a row of their own (the *rest*). This
    row is in `free` while an address of the rest may be assigned.
    """

    order: int
    family: Family
    free: list[tuple[bool, datetime, int]] = field(default_factory=list)
    in_use_count: int = 0
    total_count: int = 0
    idle_count: int = 0
    withheld_count: int = 0
    lost_count: int = 0
    rank: Rank | None = None

    @property
    def is_there(self) -> bool:
        """Whether EC2 shows at least one of its addresses."""
        return self.total_count > self.lost_count

    @property
    def is_free(self) -> bool:
        """Whether all of its addresses are free and none is withheld."""
        return self.total_count > 0 and self.idle_count - self.withheld_count == self.total_count

    def offer(self, address: Address, *, is_offered: bool, is_suspected: bool) -> None:
        """Add an address to the free list or remove it. To remove it, pass the same `is_suspected` as when it was added.
        Idempotent.
        """
        candidate = (is_suspected, address.since, int(address.address))
        place = bisect_left(self.free, candidate)
        is_there = self.free[place : place + 1] == [candidate]
        if is_offered and not is_there:
            self.free.insert(place, candidate)
        elif is_there and not is_offered:
            del self.free[place]


@dataclass(slots=True)
class EniSlot:
    """One ENI with its buckets and counters.

    `tally`: the counters of `COUNTED`.
    `_ranks`: sort keys of the buckets that have an address to assign, ascending.
    """

    eni: Eni
    tally: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    buckets: dict[IpNetwork | None, Bucket] = field(default_factory=dict)
    prefix_count: int = 0
    free_prefix_count: int = 0
    _draining: Draining = field(default_factory=Draining)
    _ranks: list[Rank] = field(default_factory=list)
    _by_order: dict[int, Bucket] = field(default_factory=dict)

    @property
    def is_assignable(self) -> bool:
        """Whether this ENI may be used for pods (I7) and has an address to assign."""
        return bool(self._ranks) and self.eni.gives_addresses

    def drain(self, draining: Draining) -> None:
        """Replace the record of what is draining. The buckets of a draining kind (prefixes or single addresses) are sorted last."""
        is_same_kind = (draining.prefixes, draining.singles) == (self._draining.prefixes, self._draining.singles)
        self._draining = draining
        if is_same_kind:
            return
        for bucket in self.buckets.values():
            self._rank(bucket)

    def preference(self) -> tuple[bool, bool, bool, int]:
        """Sort key of the ENI. The ENI with the lowest key gives the next address. Reasons for which an ENI comes later, the most
        important first: the first address of its first bucket is suspected, the ENI is draining, that bucket is draining, fewer of
        its addresses are in use.
        """
        in_use = self.tally["assigned"] + self.tally["reserved"] + self.tally["lost_in_use"]
        is_suspected, is_draining, *_ = self._ranks[0]
        return is_suspected, self.eni.eni_id in self._draining.enis, is_draining, -in_use

    def first(self) -> IpAddress:
        """Return the address to assign next. `is_assignable` must be true."""
        bucket = self._by_order[self._ranks[0][-1]]
        return bucket.family.address(bucket.free[0][-1])

    def put(self, address: Address, *, is_withheld: bool, is_offered: bool, is_suspected: bool) -> None:
        """Count an address, and add it to the free list if it is offered."""
        if address.prefix not in self.buckets:
            order = -1 if address.prefix is None else int(address.prefix.network_address)
            self.buckets[address.prefix] = self._by_order[order] = Bucket(order, family_of(address.address))
        self._count(address, 1, is_withheld)
        self.offer(address, is_offered=is_offered, is_suspected=is_suspected)

    def drop(self, address: Address, *, is_withheld: bool, is_suspected: bool) -> None:
        """Remove an address from the counters. The address and its flags must be those with which it was counted. An empty bucket
        is removed.
        """
        self._count(address, -1, is_withheld)
        self.offer(address, is_offered=False, is_suspected=is_suspected)
        bucket = self.buckets[address.prefix]
        if not bucket.total_count:
            del self.buckets[address.prefix], self._by_order[bucket.order]

    def offer(self, address: Address, *, is_offered: bool, is_suspected: bool) -> None:
        """Add a counted address to the free list, or remove it."""
        bucket = self.buckets[address.prefix]
        if address.is_free:  # only free addresses are in the list
            bucket.offer(address, is_offered=is_offered, is_suspected=is_suspected)
        self._rank(bucket)

    def stock(self) -> EniStock:
        """Read the counters."""
        single = self.buckets.get(None)
        single_count = 0 if single is None else single.total_count - single.lost_count
        # A slot holds one address or one whole prefix.
        return EniStock(
            self.eni, PoolCounts(**self.tally), single_count + self.prefix_count, self.prefix_count, self.free_prefix_count
        )

    def _count(self, address: Address, sign: int, is_withheld: bool) -> None:
        bucket, count = self.buckets[address.prefix], sign * address.count
        was_there, was_free = bucket.is_there, bucket.is_free
        bucket.total_count += sign
        if address.is_in_use:
            bucket.in_use_count += sign
        if address.is_lost:
            bucket.lost_count += sign
            self.tally["lost"] += sign
            self.tally["lost_in_use"] += sign * address.is_in_use
        else:
            self.tally[address.state.value] += count
            if address.state is AddressState.FREE:
                bucket.idle_count += sign
                bucket.withheld_count += sign * is_withheld
                self.tally["withheld"] += count * is_withheld
        if address.prefix is not None:
            self.prefix_count += bucket.is_there - was_there
            self.free_prefix_count += bucket.is_free - was_free

    def _rank(self, bucket: Bucket) -> None:
        """Sort a bucket into the list of those with a free address, or take it out."""
        rank = self._rank_of(bucket)
        if rank == bucket.rank:
            return
        if bucket.rank is not None:
            del self._ranks[bisect_left(self._ranks, bucket.rank)]
        if rank is not None:
            insort(self._ranks, rank)
        bucket.rank = rank

    def _rank_of(self, bucket: Bucket) -> Rank | None:
        """Return the sort key of a bucket; None if it has no address to assign."""
        if not bucket.free:
            return None
        is_suspected = bucket.free[0][0]
        is_draining = self._draining.singles if bucket.order < 0 else self._draining.prefixes
        return is_suspected, is_draining, -bucket.in_use_count, bucket.order
