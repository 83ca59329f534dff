"""Each change a unit of work offers: what it does, and what it refuses without changing anything."""

# ruff: noqa: PT012 - a block is one unit of work, which must be rolled back as a whole

from __future__ import annotations

from datetime import timedelta
from ipaddress import IPv4Network

import pytest

from ipamd.datastore.buckets import COUNTED
from ipamd.datastore.store import SqlDatastore
from ipamd.model.address import AddressState
from ipamd.model.eni import EniState
from ipamd.model.errors import DatastoreError, IllegalTransitionError, InvariantError, PoolEmptyError, UnknownAttachmentError
from ipamd.model.failures import FailureCode
from ipamd.model.history import LedgerEvent
from ipamd.model.intent import Intent, IntentKind
from ipamd.model.pool_counts import PoolCounts
from ipamd.model.record import fields, replace
from tests.errors import failed
from tests.unit.datastore.support import (
    COOLDOWN,
    START,
    FakeClock,
    a_key,
    an_attachment,
    an_eni,
    attach,
    eni_id,
    ip,
)

LATER = START + timedelta(minutes=1)


def test_of_equal_enis_the_lower_place_gives_first(store: SqlDatastore) -> None:
    """In whatever order ENIs came, and where one moves to another place; what is counted has the order of `PoolCounts`."""
    assert tuple(one.name for one in fields(PoolCounts)) == COUNTED
    count = store.counts().free  # on ENI 0
    with store.transaction() as unit:
        for number in (3, 1, 2):
            unit.put_eni(an_eni(number))
            unit.add_addresses(eni_id(number), [ip(f"10.0.{number}.{last}") for last in (10, 11)])
    assert [one.eni.device_index for one in store.stock().enis] == [0, 1, 2, 3]
    given = [store.reserve(a_key(number)).eni_id for number in range(count + 6)]
    assert given == [eni_id(0)] * count + [eni_id(number) for number in (1, 1, 2, 2, 3, 3)]
    with store.transaction() as unit:
        unit.put_eni(replace(an_eni(1), device_index=5))
    assert [one.eni.device_index for one in store.stock().enis] == [0, 2, 3, 5]
    assert store.counts() == PoolCounts(reserved=count + 6)


def test_life_of_an_address(store: SqlDatastore, clock: FakeClock) -> None:
    """free, reserved, assigned, cooling, free: each step shows in memory and equals the disk."""
    key = a_key()
    reserved = store.reserve(key)
    assert (reserved.state, reserved.owner) == (AddressState.RESERVED, key)
    attachment = an_attachment(reserved, key)
    with store.transaction() as unit:
        unit.confirm(attachment)
        assert store.attachment(key) is None, "memory must not run ahead of the disk"
    assert store.attachment(key) == attachment
    with store.transaction() as unit:
        assert unit.unassign(key, cooldown=COOLDOWN, reason="DEL") == attachment
        unit.put_tombstone(key)
    found = store.address(attachment.address)
    assert found is not None
    assert (found.state, found.owner, found.cooling_until) == (AddressState.COOLING, None, START + COOLDOWN)
    assert store.addresses(state=AddressState.COOLING) == (found,)
    assert store.is_tombstoned(key)
    with store.transaction() as unit:
        unit.free(attachment.address, reason="cooled")
    assert store.counts().free == 4
    assert store.audit() == []


def test_reservation_belongs_to_its_key(store: SqlDatastore) -> None:
    """Another key cannot confirm my reservation, and I keep it (I1)."""
    mine = store.reserve(a_key(1))
    with pytest.raises(InvariantError, check=failed(FailureCode.ADDRESS_RESERVED)), store.transaction() as unit:
        unit.confirm(an_attachment(mine, a_key(2)))
    assert store.address(mine.address) == mine


def test_one_address_for_a_key(store: SqlDatastore) -> None:
    """A key with a reservation or an attachment gets no second address (I1)."""
    store.reserve(a_key(1))
    attach(store, a_key(2))
    for number in (1, 2):
        with pytest.raises(InvariantError, check=failed(FailureCode.HAS_ADDRESS)):
            store.reserve(a_key(number))


