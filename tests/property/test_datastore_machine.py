"""The datastore against a plain-Python model, through any sequence of changes, roll-backs and crashes, in either family."""

# ruff: noqa: PT012 - a block is one unit of work, which must be rolled back as a whole

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ipamd.datastore.open import OpenedDatastore
from ipamd.datastore.store import SqlDatastore
from ipamd.model.address import Address, AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.eni import Eni
from ipamd.model.errors import DatastoreError, InvariantError, PoolEmptyError, UnknownAttachmentError
from ipamd.model.family import IPV4, IPV6, Family, IpAddress, IpNetwork
from ipamd.model.ids import AttachmentKey
from ipamd.model.pool_counts import PoolCounts
from ipamd.model.words import MANY
from tests.unit.datastore.support import (
    START,
    FakeClock,
    a_branch,
    a_key,
    an_attachment,
    an_eni,
    crashed_copy,
    eni_id,
    open_at,
    raw,
)

FREE, RESERVED, ASSIGNED, COOLING, QUARANTINED = AddressState
ENIS = (0, 1)
PREFIXES = {n: IPv4Network(f"10.0.{n}.16/28") for n in ENIS}
POOL = {
    **{IPv4Address(f"10.0.{n}.{100 + i}"): (n, False) for n in ENIS for i in range(3)},
    **{IPv4Address(f"10.0.{n}.{16 + i}"): (n, True) for n in ENIS for i in range(2)},
}
"""Address -> (ENI, in a prefix)."""

PREFIXES_6 = {n: IPv6Network(f"2001:db8:0:{n}::/80") for n in ENIS}
POOL_6 = {PREFIXES_6[n][place]: (n, True) for n in ENIS for place in (0, 1, 2, 4, -2, -1)}
RESTS = {prefix[-1] for prefix in PREFIXES_6.values()}
"""The addresses whose rows stand for those that have none."""
CURSOR = 2**48 - 4
"""Two places below the end: what is given meets what is adopted, at the beginning too."""

enis = st.sampled_from(ENIS)
addresses = st.runner().flatmap(lambda machine: st.sampled_from(sorted(machine.pool)))
keys = st.builds(a_key, st.integers(0, 4))
SHM = "/dev/shm" if Path("/dev/shm").is_dir() else None


class Undo(Exception):
    """Leaves a unit of work."""


