"""The copy of the last committed state in memory, which serves every read and every reservation.

`PoolIndex` keeps the free addresses in order, so that a reservation reads a few lists and never the disk (I5, I10). Only `reserve`,
and `apply` with a committed unit of work, change rows. `withhold`, `suspect`, `pin` and `set_draining` change which free addresses are
assigned, and in which order. A unit of work first claims each address that it changes, which hides the address from `reserve` until
the unit ends. Otherwise one address could be removed on disk and reserved in memory at the same time.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from ipaddress import IPv4Network
from typing import Generic, TypeVar

from ipamd.datastore.card_index import CardIndex
from ipamd.datastore.pod_index import PodIndex
from ipamd.datastore.pool_index import PoolIndex
from ipamd.model.absences import Doubts
from ipamd.model.address import Address, AddressEvent, AddressState, of_rest
from ipamd.model.attachment import POD_IFNAME, Attachment
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni
from ipamd.model.errors import InvariantError, LocalRangeEmptyError, PoolEmptyError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import Family, IpAddress, IpNetwork, family_of
from ipamd.model.ids import AttachmentKey, EniId, PodName
from ipamd.model.intent import Intent, leaving_addresses
from ipamd.model.pool_counts import PoolCounts, Stock, counts_of_pool
from ipamd.model.release import Draining
from ipamd.model.repeats import PodId
from ipamd.model.snapshot import Snapshot, eni_place
from ipamd.ports.process import Clock

K = TypeVar("K")
V = TypeVar("V")


class Overlay(Generic[K, V]):
    """The rows of one table as a unit of work sees them: committed rows, replaced by its own `changes`. None: the row is removed."""

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
    """The rows that a unit of work reads and changes. They are dropped on rollback, and applied after COMMIT.

    Only the thread that holds the transaction lock uses it. Meanwhile `reserve`, in other threads, may replace the rows of unclaimed
    addresses, and add rows in a /80. All other rows change only when this view is applied.
    """

    def __init__(self, memory: MemoryState) -> None:
        rows = memory.rows
        self.memory = memory
        self.enis = Overlay(rows.enis)
        self.addresses = Overlay(rows.addresses)
        self.attachments = Overlay(rows.attachments)
        self.tombstones = Overlay(rows.tombstones)
        self.intents = Overlay(rows.intents)
        self.policy_pods = Overlay(rows.policy_pods)
        self.doubts = rows.doubts
        self.identity = rows.identity
        self.are_pods_marked = rows.are_pods_marked
        self.claimed: set[IpAddress] = set()

    def address(self, address: IpAddress) -> Address | None:
        """Find one address, and claim it until the unit ends (see `MemoryState.claim`)."""
        if address in self.addresses.changes:
            row = self.addresses.changes[address]
        else:
            self.claimed.add(address)
            row = self.memory.claim(address)
        return row or of_rest(address, self.addresses.get)

    def known_address(self, address: IpAddress) -> Address:
        """Find one address, and claim it like `address`. Raises: InvariantError if it is not in the pool."""
        row = self.address(address)
        if row is None:
            raise failure(InvariantError, FailureCode.ADDRESS_UNKNOWN, address=address)
        return row

    def addresses_of(self, eni_id: EniId) -> list[Address]:
        """Claim all addresses of one ENI for this unit of work, and return them in ascending order."""
        addresses = sorted(address for address, row in self.addresses.all().items() if row.eni_id == eni_id)
        return [self.known_address(address) for address in addresses]

    def eni_of_primary(self, address: IpAddress) -> EniId | None:
        """Return the ENI that has this primary address (I6)."""
        return next((eni.eni_id for eni in self.enis.all().values() if eni.primary_address == address), None)


class MemoryState:
    """The state in memory, and the methods of `ports.Datastore` that do not need the disk.

    A method holds the lock for a few dictionary operations, or for one pass over the rows, and waits for nothing meanwhile.
    """

    def __init__(self, snapshot: Snapshot, *, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._pool = PoolIndex()
        self._pods = PodIndex()
        self._cards = CardIndex()
        self._doubted: frozenset[IpAddress] = frozenset()
        self.rows = snapshot.copy()
        self.reservations: dict[AttachmentKey, IpAddress] = {}
        self._free_extra: deque[IpAddress] | None = None
        """The free addresses of the local range, which is for extra legs: no row has them as its `other_address`. The address that has
        been free for longest comes first. None until the first one is requested.
        """
        for eni in snapshot.enis.values():
            self._pool.put_eni(eni)
        for address in snapshot.addresses.values():
            self._pool.put(address)
        for attachment in snapshot.attachments.values():
            self._pods.replace(None, attachment)
            self._cards.add(attachment.key)
        self._withhold()

    def reserve(
        self,
        key: AttachmentKey,
        *,
        extra_family: Family | None = None,
        address: IpAddress | None = None,
        pod: str = "",
        pool: str = "",
    ) -> Address:
        now, now_s = self._clock.now(), self._clock.monotonic()
        with self._lock:
            taken = self.reservations.get(key)
            if taken is None and key in self.rows.attachments:
                taken = self.rows.attachments[key].address
            if taken is not None:
                raise failure(InvariantError, FailureCode.HAS_ADDRESS, sandbox=key, address=taken)
            first = self._pool.first(pool) if address is None else self._named(address, pod, pool)
            if first is None:
                raise self._pool_empty(key, pool)
            free = self.rows.addresses[first]
            state = free.after(AddressEvent.RESERVE)
            other = self._take_extra_address(key, extra_family) if extra_family else None
            reserved = replace(free, state=state, since=now, since_monotonic_s=now_s, owner=key, reason="", other_address=other)
            if free.is_rest and free.prefix is not None:
                reserved = replace(reserved, address=self._next_of(free.prefix))
            else:
                self._pool.drop(free)
            self._pool.put(reserved)
            self.rows.addresses[reserved.address] = reserved
            self.reservations[key] = reserved.address
            return reserved

    def _named(self, address: IpAddress, pod: str, pool: str) -> IpAddress | None:
        """Return `address`, for which an ADD asks; None if it cannot be assigned to `pod` from `pool` now. The lock is held."""
        row = self.rows.addresses.get(address)
        if row is None or row.kept_for not in (None, pod) or not self._pool.has_named(row, pool):
            return None
        return address

    def claim(self, address: IpAddress) -> Address | None:
        """Hide an address from `reserve`, and return its row as it is now; None if the pool does not have the address. Only the thread
        that holds the transaction may call this method.
        """
        with self._lock:
            row = self.rows.addresses.get(address)
            self._pool.claim(address, row, is_claimed=True)
            return row or of_rest(address, self.rows.addresses.get)

    def release(self, addresses: Iterable[IpAddress]) -> None:
        """End claims: `reserve` may take these addresses again."""
        with self._lock:
            for address in addresses:
                self._pool.claim(address, self.rows.addresses.get(address), is_claimed=False)

    def withhold(self, addresses: frozenset[IpAddress]) -> None:
        with self._lock:
            self._doubted = addresses
            self._withhold()

    def suspect(self, addresses: frozenset[IpAddress]) -> None:
        with self._lock:
            rows = self.rows.addresses
            changed = [rows[address] for address in self._pool.suspected ^ addresses if address in rows]
            with self._pool.reclassified(changed):
                self._pool.suspected = addresses

    def pin(self, ranges: tuple[IPv4Network, ...]) -> None:
        with self._lock, self._pool.reclassified(self.rows.addresses.values()):
            self._pool.pinned_ranges = ranges

    def pinned(self) -> frozenset[IpAddress]:
        with self._lock:
            return frozenset(self._pool.pinned)

    def draining(self) -> Draining:
        return self._pool.draining

    def set_draining(self, draining: Draining) -> None:
        with self._lock:
            self._pool.set_draining(draining)

    def apply(self, view: View) -> None:
        """Make a committed unit of work visible, all at once. This cannot fail, because every change was checked before COMMIT."""
        with self._lock:
            for eni in view.enis.changes.values():
                if eni is not None:
                    self._pool.put_eni(eni)
            for address, new in view.addresses.changes.items():
                self._replace_address(address, new)
            for eni_id, eni in view.enis.changes.items():
                if eni is None:
                    self._pool.slots.pop(eni_id, None)
            for key, attachment in view.attachments.changes.items():
                self._pods.replace(self.rows.attachments.get(key), attachment)
                if attachment is None:
                    self._cards.discard(key)
                else:
                    self._cards.add(key)
            for changed in (view.enis, view.addresses, view.attachments, view.tombstones, view.intents, view.policy_pods):
                changed.commit()
            self._replace_single_facts(view)
            if view.intents.changes:
                self._withhold()

    def _replace_address(self, address: IpAddress, new: Address | None) -> None:
        """Update pool, reservations and extra addresses for one changed row; `apply` replaces the row itself. The lock is held."""
        old = self.rows.addresses.get(address)
        if old is not None:
            self._pool.drop(old)
            if old.state is AddressState.RESERVED and old.owner is not None:
                self.reservations.pop(old.owner, None)
        if new is not None:
            self._pool.put(new)
            # The address stays reserved if it was marked as lost, or healed, during an ADD.
            if new.state is AddressState.RESERVED and new.owner is not None:
                self.reservations[new.owner] = address
        self._move_extra_address(old, new)

    def _replace_single_facts(self, view: View) -> None:
        """Take over the values that are not rows: identity, doubts, and whether pods are marked. The lock is held."""
        rows = self.rows
        if (
            view.are_pods_marked is not rows.are_pods_marked
            or view.identity is not rows.identity
            or view.doubts is not rows.doubts
        ):
            self.rows = replace(rows, doubts=view.doubts, identity=view.identity, are_pods_marked=view.are_pods_marked)

    def identity(self) -> InstanceIdentity | None:
        return self.rows.identity

    def are_pods_marked(self) -> bool:
        return self.rows.are_pods_marked

    def may_have_lost_row_of(self, key: AttachmentKey) -> bool:
        unplaced = self.rows.unplaced
        return self.rows.was_lost if unplaced is None else str(key) in unplaced

    def eni(self, eni_id: EniId) -> Eni | None:
        with self._lock:
            return self.rows.enis.get(eni_id)

    def address(self, address: IpAddress) -> Address | None:
        with self._lock:
            return self.rows.addresses.get(address) or of_rest(address, self.rows.addresses.get)

    def attachment(self, key: AttachmentKey) -> Attachment | None:
        with self._lock:
            return self.rows.attachments.get(key)

    def card_interfaces(self, key: AttachmentKey) -> list[Attachment]:
        if key.ifname != POD_IFNAME:
            return []
        with self._lock:
            return [self.rows.attachments[card_key] for card_key in self._cards.keys_of(key.container_id)]

    def is_tombstoned(self, key: AttachmentKey) -> bool:
        with self._lock:
            return key in self.rows.tombstones

    def counts(self) -> PoolCounts:
        with self._lock:
            return self._pool.counts()

    def stock(self) -> Stock:
        with self._lock:
            return self._pool.stock()

    def enis(self) -> tuple[Eni, ...]:
        with self._lock:
            rows = list(self.rows.enis.values())
        return tuple(sorted(rows, key=eni_place))

    def addresses(self, *, state: AddressState | None = None) -> tuple[Address, ...]:
        with self._lock:
            rows = list(self.rows.addresses.values())
        # Sorted by number: comparing the address objects takes five times as long, and a node may have 11,760 addresses.
        selected = [row for row in rows if state is None or row.state is state]
        return tuple(sorted(selected, key=lambda row: int(row.address)))

    def sandboxes_of(self, pod: PodId) -> frozenset[str]:
        with self._lock:
            return self._pods.sandboxes_of(pod)

    def repeated_pods(self) -> Counter[PodId]:
        with self._lock:
            return self._pods.repeated()

    def attachments(self) -> tuple[Attachment, ...]:
        with self._lock:
            rows = list(self.rows.attachments.values())
        return tuple(sorted(rows, key=lambda attachment: (attachment.created_at, attachment.key)))

    def open_intents(self) -> tuple[Intent, ...]:
        with self._lock:
            rows = list(self.rows.intents.values())
        return tuple(sorted(rows, key=lambda intent: (intent.opened_at, intent.intent_id)))

    def policy_pods(self) -> dict[PodName, datetime]:
        with self._lock:
            return self.rows.policy_pods.copy()

    def snapshot(self) -> Snapshot:
        with self._lock:
            return self.rows.copy()

    def withheld(self) -> frozenset[IpAddress]:
        if not self._pool.pinned:
            return self._pool.withheld
        with self._lock:
            return self._pool.withheld | self._pool.pinned

    def doubts(self) -> Doubts:
        return self.rows.doubts

    def recount(self) -> list[str]:
        """Compare counters and buckets with the addresses; one sentence per difference. Must not be called during a transaction."""
        with self._lock:
            differences = self._pool.recount(self.rows.addresses.values())
            if self._free_extra is not None:
                taken = [row.other_address for row in self.rows.addresses.values() if row.other_address]
                if len({*taken, *self._free_extra}) != len(taken) + len(self._free_extra):
                    differences.append(
                        "memory's list of free addresses of the local range differs from the addresses that are free"
                    )
            return differences

    def _take_extra_address(self, key: AttachmentKey, family: Family) -> IpAddress:
        if self._free_extra is None:
            addresses = family.local_range.addresses()
            taken_addresses = {row.other_address for row in self.rows.addresses.values()}
            # The order in which these addresses became free is not stored, so each process starts at another address.
            start = int(self._clock.now().timestamp()) % len(addresses)
            self._free_extra = deque(
                address for address in addresses[start:] + addresses[:start] if address not in taken_addresses
            )
        if not self._free_extra:
            taken = [row for row in self.rows.addresses.values() if row.other_address]
            cooling = sum(not row.is_in_use for row in taken)
            raise failure(
                LocalRangeEmptyError,
                FailureCode.NO_EXTRA_ADDRESS,
                network=family.local_range.network,
                sandbox=key,
                taken=len(taken),
                ifname=family.local_range.ifname,
                cooling=cooling,
                step="retry when one has cooled" if cooling else "delete pods of this node",
            )
        return self._free_extra.popleft()

    def _move_extra_address(self, old: Address | None, new: Address | None) -> None:
        """Free the extra address of the old row, and take that of the new row."""
        before = old.other_address if old else None
        after = new.other_address if new else None
        if self._free_extra is None or before == after:
            return
        if before:
            self._free_extra.append(before)
        if after:
            with suppress(ValueError):
                self._free_extra.remove(after)

    def _next_of(self, prefix: IpNetwork) -> IpAddress:
        """Return the next address in a /80 that has no row; after the last address the search starts again.

        The first and the last address of the /80 are never used.
        """
        cursor = self.rows.cursor
        while True:
            cursor = cursor % (prefix.num_addresses - 2) + 1
            address = family_of(prefix).address(int(prefix.network_address) + cursor)
            if address not in self.rows.addresses and not self._pool.is_claimed(address):
                self.rows = replace(self.rows, cursor=cursor)
                return address

    def _withhold(self) -> None:
        """Withhold the addresses that are in doubt, and those that an open intent releases."""
        withheld = self._doubted | leaving_addresses(self.rows.intents.values())
        if withheld != self._pool.withheld:
            rows = self.rows.addresses
            changed = [rows[address] for address in self._pool.withheld ^ withheld if address in rows]
            with self._pool.reclassified(changed):
                self._pool.withheld = withheld

    def _pool_empty(self, key: AttachmentKey, pool: str) -> PoolEmptyError:
        counts = counts_of_pool(self._pool.stock(), pool)
        details = str(counts)
        if counts.free > counts.withheld:
            details += " (the free ones are on ENIs that are not ready, or are just being changed)"
        return failure(PoolEmptyError, FailureCode.NO_FREE_ADDRESS, sandbox=key.container_id, counts=details)
