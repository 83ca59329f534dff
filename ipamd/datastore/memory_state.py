"""The copy of the last committed state in memory, which serves every read and every reservation.

`PoolIndex` keeps the free addresses in order, so that a reservation looks at a few lists and never at a disk (I5, I10). Only these
methods write: `reserve`, `hold`, `set_draining`, and `apply` of a committed unit of work. A unit of work first claims each address
that it is going to change, which hides it from `reserve` until the unit ends: without that, an address could be removed on disk and
reserved in memory at one time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Generic, TypeVar

from ipamd.datastore.buckets import PoolIndex
from ipamd.model.address import Address, AddressEvent, AddressState, of_rest
from ipamd.model.attachment import Attachment
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni
from ipamd.model.errors import EgressEmptyError, InvariantError, PoolEmptyError
from ipamd.model.evidence import Doubts
from ipamd.model.family import Family, IpAddress, IpNetwork, family_of
from ipamd.model.ids import AttachmentKey, EniId, PodName
from ipamd.model.intent import Intent, leaving_addresses
from ipamd.model.pool import PoolCounts, Stock
from ipamd.model.release import Draining
from ipamd.model.snapshot import Snapshot, eni_place
from ipamd.ports import Clock

K = TypeVar("K")
V = TypeVar("V")


class Overlay(Generic[K, V]):
    """The rows of one table as a unit of work sees them: its own changes over what is committed; None: removed."""

    def __init__(self, committed: dict[K, V]) -> None:
        self._committed = committed
        self.changes: dict[K, V | None] = {}

    def get(self, key: K) -> V | None:
        """Find one row."""
        return self.changes[key] if key in self.changes else self._committed.get(key)

    def all(self) -> dict[K, V]:
        """Every row."""
        return {key: row for key, row in {**self._committed, **self.changes}.items() if row is not None}

    def commit(self) -> None:
        """Make the changes the committed state."""
        for key, row in self.changes.items():
            if row is None:
                self._committed.pop(key, None)
            else:
                self._committed[key] = row


class View:
    """What one unit of work reads and has changed: dropped on rollback, applied after COMMIT. Used by the thread that holds the
    transaction lock, the only one that adds and removes rows; `reserve` replaces rows of addresses that nobody has
    claimed, and in a /80 makes them.
    """

    def __init__(self, memory: MemoryState) -> None:
        rows = memory.rows
        self.memory = memory
        self.enis = Overlay(rows.enis)
        self.addresses = Overlay(rows.addresses)
        self.attachments = Overlay(rows.attachments)
        self.tombstones = Overlay(rows.tombstones)
        self.intents = Overlay(rows.intents)
        self.owed = Overlay(rows.owed)
        self.doubts = rows.doubts
        self.identity = rows.identity
        self.are_pods_marked = rows.are_pods_marked
        self.claimed: set[IpAddress] = set()

    def address(self, address: IpAddress) -> Address | None:
        """Find one address, and claim it until the unit ends (see `MemoryState.claim`)."""
        if address in self.addresses.changes:
            found = self.addresses.changes[address]
        else:
            self.claimed.add(address)
            found = self.memory.claim(address)
        return found or of_rest(address, self.addresses.get)

    def known_address(self, address: IpAddress) -> Address:
        """Find one address that must be there. Raises: InvariantError."""
        found = self.address(address)
        if found is None:
            raise InvariantError(f"address {address} is not known", details="I7: EC2 has not confirmed it on an ENI of this node")
        return found

    def addresses_of(self, eni_id: EniId) -> list[Address]:
        """All addresses of one ENI, ascending, each claimed."""
        found = sorted(address for address, row in self.addresses.all().items() if row.eni_id == eni_id)
        return [self.known_address(address) for address in found]

    def eni_of_primary(self, address: IpAddress) -> EniId | None:
        """Which ENI has this primary address (I6)."""
        return next((eni.eni_id for eni in self.enis.all().values() if eni.primary_address == address), None)


class MemoryState:
    """The state in memory, and the part of the datastore that it answers.

    Every method takes the one lock for a few dictionary steps, or one copy, and calls nothing outside.
    """

    def __init__(self, snapshot: Snapshot, *, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._pool = PoolIndex()
        self._doubted: frozenset[IpAddress] = frozenset()
        self.rows = snapshot.copy()
        self.reservations: dict[AttachmentKey, IpAddress] = {}
        self._others: deque[IpAddress] | None = None
        """For egress, longest free first: what no row of an address holds. None until the first is asked for."""
        for eni in snapshot.enis.values():
            self._pool.put_eni(eni)
        for address in snapshot.addresses.values():
            self._pool.put(address)
        self._hold()

    def reserve(self, key: AttachmentKey, *, egress: Family | None = None) -> Address:
        """Take a free address for `key`, in memory only (I5): not draining, densest ENI, densest prefix in it, longest free in that
        (docs/life.md, "The life of an ADD").

        Ties go to the lower network card, device index, prefix and address; addresses outside any prefix come before prefixes. Of a
        /80 it is the one above the last that was given, so that none comes again before all others did (I8).
        Only attached, host-ready, managed ENIs count (I7); lost and held addresses are not given. Cost: the number of ENIs.
        `egress`: another family, of which it gets an address too, longest free first.
        Raises: PoolEmptyError with the counts; EgressEmptyError; InvariantError if the key has an address already (I1).
        """
        now, now_s = self._clock.now(), self._clock.monotonic()
        with self._lock:
            taken = self.reservations.get(key)
            if taken is None and key in self.rows.attachments:
                taken = self.rows.attachments[key].address
            if taken is not None:
                raise InvariantError(f"sandbox {key} has {taken} already", details="I1: one address per attachment")
            first = self._pool.first()
            if first is None:
                raise self._pool_empty(key)
            free = self.rows.addresses[first]
            state = free.after(AddressEvent.RESERVE)
            other = self._take_other(key, egress) if egress else None
            reserved = replace(free, state=state, since=now, since_monotonic_s=now_s, owner=key, reason="", other_address=other)
            if free.is_rest and free.prefix is not None:
                reserved = replace(reserved, address=self._next_of(free.prefix))
            else:
                self._pool.drop(free)
            self._pool.put(reserved)
            self.rows.addresses[reserved.address] = reserved
            self.reservations[key] = reserved.address
            return reserved

    def claim(self, address: IpAddress) -> Address | None:
        """Hide an address from `reserve` and return it as it is now; only the holder of the transaction may call."""
        with self._lock:
            found = self.rows.addresses.get(address)
            self._pool.claim(address, found, is_claimed=True)
            return found or of_rest(address, self.rows.addresses.get)

    def release(self, addresses: Iterable[IpAddress]) -> None:
        """Undo claims: free addresses are offered to `reserve` again."""
        with self._lock:
            for address in addresses:
                self._pool.claim(address, self.rows.addresses.get(address), is_claimed=False)

    def hold(self, addresses: frozenset[IpAddress]) -> None:
        """Replace the set of addresses that `reserve` must not take for now, in memory only: their proof is in doubt (I7).

        It may name addresses that are not free or not known; they are held once they become free. What an open `unassign` intent
        names is held besides, from the instant in which the intent is on disk, also after a restart.
        """
        with self._lock:
            self._doubted = addresses
            self._hold()

    def draining(self) -> Draining:
        """What gives addresses last."""
        return self._pool.draining

    def set_draining(self, draining: Draining) -> None:
        """Replace what `reserve` takes only if nothing else has an address to give; in memory only."""
        with self._lock:
            self._pool.set_draining(draining)

    def apply(self, view: View) -> None:
        """Make a committed unit of work visible, all at once. It cannot fail: every change was checked before COMMIT."""
        with self._lock:
            for eni in view.enis.changes.values():
                if eni is not None:
                    self._pool.put_eni(eni)
            for address, new in view.addresses.changes.items():
                old = self.rows.addresses.get(address)
                if old is not None:
                    self._pool.drop(old)
                    if old.state is AddressState.RESERVED and old.owner is not None:
                        self.reservations.pop(old.owner, None)
                if new is not None:
                    self._pool.put(new)
                    if new.state is AddressState.RESERVED and new.owner is not None:  # lost, or healed, while an ADD has it
                        self.reservations[new.owner] = address
                self._move_other(old, new)
            for eni_id, eni in view.enis.changes.items():
                if eni is None:
                    self._pool.slots.pop(eni_id, None)
            for changed in (view.enis, view.addresses, view.attachments, view.tombstones, view.intents, view.owed):
                changed.commit()
            rows = self.rows
            is_other = view.are_pods_marked is not rows.are_pods_marked or view.identity is not rows.identity
            if is_other or view.doubts is not rows.doubts:
                self.rows = replace(rows, doubts=view.doubts, identity=view.identity, are_pods_marked=view.are_pods_marked)
            if view.intents.changes:
                self._hold()

    def identity(self) -> InstanceIdentity | None:
        """What instance metadata last said of the node, in this process or one before it since the boot; None if it never did."""
        return self.rows.identity

    def are_pods_marked(self) -> bool:
        """Whether a pod of this boot had the admission policy's mark."""
        return self.rows.are_pods_marked

    def eni(self, eni_id: EniId) -> Eni | None:
        """Find one ENI."""
        with self._lock:
            return self.rows.enis.get(eni_id)

    def address(self, address: IpAddress) -> Address | None:
        """Find one address; of a /80 also one without a row, which is free."""
        with self._lock:
            return self.rows.addresses.get(address) or of_rest(address, self.rows.addresses.get)

    def attachment(self, key: AttachmentKey) -> Attachment | None:
        """Find one attachment."""
        with self._lock:
            return self.rows.attachments.get(key)

    def is_tombstoned(self, key: AttachmentKey) -> bool:
        """Whether DEL was done for this key."""
        with self._lock:
            return key in self.rows.tombstones

    def counts(self) -> PoolCounts:
        """Addresses by state over managed ENIs. Cost: the number of ENIs."""
        with self._lock:
            return self._pool.counts()

    def stock(self) -> Stock:
        """ENIs with their counters, and the sum, all of one moment. Cost: the number of ENIs, not of addresses."""
        with self._lock:
            return self._pool.stock()

    def enis(self) -> tuple[Eni, ...]:
        """All ENIs, by network card and device index."""
        with self._lock:
            found = list(self.rows.enis.values())
        return tuple(sorted(found, key=eni_place))

    def addresses(self, *, state: AddressState | None = None) -> tuple[Address, ...]:
        """All addresses, or those in one state (lost ones too), ascending. Cost: the number of addresses; not for every ADD."""
        with self._lock:
            rows = list(self.rows.addresses.values())
        # By number: comparing the objects takes five times as long, and a node may have 11,760.
        found = [row for row in rows if state is None or row.state is state]
        return tuple(sorted(found, key=lambda row: int(row.address)))

    def attachments(self) -> tuple[Attachment, ...]:
        """All attachments, by creation."""
        with self._lock:
            found = list(self.rows.attachments.values())
        return tuple(sorted(found, key=lambda attachment: (attachment.created_at, attachment.key)))

    def open_intents(self) -> tuple[Intent, ...]:
        """Open intents, oldest first: their outcome at EC2 is not known."""
        with self._lock:
            found = list(self.rows.intents.values())
        return tuple(sorted(found, key=lambda intent: (intent.opened_at, intent.intent_id)))

    def owed(self) -> dict[PodName, datetime]:
        """Since when the network policy agent may know which pod's name."""
        with self._lock:
            return self.rows.owed.copy()

    def snapshot(self) -> Snapshot:
        """Copy everything at one moment, for readers to whom two reads must not contradict each other; reserved addresses show as
        reserved. Costs a full copy.
        """
        with self._lock:
            return self.rows.copy()

    def held(self) -> frozenset[IpAddress]:
        """Addresses that `reserve` does not take for now."""
        return self._pool.held

    def doubts(self) -> Doubts:
        """ENIs and addresses that EC2 did not show lately; an earlier process may have recorded them."""
        return self.rows.doubts

    def recount(self) -> list[str]:
        """Check counters and buckets against the addresses; only between transactions. One sentence per difference."""
        with self._lock:
            found = self._pool.recount(self.rows.addresses.values())
            if self._others is not None:
                held = [row.other_address for row in self.rows.addresses.values() if row.other_address]
                if len({*held, *self._others}) != len(held) + len(self._others):
                    found.append("memory's list of free addresses for egress differs from the addresses that are free")
            return found

    def _take_other(self, key: AttachmentKey, family: Family) -> IpAddress:
        if self._others is None:
            every, held = family.egress.addresses(), {row.other_address for row in self.rows.addresses.values()}
            # Which of them has been free for longest is not recorded: another start each time does not begin with the same ones.
            start = int(self._clock.now().timestamp()) % len(every)
            self._others = deque(one for one in every[start:] + every[:start] if one not in held)
        if not self._others:
            taken = [row for row in self.rows.addresses.values() if row.other_address]
            cooling = sum(not row.is_in_use for row in taken)
            raise EgressEmptyError(
                f"no address of {family.egress.network} is free for sandbox {key}",
                details=f"cause: all {len(taken)} for {family.egress.ifname} are taken, {cooling} of them cooling; "
                f"next: {'retry when one has cooled' if cooling else 'delete pods of this node'}",
            )
        return self._others.popleft()

    def _move_other(self, old: Address | None, new: Address | None) -> None:
        """The row of an address may have another one for egress than before: what it had is free, what it has is not any more."""
        before, now = (row.other_address if row else None for row in (old, new))
        if self._others is None or before == now:
            return
        if before:
            self._others.append(before)
        if now:
            with suppress(ValueError):
                self._others.remove(now)

    def _next_of(self, prefix: IpNetwork) -> IpAddress:
        """The next address of a /80 that has no row: neither its first one nor its last; after the end it begins anew."""
        cursor = self.rows.cursor
        while True:
            cursor = cursor % (prefix.num_addresses - 2) + 1
            address = family_of(prefix).address(int(prefix.network_address) + cursor)
            if address not in self.rows.addresses and not self._pool.is_claimed(address):
                self.rows = replace(self.rows, cursor=cursor)
                return address

    def _hold(self) -> None:
        """Hold back what is in doubt, and what an open intent releases."""
        held = self._doubted | leaving_addresses(self.rows.intents.values())
        if held != self._pool.held:
            changed = [self.rows.addresses[address] for address in self._pool.held ^ held if address in self.rows.addresses]
            self._pool.hold(held, changed=changed)

    def _pool_empty(self, key: AttachmentKey) -> PoolEmptyError:
        counts = self._pool.counts()
        details = str(counts)
        if counts.free > counts.held:
            details += " (the free ones are on ENIs that are not ready, or are just being changed)"
        return PoolEmptyError(f"no address is free for sandbox {key.container_id}", details=details)