def test_two_interfaces_of_one_sandbox(store: SqlDatastore) -> None:
    """The key is (container ID, ifname): a second interface is a second attachment."""
    attach(store, a_key(1, "eth0"))
    attach(store, a_key(1, "net1"))
    assert store.counts().assigned == 2


def test_abort_cools_on_disk(store: SqlDatastore) -> None:
    """An aborted address is cooling, on disk too, and its key may reserve again (I5, I8)."""
    reserved = store.reserve(a_key())
    with store.transaction() as unit:
        unit.abort(reserved.address, cooldown=COOLDOWN, reason="wiring failed")
    assert store.counts().cooling == 1
    assert store.audit() == []
    assert store.reserve(a_key()).address != reserved.address


def test_an_address_that_reached_nobody_is_free_again(store: SqlDatastore) -> None:
    """What is given back is free, on disk too; an assigned address has no such way (I8)."""
    reserved = store.reserve(a_key())
    with store.transaction() as unit:
        unit.return_unused(reserved.address, cooldown=COOLDOWN, reason="nothing was wired")
    assert (store.counts().cooling, store.counts().reserved, store.counts().free) == (0, 0, 4)
    assert store.audit() == []
    attached = attach(store, a_key(1))
    with pytest.raises(DatastoreError), store.transaction() as unit:
        unit.return_unused(attached.address, cooldown=COOLDOWN, reason="never")


def test_a_lost_address_is_not_given_back(store: SqlDatastore) -> None:
    """What EC2 took away while an ADD had it cools and is then removed (I7)."""
    reserved = store.reserve(a_key())
    with store.transaction() as unit:
        unit.lose(reserved.address, reason="gone at EC2")
    with store.transaction() as unit:
        unit.return_unused(reserved.address, cooldown=COOLDOWN, reason="nothing was wired")
    row = store.address(reserved.address)
    assert row is not None
    assert row.state is AddressState.COOLING


def test_empty_pool_tells_counts(store: SqlDatastore) -> None:
    """A pool without a free address refuses with the sandbox and the counts by state (I14)."""
    for number in range(4):
        attach(store, a_key(number))
    with pytest.raises(PoolEmptyError) as refusal:
        store.reserve(a_key(9))
    assert a_key(9).container_id in refusal.value.message
    assert refusal.value.details == "4 addresses: 4 assigned, 0 reserved, 0 cooling, 0 quarantined, 0 free"


@pytest.mark.parametrize(
    "unready",
    [
        an_eni(0, state=EniState.DETACHING),
        an_eni(0, host_ready=False),
        an_eni(0, managed=False),
    ],
    ids=["detaching", "no-host-routing", "unmanaged"],
)
def test_only_ready_enis_give_addresses(store: SqlDatastore, unready: object) -> None:
    """An ENI that is not attached, not host-ready or not managed gives no address; ready again, it does (I7)."""
    with store.transaction() as unit:
        unit.put_eni(unready)  # type: ignore[arg-type]
    with pytest.raises(PoolEmptyError):
        store.reserve(a_key())
    with store.transaction() as unit:
        unit.put_eni(an_eni(0))
    assert store.reserve(a_key()).state is AddressState.RESERVED
    assert store.audit() == []


def test_counts_are_of_managed_enis(store: SqlDatastore) -> None:
    """An ENI that stops being managed takes its addresses out of the counts, and back."""
    with store.transaction() as unit:
        unit.put_eni(an_eni(0, managed=False))
    assert store.counts().total == 0
    with store.transaction() as unit:
        unit.put_eni(an_eni(0))
    assert store.counts().free == 4
    assert store.audit() == []


