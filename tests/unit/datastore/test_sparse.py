"""A /80 in the datastore: rows only of what is not free, a cursor that no restart takes back, and nothing that grows with its size."""

from __future__ import annotations

import gc
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Address, IPv6Network
from pathlib import Path

import pytest

from ipamd.datastore.open import OpenOutcome
from ipamd.datastore.pool_index import PoolIndex
from ipamd.datastore.store import SqlDatastore
from ipamd.model.address import Address, AddressState
from ipamd.model.cloud import all_addresses
from ipamd.model.errors import DatastoreError, InvariantError, PoolEmptyError
from ipamd.model.failures import FailureCode
from ipamd.model.family import IPV4, IPV6, IPV6_GATEWAY, IpNetwork, members, read_address, read_network
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.intent import Intent, IntentKind
from ipamd.model.legs.branch_eni import Branch
from ipamd.model.words import MANY
from tests.errors import failed
from tests.unit.datastore.support import (
    COOLDOWN,
    START,
    FakeClock,
    a_key,
    an_attachment,
    an_eni,
    attach,
    crashed_copy,
    eni_id,
    open_at,
    raw,
)

PREFIX = IPv6Network("2001:db8:1:2:abcd::/80")
REST = PREFIX[-1]


def opened(path: Path, clock: FakeClock | None = None) -> SqlDatastore:
    """A store of IPv6."""
    return open_at(path, clock=clock, family=IPV6).datastore


def with_prefix(path: Path, prefix: IpNetwork = PREFIX) -> SqlDatastore:
    """A store of the prefix's family, with that on the primary ENI."""
    store = open_at(path, family=IPV6 if prefix.version == 6 else IPV4).datastore
    with store.transaction() as unit:
        unit.put_eni(an_eni())
        unit.add_addresses(eni_id(0), members(prefix), prefix=prefix)
    return store


def test_what_is_free_has_no_row(path: Path) -> None:
    """Every address of the /80 but the last is found free, is claimed by nobody, and costs nothing until somebody has it."""
    store = with_prefix(path)
    assert [row.address for row in store.addresses()] == [REST]
    for place in (0, 1, 15, 65535, 2**48 - 2):
        found = store.address(PREFIX[place])
        assert found is not None
        assert (found.state, found.prefix, found.address) == (AddressState.FREE, PREFIX, PREFIX[place])
    assert store.address(IPv6Address("2001:db8:1:2:abce::1")) is None
    assert store.counts().free == MANY
    given = attach(store, a_key())
    assert {row.address for row in store.addresses()} == {REST, given.address}
    assert store.audit() == []


def test_order(path: Path) -> None:
    """Addresses are given upward from a place that is drawn, the first and the last of the /80 never, and after the end from the
    beginning; what is not free is passed over.
    """
    with_prefix(path).close()
    raw(path, f"UPDATE meta SET value = '{2**48 - 4}' WHERE name = 'cursor'")
    store = opened(path)
    with store.transaction() as unit:
        unit.quarantine(PREFIX[2], reason="wired, and not recorded")
    assert [store.reserve(a_key(n)).address for n in range(4)] == [PREFIX[-3], PREFIX[-2], PREFIX[1], PREFIX[3]]


