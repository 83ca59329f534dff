"""Free addresses in order of assignment, and counters. Every change updates both, so a read costs only one step for each ENI.

An address is offered if it is free, not withheld, and no unit of work is changing it. Used under the lock of `MemoryState`.

A *pinned* address is assigned only to an ADD that asks for this very address (docs/adr/0083). An address is pinned if it is kept for a
pod, or is a single address in one of `pinned_ranges`. It counts as withheld, although it is not in the set `withheld`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Network

from ipamd.datastore.buckets import Bucket, EniSlot
from ipamd.model.address import Address
from ipamd.model.eni import Eni
from ipamd.model.family import IpAddress, IpNetwork
from ipamd.model.ids import EniId
from ipamd.model.pool_counts import PoolCounts, Stock
from ipamd.model.release import Draining
from ipamd.model.snapshot import eni_place


class PoolIndex:
    """The ENIs with their counters and free addresses.

    `slots`: sorted by network card and device index.
    `withheld`: addresses in doubt or being released, which are not offered.
    `suspected`: addresses that EC2 may have taken away, which are assigned last.
    `pinned_ranges`: the ranges whose single addresses are pinned.
    `pinned`: the recorded addresses that are pinned.
    `draining`: the ENIs and kinds of addresses that are assigned after all others.

    `withheld`, `suspected` and `pinned_ranges` are replaced within `reclassified`.
    """

    def __init__(self) -> None:
        self.slots: dict[EniId, EniSlot] = {}
        self.withheld: frozenset[IpAddress] = frozenset()
        self.suspected: frozenset[IpAddress] = frozenset()
        self.pinned_ranges: tuple[IPv4Network, ...] = ()
        self.pinned: set[IpAddress] = set()
        self._claimed: set[IpAddress] = set()
        self.draining = Draining()

    def put_eni(self, eni: Eni) -> None:
        """Add or replace an ENI."""
        slot = self.slots.get(eni.eni_id)
        if slot is None:
            slot = self.slots[eni.eni_id] = EniSlot(eni)
            slot.drain(self.draining)
        slot.eni = eni
        in_order = sorted(self.slots.values(), key=lambda slot: eni_place(slot.eni))
        self.slots = {slot.eni.eni_id: slot for slot in in_order}

    def put(self, address: Address) -> None:
        """Count an address, and offer it if it may be assigned. Its ENI must have been added."""
        is_pinned = self._is_pinned(address)
        if is_pinned:
            self.pinned.add(address.address)
        is_withheld = is_pinned or self._is_in_doubt(address)
        self.slots[address.eni_id].put(
            address,
            is_withheld=is_withheld,
            is_offered=self._is_offered(address, is_withheld=is_withheld),
            is_suspected=self._is_suspected(address),
        )

    def drop(self, address: Address) -> None:
        """Remove an address from the counters and from the free list. The row must be the one that was passed to `put`."""
        if self.pinned:
            self.pinned.discard(address.address)
        self.slots[address.eni_id].drop(address, is_withheld=self._is_withheld(address), is_suspected=self._is_suspected(address))

    def first(self, pool: str) -> IpAddress | None:
        """Return the address of a pool to assign next; None if there is none.

        In a /80 one row stands for all addresses without a row of their own (`Address.is_rest`). If the address of this row is
        returned, the caller chooses one of those addresses. The search takes one step for each ENI.
        """
        slots = [slot for slot in self.slots.values() if slot.is_assignable and slot.eni.pool == pool]
        return min(slots, key=EniSlot.preference).first() if slots else None

    def claim(self, address: IpAddress, row: Address | None, *, is_claimed: bool) -> None:
        """Begin or end a claim: a claimed address is not offered. `row`: its present row."""
        if is_claimed:
            self._claimed.add(address)
        else:
            self._claimed.discard(address)
        if row is not None:
            slot = self.slots[row.eni_id]
            is_offered = self._is_offered(row, is_withheld=self._is_withheld(row))
            slot.offer(row, is_offered=is_offered, is_suspected=self._is_suspected(row))

    def is_claimed(self, address: IpAddress) -> bool:
        """Whether a unit of work is changing an address."""
        return address in self._claimed

    @contextmanager
    def reclassified(self, changed: Iterable[Address]) -> Iterator[None]:
        """Let the `with` block replace `withheld`, `suspected` or `pinned_ranges`, and sort the affected rows anew.

        `changed`: the rows that the replacement may affect.
        """
        rows = list(changed)
        for row in rows:
            self.drop(row)
        yield
        for row in rows:
            self.put(row)

    def has_named(self, address: Address, pool: str) -> bool:
        """Whether an address may be assigned to an ADD that asks for this very address. The caller checks for whom it is kept.

        It may be assigned if it is free and not in `withheld`, if no unit of work is changing it, and if its ENI belongs to `pool` and
        gives addresses.
        """
        is_assignable = address.is_free and address.address not in self.withheld and address.address not in self._claimed
        eni = self.slots[address.eni_id].eni
        return is_assignable and eni.gives_addresses and eni.pool == pool

    def set_draining(self, draining: Draining) -> None:
        """Set which ENIs and which kinds of addresses are draining.

        Cost: one step for each ENI, and one for each prefix if the kinds change.
        """
        if draining != self.draining:
            self.draining = draining
            for slot in self.slots.values():
                slot.drain(draining)

    def counts(self) -> PoolCounts:
        """Add up the counters of the managed ENIs."""
        tallies = [slot.tally.values() for slot in self.slots.values() if slot.eni.managed]
        return PoolCounts(*map(sum, zip(*tallies, strict=True)))

    def stock(self) -> Stock:
        """Read the counters of every ENI."""
        return Stock(tuple(slot.stock() for slot in self.slots.values()), self.counts())

    def recount(self, addresses: Iterable[Address]) -> list[str]:
        """Compare counters and order with an index that is built from `addresses`; one sentence per difference."""
        real = PoolIndex()
        real.withheld, real.suspected, real.pinned_ranges = self.withheld, self.suspected, self.pinned_ranges
        real._claimed, real.draining = self._claimed, self.draining
        for slot in self.slots.values():
            real.put_eni(slot.eni)
        for address in addresses:
            real.put(address)
        differences = []
        for counted, actual in zip(self.stock().enis, real.stock().enis, strict=True):
            if counted != actual:
                differences.append(f"memory counts {counted} where {actual} is")
        if self._buckets() != real._buckets():
            differences.append("memory's lists of free addresses differ from the addresses that are free")
        return differences

    def _buckets(self) -> dict[EniId, dict[IpNetwork | None, Bucket]]:
        return {eni_id: slot.buckets for eni_id, slot in self.slots.items()}

    def _is_offered(self, address: Address, *, is_withheld: bool) -> bool:
        """Whether an address is free, not withheld, and no unit of work is changing it."""
        return address.is_free and not is_withheld and address.address not in self._claimed

    def _is_withheld(self, address: Address) -> bool:
        return self._is_in_doubt(address) or self._is_pinned(address)

    def _is_in_doubt(self, address: Address) -> bool:
        return bool(self.withheld) and address.address in self.withheld  # the first test saves hashing the address

    def _is_pinned(self, address: Address) -> bool:
        """Whether only an ADD that asks for this address gets it. An address of a prefix is pinned only while it is kept for a pod."""
        if address.kept_for is not None:
            return True
        if not self.pinned_ranges or address.prefix is not None:
            return False
        return any(address.address in pinned for pinned in self.pinned_ranges)

    def _is_suspected(self, address: Address) -> bool:
        return bool(self.suspected) and address.address in self.suspected
