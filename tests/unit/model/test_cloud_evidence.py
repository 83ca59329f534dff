"""Which answers of EC2 are believed, and what is gone after how many of them (docs/adr/0017)."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from ipamd.model.cloud import DescribedEni
from ipamd.model.cloud_evidence import (
    DOUBT_AGAIN_S,
    LOOK_GAP_S,
    MASS_LOSS_AGE_S,
    CloudEvidence,
    CloudKey,
    CloudRecords,
    Weighed,
    Witnesses,
    missing,
    plausibility,
)
from ipamd.model.eni import Eni, EniState
from ipamd.model.ids import EniId, MacAddress, SubnetId
from tests.fakes.cloud import IDENTITY

PRIMARY = EniId("eni-0")


def eni_id(number: int) -> EniId:
    """ENI 0 is the primary one."""
    return EniId(f"eni-{number}")


def mac(number: int) -> MacAddress:
    """MAC address of an ENI's link."""
    return MacAddress(f"02:00:00:00:00:0{number}")


def address(number: int, last: int = 1) -> IPv4Address:
    """ENI n has the primary address 10.0.n.1 and the secondary ones 10.0.n.2 and so on."""
    return IPv4Address(f"10.0.{number}.{last}")


def shown(number: int, *last: int, problem: str = "", prefixes: frozenset[IPv4Network] = frozenset()) -> DescribedEni:
    """An attached ENI with these secondary addresses."""
    return DescribedEni(
        eni_id(number),
        mac(number),
        SubnetId("subnet-1"),
        None if problem else address(number),
        frozenset(address(number, one) for one in last),
        prefixes,
        attachment_status="attached",
        device_index=number,
        problem=problem,
    )


def recorded(eni_count: int, *, per_eni: int = 2, wired: int = 0) -> CloudRecords:
    """`eni_count` ENIs, the primary one included, each with `per_eni` addresses, of which the first `wired` ones are wired."""
    addresses = {address(n, last): eni_id(n) for n in range(eni_count) for last in range(2, 2 + per_eni)}
    subnet = (SubnetId("subnet-1"), IPv4Network("10.0.0.0/16"))
    enis = {eni_id(n): Eni(eni_id(n), mac(n), n, 0, *subnet, address(n), is_primary=n == 0) for n in range(eni_count)}
    identity = replace(IDENTITY, primary_eni_id=PRIMARY, primary_address=address(0), primary_mac=mac(0))
    return CloudRecords(identity, enis, addresses, frozenset(list(addresses)[:wired]))


class Looks:
    """Successive looks at one instance."""

    def __init__(self) -> None:
        self.evidence, self.now_s = CloudEvidence(), 0.0

    def look(
        self,
        answer: list[DescribedEni],
        known: CloudRecords,
        *,
        after_s: float = LOOK_GAP_S,
        recent: dict[CloudKey, float] | None = None,
        witnesses: Witnesses | None = None,
    ) -> Weighed:
        self.now_s += after_s
        return self.evidence.weigh(answer, known, recent=recent or {}, witnesses=witnesses or Witnesses(), now_s=self.now_s)


@pytest.mark.parametrize(
    ("eni_count", "missing_count", "is_believed"),
    [(2, 1, True), (3, 1, True), (3, 2, False), (4, 2, True), (4, 3, False)],
)
def test_more_than_half_of_the_enis_and_at_least_two(eni_count: int, missing_count: int, is_believed: bool) -> None:
    """One ENI of two may be detached by hand; two of three at once are not believed (I11)."""
    answer = [shown(n, 2, 3) for n in range(eni_count - missing_count)]
    assert (plausibility(answer, recorded(eni_count)) == "") == is_believed


@pytest.mark.parametrize(
    ("wired", "missing_count", "is_believed"), [(1, 1, True), (2, 1, True), (2, 2, False), (4, 2, True), (4, 3, False)]
)
def test_more_than_half_of_the_wired_addresses_and_at_least_two(wired: int, missing_count: int, is_believed: bool) -> None:
    """A node with one sandbox can lose its one address; the loss of both of two, or of three of four, is not believed (I11)."""
    known = recorded(1, per_eni=6, wired=wired)
    answer = [shown(0, *range(2 + missing_count, 8))]
    assert (plausibility(answer, known) == "") == is_believed


