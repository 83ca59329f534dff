"""Free addresses by ENI and prefix, in the order in which they are given: densest first, longest free first; and their counters.

What is draining gives addresses last (`ipamd/model/release.py`).

Densest first keeps the other ENIs and prefixes empty, which is what releasing one needs; longest free first keeps an address out
of use for as long as possible (I8). Counters are kept, not counted: every ADD reads them, and a node may have 11,760 addresses.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from datetime import datetime

from ipamd.model.address import Address, AddressState
from ipamd.model.eni import Eni
from ipamd.model.family import Family, IpAddress, IpNetwork, family_of
from ipamd.model.ids import EniId
from ipamd.model.pool import EniStock, PoolCounts, Stock
from ipamd.model.record import dataclass, field
from ipamd.model.release import Draining
from ipamd.model.snapshot import eni_place

COUNTED = (*(state.value for state in AddressState), "lost", "lost_in_use", "held")
"""What is counted for each ENI: the fields of `PoolCounts`, in their order."""


Rank = tuple[bool, int, int]
"""Place of a bucket among those of its ENI: not draining first, most in use first, then the lower prefix."""


@dataclass(slots=True)
class Bucket:
    """The addresses of one prefix, or those of an ENI outside any.

    `free` are those that may be given, by (since, address as a number). `idle_count` also has the free ones of which a unit of work
    is just changing something; `held_count` are free ones that are held back. Of a /80 it has
    the rows; while the rest may be given, the row of that is in `free`.
    """

    order: int
    family: Family
    free: list[tuple[datetime, int]] = field(default_factory=list)
    in_use_count: int = 0
    total_count: int = 0
    idle_count: int = 0
    held_count: int = 0
    lost_count: int = 0
    rank: Rank | None = None

    @property
    def is_there(self) -> bool:
        """Whether EC2 shows at least one of its addresses."""
        return self.total_count > self.lost_count

    @property
    def is_free(self) -> bool:
        """Whether all of its addresses are free, and none is held back."""
        return self.total_count > 0 and self.idle_count - self.held_count == self.total_count

    def offer(self, address: Address, *, is_offered: bool) -> None:
        """Let an address be given, or not; what is so already is fine."""
        entry = (address.since, int(address.address))
        place = bisect_left(self.free, entry)
        is_there = self.free[place : place + 1] == [entry]
        if is_offered and not is_there:
            self.free.insert(place, entry)
        elif is_there and not is_offered:
            del self.free[place]


@dataclass(slots=True)
class EniSlot:
    """One ENI with its buckets and counters."""

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
        """Whether this ENI may give an address (I7) and has one to give."""
        return bool(self._ranks) and self.eni.gives_addresses

    def drain(self, draining: Draining) -> None:
        """Give addresses of what is draining last."""
        is_other = (draining.prefixes, draining.singles) != (self._draining.prefixes, self._draining.singles)
        self._draining = draining
        for bucket in self.buckets.values() if is_other else ():
            self._rank(bucket)

    def preference(self) -> tuple[bool, bool, int]:
        """Sort key: not draining first (the ENI, then what it would give), then densest first."""
        in_use = self.tally["assigned"] + self.tally["reserved"] + self.tally["lost_in_use"]
        return self.eni.eni_id in self._draining.enis, self._ranks[0][0], -in_use

    def first(self) -> IpAddress:
        """The address to give, of the bucket with most in use; `is_assignable` says that there is one."""
        bucket = self._by_order[self._ranks[0][2]]
        return bucket.family.address(bucket.free[0][1])

    def put(self, address: Address, *, is_held: bool, is_offered: bool) -> None:
        """Count an address in, and let it be given if it is offered."""
        if address.prefix not in self.buckets:
            order = -1 if address.prefix is None else int(address.prefix.network_address)
            self.buckets[address.prefix] = self._by_order[order] = Bucket(order, family_of(address.address))
        self._count(address, 1, is_held)
        self.offer(address, is_offered=is_offered)

    def drop(self, address: Address, *, is_held: bool) -> None:
        """Count out an address that was put as it is here; a bucket without addresses is forgotten."""
        self._count(address, -1, is_held)
        self.offer(address, is_offered=False)
        bucket = self.buckets[address.prefix]
        if not bucket.total_count:
            del self.buckets[address.prefix], self._by_order[bucket.order]

    def offer(self, address: Address, *, is_offered: bool) -> None:
        """Let an address that was put be given, or not."""
        bucket = self.buckets[address.prefix]
        if address.is_free:  # no other has a place among those to give
            bucket.offer(address, is_offered=is_offered)
        self._rank(bucket)

    def stock(self) -> EniStock:
        """Read the counters."""
        single = self.buckets.get(None)
        single_count = 0 if single is None else single.total_count - single.lost_count
        # A slot holds one address or one whole prefix.
        return EniStock(
            self.eni, PoolCounts(**self.tally), single_count + self.prefix_count, self.prefix_count, self.free_prefix_count
        )

    def _count(self, address: Address, sign: int, is_held: bool) -> None:
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
                bucket.held_count += sign * is_held
                self.tally["held"] += count * is_held
        if address.prefix is not None:
            self.prefix_count += bucket.is_there - was_there
            self.free_prefix_count += bucket.is_free - was_free

    def _rank(self, bucket: Bucket) -> None:
        """Put a bucket at its place among those with an address to give."""
        is_draining = self._draining.singles if bucket.order < 0 else self._draining.prefixes
        rank = (is_draining, -bucket.in_use_count, bucket.order) if bucket.free else None
        if rank == bucket.rank:
            return
        if bucket.rank is not None:
            del self._ranks[bisect_left(self._ranks, bucket.rank)]
        if rank is not None:
            insort(self._ranks, rank)
        bucket.rank = rank


# Which address is given next, and how many there are of each kind: kept with every change, so that reading costs the ENIs only.
#
# An address is offered if it is free, not held back, and no unit of work is just changing it. Used under the lock of
# `MemoryState`.


class PoolIndex:
    """The ENIs with their counters and their free addresses in order. `slots`: by place on the instance, the lower first."""

    def __init__(self) -> None:
        self.slots: dict[EniId, EniSlot] = {}
        self.held: frozenset[IpAddress] = frozenset()
        self._claimed: set[IpAddress] = set()
        self.draining = Draining()

    def put_eni(self, eni: Eni) -> None:
        """Add an ENI, or replace what is known of it."""
        slot = self.slots.get(eni.eni_id)
        if slot is None:
            slot = self.slots[eni.eni_id] = EniSlot(eni)
            slot.drain(self.draining)
        slot.eni = eni
        self.slots = {one.eni.eni_id: one for one in sorted(self.slots.values(), key=lambda one: eni_place(one.eni))}

    def put(self, address: Address) -> None:
        """Count an address in, and offer it if it may be given. Its ENI must be known."""
        self.slots[address.eni_id].put(address, is_held=self._is_held(address), is_offered=self._may_be_given(address))

    def drop(self, address: Address) -> None:
        """Count out an address that was put as it is here."""
        self.slots[address.eni_id].drop(address, is_held=self._is_held(address))

    def first(self) -> IpAddress | None:
        """The address that is given next, or that stands for the rest of a /80; None if there is none. Cost: the number of ENIs."""
        slots = [slot for slot in self.slots.values() if slot.is_assignable]
        return min(slots, key=EniSlot.preference).first() if slots else None

    def claim(self, address: IpAddress, found: Address | None, *, is_claimed: bool) -> None:
        """Withdraw an address until its claim ends; `found` is what it is now."""
        if is_claimed:
            self._claimed.add(address)
        else:
            self._claimed.discard(address)
        if found is not None:
            self.slots[found.eni_id].offer(found, is_offered=self._may_be_given(found))

    def is_claimed(self, address: IpAddress) -> bool:
        """Whether a unit of work is just changing an address."""
        return address in self._claimed

    def hold(self, held: frozenset[IpAddress], *, changed: Iterable[Address]) -> None:
        """Replace what is held back; `changed` are the known addresses that are in only one of the two sets."""
        rows = list(changed)
        for row in rows:
            self.drop(row)
        self.held = held
        for row in rows:
            self.put(row)

    def set_draining(self, draining: Draining) -> None:
        """Replace what gives addresses last. Cost: the number of ENIs, and of their prefixes if the kind changes."""
        if draining != self.draining:
            self.draining = draining
            for slot in self.slots.values():
                slot.drain(draining)

    def counts(self) -> PoolCounts:
        """Sum up the managed ENIs."""
        tallies = [slot.tally.values() for slot in self.slots.values() if slot.eni.managed]
        return PoolCounts(*map(sum, zip(*tallies, strict=True)))

    def stock(self) -> Stock:
        """Read the counters of every ENI."""
        return Stock(tuple(slot.stock() for slot in self.slots.values()), self.counts())

    def recount(self, addresses: Iterable[Address]) -> list[str]:
        """Compare counters and order with ones made anew from `addresses`; one sentence per difference."""
        real = PoolIndex()
        real.held, real._claimed, real.draining = self.held, self._claimed, self.draining
        for slot in self.slots.values():
            real.put_eni(slot.eni)
        for address in addresses:
            real.put(address)
        found = [
            f"memory counts {one} where {other} is"
            for one, other in zip(self.stock().enis, real.stock().enis, strict=True)
            if one != other
        ]
        if {key: slot.buckets for key, slot in self.slots.items()} != {key: slot.buckets for key, slot in real.slots.items()}:
            found.append("memory's lists of free addresses differ from the addresses that are free")
        return found

    def _may_be_given(self, address: Address) -> bool:
        """Whether it is free, not held back, and no unit of work has it."""
        return address.is_free and not self._is_held(address) and address.address not in self._claimed

    def _is_held(self, address: Address) -> bool:
        return bool(self.held) and address.address in self.held  # hashing an address costs more than asking whether any is held