def test_an_add_looks_at_one_address_however_many_are_taken(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside thousands too: nothing is searched for, unless others were wired where the next ones would be."""
    store = with_prefix(path)
    asked, is_claimed = list[object](), PoolIndex.is_claimed
    monkeypatch.setattr(PoolIndex, "is_claimed", lambda index, address: (asked.append(address), is_claimed(index, address))[1])
    given = [store.reserve(a_key(number)).address for number in range(3000)]
    assert asked == given
    assert len(set(given)) == len(given)
    with store.transaction() as unit:
        for place in (1, 2):
            unit.quarantine(IPV6.address(int(given[-1]) + place), reason="wired, and not recorded")
    assert int(store.reserve(a_key(3000)).address) == int(given[-1]) + 3


def test_the_first_place_is_drawn(tmp_path: Path) -> None:
    """Two lost files in a row give other addresses: what cools of the one is not given by the next (I8)."""
    given = {with_prefix(tmp_path / str(n) / "state.db").reserve(a_key()).address for n in range(4)}
    assert len(given) == 4


def test_no_restart_goes_back(path: Path, tmp_path: Path) -> None:
    """What an ADD has committed, or what failed and cooled, is not given again after a kill, though it is free (I8)."""
    store = with_prefix(path)
    first = attach(store, a_key(1))
    failed = store.reserve(a_key(2)).address
    with store.transaction() as unit:
        unit.unassign(first.key, cooldown=COOLDOWN, reason="DEL")
        unit.abort(failed, cooldown=COOLDOWN, reason="wiring failed")
    with store.transaction() as unit:
        unit.free(first.address, reason="cooled")
        unit.free(failed, reason="cooled")
    assert [row.address for row in store.addresses()] == [REST]
    again = opened(crashed_copy(path, tmp_path / "crashed"))
    following = again.reserve(a_key(3)).address
    assert int(following) == int(failed) + 1 or following == PREFIX[1]


def test_killed_between_reserve_and_commit(path: Path, tmp_path: Path) -> None:
    """A reservation is in memory only: after a kill nothing of it is left, and nothing was promised (I5)."""
    store = with_prefix(path)
    store.reserve(a_key())
    assert store.audit() == []
    again = opened(crashed_copy(path, tmp_path / "crashed"))
    assert [row.address for row in again.addresses()] == [REST]
    assert again.audit() == []


def test_a_wired_sandbox_is_adopted_without_a_row(path: Path) -> None:
    """What amazon-vpc-cni-k8s gave, the first address too, gets its row when it is adopted, and loses it when it has cooled (I2)."""
    store = with_prefix(path)
    for place in (0, 1):
        found = store.address(PREFIX[place])
        assert found is not None
        with store.transaction() as unit:
            unit.adopt(an_attachment(found, a_key(place)))
    assert [row.address for row in store.addresses(state=AddressState.ASSIGNED)] == [PREFIX[0], PREFIX[1]]
    with store.transaction() as unit:
        unit.unassign(a_key(0), cooldown=COOLDOWN, reason="DEL")
        unit.free(PREFIX[0], reason="cooled")
    assert [row.address for row in store.addresses()] == [PREFIX[1], REST]
    assert store.audit() == []


def test_the_rest_is_nobodys(path: Path) -> None:
    """The address whose row stands for the others is neither adopted nor quarantined."""
    store = with_prefix(path)
    rest = store.address(REST)
    assert rest is not None
    with pytest.raises(InvariantError, check=failed(FailureCode.ADDRESS_STANDS_FOR_REST)), store.transaction() as unit:
        unit.adopt(an_attachment(rest, a_key()))
    with pytest.raises(InvariantError, check=failed(FailureCode.ADDRESS_STANDS_FOR_REST)), store.transaction() as unit:
        unit.quarantine(REST, reason="test")


def test_a_lost_prefix(path: Path, tmp_path: Path) -> None:
    """Its sandboxes keep their addresses (I2), also one whose ADD is under way; nobody is given another (I7); it heals."""
    store = with_prefix(path)
    live, coming = attach(store, a_key(1)), store.reserve(a_key(2))
    with store.transaction() as unit:
        unit.lose(REST, reason="EC2 does not show it")
    with pytest.raises(PoolEmptyError):
        store.reserve(a_key(3))
    assert {row.address for row in store.addresses() if row.is_lost} == {live.address, coming.address}
    assert store.audit() == []
    crashed = opened(crashed_copy(path, tmp_path / "crashed"))
    assert [row.address for row in crashed.addresses()] == [live.address]
    with store.transaction() as unit:
        unit.confirm(an_attachment(coming, a_key(2)))
        unit.add_addresses(eni_id(0), members(PREFIX), prefix=PREFIX)
        for one in (live, coming):
            unit.heal(one.address, reason="EC2 shows it")
    assert not any(row.is_lost for row in store.addresses())
    assert store.reserve(a_key(3)).prefix == PREFIX
    assert store.audit() == []


def test_a_prefix_in_use_is_not_released(path: Path) -> None:
    """An intent to give a /80 back is refused while one address of it is anybody's (I2); once it is on disk nobody is given one."""
    store = with_prefix(path)
    intent = Intent("i-1", IntentKind.UNASSIGN, START, {"eni_id": eni_id(0), "addresses": "", "prefixes": str(PREFIX)})
    given = attach(store, a_key(1))
    with pytest.raises(InvariantError, check=failed(FailureCode.ADDRESS_NOT_RELEASABLE)), store.transaction() as unit:
        unit.open_intent(intent)
    with store.transaction() as unit:
        unit.unassign(given.key, cooldown=COOLDOWN, reason="DEL")
        unit.free(given.address, reason="cooled")
        unit.open_intent(intent)
    with pytest.raises(PoolEmptyError):
        store.reserve(a_key(2))
    with store.transaction() as unit:
        unit.remove_addresses(all_addresses((), [PREFIX]), reason="released")
    assert store.addresses() == ()


@pytest.mark.parametrize("prefix", [PREFIX, IPv4Network("10.0.0.16/28")], ids=["/80", "/28"])
def test_a_prefix_is_at_most_sixteen_objects(path: Path, prefix: IpNetwork) -> None:
    """A /80 costs no more memory than a /28: in rows, in what is asked for and held, and in objects while it is used."""
    store = with_prefix(path, prefix)
    assert len(store.addresses()) <= 16
    assert len(members(prefix)) <= 16
    assert len(all_addresses((), [prefix])) <= 16
    store.withhold(all_addresses((), [prefix]))
    store.withhold(frozenset())
    gc.collect()
    before = len(gc.get_objects())
    for number in range(200):
        key = a_key(number)
        given = attach(store, key)
        with store.transaction() as unit:
            unit.unassign(key, cooldown=COOLDOWN, reason="DEL")
            unit.free(given.address, reason="cooled")
        assert len(store.addresses()) <= 16
    gc.collect()
    assert len(gc.get_objects()) - before < 400


@pytest.mark.parametrize(("made", "wanted"), [(IPV4, IPV6), (IPV6, IPV4)], ids=["to IPv6", "to IPv4"])
def test_a_file_of_the_other_family(path: Path, tmp_path: Path, made: object, wanted: object) -> None:
    """In both directions: refused while a sandbox of it lives, whose interfaces count once, with the file untouched; set aside
    otherwise."""
    netns = tmp_path / "netns"
    netns.touch()
    prefix: IpNetwork = PREFIX if made is IPV6 else IPv4Network("10.0.0.16/28")
    store = with_prefix(path, prefix)
    attach(store, a_key())
    attach(store, a_key(ifname="net1"))
    store.close()
    found = netns.stat()
    where = f"netns = '{netns}', netns_device = {found.st_dev}, netns_inode = {found.st_ino}"
    raw(path, f"UPDATE attachment SET {where}")
    content = path.read_bytes()
    with pytest.raises(DatastoreError, check=failed(FailureCode.FILE_OF_OTHER_FAMILY, count="1 sandbox")):
        open_at(path, family=wanted)
    assert path.read_bytes() == content
    netns.unlink()
    opened = open_at(path, family=wanted)
    assert opened.report.outcome is OpenOutcome.OTHER_FAMILY
    assert opened.datastore.addresses() == ()


@pytest.mark.parametrize("prefix", ["2001:db8::/96", "10.0.0.0/28"])
def test_a_prefix_of_another_length_or_family(path: Path, prefix: str) -> None:
    """EC2 delegates a /80 and no other length; the file takes none of the other family either."""
    network = read_network(prefix)
    store = with_prefix(path)
    with pytest.raises(InvariantError), store.transaction() as unit:
        unit.add_addresses(eni_id(0), [network[-1]], prefix=network)


def test_read_address() -> None:
    """Text of either family is read, and nothing else."""
    assert (str(read_address("2001:db8::5")), str(read_address("10.0.0.5"))) == ("2001:db8::5", "10.0.0.5")
    for text in ("2001:db8::/80", "10.0.0", ""):
        with pytest.raises(ValueError, match=r"[Aa]ddress|Expected|Unexpected"):
            read_address(text)


def test_a_prefix_with_the_address_of_a_branch_eni_is_refused(path: Path) -> None:
    """Of a /80 no ADD looks for what is a branch ENI's, so none enters in which a sandbox has one; and the reverse (I1)."""
    store = opened(path)
    branch = Branch(vlan=7, mac=MacAddress("06:00:00:00:00:07"), gateway=IPV6_GATEWAY, is_strict=True)
    place = Address(PREFIX[77], EniId("eni-0b0b"), AddressState.FREE, START, None)
    attached = replace(an_attachment(place, a_key(1)), route_table=branch.route_table, uplink=branch)
    with store.transaction() as unit:
        unit.put_eni(an_eni())
        unit.confirm(attached)
    with pytest.raises(InvariantError, check=failed(FailureCode.ADDRESS_OF_UPLINK)), store.transaction() as unit:
        unit.add_addresses(eni_id(0), members(PREFIX), prefix=PREFIX)
    with store.transaction() as unit:
        unit.unassign(attached.key, cooldown=COOLDOWN, reason="DEL")
        unit.add_addresses(eni_id(0), members(PREFIX), prefix=PREFIX)
    with pytest.raises(InvariantError, check=failed(FailureCode.UPLINK_TAKEN)), store.transaction() as unit:
        unit.confirm(replace(attached, key=a_key(2)))