@pytest.mark.parametrize("state", [AddressState.ASSIGNED, AddressState.RESERVED])
def test_addresses_in_use_stay(store: SqlDatastore, state: AddressState) -> None:
    """Neither an assigned nor a reserved address can be removed, alone or with its ENI (I2)."""
    address = attach(store, a_key()).address if state is AddressState.ASSIGNED else store.reserve(a_key()).address
    with pytest.raises(InvariantError, check=failed(FailureCode.ADDRESSES_IN_USE)), store.transaction() as unit:
        unit.remove_addresses([address], reason="EC2 does not list it")
    with pytest.raises(InvariantError, check=failed(FailureCode.ADDRESSES_IN_USE)), store.transaction() as unit:
        unit.remove_eni(eni_id(0), reason="excess")
    assert store.counts().total == 4
    assert store.audit() == []


def test_primary_address_is_never_given(store: SqlDatastore) -> None:
    """An ENI's primary address cannot enter the pool, and a pool address cannot become primary (I6)."""
    with (
        pytest.raises(InvariantError, check=failed(FailureCode.ADDRESS_IS_PRIMARY, address="10.0.0.4")),
        store.transaction() as unit,
    ):
        unit.add_addresses(eni_id(0), [ip("10.0.0.4")])
    with pytest.raises(InvariantError, check=failed(FailureCode.ADDRESS_IS_PRIMARY)), store.transaction() as unit:
        unit.put_eni(an_eni(1))
        unit.add_addresses(eni_id(0), [an_eni(1).primary_address])
    with store.transaction() as unit:
        unit.add_addresses(eni_id(0), [an_eni(2).primary_address])
    with pytest.raises(InvariantError, check=failed(FailureCode.PRIMARY_IN_POOL)), store.transaction() as unit:
        unit.put_eni(an_eni(2))
    assert store.audit() == []


def test_adding_known_addresses_again(store: SqlDatastore) -> None:
    """An address that is known on the same ENI keeps its state when EC2 confirms it again."""
    attachment = attach(store, a_key())
    with store.transaction() as unit:
        unit.add_addresses(eni_id(0), [attachment.address, ip("10.0.0.200")])
    assert store.counts().assigned == 1
    assert store.counts().total == 5


def test_address_of_another_eni(store: SqlDatastore) -> None:
    """An address cannot be on two ENIs at once (I1), and needs an ENI that is known (I7)."""
    with pytest.raises(InvariantError, check=failed(FailureCode.ADDRESS_ELSEWHERE)), store.transaction() as unit:
        unit.put_eni(an_eni(1))
        unit.add_addresses(eni_id(1), [ip("10.0.0.100")])
    assert len(store.enis()) == 1, "the whole unit is rolled back"
    with pytest.raises(InvariantError, check=failed(FailureCode.ENI_UNKNOWN)), store.transaction() as unit:
        unit.add_addresses(eni_id(7), [ip("10.0.7.100")])


def test_prefix_holds_its_addresses(store: SqlDatastore) -> None:
    """A prefix is a /28 of one ENI that contains its addresses, and goes with the last of them."""
    prefix = IPv4Network("10.0.9.16/28")
    for wrong in (IPv4Network("10.0.9.0/27"), IPv4Network("10.0.9.32/28")):
        with (
            pytest.raises(InvariantError, check=failed(FailureCode.ADDRESS_OUTSIDE_PREFIX, address="10.0.9.16")),
            store.transaction() as unit,
        ):
            unit.add_addresses(eni_id(0), [ip("10.0.9.16")], prefix=wrong)
    with store.transaction() as unit:
        unit.put_eni(an_eni(1))
        unit.add_addresses(eni_id(0), list(prefix), prefix=prefix)
    with store.transaction() as unit:
        unit.remove_addresses([ip("10.0.9.16")], reason="test")
    with pytest.raises(InvariantError, check=failed(FailureCode.CONSTRAINT_REFUSED)), store.transaction() as unit:
        unit.add_addresses(eni_id(1), [ip("10.0.9.16")], prefix=prefix)
    with store.transaction() as unit:
        unit.remove_addresses(list(prefix), reason="test")
        unit.add_addresses(eni_id(1), list(prefix), prefix=prefix)
    assert {a.eni_id for a in store.addresses() if a.prefix == prefix} == {eni_id(1)}
    assert store.audit() == []


