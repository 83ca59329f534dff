"""Who had which address when, told from records that have holes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ipamd.model.history import HistoryRecord, RecordedHistory
from ipamd.model.history_answer import HistoryAnswer, HistoryQuestion, answer
from ipamd.model.history_subject import HistorySubject
from ipamd.model.tenures import tenures

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
ADDRESS = "10.0.0.5"


def at(minute: float) -> datetime:
    """A time, in minutes."""
    return START + timedelta(minutes=minute)


def record(minute: float, event: str, name: str = "a", *, since: float | None = None, address: str = ADDRESS) -> HistoryRecord:
    """One record about sandbox `name` of pod `default/name`."""
    began = at(since) if since is not None else None
    return HistoryRecord(
        at(minute), event, address=address, container_id=f"c-{name}", ifname="eth0", pod=f"default/{name}", since=began
    )


@pytest.mark.parametrize(
    "spelling", ["2001:db8::a:5", "2001:DB8::A:5", "2001:0db8:0000:0000:0000:0000:000a:0005", "2001:db8::0.10.0.5"]
)
def test_an_address_is_found_by_each_spelling(spelling: str) -> None:
    """Records have one spelling of an IPv6 address, people many; what only begins like one is none."""
    found = ask(spelling, record(0, "assigned", address="2001:db8::a:5"), record(1, "assigned", "b", address="2001:db8::a:50"))
    assert [one.pod for one in found.tenures] == ["default/a"]
    assert [HistorySubject(text).is_address for text in (spelling, "2001:db8::a:g", "10.0.0", "fe80", "", "10.0.0.5")] == [
        True,
        *[False] * 4,
        True,
    ]


def booted(minute: float, boot: str) -> HistoryRecord:
    """The mark at the head of a segment."""
    return HistoryRecord(at(minute), "booted", detail=boot, since=at(minute - 1))


def spans(*records: HistoryRecord) -> list[tuple[str, float, float | None]]:
    """Pod, beginning and end in minutes."""

    def minutes(moment: datetime) -> float:
        return (moment - START).total_seconds() / 60

    return [(one.pod, minutes(one.since), minutes(one.until) if one.until else None) for one in tenures(records)]


def test_an_address_goes_from_pod_to_pod() -> None:
    """Assigned and unassigned are the ends; the last one has it still."""
    story = (record(0, "assigned"), record(5, "unassigned", since=0), record(7, "assigned", "b"))
    assert spans(*story) == [("default/a", 0, 5), ("default/b", 7, None)]


def test_a_reboot_ends_what_nobody_ended() -> None:
    """The mark of another boot ends it, at the boot's time; marks of the same boot, one for each day, end nothing."""
    story = (booted(0, "one"), record(1, "assigned"), booted(10, "one"), record(11, "held", since=1), booted(20, "two"))
    assert spans(*story) == [("default/a", 1, 19)]


def test_a_mark_that_was_written_late_ends_nothing_of_its_boot() -> None:
    """The disk was away for the first ten minutes of a boot."""
    late = HistoryRecord(at(30), "booted", detail="two", since=at(15))
    found = ask(ADDRESS, booted(0, "one"), record(1, "assigned"), record(20, "assigned", "b"), late)
    assert [(one.pod, one.until) for one in found.tenures] == [("default/a", at(15)), ("default/b", None)]
    assert [one.event for one in found.records] == ["assigned", "booted", "assigned"]


def test_an_end_without_its_beginning_tells_both() -> None:
    """The beginning was pruned: the end has it. Without that nothing is invented."""
    assert spans(record(9, "unassigned", since=-9000)) == [("default/a", -9000, 9)]
    assert spans(record(9, "unassigned")) == []


def test_an_end_that_was_lost_is_the_next_beginning() -> None:
    """No address has two sandboxes (I1): when the next one has it the first has it no more."""
    assert spans(record(0, "assigned"), record(9, "assigned", "b")) == [("default/a", 0, 9), ("default/b", 9, None)]


def test_an_adoption_continues() -> None:
    """A lost datastore is rebuilt: the same sandbox has the same address, since it first had it."""
    assert spans(record(0, "assigned"), record(5, "adopted"), record(9, "reaped", since=5)) == [("default/a", 0, 9)]