@pytest.mark.parametrize("answer", [[], [shown(1, 2, 3)]])
def test_an_answer_without_the_primary_eni_is_never_believed(answer: list[DescribedEni]) -> None:
    """The primary ENI cannot be detached: however often EC2 leaves it out, and whoever agrees, nothing is concluded."""
    looks, known = Looks(), recorded(3)
    nobody_sees_it = Witnesses(links=frozenset({mac(0)}), metadata=frozenset({address(0)}))
    for _ in range(100):
        weighed = looks.look(answer, known, witnesses=nobody_sees_it)
        assert weighed.implausible
        assert (weighed.absent, weighed.again_s) == (frozenset(), DOUBT_AGAIN_S)


def test_an_address_is_gone_after_two_looks_apart_in_time() -> None:
    """Once: doubted, look again. Sooner than the gap: still once. After the gap: gone."""
    looks, known = Looks(), recorded(2)
    answer = [shown(0, 3), shown(1, 2, 3)]
    for after_s in (0, LOOK_GAP_S - 1):
        weighed = looks.look(answer, known, after_s=after_s)
        assert (weighed.doubted, weighed.absent, weighed.again_s) == ({address(0, 2)}, frozenset(), LOOK_GAP_S)
    weighed = looks.look(answer, known, after_s=1)
    assert (weighed.doubted, weighed.absent, weighed.again_s) == (frozenset(), {address(0, 2)}, None)


def test_what_is_shown_in_between_starts_over() -> None:
    """Absent, shown, absent is one absence, also if the answer that showed it was not believed."""
    looks = Looks()
    gone = [shown(0, 2, 3), shown(1, 2, 3), shown(2, 2, 3)]
    everything = [shown(n, 2, 3) for n in range(4)]
    implausible = [shown(0, 2, 3), shown(3)]
    known_wired = recorded(4, wired=6)
    assert plausibility(implausible, known_wired)
    for between in (everything, implausible):
        looks.look(gone, known_wired)
        looks.look(between, known_wired)
        assert looks.look(gone, known_wired).absent == frozenset()
        looks.look(everything, known_wired)


def test_an_implausible_answer_is_not_one_of_the_two() -> None:
    """It neither confirms an absence nor ends it: what was doubted stays held until a believed answer."""
    looks, known = Looks(), recorded(3)
    gone = [shown(0, 2, 3), shown(1, 2, 3)]
    assert looks.look(gone, known).doubted == {eni_id(2)}
    weighed = looks.look([shown(0, 2, 3)], known)
    assert (bool(weighed.implausible), weighed.doubted, weighed.absent) == (True, {eni_id(2)}, frozenset())
    assert looks.look(gone, known).absent == {eni_id(2)}


def test_what_two_implausible_answers_lack_is_held_and_not_gone() -> None:
    """One partial answer stops no ADD; two, apart in time, that lack the same have a reason (I7). One that shows it ends that."""
    looks, known = Looks(), recorded(3, per_eni=4, wired=4)
    partial = [shown(0, 2), shown(1, 2, 3, 4, 5), shown(2, 2, 3, 4, 5)]
    weighed = looks.look(partial, known)
    assert (bool(weighed.implausible), weighed.doubted, weighed.again_s) == (True, frozenset(), LOOK_GAP_S)
    weighed = looks.look(partial, known)
    lacking = {address(0, last) for last in (3, 4, 5)}
    assert (bool(weighed.implausible), weighed.doubted, weighed.absent) == (True, lacking, frozenset())
    assert weighed.again_s == DOUBT_AGAIN_S
    assert looks.look([shown(n, 2, 3, 4, 5) for n in range(3)], known).doubted == frozenset()


def test_counting_goes_on_where_the_process_before_stopped() -> None:
    """A restart between two looks does not make them one; what was held is held from the first moment."""
    looks, known = Looks(), recorded(3)
    gone = [shown(0, 2, 3), shown(1, 2, 3)]
    looks.look(gone, known)
    looks.evidence = CloudEvidence(looks.evidence.doubts())
    assert looks.evidence.doubted() == {eni_id(2)}
    assert looks.look(gone, known).absent == {eni_id(2)}


def test_what_our_own_call_changed_is_not_missed() -> None:
    """EC2 may lag behind our call: not doubted, not gone, and the next look is due when that is over."""
    looks, known = Looks(), recorded(2)
    recent: dict[CloudKey, float] = {address(0, 2): 200.0, eni_id(1): 250.0}
    for _ in range(3):
        weighed = looks.look([shown(0, 3)], known, recent=recent)
        assert (weighed.implausible, weighed.doubted, weighed.absent, weighed.again_s) == ("", frozenset(), frozenset(), 200.0)


