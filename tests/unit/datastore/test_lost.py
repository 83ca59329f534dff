"""Addresses that EC2 does not show any more: their sandbox keeps them, nobody else gets them, and they go where they would be free."""

from __future__ import annotations

from datetime import timedelta
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from ipamd.datastore.store import SqlDatastore
from ipamd.model.address import AddressState
from ipamd.model.errors import InvariantError, PoolEmptyError
from ipamd.model.failures import FailureCode
from ipamd.model.history import LedgerEvent
from ipamd.model.pool_counts import PoolCounts
from tests.errors import failed
from tests.unit.datastore.support import (
    COOLDOWN,
    START,
    FakeClock,
    a_key,
    an_attachment,
    attach,
    crashed_copy,
    eni_id,
    ip,
    open_at,
    raw,
)


def _lose(store: SqlDatastore, *addresses: str) -> None:
    with store.transaction() as unit:
        for address in addresses:
            unit.lose(ip(address), reason="absent from two answers")


def test_a_lost_free_address_is_gone(store: SqlDatastore) -> None:
    """A free address that is lost is removed at once, and the ledger says why (I7)."""
    _lose(store, "10.0.0.100")
    assert store.address(ip("10.0.0.100")) is None
    assert store.counts() == PoolCounts(free=3)
    events = [(row.event, row.detail) for row in store.history("10.0.0.100", limit=9)][1:]
    assert events == [(LedgerEvent.LOST, "absent from two answers"), (LedgerEvent.REMOVED, "lost: absent from two answers")]
    assert store.audit() == []


def test_a_lost_address_stays_with_its_sandbox(store: SqlDatastore, clock: FakeClock) -> None:
    """Its sandbox keeps it (I2); after DEL it cools, and then it is removed instead of being free (I7)."""
    attachment = attach(store, a_key())
    clock.pause(60)
    _lose(store, str(attachment.address))
    clock.pause(60)
    _lose(store, str(attachment.address))  # repeatable, and it is lost since the first time
    found = store.address(attachment.address)
    assert found is not None
    assert (found.state, found.owner) == (AddressState.ASSIGNED, a_key())
    assert (found.is_lost, found.lost_since, found.lost_reason) == (
        True,
        START + timedelta(seconds=60),
        "absent from two answers",
    )
    assert store.counts() == PoolCounts(free=3, lost=1, lost_in_use=1)
    assert (store.counts().total, store.counts().in_use) == (4, 1)
    assert str(store.counts()).endswith("3 free, 1 lost")
    with store.transaction() as unit:
        unit.unassign(a_key(), cooldown=COOLDOWN, reason="DEL")
    assert store.counts() == PoolCounts(free=3, lost=1)
    with store.transaction() as unit:
        unit.free(attachment.address, reason="cooled")
    assert store.address(attachment.address) is None
    assert store.counts() == PoolCounts(free=3)
    assert store.audit() == []


def test_a_found_address_is_as_before(store: SqlDatastore) -> None:
    """An address that EC2 shows again loses the mark and nothing else, and cools to free."""
    attachment = attach(store, a_key())
    before = store.address(attachment.address)
    _lose(store, str(attachment.address))
    for _ in range(2):
        with store.transaction() as unit:
            unit.heal(attachment.address, reason="EC2 shows it")
            unit.heal(ip("10.0.0.103"), reason="EC2 shows it")  # not lost
            unit.heal(ip("10.9.9.9"), reason="EC2 shows it")  # not known
            unit.lose(ip("10.9.9.9"), reason="not known")
    assert store.address(attachment.address) == before
    assert [row.event for row in store.history(str(attachment.address), limit=2)] == [LedgerEvent.LOST, LedgerEvent.HEALED]
    with store.transaction() as unit:
        unit.unassign(a_key(), cooldown=COOLDOWN, reason="DEL")
        unit.free(attachment.address, reason="cooled")
    assert store.counts() == PoolCounts(free=4)


@pytest.mark.parametrize("end", ["confirm", "abort", "crash"])
def test_lost_while_reserved(path: Path, tmp_path: Path, store: SqlDatastore, end: str) -> None:
    """A reservation may be lost under its ADD: it ends as the ADD ends, and the address is never free again (I5, I7)."""
    reserved = store.reserve(a_key())
    _lose(store, str(reserved.address))
    assert store.counts() == PoolCounts(free=3, lost=1, lost_in_use=1)
    assert store.audit() == []
    with pytest.raises(InvariantError, check=failed(FailureCode.HAS_ADDRESS, address=reserved.address)):
        store.reserve(a_key())
    if end == "crash":
        again = open_at(crashed_copy(path, tmp_path / "copy"))
        assert again.report.is_sound
        assert again.datastore.address(reserved.address) is None
        assert "free when the datastore was opened" in again.datastore.history(str(reserved.address), limit=1)[0].detail
        again.datastore.close()
        return
    with store.transaction() as unit:
        if end == "confirm":
            unit.confirm(an_attachment(reserved, a_key()))
        else:
            unit.abort(reserved.address, cooldown=COOLDOWN, reason="wiring failed")
    found = store.address(reserved.address)
    assert found is not None
    assert (found.state, found.is_lost) == (AddressState.ASSIGNED if end == "confirm" else AddressState.COOLING, True)
    assert store.audit() == []


def test_lost_through_quarantine_and_adoption(store: SqlDatastore) -> None:
    """Quarantine, adoption and a restart leave the mark; losing and quarantining fit into one unit."""
    with store.transaction() as unit:
        unit.quarantine(ip("10.0.0.100"), reason="wired, not recorded")
        unit.lose(ip("10.0.0.100"), reason="not shown")
    quarantined = store.address(ip("10.0.0.100"))
    assert quarantined is not None
    assert (quarantined.state, quarantined.is_lost) == (AddressState.QUARANTINED, True)
    with store.transaction() as unit:
        unit.adopt(an_attachment(quarantined, a_key()))
    adopted = store.address(ip("10.0.0.100"))
    assert adopted is not None
    assert (adopted.state, adopted.is_lost) == (AddressState.ASSIGNED, True)
    assert store.audit() == []