def test_remove_eni_takes_its_addresses(store: SqlDatastore) -> None:
    """Forgetting an ENI forgets its unassigned addresses with it; a second time is fine."""
    for _ in range(2):
        with store.transaction() as unit:
            unit.remove_eni(eni_id(0), reason="detached")
    assert (store.enis(), store.addresses(), store.counts().total) == ((), (), 0)
    assert store.audit() == []


def test_adopt_gives_back(store: SqlDatastore) -> None:
    """A wired sandbox that was not known is adopted onto a free, cooling or quarantined address, never onto another's (I1)."""
    free, cooldown, quarantined, taken = (ip(f"10.0.0.{100 + i}") for i in range(4))
    # Longest-free first with equal times is lowest first: reserve three to reach the states.
    for number, address in enumerate((free, cooldown, quarantined, taken)):
        assert attach(store, a_key(10 + number)).address == address
    with store.transaction() as unit:
        for number in range(3):
            unit.unassign(a_key(10 + number), cooldown=timedelta(0), reason="test")
        unit.free(free, reason="test")
        unit.quarantine(quarantined, reason="test")
    for number, address in enumerate((free, cooldown, quarantined)):
        found = store.address(address)
        assert found is not None
        with store.transaction() as unit:
            unit.adopt(an_attachment(found, a_key(number)))
    found = store.address(taken)
    assert found is not None
    with (
        pytest.raises(IllegalTransitionError, check=failed(FailureCode.ILLEGAL_TRANSITION, address="10.0.0.103")),
        store.transaction() as unit,
    ):
        unit.adopt(an_attachment(found, a_key(5)))
    assert store.counts().assigned == 4
    assert store.audit() == []


def test_tombstoned_key_cannot_return(store: SqlDatastore, clock: FakeClock) -> None:
    """After DEL neither ADD nor adoption brings the key back, until its tombstone is dropped (I4)."""
    reserved = store.reserve(a_key())
    with store.transaction() as unit:
        unit.put_tombstone(a_key())
    with pytest.raises(InvariantError, check=failed(FailureCode.DELETED_BEFORE)), store.transaction() as unit:
        unit.confirm(an_attachment(reserved, a_key()))
    clock.at += timedelta(days=400)
    with store.transaction() as unit:
        assert unit.drop_tombstones(older_than=timedelta(seconds=1)) == 0, "the wall clock was set: no time has passed"
    clock.at -= timedelta(days=800)
    clock.ticks += 60
    with store.transaction() as unit:
        assert unit.drop_tombstones(older_than=timedelta(seconds=60)) == 0
        assert unit.drop_tombstones(older_than=timedelta(seconds=59)) == 1
        assert unit.drop_tombstones(older_than=timedelta(seconds=59)) == 0
        unit.confirm(an_attachment(reserved, a_key()))
    assert not store.is_tombstoned(a_key())
    assert store.audit() == []


def test_unknown_unassign_leaves_the_unit_usable(store: SqlDatastore) -> None:
    """A DEL for an unknown key can still write its tombstone in the same unit of work (I3, I4)."""
    with store.transaction() as unit:
        with pytest.raises(UnknownAttachmentError):
            unit.unassign(a_key(), cooldown=timedelta(minutes=1), reason="DEL")
        unit.put_tombstone(a_key())
    assert store.is_tombstoned(a_key())


def test_cooling_ends_when_its_owner_says_so(store: SqlDatastore, clock: FakeClock) -> None:
    """A wall clock that was set back must not keep an address for ever: the monotonic clock of `cooling` decides (I8)."""
    attachment = attach(store, a_key())
    with store.transaction() as unit:
        unit.unassign(a_key(), cooldown=timedelta(minutes=1), reason="DEL")
    clock.at -= timedelta(days=1)
    with store.transaction() as unit:
        unit.free(attachment.address, reason="cooldown over")
    assert store.counts().cooling == 0