def test_a_clock_that_was_set_back_makes_no_owner_of_one_that_has_left() -> None:
    """Its end is before its beginning then, by the times that were written; the end knows which beginning it is of."""
    story = (record(-55, "unassigned", since=0), record(-50, "assigned", "b", since=-50), record(0, "assigned", since=0))
    assert spans(*story) == [("default/b", -50, None), ("default/a", 0, 0)]
    assert spans(*story[:1], story[2]) == [("default/a", 0, 0)]


def test_a_sandbox_that_was_reaped_and_is_adopted_again_has_it_again() -> None:
    """Another beginning, though it is the same sandbox with the same address."""
    story = (record(0, "assigned", since=0), record(5, "reaped", since=0), record(6, "adopted", since=0))
    assert [(pod, until) for pod, _, until in spans(*story)] == [("default/a", 5), ("default/a", None)]


def ask(subject: str, *records: HistoryRecord, **fields: datetime) -> HistoryAnswer:
    """Ask about all records."""
    return answer(HistoryQuestion(subject, 100, **fields), RecordedHistory(tuple(records), START))


STORY = (
    booted(0, "one"),
    record(1, "assigned"),
    record(5, "unassigned", since=1),
    record(7, "assigned", "b"),
    booted(20, "two"),
    record(30, "assigned", "b2"),
)


def test_who_had_it_then() -> None:
    """--at, for each part of the story; the end belongs to nobody."""
    owners = {minute: [one.pod for one in ask(ADDRESS, *STORY, at=at(minute)).tenures] for minute in (0.5, 1, 4.9, 5, 8, 25, 31)}
    assert owners == {0.5: [], 1: ["default/a"], 4.9: ["default/a"], 5: [], 8: ["default/b"], 25: [], 31: ["default/b2"]}


def test_the_holders_before_and_after() -> None:
    """Between two holders both are named; while somebody has the address, nobody else is."""
    neighbours = {}
    for minute in (0.5, 3, 6, 25, 31):
        found = ask(ADDRESS, *STORY, at=at(minute))
        neighbours[minute] = [tenure.pod if tenure else None for tenure in (found.before, found.after)]
        assert len(found.notes) >= len([tenure for tenure in neighbours[minute] if tenure])
    assert neighbours == {
        0.5: [None, "default/a"],
        3: [None, None],
        6: ["default/a", "default/b"],
        25: ["default/b", "default/b2"],
        31: [None, None],
    }
    assert ask("default/b", *STORY, at=at(6)).after is not None


def test_a_pod_is_found_by_its_names_and_a_sandbox_by_its_beginning() -> None:
    """`default/b`, `b` and `c-b2`; a pod's name is no beginning of another's."""
    for subject, expected in (("default/b", {"c-b"}), ("b", {"c-b"}), ("c-b2", {"c-b2"}), ("c-", {"c-a", "c-b", "c-b2"})):
        found = {one.container_id for one in ask(subject, *STORY).records if one.event != "booted"}
        assert found == expected, subject
    assert ask("default/x", *STORY).records == ()
    assert ask("default/x", *STORY).notes[0].startswith("nothing is recorded about default/x; the history begins at 2026-11-20")


def test_records_of_a_pod_that_lack_its_name_are_its_own() -> None:
    """They have its container ID."""
    unnamed = HistoryRecord(at(2), "quarantined", address=ADDRESS, container_id="c-a", ifname="eth0")
    assert unnamed in ask("default/a", *STORY, unnamed).records


def test_since_leaves_out_what_is_older() -> None:
    """And what was running then is still told as a tenure."""
    found = ask(ADDRESS, *STORY, since=at(10))
    assert [one.event for one in found.records] == ["assigned"]
    assert [one.pod for one in found.tenures] == ["default/b", "default/b2"]


def test_a_series_of_refusals_is_one_entry() -> None:
    """The file has it at 1, 2, 4, ...; told is the highest count."""
    series = [HistoryRecord(at(n), "refused", pod="default/a", since=at(1), count=n, code=11) for n in (1, 2, 4)]
    other = HistoryRecord(at(9), "refused", pod="default/a", since=at(9), code=11)
    assert [one.count for one in ask("a", *series, other).records] == [4, 1]


def test_what_is_left_out_is_said() -> None:
    """The latest are told."""
    many = [record(n, "repaired") for n in range(9)]
    found = answer(HistoryQuestion("a", 4), RecordedHistory(tuple(many), START))
    assert [one.at for one in found.records] == [at(n) for n in range(5, 9)]
    assert found.notes == ("5 older entries are left out: --limit shows more",)
