"""Metadata against the record: by content, minus what we did ourselves, and each difference asked about once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network

import pytest

from ipamd.model.address import Address, AddressState
from ipamd.model.cloud import MetadataEni
from ipamd.model.eni import Eni, EniState
from ipamd.model.ids import EniId, MacAddress, SubnetId
from ipamd.model.metadata_evidence import (
    Difference,
    DifferenceKind,
    Recent,
    RecordedContents,
    eni_differences,
    list_differences,
    recorded_contents,
    sentence,
)

MAC, OTHER = MacAddress("02:00:00:00:00:02"), MacAddress("02:00:00:00:00:03")
ENI = EniId("eni-2")
A, B, C = (IPv4Address(f"10.0.0.{number}") for number in (10, 11, 12))
P, Q = IPv4Network("10.0.1.0/28"), IPv4Network("10.0.1.16/28")
RECORDED = RecordedContents(MAC, ENI, frozenset({A, B}), frozenset({P}))
SHOWN = MetadataEni(MAC, ENI, 1, frozenset({A, B}), frozenset({P}))
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def row(address: IPv4Address, prefix: IPv4Network | None = None) -> Address:
    """A free address of the ENI."""
    return Address(address, ENI, AddressState.FREE, NOW, prefix)


def eni(**changes: object) -> Eni:
    """The ENI."""
    made = Eni(ENI, MAC, 1, 0, SubnetId("subnet-1"), IPv4Network("10.0.0.0/24"), A, is_primary=False)
    return replace(made, **changes)


def said(*found: Difference) -> set[str]:
    """The sentences."""
    return {str(one) for one in found}


def test_equal_content_is_no_difference() -> None:
    """The same addresses and prefixes: nothing to ask about."""
    assert eni_differences(RECORDED, SHOWN, recent=Recent()) == frozenset()
    assert list_differences([RECORDED], frozenset({MAC}), unknown={}, leaving={}, recent=Recent()) == frozenset()


def test_lists_of_equal_length_may_differ() -> None:
    """One address replaced by another, one prefix by another: four differences (amazon-vpc-cni-k8s issues 3019 and 3887)."""
    shown = replace(SHOWN, addresses=frozenset({A, C}), prefixes=frozenset({Q}))
    assert said(*eni_differences(RECORDED, shown, recent=Recent())) == {
        f"{B} is recorded and not shown",
        f"{C} is shown and not recorded",
        f"{P} is recorded and not shown",
        f"{Q} is shown and not recorded",
    }


def test_a_replaced_eni_is_one_difference() -> None:
    """Another ENI under the same MAC: its addresses are not compared with ours."""
    found = eni_differences(RECORDED, replace(SHOWN, eni_id=EniId("eni-9"), addresses=frozenset()), recent=Recent())
    assert said(*found) == {"eni-9 is shown and not recorded"}


def test_enis_are_compared_by_mac() -> None:
    """One that is recorded and not listed, one that is listed and not recorded; others that are listed are of no concern."""
    listed = frozenset({OTHER})
    found = list_differences([RECORDED], listed, unknown={OTHER: EniId("eni-3")}, leaving={}, recent=Recent())
    assert said(*found) == {f"{ENI} is recorded and not shown", "eni-3 is shown and not recorded"}
    assert list_differences([], listed, unknown={}, leaving={}, recent=Recent()) == frozenset()


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
    assert eni_differences(RECORDED, shown, recent=Recent()) != frozenset()
    assert eni_differences(RECORDED, shown, recent=Recent(objects)) == frozenset()


def test_what_we_gave_back_is_no_difference_only_where_it_was() -> None:
    """EC2 may give it to another ENI of the node within seconds: that is news, and no lag."""
    more = replace(SHOWN, addresses=frozenset({A, B, C}), prefixes=frozenset({P, Q}))
    there = {C: ENI, Q.network_address: ENI}
    assert eni_differences(RECORDED, more, recent=Recent(removed=there)) == frozenset()
    elsewhere = dict.fromkeys(there, EniId("eni-9"))
    assert len(eni_differences(RECORDED, more, recent=Recent(removed=elsewhere))) == 2
    less = replace(SHOWN, addresses=frozenset({A}))
    assert eni_differences(RECORDED, less, recent=Recent(removed={B: ENI})) == frozenset()


def test_an_eni_that_we_attached_or_detached_lately_is_no_difference() -> None:
    """Its absence from the list is our own change, not yet shown."""
    assert list_differences([RECORDED], frozenset(), unknown={}, leaving={}, recent=Recent({ENI})) == frozenset()


def test_while_a_call_of_ours_is_under_way_only_absence_counts() -> None:
    """What metadata shows more may be the answer that we wait for; what it lacks is not."""
    growing = Recent(is_growing=True)
    assert list_differences([], frozenset({OTHER}), unknown={OTHER: EniId("eni-3")}, leaving={}, recent=growing) == frozenset()
    assert eni_differences(RECORDED, replace(SHOWN, addresses=frozenset({A, B, C})), recent=growing) == frozenset()
    assert said(*eni_differences(RECORDED, replace(SHOWN, addresses=frozenset({A})), recent=growing)) == {
        f"{B} is recorded and not shown"
    }


def test_the_recorded_side() -> None:
    """Single addresses with the primary one, prefixes as such; unmanaged ENIs without addresses, detaching ones not at all."""
    rows = [row(B), *(row(address, P) for address in P)]
    assert recorded_contents([eni()], rows) == {MAC: RECORDED}
    assert recorded_contents([eni(managed=False)], ()) == {MAC: RecordedContents(MAC, ENI)}
    assert recorded_contents([eni(state=EniState.DETACHING)], rows) == {}
    assert eni_differences(RecordedContents(MAC, ENI), SHOWN, recent=Recent()) == frozenset()


def test_a_sentence_names_three() -> None:
    """The rest is counted."""
    many = [Difference(MAC, DifferenceKind.ABSENT, f"10.0.0.{number}") for number in range(1, 6)]
    assert sentence(many[:1]) == "10.0.0.1 is recorded and not shown"
    assert sentence(many).endswith("10.0.0.3 is recorded and not shown; and 2 more")
