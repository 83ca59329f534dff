"""Metadata against the record: by content, minus what we did ourselves, and each difference asked about once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network

import pytest

from ipamd.model.address import Address, AddressState
from ipamd.model.cloud import MetadataEni
from ipamd.model.eni import Eni, EniState
from ipamd.model.ids import EniId, MacAddress, SubnetId
from ipamd.model.metadata_evidence import (
    DifferenceKind,
    InterfaceDifference,
    Recent,
    differences,
    sentence,
)
from ipamd.model.snapshot import Snapshot

MAC, OTHER = MacAddress("02:00:00:00:00:02"), MacAddress("02:00:00:00:00:03")
ENI = EniId("eni-2")
A, B, C = (IPv4Address(f"10.0.0.{number}") for number in (10, 11, 12))
P, Q = IPv4Network("10.0.1.0/28"), IPv4Network("10.0.1.16/28")
SHOWN = MetadataEni(MAC, ENI, 1, frozenset({A, B}), frozenset({P}))
THIRD = MetadataEni(OTHER, EniId("eni-3"), 2)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def row(address: IPv4Address, prefix: IPv4Network | None = None) -> Address:
    """A free address of the ENI."""
    return Address(address, ENI, AddressState.FREE, NOW, prefix)


def eni(**changes: object) -> Eni:
    """The ENI."""
    made = Eni(ENI, MAC, 1, 0, SubnetId("subnet-1"), IPv4Network("10.0.0.0/24"), A, is_primary=False)
    return replace(made, **changes)


ROWS = [row(B), *(row(address, P) for address in P)]


def found(
    shown: MetadataEni | None = SHOWN,
    *,
    ours: Eni | None = None,
    rows: Iterable[Address] = ROWS,
    listed: Mapping[MacAddress, MetadataEni | None] | None = None,
    left_alone: Mapping[EniId, MacAddress | None] | None = None,
    recent: Recent | None = None,
) -> set[str]:
    """The sentences, if metadata lists this ENI of ours as shown, or what is listed instead."""
    recorded = Snapshot({ENI: ours or eni()}, {one.address: one for one in rows}, {}, {}, {})
    listed = {MAC: shown} if listed is None else listed
    in_list, in_enis = differences(recorded, listed, left_alone=left_alone or {}, recent=recent or Recent())
    return {str(one) for one in in_list | in_enis}


def test_equal_content_is_no_difference() -> None:
    """The same addresses and prefixes, or an ENI that was not read: nothing to ask about."""
    assert found() == found(None) == set()


def test_lists_of_equal_length_may_differ() -> None:
    """One address replaced by another, one prefix by another: four differences (amazon-vpc-cni-k8s issues 3019 and 3887)."""
    assert found(replace(SHOWN, addresses=frozenset({A, C}), prefixes=frozenset({Q}))) == {
        f"{B} is recorded and not shown",
        f"{C} is shown and not recorded",
        f"{P} is recorded and not shown",
        f"{Q} is shown and not recorded",
    }


def test_a_replaced_eni_is_one_difference() -> None:
    """Another ENI under the same MAC: its addresses are not compared with ours."""
    assert found(replace(SHOWN, eni_id=EniId("eni-9"), addresses=frozenset())) == {"eni-9 is shown and not recorded"}


def test_enis_are_compared_by_mac() -> None:
    """One that is recorded and not listed, one that is listed and not recorded; one that is left alone only when it goes."""
    listed = {OTHER: THIRD}
    assert found(listed=listed) == {f"{ENI} is recorded and not shown", f"{THIRD.eni_id} is shown and not recorded"}
    assert found(listed={OTHER: None}) == {f"{ENI} is recorded and not shown"}
    assert found(listed={MAC: SHOWN} | listed, left_alone={THIRD.eni_id: OTHER}) == set()
    assert found(left_alone={THIRD.eni_id: None}) == set()
    assert found(left_alone={THIRD.eni_id: OTHER}) == {f"{THIRD.eni_id} is recorded and not shown"}


@pytest.mark.parametrize(
    ("shown", "objects"),
    [
        (replace(SHOWN, addresses=frozenset({A})), {B}),
        (replace(SHOWN, addresses=frozenset({A, B, C})), {C}),
        (replace(SHOWN, prefixes=frozenset()), set(P)),
        (replace(SHOWN, prefixes=frozenset({P, Q})), set(Q)),
        (replace(SHOWN, addresses=frozenset(), prefixes=frozenset()), {ENI}),
    ],
)
def test_what_we_changed_lately_is_no_difference(shown: MetadataEni, objects: set[EniId | IPv4Address]) -> None:
    """Metadata lags behind our own calls: what they changed does not count, everything else does."""
    assert found(shown) != set()
    assert found(shown, recent=Recent(objects)) == set()


def test_what_we_gave_back_is_no_difference_only_where_it_was() -> None:
    """EC2 may give it to another ENI of the node within seconds: that is news, and no lag."""
    more = replace(SHOWN, addresses=frozenset({A, B, C}), prefixes=frozenset({P, Q}))
    there = (C, Q.network_address)
    assert found(more, recent=Recent(removed={(one, ENI) for one in there})) == set()
    assert len(found(more, recent=Recent(removed={(one, EniId("eni-9")) for one in there}))) == 2
    assert found(replace(SHOWN, addresses=frozenset({A})), recent=Recent(removed={(B, ENI)})) == set()


@pytest.mark.parametrize("recent", [Recent({ENI}), Recent(removed={(ENI, ENI)})])
def test_an_eni_that_we_attached_or_detached_lately_is_no_difference(recent: Recent) -> None:
    """Its absence from the list, or its presence, is our own change, not yet shown."""
    assert found(listed={}, recent=recent) == set()
    assert found(ours=eni(state=EniState.DETACHING), recent=recent) == set()


def test_while_a_call_of_ours_is_under_way_only_absence_counts() -> None:
    """What metadata shows more may be the answer that we wait for; what it lacks is not."""
    growing = Recent(is_growing=True)
    assert found(listed={MAC: SHOWN, OTHER: THIRD}, recent=growing) == set()
    assert found(replace(SHOWN, addresses=frozenset({A, B, C})), recent=growing) == set()
    assert found(replace(SHOWN, addresses=frozenset({A})), recent=growing) == {f"{B} is recorded and not shown"}


def test_the_recorded_side() -> None:
    """Unmanaged ENIs without addresses; a detaching one must not be there, whatever it carries; a lost address is not expected."""
    assert found(ours=eni(managed=False), rows=()) == set()
    assert found(ours=eni(state=EniState.DETACHING)) == {f"{ENI} is shown and recorded as detached"}
    assert found(ours=eni(state=EniState.DETACHING), listed={}) == set()
    lost = [replace(row(B), lost_since=NOW), *ROWS[1:]]
    assert found(replace(SHOWN, addresses=frozenset({A})), rows=lost) == set()


def test_a_sentence_names_three() -> None:
    """The rest is counted."""
    many = [InterfaceDifference(MAC, DifferenceKind.ABSENT, f"10.0.0.{number}") for number in range(1, 6)]
    assert sentence(many[:1]) == "10.0.0.1 is recorded and not shown"
    assert sentence(many).endswith("10.0.0.3 is recorded and not shown; and 2 more")
