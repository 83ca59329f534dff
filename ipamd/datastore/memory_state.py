"""The copy of the last committed state in memory, which serves every read and every reservation.

`PoolIndex` keeps the free addresses in order, so that a reservation looks at a few lists and never at a disk (I5, I10). Only these
methods write: `reserve`, `hold`, `set_draining`, and `apply` of a committed unit of work. A unit of work first claims each address
that it is going to change, which hides it from `reserve` until the unit ends: without that, an address could be removed on disk and
reserved in memory at one time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address
from typing import TypeVar

from ipamd.datastore.buckets import PoolIndex
from ipamd.model.absence import Doubts
from ipamd.model.address import Address, AddressEvent, AddressState, next_state
from ipamd.model.attachment import Attachment
from ipamd.model.eni import Eni
from ipamd.model.errors import InvariantError, PoolEmptyError
from ipamd.model.ids import AttachmentKey, EniId
from ipamd.model.intent import Intent, leaving_addresses
from ipamd.model.pool import PoolCounts, Stock
from ipamd.model.release import Draining
from ipamd.model.snapshot import Snapshot, Tombstone, eni_place
from ipamd.ports import Clock

# The changes of one unit of work: an overlay over memory, dropped on rollback and applied after COMMIT.
#
# A value of None means "removed". Only the thread that holds the transaction lock uses it.


@dataclass(frozen=True, slots=True)
class Staged:
    """Changes by identity, in the order in which they were first made; of `doubts` the last one replaces what was there."""

    enis: dict[EniId, Eni | None] = field(default_factory=dict)
    addresses: dict[IPv4Address, Address | None] = field(default_factory=dict)
    attachments: dict[AttachmentKey, Attachment | None] = field(default_factory=dict)
    tombstones: dict[AttachmentKey, Tombstone | None] = field(default_factory=dict)
    intents: dict[str, Intent | None] = field(default_factory=dict)
    doubts: list[Doubts] = field(default_factory=list)


K = TypeVar("K")
V = TypeVar("V")


class MemoryState:
    """The state in memory, and the part of `ports.Datastore` that it answers.

    Every method takes the one lock for a few dictionary steps, or one copy, and calls nothing outside.
    """

    def __init__(self, snapshot: Snapshot, *, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._pool = PoolIndex()
        self._addresses: dict[IPv4Address, Address] = {}
        self._attachments: dict[AttachmentKey, Attachment] = {}
        self._reservations: dict[AttachmentKey, IPv4Address] = {}
        self._tombstones: dict[AttachmentKey, Tombstone] = {}
        self._intents: dict[str, Intent] = {}
        self._primaries: dict[IPv4Address, EniId] = {}
        self._doubted: frozenset[IPv4Address] = frozenset()
        for eni in snapshot.enis.values():
            self._put_eni(eni)
        for address in snapshot.addresses.values():
            self._pool.put(address)
        self._addresses.update(snapshot.addresses)
        self._attachments.update(snapshot.attachments)
        self._tombstones.update(snapshot.tombstones)
        self._intents.update(snapshot.intents)
        self._hold()
        self._doubts = snapshot.doubts

    def reserve(self, key: AttachmentKey) -> Address:
        """Take a free address for `key`: not draining, densest ENI, densest prefix in it, longest free in that
        (docs/life.md, "The life of an ADD").

        Ties go to the lower network card, device index, prefix and address; addresses outside any prefix come before prefixes.
        Only attached, host-ready, managed ENIs count (I7); lost and held addresses are not given. Cost: the number of ENIs.
        Raises: PoolEmptyError with the counts; InvariantError if the key has an address already (I1).
        """
        now, now_s = self._clock.now(), self._clock.monotonic()
        with self._lock:
            taken = self._reservations.get(key)
            if taken is None and key in self._attachments:
                taken = self._attachments[key].address
            if taken is not None:
                raise InvariantError(f"sandbox {key} has {taken} already", details="I1: one address per attachment")
            first = self._pool.first()
            if first is None:
                raise self._pool_empty(key)
            free = self._addresses[first]
            state = next_state(free.state, AddressEvent.RESERVE)
            reserved = replace(free, state=state, since=now, since_monotonic_s=now_s, owner=key, reason="")
            self._put_address(reserved)
            return reserved

    def claim(self, address: IPv4Address) -> Address | None:
        """Hide an address from `reserve` and return it as it is now; only the holder of the transaction may call."""
        with self._lock:
            found = self._addresses.get(address)
            self._pool.claim(address, found)
            return found

    def release(self, addresses: Iterable[IPv4Address]) -> None:
        """Undo claims: free addresses are offered to `reserve` again."""
        with self._lock:
            for address in addresses:
                self._pool.release(address, self._addresses.get(address))

    def hold(self, addresses: frozenset[IPv4Address]) -> None:
        """Replace the addresses that `reserve` must not take for now."""
        with self._lock:
            self._doubted = addresses
            self._hold()

    def draining(self) -> Draining:
        """What gives addresses last."""
        return self._pool.draining

    def set_draining(self, draining: Draining) -> None:
        """Replace it."""
        with self._lock:
            self._pool.set_draining(draining)

    def apply(self, staged: Staged) -> None:
        """Make a committed unit of work visible, all at once. It cannot fail: every change was checked before COMMIT."""
        with self._lock:
            for eni in staged.enis.values():
                if eni is not None:
                    self._put_eni(eni)
            for address, changed in staged.addresses.items():
                if changed is None:
                    self._drop_address(address)
                else:
                    self._put_address(changed)
            for eni_id, eni in staged.enis.items():
                if eni is None:
                    self._drop_eni(eni_id)
            _merge(self._attachments, staged.attachments)
            _merge(self._tombstones, staged.tombstones)
            _merge(self._intents, staged.intents)
            if staged.intents:
                self._hold()
            self._doubts = staged.doubts[-1] if staged.doubts else self._doubts

    def eni(self, eni_id: EniId) -> Eni | None:
        """Find one ENI."""
        with self._lock:
            slot = self._pool.slots.get(eni_id)
            return None if slot is None else slot.eni

    def eni_of_primary(self, address: IPv4Address) -> EniId | None:
        """Which ENI has this primary address (I6)."""
        with self._lock:
            return self._primaries.get(address)

    def addresses_of(self, eni_id: EniId) -> list[IPv4Address]:
        """The addresses of one ENI, in no order."""
        with self._lock:
            return [address.address for address in self._addresses.values() if address.eni_id == eni_id]

    def address(self, address: IPv4Address) -> Address | None:
        """Find one address."""
        with self._lock:
            return self._addresses.get(address)

    def attachment(self, key: AttachmentKey) -> Attachment | None:
        """Find one attachment."""
        with self._lock:
            return self._attachments.get(key)

    def reservation(self, key: AttachmentKey) -> IPv4Address | None:
        """The address reserved for a key."""
        with self._lock:
            return self._reservations.get(key)

    def is_tombstoned(self, key: AttachmentKey) -> bool:
        """Whether DEL was done for a key."""
        with self._lock:
            return key in self._tombstones

    def intent(self, intent_id: str) -> Intent | None:
        """Find one open intent."""
        with self._lock:
            return self._intents.get(intent_id)

    def counts(self) -> PoolCounts:
        """Addresses by state over managed ENIs. Cost: the number of ENIs."""
        with self._lock:
            return self._pool.counts()

    def stock(self) -> Stock:
        """ENIs and counters, all at one moment. Cost: the number of ENIs."""
        with self._lock:
            return self._pool.stock()

    def enis(self) -> tuple[Eni, ...]:
        """All ENIs, by network card and device index."""
        with self._lock:
            found = [slot.eni for slot in self._pool.slots.values()]
        return tuple(sorted(found, key=eni_place))

    def addresses(self, *, state: AddressState | None = None) -> tuple[Address, ...]:
        """All addresses, or those in one state, ascending."""
        with self._lock:
            rows = list(self._addresses.values())
        found = rows if state is None else [row for row in rows if row.state is state]
        # By number: comparing the objects takes five times as long, and a node may have 11,760.
        return tuple(sorted(found, key=lambda address: int(address.address)))

    def attachments(self) -> tuple[Attachment, ...]:
        """All attachments, by creation."""
        with self._lock:
            found = list(self._attachments.values())
        return tuple(sorted(found, key=lambda attachment: (attachment.created_at, attachment.key)))

    def tombstones(self) -> dict[AttachmentKey, Tombstone]:
        """All tombstones."""
        with self._lock:
            return dict(self._tombstones)

    def open_intents(self) -> tuple[Intent, ...]:
        """All open intents, oldest first."""
        with self._lock:
            found = list(self._intents.values())
        return tuple(sorted(found, key=lambda intent: (intent.opened_at, intent.intent_id)))

    def snapshot(self) -> Snapshot:
        """Copy everything at one moment; reserved addresses show as reserved."""
        with self._lock:
            return Snapshot(
                {eni_id: slot.eni for eni_id, slot in self._pool.slots.items()},
                dict(self._addresses),
                dict(self._attachments),
                dict(self._tombstones),
                dict(self._intents),
                self._doubts,
            )

    def held(self) -> frozenset[IPv4Address]:
        """Addresses that are given to nobody for now."""
        with self._lock:
            return self._pool.held

    def doubts(self) -> Doubts:
        """What EC2 did not show lately."""
        with self._lock:
            return self._doubts

    def recount(self) -> list[str]:
        """Check counters and buckets against the addresses; only between transactions. One sentence per difference."""
        with self._lock:
            return self._pool.recount(self._addresses.values())

    def _hold(self) -> None:
        """Hold back what is in doubt, and what an open intent gives back to EC2."""
        held = self._doubted | leaving_addresses(self._intents.values())
        if held != self._pool.held:
            changed = [self._addresses[address] for address in self._pool.held ^ held if address in self._addresses]
            self._pool.hold(held, changed=changed)

    def _put_eni(self, eni: Eni) -> None:
        known = self._pool.slots.get(eni.eni_id)
        if known is not None:
            self._primaries.pop(known.eni.primary_address, None)
        self._primaries[eni.primary_address] = eni.eni_id
        self._pool.put_eni(eni)

    def _drop_eni(self, eni_id: EniId) -> None:
        slot = self._pool.slots.pop(eni_id, None)
        if slot is not None:
            self._primaries.pop(slot.eni.primary_address, None)

    def _put_address(self, address: Address) -> None:
        self._drop_address(address.address)
        self._addresses[address.address] = address
        self._pool.put(address)
        if address.state is AddressState.RESERVED and address.owner is not None:
            self._reservations[address.owner] = address.address

    def _drop_address(self, address: IPv4Address) -> None:
        old = self._addresses.pop(address, None)
        if old is None:
            return
        self._pool.drop(old)
        if old.state is AddressState.RESERVED and old.owner is not None:
            self._reservations.pop(old.owner, None)

    def _pool_empty(self, key: AttachmentKey) -> PoolEmptyError:
        counts = self._pool.counts()
        details = str(counts)
        if counts.free > counts.held:
            details += " (the free ones are on ENIs that are not ready, or are just being changed)"
        return PoolEmptyError(f"no address is free for sandbox {key.container_id}", details=details)


def _merge(target: dict[K, V], changes: dict[K, V | None]) -> None:
    for key, value in changes.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = value