def test_wrong_state_names_the_address(store: SqlDatastore) -> None:
    """A pair that is not in the transition table raises and names the address."""
    with (
        pytest.raises(IllegalTransitionError, check=failed(FailureCode.ILLEGAL_TRANSITION, address="10.0.0.100")),
        store.transaction() as unit,
    ):
        unit.free(ip("10.0.0.100"), reason="test")
    with (
        pytest.raises(IllegalTransitionError, check=failed(FailureCode.ILLEGAL_TRANSITION, address="10.0.0.100")),
        store.transaction() as unit,
    ):
        unit.resolve(ip("10.0.0.100"), cooldown=COOLDOWN, reason="test")
    assert store.counts().free == 4
    attach(store, a_key())
    with (
        pytest.raises(IllegalTransitionError, check=failed(FailureCode.ILLEGAL_TRANSITION, address="10.0.0.100")),
        store.transaction() as unit,
    ):
        unit.quarantine(ip("10.0.0.100"), reason="test")
    assert store.counts().assigned == 1


def test_swallowed_refusal_still_dooms(store: SqlDatastore) -> None:
    """A caller that catches a refusal inside the unit cannot commit the half that went before it."""
    with pytest.raises(InvariantError), store.transaction() as unit:
        unit.put_eni(an_eni(1))
        with pytest.raises(InvariantError):
            unit.add_addresses(eni_id(0), [ip("10.0.0.4")])
    assert len(store.enis()) == 1
    assert store.audit() == []


def test_one_unit_has_one_time(store: SqlDatastore, clock: FakeClock) -> None:
    """All changes of a unit have the time at which it was opened, and the cooldown counts from then on both clocks (I8)."""
    attachment = attach(store, a_key())
    with store.transaction() as unit:
        unit.put_tombstone(a_key())
        clock.at += timedelta(seconds=5)
        unit.unassign(a_key(), cooldown=COOLDOWN, reason="DEL")
    row = store.address(attachment.address)
    assert row is not None
    assert (row.since, row.cooling_until, row.cooldown_deadline_s) == (START, START + COOLDOWN, clock.ticks + 30.0)
    assert [entry.at for entry in store.history(a_key().container_id, limit=2)] == [START, START]


def test_a_snapshot_is_one_moment(store: SqlDatastore) -> None:
    """A snapshot shows what was committed when it was taken, reservations included, and later changes do not touch it."""
    attachment = attach(store, a_key(1))
    reserved = store.reserve(a_key(2))
    intent = Intent("i-1", IntentKind.CREATE_ENI, START, {}, "token-1")
    with store.transaction() as unit:
        unit.put_tombstone(a_key(3))
        unit.open_intent(intent)
    before = store.snapshot()
    with store.transaction() as unit:
        unit.put_eni(an_eni(1))
        unit.unassign(a_key(1), cooldown=COOLDOWN, reason="DEL")
        assert store.snapshot() == before, "an open unit of work is not seen"
    assert dict(before.attachments) == {attachment.key: attachment}
    assert before.addresses[reserved.address] == reserved
    assert before.addresses[attachment.address].state is AddressState.ASSIGNED
    assert (set(before.enis), set(before.tombstones)) == ({eni_id(0)}, {a_key(3)})
    assert dict(before.intents) == {"i-1": intent}


def test_exception_rolls_back_both(store: SqlDatastore) -> None:
    """Leaving a unit of work with any exception changes neither disk nor memory, and hidden addresses come back."""
    with pytest.raises(KeyboardInterrupt), store.transaction() as unit:
        unit.put_eni(an_eni(1))
        unit.remove_addresses([ip("10.0.0.100")], reason="test")
        unit.put_tombstone(a_key())
        raise KeyboardInterrupt
    assert store.counts().free == 4
    assert store.audit() == []
    assert store.reserve(a_key()).address == ip("10.0.0.100")


