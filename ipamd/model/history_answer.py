"""Answer a question about the past from history records. The daemon uses this module, and so does `ipamctl` when no daemon runs.

A *tenure* is the time for which one sandbox had an address (`tenures.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from ipamd.model.history import MARKS, HistoryEvent, HistoryRecord, RecordedHistory
from ipamd.model.history_subject import HistorySubject
from ipamd.model.record import dataclass
from ipamd.model.tenures import BEGINS, Tenure, tenures
from ipamd.model.time_text import rfc3339


@dataclass(frozen=True, slots=True)
class HistoryQuestion:
    """A question about the history of an address, a pod, a sandbox or an ENI.

    `subject`: the text that identifies it (`history_subject.py`).
    `limit`: the most records, and the most tenures, to return; the latest ones are returned.
    `since`: only records from this time on (aware UTC); None: all records.
    `at`: only the tenures that include this time (aware UTC), and their records; None: all tenures.
    """

    subject: str
    limit: int
    since: datetime | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class HistoryAnswer:
    """The answer.

    `records`: oldest first. `tenures`: in the order of their beginnings. `notes`: sentences about gaps.
    `before`, `after`: if no tenure includes the time `at` of the question, the last tenure that ended before it and the first that
        began after it; None if there is none.
    """

    records: tuple[HistoryRecord, ...]
    tenures: tuple[Tenure, ...]
    notes: tuple[str, ...]
    before: Tenure | None = None
    after: Tenure | None = None


def answer(question: HistoryQuestion, recorded: RecordedHistory) -> HistoryAnswer:
    """Select the requested records and tenures. A series of equal refusals is one record, with the highest count."""
    chosen = HistorySubject(question.subject).select(_latest_refusals(recorded.records))
    matching = tenures(chosen)
    before = after = None
    if question.at is not None:
        matching, before, after = _tenures_at(question.at, matching)
        chosen = _records_of(matching, chosen)
    if question.since is not None:
        matching = [tenure for tenure in matching if tenure.overlaps(question.since)]
        chosen = [record for record in chosen if record.at >= question.since]
    chosen = _without_repeats(chosen)
    notes = [*_gaps(question, recorded, is_found=bool(chosen or matching))]
    notes += _notes_about_neighbours(before, after)
    left_out_count = max(len(chosen) - question.limit, 0)
    if left_out_count:
        notes.append(f"{left_out_count} older entries are left out: --limit shows more")
    return HistoryAnswer(tuple(chosen[left_out_count:]), tuple(matching[-question.limit :]), tuple(notes), before, after)


def refusal(record: HistoryRecord) -> str:
    """Return a sentence about a series of refused ADDs: pod or sandbox, times, code, cause and next step."""
    times = "once" if record.count == 1 else f"{record.count} times"
    when = f"at {rfc3339(record.at)}"
    if record.count > 1 and record.since is not None:
        when = f"from {rfc3339(record.since)} to {rfc3339(record.at)}"
    subject = record.pod or f"sandbox {record.sandbox}"
    return f"ADD of {subject} was refused {times}, {when}: code {record.code}: {record.detail}"


def _covering(candidates: Iterable[Tenure], at: datetime) -> list[Tenure]:
    return [tenure for tenure in candidates if tenure.covers(at)]


def _tenures_at(at: datetime, candidates: Sequence[Tenure]) -> tuple[list[Tenure], Tenure | None, Tenure | None]:
    """Return the tenures that cover a time; and only if there is none, the last one before it and the first one after it."""
    covering = _covering(candidates, at)
    if covering:
        return covering, None, None
    return covering, *_neighbours(candidates, at)


def _notes_about_neighbours(before: Tenure | None, after: Tenure | None) -> list[str]:
    notes = []
    if before is not None:
        notes.append(f"before: {before}")
    if after is not None:
        notes.append(f"after: {after}")
    return notes


def _neighbours(candidates: Iterable[Tenure], at: datetime) -> tuple[Tenure | None, Tenure | None]:
    """Return the last tenure that ended at or before a time, and the first one that began after it."""
    before = after = None
    for tenure in candidates:  # in the order of their beginnings
        if tenure.until is not None and tenure.until <= at:
            if before is None or before.until is None or tenure.until >= before.until:
                before = tenure
        elif tenure.since > at and after is None:
            after = tenure
    return before, after


def _records_of(matching: Iterable[Tenure], records: Iterable[HistoryRecord]) -> list[HistoryRecord]:
    """Return the records of the tenures `matching`, and all marks (MARKS)."""
    owners = {(tenure.address, tenure.container_id) for tenure in matching}
    return [record for record in records if record.event in MARKS or (record.address, record.container_id) in owners]


def _gaps(question: HistoryQuestion, recorded: RecordedHistory, *, is_found: bool) -> Iterable[str]:
    """Yield a sentence for each reason why the answer may be incomplete."""
    begins = f"the history begins at {rfc3339(recorded.begins_at)}" if recorded.begins_at else "the history is empty"
    earliest = question.at or question.since
    if not is_found:
        yield f"{_nothing(question)}; {begins}"
    elif question.at and recorded.begins_at and recorded.begins_at > question.at:
        yield begins
    if recorded.problem and (earliest is not None or not is_found):
        yield recorded.problem


def _nothing(question: HistoryQuestion) -> str:
    if question.at is not None:
        when = rfc3339(question.at)
        if HistorySubject(question.subject).is_address:
            return f"no pod of this node had {question.subject} at {when}, by the records"
        return f"{question.subject} had no address at {when}, by the records"
    since = f" since {rfc3339(question.since)}" if question.since else ""
    return f"nothing is recorded about {question.subject}{since}"


def _without_repeats(records: Iterable[HistoryRecord]) -> list[HistoryRecord]:
    """Leave out marks before the first record, repeated marks of a boot, and `held` records of tenures whose beginning is included.

    Returns: [] if only marks remain.
    """
    kept_records: list[HistoryRecord] = []
    begun: set[tuple[str, str]] = set()
    boot_id = ""
    for record in records:
        if record.event == HistoryEvent.BOOTED:
            is_new = record.detail != boot_id
            boot_id = record.detail
        else:
            is_new = record.event != HistoryEvent.HELD or (record.address, record.container_id) not in begun
        if record.event in BEGINS:
            begun.add((record.address, record.container_id))
        if is_new and (kept_records or record.event not in MARKS):
            kept_records.append(record)
    if any(record.event not in MARKS for record in kept_records):
        return kept_records
    return []


def _latest_refusals(records: Iterable[HistoryRecord]) -> list[HistoryRecord]:
    """Keep the last record of each series of refusals, which has the highest count."""
    other_records: list[HistoryRecord] = []
    series: dict[tuple[object, ...], HistoryRecord] = {}
    for record in records:
        if record.event != HistoryEvent.REFUSED:
            other_records.append(record)
            continue
        key = (record.pod or record.sandbox, record.code, record.since)
        latest = series.get(key)
        if latest is None or record.count >= latest.count:
            series[key] = record
    return [*other_records, *series.values()]