class DatastoreMachine(RuleBasedStateMachine):
    """Each rule predicts from the model whether the datastore accepts, does it there, and then in the model.

    The model has what has a row. `given`: what ADDs had; in a /80 it comes again after all others only, whatever happens (I8).
    """

    family: Family = IPV4
    prefixes: Mapping[int, IpNetwork] = PREFIXES
    pool: Mapping[IpAddress, tuple[int, bool]] = POOL

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(dir=SHM))
        self.generation = 0
        self.path = self.directory / "0" / "state.db"
        self.clock = FakeClock()
        self.store: SqlDatastore = self.opened().datastore
        if self.family.is_sparse:
            self.store.close()
            raw(self.path, f"UPDATE meta SET value = '{CURSOR}' WHERE name = 'cursor'")
            self.store = self.opened().datastore
        self.given: set[IpAddress] = set()
        self.enis: dict[str, Eni] = {}
        self.addresses: dict[IpAddress, Address] = {}
        self.attachments: dict[AttachmentKey, Attachment] = {}
        self.tombstones: set[AttachmentKey] = set()
        self.free_since: dict[IpAddress, datetime] = {}
        self.held: frozenset[IpAddress] = frozenset()

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.directory)

    def now(self) -> datetime:
        """Let a second pass: the time of what the datastore does next."""
        self.clock.pause(1)
        return self.clock.now()

    def opened(self) -> OpenedDatastore:
        return open_at(self.path, clock=self.clock, family=self.family)

    def found(self, address: IpAddress) -> Address | None:
        """What the model has of an address; of a /80 also one without a row."""
        for rest in RESTS & self.addresses.keys() - {address}:
            row = self.addresses[rest]
            if address not in self.addresses and row.prefix is not None and address in row.prefix:
                return replace(row, address=address)
        return self.addresses.get(address)

    def state(self, address: IpAddress) -> AddressState | None:
        found = self.found(address)
        return found.state if found is not None else None

    def reserved_for(self, key: AttachmentKey) -> Address | None:
        return next((a for a in self.addresses.values() if a.state is RESERVED and a.owner == key), None)

    def free(self, address: Address) -> None:
        if self.family.is_sparse and address.address not in RESTS:
            self.addresses.pop(address.address, None)
            return
        self.addresses[address.address] = address
        self.free_since[address.address] = address.since

    @initialize()
    def two_enis(self) -> None:
        for number in ENIS:
            self.put_eni(number, True, True)
            for in_prefix in (False, True):
                self.add(number, [a for a, place in self.pool.items() if place == (number, in_prefix)], in_prefix)

    @rule(number=enis, host_ready=st.booleans(), managed=st.booleans())
    def put_eni(self, number: int, host_ready: bool, managed: bool) -> None:
        eni = an_eni(number, host_ready=host_ready, managed=managed)
        if eni.eni_id not in self.enis and self.branch_in(None, [eni.primary_address]):
            with pytest.raises(InvariantError), self.store.transaction() as unit:
                unit.put_eni(eni)
            return
        with self.store.transaction() as unit:
            unit.put_eni(eni)
        self.enis[eni.eni_id] = eni

    @rule(number=enis)
    def remove_eni(self, number: int) -> None:
        on_it = [a for a in self.addresses.values() if a.eni_id == eni_id(number)]
        if any(a.state in (ASSIGNED, RESERVED) for a in on_it):
            with pytest.raises(InvariantError), self.store.transaction() as unit:
                unit.remove_eni(eni_id(number), reason="test")
            return
        with self.store.transaction() as unit:
            unit.remove_eni(eni_id(number), reason="test")
        self.enis.pop(eni_id(number), None)
        for address in on_it:
            del self.addresses[address.address]

    @rule(number=enis, chosen=st.lists(addresses, max_size=4), in_prefix=st.booleans())
    def add(self, number: int, chosen: list[IpAddress], in_prefix: bool) -> None:
        now = self.now()
        chosen = [address for address in chosen if self.pool[address] == (number, in_prefix)]
        if self.family.is_sparse:
            chosen = [address for address in chosen if address in RESTS]
        prefix = self.prefixes[number] if in_prefix else None
        if eni_id(number) not in self.enis or (chosen and self.branch_in(prefix, chosen)):
            with pytest.raises(InvariantError), self.store.transaction() as unit:
                unit.add_addresses(eni_id(number), chosen, prefix=prefix)
            return
        with self.store.transaction() as unit:
            unit.add_addresses(eni_id(number), chosen, prefix=prefix)
        for address in chosen:
            if address not in self.addresses:
                self.free(Address(address, eni_id(number), FREE, now, prefix))

    @rule(number=enis)
    def add_primary(self, number: int) -> None:
        with pytest.raises(InvariantError), self.store.transaction() as unit:
            unit.add_addresses(eni_id(number), [an_eni(number).primary_address])

    @rule(address=addresses)
    def remove(self, address: IpAddress) -> None:
        self.now()
        of_it = [row for row in self.addresses.values() if address in RESTS and row.prefix and address in row.prefix]
        if self.state(address) in (ASSIGNED, RESERVED) or any(row.is_in_use and not row.is_lost for row in of_it):
            with pytest.raises(InvariantError), self.store.transaction() as unit:
                unit.remove_addresses([address], reason="test")
            return
        with self.store.transaction() as unit:
            unit.remove_addresses([address], reason="test")
        self.addresses.pop(address, None)

    @rule(number=enis)
    def add_what_has_no_row(self, number: int) -> None:
        """No address of a /80 is recorded as free by itself."""
        prefix = PREFIXES_6[number]
        if not self.family.is_sparse or eni_id(number) not in self.enis or self.found(prefix[1]):
            return
        with pytest.raises(InvariantError), self.store.transaction() as unit:
            unit.add_addresses(eni_id(number), [prefix[1]], prefix=prefix)

    @rule(key=keys, has_egress=st.booleans())
    def reserve(self, key: AttachmentKey, has_egress: bool) -> None:
        egress = (IPV4 if self.family is IPV6 else IPV6) if has_egress else None
        now = self.now()
        ready = {e.eni_id for e in self.enis.values() if e.host_ready and e.managed}
        free = {a.address for a in self.addresses.values() if a.state is FREE and a.eni_id in ready} - self.held
        if key in self.attachments or self.reserved_for(key):
            with pytest.raises(InvariantError):
                self.store.reserve(key, extra_family=egress)
        elif not free:
            with pytest.raises(PoolEmptyError):
                self.store.reserve(key, extra_family=egress)
        else:
            taken = self.store.reserve(key, extra_family=egress)
            before = self.found(taken.address)
            assert before is not None
            if self.family.is_sparse and before.prefix is not None:
                assert before.prefix[-1] in free
                assert before.state is FREE
                assert taken.address not in self.given | {before.prefix[0], before.prefix[-1]}
            else:
                assert taken.address in free
            other = taken.other_address
            assert (other is None) == (egress is None)
            assert other is None or other not in {a.other_address for a in self.addresses.values()}
            self.addresses[taken.address] = replace(before, state=RESERVED, owner=key, since=now, reason="", other_address=other)

    @rule(key=keys, address=addresses)
    def confirm_another(self, key: AttachmentKey, address: IpAddress) -> None:
        found = self.found(address) or Address(address, eni_id(0), FREE, START)
        if found.state is RESERVED and found.owner == key:
            return
        with pytest.raises(DatastoreError), self.store.transaction() as unit:
            unit.confirm(an_attachment(found, key, at=self.now()))

    @rule(key=keys)
    def confirm(self, key: AttachmentKey) -> None:
        reserved = self.reserved_for(key)
        if reserved is None:
            return
        attachment = an_attachment(reserved, key, at=self.now())
        if key in self.tombstones:
            with pytest.raises(InvariantError), self.store.transaction() as unit:
                unit.confirm(attachment)
            return
        with self.store.transaction() as unit:
            unit.confirm(attachment)
        self.assigned(attachment)
        self.given.add(attachment.address)

    def assigned(self, attachment: Attachment) -> None:
        self.attachments[attachment.key] = attachment
        before = self.found(attachment.address)
        assert before is not None
        self.addresses[attachment.address] = replace(
            before,
            state=ASSIGNED,
            owner=attachment.key,
            since=attachment.created_at,
            cooling_until=None,
            reason="",
        )

    def cooled_down(self, address: IpAddress, now: datetime, until: datetime, reason: str) -> None:
        self.addresses[address] = replace(
            self.addresses[address], state=COOLING, owner=None, since=now, cooling_until=until, reason=reason
        )

    @rule(key=keys)
    def abort(self, key: AttachmentKey) -> None:
        reserved = self.reserved_for(key)
        if reserved is None:
            return
        now = self.now()
        with self.store.transaction() as unit:
            unit.abort(reserved.address, cooldown=timedelta(0), reason="wiring failed")
        self.cooled_down(reserved.address, now, now, "wiring failed")
        self.given.add(reserved.address)

    @rule(key=keys)
    def return_unused(self, key: AttachmentKey) -> None:
        reserved = self.reserved_for(key)
        if reserved is None:
            return
        now = self.now()
        with self.store.transaction() as unit:
            unit.return_unused(reserved.address, cooldown=timedelta(0), reason="nothing was wired")
        if reserved.is_lost:
            self.cooled_down(reserved.address, now, now, "nothing was wired")
            return
        self.free(
            replace(
                self.addresses[reserved.address],
                state=FREE,
                owner=None,
                since=now,
                reason="nothing was wired",
                other_address=None,
            )
        )

    @rule(key=keys, cooldown_s=st.sampled_from([0, 5, 1000]), bury=st.booleans())
    def unassign(self, key: AttachmentKey, cooldown_s: int, bury: bool) -> None:
        now = self.now()
        cooldown = timedelta(seconds=cooldown_s)
        with self.store.transaction() as unit:
            if key in self.attachments:
                assert unit.unassign(key, cooldown=cooldown, reason="DEL") == self.attachments[key]
            else:
                with pytest.raises(UnknownAttachmentError):
                    unit.unassign(key, cooldown=cooldown, reason="DEL")
            if bury:
                unit.put_tombstone(key)
        if key in self.attachments and (gone := self.attachments.pop(key)).uplink is None:
            self.cooled_down(gone.address, now, now + cooldown, "DEL")
        if bury:
            self.tombstones.add(key)

    @rule(
        key=keys,
        vlan=st.integers(1, 3),
        chosen=st.none() | addresses | st.sampled_from([an_eni(n).primary_address for n in ENIS]),
    )
    def attach_branch(self, key: AttachmentKey, vlan: int, chosen: IpAddress | None) -> None:
        """A branch ENI with an address of its own, or one that the pool or an ENI has, or had."""
        attachment = a_branch(vlan, key, at=self.now())
        attachment = replace(attachment, address=chosen or attachment.address)
        of_others = any(one.address == attachment.address or one.uplink == attachment.uplink for one in self.attachments.values())
        is_primary = attachment.address in {eni.primary_address for eni in self.enis.values()}
        is_taken = of_others or is_primary or self.found(attachment.address) is not None
        if is_taken or key in self.attachments or key in self.tombstones or self.reserved_for(key):
            with pytest.raises(InvariantError), self.store.transaction() as unit:
                unit.confirm(attachment)
            return
        with self.store.transaction() as unit:
            unit.confirm(attachment)
        self.attachments[key] = attachment

    @rule(key=keys, said=st.sampled_from(["", "another MAC"]))
    def mark_branch(self, key: AttachmentKey, said: str) -> None:
        if (known := self.attachments.get(key)) and known.uplink is not None:
            with self.store.transaction() as unit:
                unit.record_contradiction(key, contradiction=said)
            self.attachments[key] = replace(known, contradiction=said)

    def branch_in(self, prefix: IpNetwork | None, chosen: Collection[IpAddress]) -> bool:
        """Whether a branch ENI has one of these addresses, or one of a /80."""
        held = [one.address for one in self.attachments.values() if one.uplink is not None]
        return any(one in chosen or (self.family.is_sparse and prefix is not None and one in prefix) for one in held)

    @rule()
    def drop_tombstones(self) -> None:
        self.now()
        with self.store.transaction() as unit:
            assert unit.drop_tombstones(older_than=timedelta(0)) == len(self.tombstones)
        self.tombstones.clear()

    @rule(address=addresses)
    def free_cooled(self, address: IpAddress) -> None:
        now = self.now()
        if self.state(address) is not COOLING:
            with pytest.raises(DatastoreError), self.store.transaction() as unit:
                unit.free(address, reason="test")
            return
        with self.store.transaction() as unit:
            unit.free(address, reason="test")
        if self.addresses[address].is_lost:
            del self.addresses[address]
            return
        freed = replace(self.addresses[address], state=FREE, since=now, cooling_until=None, reason="test", other_address=None)
        self.free(freed)

    @rule(address=addresses)
    def quarantine(self, address: IpAddress) -> None:
        now = self.now()
        before = self.found(address)
        if before is None or before.state not in (FREE, RESERVED, COOLING) or (self.family.is_sparse and address in RESTS):
            with pytest.raises(DatastoreError), self.store.transaction() as unit:
                unit.quarantine(address, reason="test")
            return
        with self.store.transaction() as unit:
            unit.quarantine(address, reason="test")
        self.addresses[address] = replace(before, state=QUARANTINED, since=now, owner=None, cooling_until=None, reason="test")

    @rule(address=addresses)
    def resolve(self, address: IpAddress) -> None:
        now = self.now()
        if self.state(address) is not QUARANTINED:
            with pytest.raises(DatastoreError), self.store.transaction() as unit:
                unit.resolve(address, cooldown=timedelta(seconds=30), reason="test")
            return
        with self.store.transaction() as unit:
            unit.resolve(address, cooldown=timedelta(seconds=30), reason="test")
        self.cooled_down(address, now, now + timedelta(seconds=30), "test")

    @rule(address=addresses)
    def lose(self, address: IpAddress) -> None:
        now = self.now()
        with self.store.transaction() as unit:
            unit.lose(address, reason="not shown")
        if address in self.addresses and self.state(address) is FREE:
            del self.addresses[address]
            for row in [row for row in self.addresses.values() if address in RESTS and row.prefix and address in row.prefix]:
                if not row.is_lost:
                    self.addresses[row.address] = replace(row, lost_since=now, lost_reason="not shown")
        elif address in self.addresses and not self.addresses[address].is_lost:
            self.addresses[address] = replace(self.addresses[address], lost_since=now, lost_reason="not shown")

    @rule(address=addresses)
    def heal(self, address: IpAddress) -> None:
        with self.store.transaction() as unit:
            unit.heal(address, reason="shown")
        if address in self.addresses:
            self.addresses[address] = replace(self.addresses[address], lost_since=None, lost_reason="")

    @rule(chosen=st.frozensets(addresses, max_size=6))
    def hold(self, chosen: frozenset[IpAddress]) -> None:
        self.store.withhold(chosen)
        self.held = chosen

    @rule(key=keys, address=addresses)
    def adopt(self, key: AttachmentKey, address: IpAddress) -> None:
        found = self.found(address)
        attachment = an_attachment(found or Address(address, eni_id(0), FREE, START), key, at=self.now())
        fits = self.state(address) in (FREE, COOLING, QUARANTINED) and not (self.family.is_sparse and address in RESTS)
        if not fits or key in self.tombstones or key in self.attachments or self.reserved_for(key):
            with pytest.raises(DatastoreError), self.store.transaction() as unit:
                unit.adopt(attachment)
            return
        with self.store.transaction() as unit:
            unit.adopt(attachment)
        self.assigned(attachment)

    @rule(key=keys, address=addresses)
    def undone(self, key: AttachmentKey, address: IpAddress) -> None:
        """Do what can be done, and leave with an exception."""
        with pytest.raises(Undo), self.store.transaction() as unit:
            unit.put_tombstone(a_key(77))
            if key in self.attachments:
                unit.unassign(key, cooldown=timedelta(0), reason="test")
            if self.state(address) in (FREE, COOLING, QUARANTINED) and address not in RESTS:
                unit.remove_addresses([address], reason="test")
            raise Undo

    @rule()
    def crash_and_reopen(self) -> None:
        """Take what is on disk at this instant, as after kill -9: same boot, reservations forgotten (I5)."""
        self.generation += 1
        copy = crashed_copy(self.path, self.directory / str(self.generation))
        self.store.close()
        self.path = copy
        opened = self.opened()
        assert opened.report.is_sound
        self.store, self.held = opened.datastore, frozenset()
        for address in [a for a in self.addresses.values() if a.state is RESERVED]:
            if address.is_lost or self.family.is_sparse:
                del self.addresses[address.address]
                continue
            stored = self.store.address(address.address)
            assert stored is not None
            self.addresses[address.address] = replace(
                address, state=FREE, owner=None, since=self.free_since[address.address], reason=stored.reason, other_address=None
            )

    @invariant()
    def equals_the_model(self) -> None:
        """Memory equals the model, the disk equals memory, and nothing contradicts itself."""
        assert {a.address: a for a in self.store.addresses()} == self.addresses
        assert {a.key: a for a in self.store.attachments()} == self.attachments
        assert {e.eni_id: e for e in self.store.enis()} == self.enis
        assert {key for key in map(a_key, range(5)) if self.store.is_tombstoned(key)} == self.tombstones
        assert self.store.counts() == self.expected_counts([a for a in self.addresses.values() if self.enis[a.eni_id].managed])
        for one in self.store.stock().enis:
            on_it = [a for a in self.addresses.values() if a.eni_id == one.eni.eni_id]
            single = [a for a in on_it if a.prefix is None and not a.is_lost]
            in_prefix = [a for a in on_it if a.prefix is not None]
            is_there = any(not a.is_lost for a in in_prefix)
            is_free = bool(in_prefix) and all(a.state is FREE and a.address not in self.held for a in in_prefix)
            assert one.counts == self.expected_counts(on_it)
            assert (one.used_slot_count, one.prefix_count) == (len(single) + is_there, is_there)
            assert one.free_prefix_count == is_free
        assert self.store.audit() == []

    def expected_counts(self, rows: list[Address]) -> PoolCounts:
        million = sum(a.address in RESTS for a in rows) * (MANY - 1)
        held = sum(a.address in RESTS and a.address in self.held for a in rows) * (MANY - 1)
        states = [a.state for a in rows if not a.is_lost]
        return PoolCounts(
            **{str(state): states.count(state) + million * (state is FREE) for state in AddressState},
            lost=sum(a.is_lost for a in rows),
            lost_in_use=sum(a.is_lost and a.is_in_use for a in rows),
            withheld=held + sum(a.state is FREE and a.address in self.held for a in rows),
        )

    @invariant()
    def one_address_one_attachment(self) -> None:
        """I1: no two live attachments share an address. I6: none has a primary one."""
        held = [attachment.address for attachment in self.store.attachments()]
        assert len(held) == len(set(held))
        primaries = {eni.primary_address for eni in self.store.enis()}
        assert primaries.isdisjoint(address.address for address in self.store.addresses())


class SparseDatastoreMachine(DatastoreMachine):
    """The same of IPv6: of a /80 only what is not free has a row."""

    family = IPV6
    prefixes = PREFIXES_6
    pool = POOL_6


EXAMPLES = 90 if os.environ.get("VPC_IPAMD_HEAVY") else 20
"""Other ones in each run."""

TestDatastoreMachine = DatastoreMachine.TestCase
TestSparseDatastoreMachine = SparseDatastoreMachine.TestCase
TestDatastoreMachine.settings = TestSparseDatastoreMachine.settings = settings(max_examples=EXAMPLES, stateful_step_count=40)
