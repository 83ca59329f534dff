"""Addresses for egress: given with a pool address, longest free first, cooling as long as it does, kept over a restart."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

import pytest

from ipamd.datastore.store import SqlDatastore
from ipamd.model.address import AddressState
from ipamd.model.errors import InvariantError, LocalRangeEmptyError
from ipamd.model.failures import FailureCode
from ipamd.model.family import IPV4, IPV6, Family, IpAddress, family_of
from ipamd.model.record import replace
from tests.errors import failed
from tests.unit.datastore.support import COOLDOWN, FakeClock, a_key, an_attachment, attach, crashed_copy, fill, ip, open_at


def others(store: SqlDatastore, count: int, *, egress: Family = IPV6) -> list[IpAddress]:
    """Give and take back: what `count` sandboxes get, one after the other, while each of them cools."""
    found: list[IpAddress] = []
    for number in range(count):
        made = attach(store, a_key(number), egress=egress)
        assert made.other_address is not None
        found.append(made.other_address)
        with store.transaction() as unit:
            unit.unassign(made.key, cooldown=COOLDOWN, reason="DEL")
            unit.free(made.address, reason="cooled")
    return found


@pytest.mark.parametrize(
    ("family", "network", "gateway", "first", "last", "count", "ifname"),
    [
        (IPV4, "169.254.172.0/22", "169.254.172.1", "169.254.172.2", "169.254.175.254", 1021, "v4if0"),
        (IPV6, "fd00::ac:0/118", "fd00::ac:1", "fd00::ac:2", "fd00::ac:3ff", 1022, "v6if0"),
    ],
)
def test_the_range(family: Family, network: str, gateway: str, first: str, last: str, count: int, ifname: str) -> None:
    """Range, next hop, first and last address, and the link's name are those of amazon-vpc-cni-k8s (cmd/aws-vpc-cni/main.go)."""
    egress, every = family.local_range, family.local_range.addresses()
    assert (str(egress.network), str(egress.gateway), egress.ifname) == (network, gateway, ifname)
    assert (str(every[0]), str(every[-1]), len(every)) == (first, last, count)


@pytest.mark.parametrize(
    ("text", "is_inside"),
    [
        ("169.254.171.255", False),
        ("169.254.172.0", True),
        ("169.254.173.150", True),
        ("169.254.175.255", True),
        ("169.254.176.0", False),
        ("fd00::ab:ffff", False),
        ("fd00::ac:0", True),
        ("fd00::ac:3ff", True),
        ("fd00::ac:400", False),
    ],
)
def test_membership(text: str, is_inside: bool) -> None:
    """The range to which nothing new is forwarded ends where amazon-vpc-cni-k8s ends it (setupRuleToBlockNodeLocalAccess)."""
    address = ip_address(text)
    assert (address in family_of(address).local_range.network) is is_inside


@pytest.mark.parametrize("family", [IPV4, IPV6], ids=["v4if0", "v6if0"])
def test_longest_free_first(store: SqlDatastore, family: Family) -> None:
    """Each address of the range is given once before any is given again."""
    count = len(family.local_range.addresses())
    given = others(store, count + 2, egress=family)
    assert len(set(given[:count])) == count
    assert given[count:] == given[:2]
    assert store.audit() == []


def test_none_unless_it_is_asked_for(store: SqlDatastore) -> None:
    """Without egress a sandbox has its pool address alone."""
    assert attach(store, a_key()).other_address is None


def test_it_cools_with_the_pool_address(path: Path, store: SqlDatastore, clock: FakeClock, tmp_path: Path) -> None:
    """From DEL, or the end of an ADD that failed, until the pool address is free nobody gets it, over a restart too (I8)."""
    first = attach(store, a_key(1), egress=IPV6)
    failed = store.reserve(a_key(2), extra_family=IPV6)
    with store.transaction() as unit:
        unit.unassign(first.key, cooldown=COOLDOWN, reason="DEL")
        unit.abort(failed.address, cooldown=COOLDOWN, reason="wiring failed")
    again = open_at(crashed_copy(path, tmp_path / "killed"), clock=clock).datastore
    held = {row.other_address for row in again.addresses(state=AddressState.COOLING)}
    assert held == {first.other_address, failed.other_address}
    made = attach(again, a_key(3), egress=IPV6)
    assert made.other_address not in held
    with again.transaction() as unit:
        unit.free(first.address, reason="cooled")
    freed = again.address(first.address)
    assert freed is not None
    assert freed.other_address is None
    assert again.audit() == []
    again.close()


def test_a_reservation_of_a_dead_process_holds_nothing(path: Path, store: SqlDatastore, clock: FakeClock, tmp_path: Path) -> None:
    """What an ADD had when the process died was promised to nobody: after a restart all of the range can be given (I5)."""
    reserved = store.reserve(a_key(1), extra_family=IPV6)
    again = open_at(crashed_copy(path, tmp_path / "killed"), clock=clock).datastore
    row = again.address(reserved.address)
    assert row is not None
    assert row.other_address is None
    assert len(set(others(again, 1022))) == 1022
    again.close()


def test_a_full_range_refuses(path: Path, clock: FakeClock) -> None:
    """With all addresses taken the next ADD is told so, with counts and what to do, and the pool address stays free (I14)."""
    store = open_at(path, clock=clock).datastore
    fill(store, addresses=130, enis=8)
    for number in range(1021):
        attach(store, a_key(number), egress=IPV4)
    assert store.counts().free == 19
    with pytest.raises(LocalRangeEmptyError) as refused:
        store.reserve(a_key(2000), extra_family=IPV4)
    assert refused.value.cni_code == 11
    assert "all 1021 for v4if0 are taken, 0 of them cooling; next: delete pods of this node" in refused.value.details
    with store.transaction() as unit:
        unit.unassign(a_key(7), cooldown=COOLDOWN, reason="DEL")
    with pytest.raises(LocalRangeEmptyError, check=failed(FailureCode.NO_EXTRA_ADDRESS)) as cools:
        store.reserve(a_key(2000), extra_family=IPV4)
    assert "1 of them cooling; next: retry when one has cooled" in cools.value.details
    assert store.counts().reserved == 0
    store.close()


def test_another_than_the_reserved_one_is_refused(store: SqlDatastore) -> None:
    """A row cannot claim an address for egress that was not reserved with its pool address (I1)."""
    attachment = replace(an_attachment(store.reserve(a_key(), extra_family=IPV6), a_key()), other_address=IPV6.local_range.last)
    with pytest.raises(InvariantError, check=failed(FailureCode.OTHER_ADDRESS_NOT_RESERVED)), store.transaction() as unit:
        unit.confirm(attachment)


def test_an_adopted_one_is_not_given(store: SqlDatastore) -> None:
    """What a wired sandbox was found to have is taken out of the list of free ones."""
    first = attach(store, a_key(1), egress=IPV6)
    assert first.other_address is not None
    following = IPV6.address(int(first.other_address) + 1)
    row = store.address(ip("10.0.0.103"))
    assert row is not None
    with store.transaction() as unit:
        unit.adopt(replace(an_attachment(row, a_key(2)), other_address=following))
    assert attach(store, a_key(3), egress=IPV6).other_address == IPV6.address(int(following) + 1)
    assert store.audit() == []