def test_lost_addresses_are_read_back(path: Path, store: SqlDatastore) -> None:
    """After a restart a lost address is still lost."""
    attachment = attach(store, a_key())
    _lose(store, str(attachment.address))
    before = store.address(attachment.address)
    store.close()
    again = open_at(path).datastore
    assert again.address(attachment.address) == before
    assert again.audit() == []
    again.close()


def test_freed_by_the_release_before(path: Path, store: SqlDatastore) -> None:
    """A release that does not know `lost` frees a lost address once it has cooled: the next opening removes it (I7)."""
    attach(store, a_key())
    _lose(store, "10.0.0.100")
    with store.transaction() as unit:
        unit.unassign(a_key(), cooldown=COOLDOWN, reason="DEL")
    store.close()
    raw(path, "UPDATE address SET state = 'free', cooling_until = NULL WHERE address = '10.0.0.100'")
    opened = open_at(path)
    assert opened.report.is_sound
    assert opened.datastore.address(ip("10.0.0.100")) is None
    assert opened.datastore.counts() == PoolCounts(free=3)
    opened.datastore.close()


def test_forgetting_a_lost_address(store: SqlDatastore) -> None:
    """A lost address that cools leaves with its ENI; one that a sandbox has keeps the ENI (I2)."""
    attach(store, a_key())
    _lose(store, "10.0.0.100")
    with pytest.raises(InvariantError, check=failed(FailureCode.ADDRESSES_IN_USE)), store.transaction() as unit:
        unit.remove_eni(eni_id(0), reason="detached")
    with store.transaction() as unit:
        unit.unassign(a_key(), cooldown=COOLDOWN, reason="DEL")
    with store.transaction() as unit:
        unit.remove_eni(eni_id(0), reason="detached")
    with store.transaction():
        assert store._disk.connection.exec_driver_sql("SELECT count(*) FROM lost").scalar_one() == 0
    assert store.audit() == []


def test_lost_ones_use_no_slot(store: SqlDatastore) -> None:
    """A lost address or a wholly lost prefix uses no slot of its ENI: EC2 has given the place free."""
    prefix = IPv4Network("10.0.0.16/28")
    with store.transaction() as unit:
        unit.add_addresses(eni_id(0), prefix, prefix=prefix)
    assert [(one.used_slot_count, one.prefix_count, one.free_prefix_count) for one in store.stock().enis] == [(5, 1, 1)]
    with store.transaction() as unit:
        for address in (*prefix, ip("10.0.0.100")):
            unit.quarantine(address, reason="test")
            unit.lose(address, reason="test")
    assert [(one.used_slot_count, one.prefix_count, one.free_prefix_count) for one in store.stock().enis] == [(3, 0, 0)]
    assert store.stock().counts == PoolCounts(free=3, lost=17)
    assert store.audit() == []


def test_held_addresses_are_not_given(store: SqlDatastore) -> None:
    """What is held back stays free and is given to nobody until it is let go; a restart forgets it (I7)."""
    held = frozenset(map(ip, ("10.0.0.100", "10.0.0.101", "10.0.0.102", "10.0.0.103", "10.7.7.7")))
    store.withhold(held)
    assert store.counts() == PoolCounts(free=4, withheld=4)
    with pytest.raises(PoolEmptyError) as refusal:
        store.reserve(a_key())
    assert refusal.value.details.endswith("4 free (of which 4 held back)")
    assert store.audit() == []
    store.withhold(held - {ip("10.0.0.102")})
    assert store.reserve(a_key()).address == ip("10.0.0.102")
    with store.transaction() as unit:
        unit.abort(ip("10.0.0.102"), cooldown=COOLDOWN, reason="test")
        store.withhold(frozenset({ip("10.0.0.102")}))  # while a unit changes it
        unit.free(ip("10.0.0.102"), reason="test")
    assert store.counts() == PoolCounts(free=4, withheld=1)
    assert store.audit() == []
    for number in range(3):
        assert store.reserve(a_key(10 + number)).address != ip("10.0.0.102")
    store.withhold(frozenset())
    assert store.reserve(a_key(20)).address == ip("10.0.0.102")


def test_letting_go_does_not_undo_a_claim(store: SqlDatastore) -> None:
    """An address that a unit of work is removing is not given because it is no longer held back."""
    store.withhold(frozenset(map(ip, ("10.0.0.100", "10.0.0.101", "10.0.0.102", "10.0.0.103"))))
    with store.transaction() as unit:
        unit.remove_addresses([ip("10.0.0.100")], reason="test")
        store.withhold(frozenset())
        assert store.reserve(a_key()).address == ip("10.0.0.101")
    assert store.audit() == []


@pytest.mark.parametrize("counter", ["free", "lost", "withheld"])
def test_a_counter_that_is_wrong_is_found(store: SqlDatastore, counter: str) -> None:
    """The audit counts again what is otherwise only kept."""
    store._pool.slots[eni_id(0)].tally[counter] += 1
    (sentence,) = store.audit()
    assert sentence.startswith("memory counts ")
    assert f"{counter}=" in sentence


def test_an_order_that_is_wrong_is_found(store: SqlDatastore) -> None:
    """The audit sees a free address that nobody would be given."""
    store._pool.slots[eni_id(0)].buckets[None].free.pop()
    assert store.audit() == ["memory's lists of free addresses differ from the addresses that are free"]
