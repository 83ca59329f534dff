"""Which address is given next, and how many there are of each kind: kept with every change, so that reading costs the ENIs only.

An address is offered if it is free, not held back, and no unit of work is just changing it. Used under the lock of `MemoryState`.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address

from ipamd.datastore.buckets import COUNTED, EniSlot
from ipamd.model.address import Address, AddressState
from ipamd.model.eni import Eni
from ipamd.model.ids import EniId
from ipamd.model.release import Draining
from ipamd.model.snapshot import eni_place
from ipamd.model.stock import PoolCounts, Stock


class PoolIndex:
    """The ENIs with their counters and their free addresses in order."""

    def __init__(self) -> None:
        self.slots: dict[EniId, EniSlot] = {}
        self.held: frozenset[IPv4Address] = frozenset()
        self._claimed: set[IPv4Address] = set()
        self._draining = Draining()

    def put_eni(self, eni: Eni) -> None:
        """Add an ENI, or replace what is known of it."""
        slot = self.slots.get(eni.eni_id)
        if slot is None:
            slot = self.slots[eni.eni_id] = EniSlot(eni)
            slot.drain(self._draining)
        else:
            slot.eni = eni

    def put(self, address: Address) -> None:
        """Count an address in, and offer it if it may be given. Its ENI must be known."""
        is_held = self._is_held(address)
        self.slots[address.eni_id].put(address, is_held=is_held, is_offered=not is_held and self._may_be_given(address))

    def drop(self, address: Address) -> None:
        """Count out an address that was put as it is here."""
        self.slots[address.eni_id].drop(address, is_held=self._is_held(address))

    def first(self) -> IPv4Address | None:
        """The address that is given next; None if there is none. Cost: the number of ENIs."""
        slots = [slot for slot in self.slots.values() if slot.is_assignable]
        return IPv4Address(min(slots, key=EniSlot.preference).densest_bucket().free[0][1]) if slots else None

    def claim(self, address: IPv4Address, found: Address | None) -> None:
        """Withdraw an address until `release`; `found` is what it is now."""
        self._claimed.add(address)
        if found is not None:
            self.slots[found.eni_id].withdraw(found)

    def release(self, address: IPv4Address, found: Address | None) -> None:
        """Undo a claim."""
        self._claimed.discard(address)
        if found is not None and not self._is_held(found) and self._may_be_given(found):
            self.slots[found.eni_id].offer(found)

    def hold(self, held: frozenset[IPv4Address], *, changed: Iterable[Address]) -> None:
        """Replace what is held back; `changed` are the known addresses that are in only one of the two sets."""
        rows = list(changed)
        for row in rows:
            self.drop(row)
        self.held = held
        for row in rows:
            self.put(row)

    def set_draining(self, draining: Draining) -> None:
        """Replace what gives addresses last. Cost: the number of ENIs, and of their prefixes if the kind changes."""
        if draining != self._draining:
            self._draining = draining
            for slot in self.slots.values():
                slot.drain(draining)

    def counts(self) -> PoolCounts:
        """Sum up the managed ENIs."""
        tallies = [slot.tally for slot in self.slots.values() if slot.eni.managed]
        return PoolCounts(**{name: sum(tally[name] for tally in tallies) for name in COUNTED})

    def stock(self) -> Stock:
        """Read the counters of every ENI."""
        slots = sorted(self.slots.values(), key=lambda slot: eni_place(slot.eni))
        return Stock(tuple(slot.stock() for slot in slots), self.counts())

    def recount(self, addresses: Iterable[Address]) -> list[str]:
        """Compare counters and order with ones made anew from `addresses`; one sentence per difference."""
        real = PoolIndex()
        real.held, real._claimed, real._draining = self.held, self._claimed, self._draining
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
        """Whether it is free and no unit of work has it; what is held back is asked for apart."""
        if address.state is not AddressState.FREE or address.is_lost:
            return False
        return not (self._claimed and address.address in self._claimed)

    def _is_held(self, address: Address) -> bool:
        return bool(self.held) and address.address in self.held  # hashing an address costs more than asking whether any is held
