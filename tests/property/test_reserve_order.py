"""Which address a sandbox gets: densest ENI, densest prefix, longest free (docs/life.md, "The life of an ADD")."""

from __future__ import annotations

from datetime import timedelta
from ipaddress import IPv4Address, IPv4Network

from hypothesis import given
from hypothesis import strategies as st

from ipamd.datastore.memory_state import MemoryState
from ipamd.model.address import Address, AddressState
from ipamd.model.eni import EniState
from ipamd.model.errors import PoolEmptyError
from ipamd.model.intent import Intent, IntentKind, leaving_addresses
from ipamd.model.release import Draining
from ipamd.model.snapshot import Snapshot
from tests.fakes.clock import FakeClock
from tests.unit.datastore.support import START, a_key, an_attachment, an_eni

READINESS = st.tuples(st.sampled_from(list(EniState)), st.booleans(), st.booleans())
READY = (EniState.ATTACHED, True, True)


@st.composite
def pools(draw: st.DrawFn) -> Snapshot:
    """One to three ENIs with addresses in and outside prefixes, in any state but reserved, free for various times."""
    enis, addresses, attachments = {}, {}, {}
    for number in range(draw(st.integers(1, 3))):
        state, host_ready, managed = draw(st.one_of(st.just(READY), READINESS))
        eni = an_eni(number, state=state, host_ready=host_ready, managed=managed)
        enis[eni.eni_id] = eni
        for third in (0, 16, 32):
            prefix = IPv4Network(f"10.0.{number}.{third}/28") if third else None
            for last in draw(st.sets(st.integers(5, 9), max_size=4)):
                address = IPv4Address(f"10.0.{number}.{third + last}")
                kind = draw(st.sampled_from([AddressState.FREE, AddressState.ASSIGNED, AddressState.COOLING]))
                since = START + timedelta(seconds=draw(st.integers(0, 2)))
                key = a_key(int(address)) if kind is AddressState.ASSIGNED else None
                until = START if kind is AddressState.COOLING else None
                addresses[address] = Address(address, eni.eni_id, kind, since, prefix, key, until)
                if key is not None:
                    attachments[key] = an_attachment(addresses[address], key)
    free = [row for row in addresses.values() if row.state is AddressState.FREE]
    named = draw(st.lists(st.sampled_from(free), max_size=4)) if free else []
    intents = {
        str(n): Intent(str(n), IntentKind.UNASSIGN, START, {"eni_id": row.eni_id, "addresses": str(row.address)})
        for n, row in enumerate(named)
    }
    return Snapshot(enis, addresses, attachments, {}, intents)


DRAININGS = st.builds(
    Draining,
    st.frozensets(st.sampled_from([an_eni(number).eni_id for number in range(3)])),
    prefixes=st.booleans(),
    singles=st.booleans(),
)


def _expected(
    snapshot: Snapshot, taken: set[IPv4Address], draining: Draining, suspected: frozenset[IPv4Address] = frozenset()
) -> IPv4Address | None:
    """Choose by the rule's own words, looking at everything."""

    def in_use(address: Address) -> bool:
        return address.state is AddressState.ASSIGNED or address.address in taken

    def is_last(address: Address) -> bool:
        return draining.singles if address.prefix is None else draining.prefixes

    def rank(address: Address) -> tuple[object, ...]:
        on_eni = sum(in_use(a) for a in snapshot.addresses.values() if a.eni_id == address.eni_id)
        beside = sum(in_use(a) for a in snapshot.addresses.values() if (a.eni_id, a.prefix) == (address.eni_id, address.prefix))
        eni = snapshot.enis[address.eni_id]
        place = -1 if address.prefix is None else int(address.prefix.network_address)
        siblings = [a for a in candidates if a.eni_id == address.eni_id]
        unsuspected = [a for a in siblings if not is_bucket_suspected(a)]
        gives_last_only = all(is_last(a) for a in unsuspected or siblings)
        is_eni_last = eni.eni_id in draining.enis
        key = (not unsuspected, is_eni_last, gives_last_only, -on_eni, eni.device_index, is_bucket_suspected(address))
        return *key, is_last(address), -beside, place, address.address in suspected, address.since, address.address

    def is_bucket_suspected(address: Address) -> bool:
        bucket = [a for a in candidates if (a.eni_id, a.prefix) == (address.eni_id, address.prefix)]
        return all(a.address in suspected for a in bucket)

    candidates = [
        a
        for a in snapshot.addresses.values()
        if a.state is AddressState.FREE
        and a.address not in taken
        and a.address not in leaving_addresses(snapshot.intents.values())
        and (snapshot.enis[a.eni_id].state, snapshot.enis[a.eni_id].host_ready, snapshot.enis[a.eni_id].managed) == READY
    ]
    return min(candidates, key=rank).address if candidates else None


@given(pools(), DRAININGS, st.data())
def test_order(snapshot: Snapshot, draining: Draining, data: st.DataObject) -> None:
    """Until the pool is empty each reservation is the one the rule names; only ready ENIs give any, and none that an open intent gives
    back to EC2 (I7). What is draining comes last, and after that what a hint says is gone."""
    memory = MemoryState(snapshot, clock=FakeClock())
    memory.set_draining(draining)
    names = st.frozensets(st.sampled_from(sorted(snapshot.addresses))) if snapshot.addresses else st.just(frozenset())
    suspected = data.draw(names)
    memory.suspect(data.draw(names))
    memory.suspect(suspected)
    assert memory.recount() == []
    taken: set[IPv4Address] = set()
    for number in range(len(snapshot.addresses) + 1):
        expected = _expected(snapshot, taken, draining, suspected)
        try:
            reserved = memory.reserve(a_key(number))
        except PoolEmptyError:
            assert expected is None
            return
        assert reserved.address == expected
        taken.add(reserved.address)
    raise AssertionError("a pool gave more addresses than it has")


@given(pools())
def test_claims_hide_and_come_back(snapshot: Snapshot) -> None:
    """Claimed addresses are not reserved, and once released the order is as if nothing had happened."""
    memory = MemoryState(snapshot, clock=FakeClock())
    for address in snapshot.addresses:
        memory.claim(address)
    try:
        memory.reserve(a_key(0))
    except PoolEmptyError:
        pass
    else:
        raise AssertionError("a claimed address was reserved")
    memory.release(snapshot.addresses)
    memory.release(snapshot.addresses)
    assert memory.recount() == []
    expected = _expected(snapshot, set(), Draining())
    if expected is not None:
        assert memory.reserve(a_key(0)).address == expected