def test_recent_changes_do_not_make_an_answer_implausible() -> None:
    """Three ENIs of four were just created: that EC2 does not show them yet is no reason to doubt the answer."""
    known = recorded(4, wired=4)
    assert plausibility([shown(0, 2, 3)], known) != ""
    assert plausibility([shown(0, 2, 3)], known, recent={eni_id(1), eni_id(2), eni_id(3)}) == ""


def test_nothing_is_concluded_about_what_cannot_be_read() -> None:
    """An entry with a problem is there; its addresses are unknown. One without an ID might be any ENI."""
    known = recorded(2)
    assert missing([shown(0, 2, 3), shown(1, problem="MacAddress")], known) == frozenset()
    nameless = DescribedEni(EniId(""), MacAddress(""), SubnetId(""), None, problem="NetworkInterfaceId")
    assert missing([shown(0, 2, 3), nameless], known) == frozenset()
    assert missing([shown(0, 2, 3)], known) == {eni_id(1)}


def test_an_address_that_moved_is_missing_where_it_was() -> None:
    """Shown, but not on its ENI: two looks, as for any other. Shown on both: it is where it was."""
    known = recorded(2)
    moved = shown(1, 2, 3, prefixes=frozenset({IPv4Network("10.0.0.0/28")}))
    assert missing([shown(0, 3), moved], known) == {address(0, 2)}


NOBODY = Witnesses()
LINKS = Witnesses(links=frozenset({mac(0)}))
METADATA = Witnesses(metadata=frozenset({address(0), address(0, 2), address(0, 3)}))


@pytest.mark.parametrize(
    ("witnesses", "is_believed"),
    [
        (LINKS, True),
        (METADATA, True),
        (NOBODY, False),
        (Witnesses(links=frozenset({mac(0), mac(1), mac(2)})), False),
        (Witnesses(links=frozenset()), False),  # a dump without the primary ENI's link is no witness
        (Witnesses(metadata=frozenset()), False),
    ],
)
def test_a_mass_loss_needs_ten_minutes_and_a_second_witness(witnesses: Witnesses, is_believed: bool) -> None:
    """Two of three ENIs are gone: believed when kernel or metadata agree, ten minutes after the first look, and said."""
    looks, known = Looks(), recorded(3)
    answer = [shown(0, 2, 3)]
    looks.look(answer, known, after_s=0)
    for _ in range(int(MASS_LOSS_AGE_S / DOUBT_AGAIN_S) - 1):
        weighed = looks.look(answer, known, after_s=DOUBT_AGAIN_S, witnesses=witnesses)
        assert weighed.implausible
        assert not weighed.absent
    weighed = looks.look(answer, known, after_s=DOUBT_AGAIN_S, witnesses=witnesses)
    assert (weighed.absent == {eni_id(1), eni_id(2)}) == is_believed
    assert bool(weighed.mass_loss) == is_believed
    assert bool(weighed.implausible) == (not is_believed)


def test_a_mass_loss_of_addresses_is_confirmed_by_metadata_only() -> None:
    """The ENI's link is there, whatever is on it: links say nothing about addresses."""
    known = recorded(1, per_eni=4, wired=4)
    answer = [shown(0)]
    for witnesses, count in ((LINKS, 0), (Witnesses(metadata=frozenset({address(0)})), 4)):
        looks = Looks()
        looks.look(answer, known)
        assert len(looks.look(answer, known, after_s=MASS_LOSS_AGE_S, witnesses=witnesses).absent) == count


def test_an_eni_that_was_being_detached_surprises_nobody() -> None:
    """Two of three ENIs were shown detaching before: their absence makes the answer no less plausible."""
    known = recorded(3)
    leaving = {key: eni if eni.is_primary else replace(eni, state=EniState.DETACHING) for key, eni in known.enis.items()}
    known = replace(known, enis=leaving)
    assert plausibility([shown(0, 2, 3)], known) == ""


def test_a_change_of_ours_ends_a_doubt_in_an_implausible_answer_too() -> None:
    """Once missing, then added by a call of ours while EC2's answer was not believed: what counts is what is missing since (I11)."""
    looks, known, changed = Looks(), recorded(4), address(0, 2)
    without = [shown(0, 3), *(shown(n, 2, 3) for n in (1, 2, 3))]
    assert looks.look(without, known).doubted == {changed}
    assert looks.look([shown(0, 3)], known, recent={changed: 9.0}).implausible
    assert looks.look(without, known).absent == frozenset()
    assert looks.look(without, known).absent == {changed}