def test_address_under_change_is_not_reserved(store: SqlDatastore) -> None:
    """A free address that an open unit of work is removing cannot be reserved meanwhile (I2, I5)."""
    with store.transaction() as unit:
        unit.remove_addresses([ip(f"10.0.0.{100 + i}") for i in range(3)], reason="excess")
        assert store.reserve(a_key(1)).address == ip("10.0.0.103")
        with pytest.raises(PoolEmptyError, check=failed(FailureCode.NO_FREE_ADDRESS)):
            store.reserve(a_key(2))
    assert store.counts().total == 1
    assert store.audit() == []


def test_ended_unit_refuses(store: SqlDatastore) -> None:
    """A unit of work that is kept beyond its block refuses, and units of one thread do not nest."""
    with store.transaction() as unit, pytest.raises(DatastoreError, check=failed(FailureCode.UNITS_NESTED)), store.transaction():
        pass
    with pytest.raises(DatastoreError, check=failed(FailureCode.UNIT_ENDED)):
        unit.put_tombstone(a_key())


def test_intents(store: SqlDatastore) -> None:
    """An intent is open from before the call until it is closed, oldest first, and its trace stays in the ledger (I9)."""
    old = Intent("i-1", IntentKind.CREATE_ENI, START, {"device_index": "1"}, "token-1")
    new = Intent("i-2", IntentKind.UNASSIGN, LATER, {"eni_id": eni_id(0)})
    with store.transaction() as unit:
        unit.open_intent(new)
        unit.open_intent(old)
    assert store.open_intents() == (old, new)
    learnt = Intent("i-1", IntentKind.CREATE_ENI, START, {"device_index": "1", "eni_id": eni_id(1)}, "token-1")
    with store.transaction() as unit:
        unit.update_intent(learnt)
        unit.close_intent("i-2", outcome="done")
    assert store.open_intents() == (learnt,)
    assert store.audit() == []
    with pytest.raises(InvariantError, check=failed(FailureCode.INTENT_NOT_OPEN, intent="i-2")), store.transaction() as unit:
        unit.close_intent("i-2", outcome="again")
    with pytest.raises(InvariantError, check=failed(FailureCode.INTENT_OPEN, intent="i-1")), store.transaction() as unit:
        unit.open_intent(learnt)
    with pytest.raises(InvariantError, check=failed(FailureCode.INTENT_NOT_OPEN, intent="i-9")), store.transaction() as unit:
        unit.update_intent(Intent("i-9", IntentKind.ASSIGN, START, {}))


def test_naive_time_is_refused(store: SqlDatastore, clock: FakeClock) -> None:
    """A time without a zone cannot be recorded: the two clocks and the zones are never guessed."""
    clock.at = START.replace(tzinfo=None)
    with (
        pytest.raises(InvariantError, check=failed(FailureCode.VALUE_WITHOUT_PLACE, method="put_tombstone")),
        store.transaction() as unit,
    ):
        unit.put_tombstone(a_key())
    assert not store.is_tombstoned(a_key())


def test_history(store: SqlDatastore) -> None:
    """History is found by address or by the beginning of a container ID, oldest first, the last of them when there are more."""
    attachment = attach(store, a_key(0xABC))
    with store.transaction() as unit:
        unit.unassign(a_key(0xABC), cooldown=timedelta(minutes=1), reason="DEL")
        unit.record_event(LedgerEvent.KEPT, key=a_key(0xABD), detail="no address is free")
    of_address = [entry.event for entry in store.history(str(attachment.address), limit=10)]
    assert of_address == [LedgerEvent.ADDED, LedgerEvent.ASSIGNED, LedgerEvent.UNASSIGNED]
    assert [e.event for e in store.history(str(attachment.address), limit=1)] == [LedgerEvent.UNASSIGNED]
    full = a_key(0xABC).container_id
    assert [e.event for e in store.history(full, limit=10)] == [LedgerEvent.ASSIGNED, LedgerEvent.UNASSIGNED]
    assert len(store.history(full[:-1], limit=10)) == 3
    for nothing in ("", "%", "0_", full.upper(), full + "0"):
        assert store.history(nothing, limit=10) == ()
