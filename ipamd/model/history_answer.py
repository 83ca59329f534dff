"""Answer a question about the past from records. The daemon does, and `ipamctl` from the file when the daemon is away."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from ipamd.model.history import MARKS, HistoryEvent, HistoryRecord, Recorded
from ipamd.model.history_subject import Subject
from ipamd.model.tenure import BEGINS, Tenure, tenures
from ipamd.model.times import rfc3339


@dataclass(frozen=True, slots=True)
class HistoryQuestion:
    """What is asked. `since`: nothing older; `at`: who had it at this instant; `limit`: how many of the latest records."""

    subject: str
    limit: int
    since: datetime | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class HistoryAnswer:
    """Records oldest first, tenures in order, and sentences about what is not told."""

    records: tuple[HistoryRecord, ...]
    tenures: tuple[Tenure, ...]
    notes: tuple[str, ...]


def answer(question: HistoryQuestion, recorded: Recorded) -> HistoryAnswer:
    """Choose what was asked for. Records of the same refusals are one, with the highest count."""
    chosen = Subject(question.subject).select(_latest_refusals(recorded.records))
    found = tenures(chosen)
    if question.at is not None:
        found = [one for one in found if one.covers(question.at)]
        held = {(one.address, one.container_id) for one in found}
        chosen = [one for one in chosen if (one.address, one.container_id) in held or one.event in MARKS]
    if question.since is not None:
        found = [one for one in found if one.overlaps(question.since)]
        chosen = [record for record in chosen if record.at >= question.since]
    chosen = _shown(chosen)
    notes = [*_not_told(question, recorded, is_found=bool(chosen or found))]
    left_out = max(len(chosen) - question.limit, 0)
    if left_out:
        notes.append(f"{left_out} older entries are left out: --limit shows more")
    return HistoryAnswer(tuple(chosen[left_out:]), tuple(found[-question.limit :]), tuple(notes))


def _not_told(question: HistoryQuestion, recorded: Recorded, *, is_found: bool) -> Iterable[str]:
    begins = f"the history begins at {rfc3339(recorded.begins_at)}" if recorded.begins_at else "the history is empty"
    asked = question.at or question.since
    if not is_found:
        yield f"{_nothing(question)}; {begins}"
    elif question.at and recorded.begins_at and recorded.begins_at > question.at:
        yield begins
    if recorded.problem and (asked is not None or not is_found):
        yield recorded.problem


def _nothing(question: HistoryQuestion) -> str:
    if question.at is not None:
        return f"no record says that {question.subject} had or was an address in use at {rfc3339(question.at)}"
    since = f" since {rfc3339(question.since)}" if question.since else ""
    return f"nothing is recorded about {question.subject}{since}"


def _shown(records: Iterable[HistoryRecord]) -> list[HistoryRecord]:
    """Leave out what only repeats: marks before the first record and of the same boot, and who still has what was told already."""
    shown: list[HistoryRecord] = []
    begun: set[tuple[str, str]] = set()
    boot_id = ""
    for record in records:
        if record.event == HistoryEvent.BOOTED:
            boot_id, is_new = record.detail, record.detail != boot_id
        else:
            is_new = record.event != HistoryEvent.HELD or (record.address, record.container_id) not in begun
        if record.event in BEGINS:
            begun.add((record.address, record.container_id))
        if is_new and (shown or record.event not in MARKS):
            shown.append(record)
    return shown if any(record.event not in MARKS for record in shown) else []


def _latest_refusals(records: Iterable[HistoryRecord]) -> list[HistoryRecord]:
    """One record for each series of refusals: every later one repeats the earlier with a higher count."""
    others: list[HistoryRecord] = []
    series: dict[tuple[object, ...], HistoryRecord] = {}
    for record in records:
        if record.event != HistoryEvent.REFUSED:
            others.append(record)
            continue
        key = (record.pod or record.sandbox, record.code, record.since)
        known = series.get(key)
        if known is None or record.count >= known.count:
            series[key] = record
    return [*others, *series.values()]


def refusal(record: HistoryRecord) -> str:
    """One sentence about a series of refused ADDs: who, when, code, cause and next step."""
    times = "once" if record.count == 1 else f"{record.count} times"
    when = f"at {rfc3339(record.at)}"
    if record.count > 1 and record.since is not None:
        when = f"from {rfc3339(record.since)} to {rfc3339(record.at)}"
    who = record.pod or f"sandbox {record.sandbox}"
    return f"ADD of {who} was refused {times}, {when}: code {record.code}: {record.detail}"
