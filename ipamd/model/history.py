"""What happened: the ledger's events, the records of the history, and the answers to questions about the past.

The ledger lives in the datastore, is written in the same transaction as the change that it records, dies with it, and is what
decisions may be traced by. The history tells the same, kept on the host's disk over reboots, and the ADDs that were refused; it is for
people, is written behind (docs/adr/0035) and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from ipaddress import ip_address

from ipamd.model.record import dataclass, replace
from ipamd.model.words import rfc3339


class LedgerEvent(StrEnum):
    """What happens to an address; a closed set. A row of the ledger is read as a `HistoryRecord`, whose event may be a word that a
    later release wrote.
    """

    ENI_ADDED = "eni-added"
    ENI_CHANGED = "eni-changed"
    ENI_REMOVED = "eni-removed"
    ADDED = "added"
    REMOVED = "removed"
    ASSIGNED = "assigned"
    ADOPTED = "adopted"
    UNASSIGNED = "unassigned"
    ABORTED = "aborted"
    COOLED = "cooled"
    QUARANTINED = "quarantined"
    RESOLVED = "settled"
    TOMBSTONED = "tombstoned"
    KEPT = "kept"
    REAPED = "reaped"
    REPAIRED = "repaired"
    INTENT_OPENED = "intent-opened"
    INTENT_CLOSED = "intent-closed"
    RESTORED = "restored"
    LOST = "lost"
    HEALED = "healed"


class HistoryEvent(StrEnum):
    """What the history tells besides the ledger's events."""

    BOOTED = "booted"
    HELD = "held"
    MISSED = "missed"
    REFUSED = "refused"


UNKEPT = frozenset({LedgerEvent.TOMBSTONED, LedgerEvent.COOLED})
"""Ledger events that follow from others: with them a pod would cost twice the bytes."""

MARKS = frozenset({HistoryEvent.BOOTED, HistoryEvent.MISSED})
"""Events that concern every subject."""


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    """One event. Empty strings where it has no such object.

    `event` is a LedgerEvent, a HistoryEvent, or a word of a later release. `pod` is `namespace/name`. `since`: when that began which
    ends or is repeated here: the attachment that an `unassigned` ends or a `held` confirms, the first of `count` refusals, the boot.
    `code`: the CNI code of a refusal. `other_address`: of the other family, which the same sandbox has for egress.
    """

    at: datetime
    event: str
    address: str = ""
    container_id: str = ""
    ifname: str = ""
    eni_id: str = ""
    detail: str = ""
    pod: str = ""
    since: datetime | None = None
    count: int = 1
    code: int = 0
    other_address: str = ""

    def as_kept(self) -> HistoryRecord:
        """The same with times in milliseconds, which is what the file keeps. Not at once: ADD and DEL make records."""
        return replace(self, at=_whole_ms(self.at), since=_whole_ms(self.since) if self.since is not None else None)

    @property
    def sandbox(self) -> str:
        """`container_id/ifname`, or an empty string."""
        return f"{self.container_id}/{self.ifname}" if self.container_id else ""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a history has about one subject.

    records: in no order, and all marks.
    begins_at: of the oldest record that is kept, whatever its subject; None if none is.
    problem: why something may be missing; "" if nothing is known to be.
    """

    records: tuple[HistoryRecord, ...] = ()
    begins_at: datetime | None = None
    problem: str = ""


def _whole_ms(moment: datetime) -> datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


# Which records a question is about: an address, a pod by `namespace/name` or name, a sandbox by the beginning of its container
# ID, or an ENI.


ENI_PREFIX = "eni-"


class Subject:
    """One question's subject. Text that is a pod's name is that, even if container IDs begin with it."""

    def __init__(self, text: str) -> None:
        self.text, self.is_address = text, False
        with suppress(ValueError):  # an address however it is spelt: records have one spelling
            self.text, self.is_address = str(ip_address(text)), True

    def names_pod(self, pod: str) -> bool:
        """Whether this is the pod `namespace/name`, told in full or by its name alone."""
        return bool(pod) and not self.is_address and self.text in (pod, pod.partition("/")[2])

    def fits(self, record: HistoryRecord) -> bool:
        """Whether a record may be about it: what `select` decides by looking at all of them."""
        if self.is_address:
            return record.address == self.text
        if self.names_pod(record.pod) or (self.text.startswith(ENI_PREFIX) and record.eni_id == self.text):
            return True
        return bool(record.container_id) and (record.container_id.startswith(self.text) or record.sandbox == self.text)

    def select(self, records: Iterable[HistoryRecord]) -> list[HistoryRecord]:
        """Choose the records about it, oldest first, each once, and all marks; nothing if only marks are left."""
        # A boot's mark is written later than it booted, after events of that boot if the disk was away. Records of one millisecond
        # stay in the order in which they were written: an ADD and its DEL may be.
        placed = [
            replace(one, at=one.since) if one.event == HistoryEvent.BOOTED and one.since else one
            for one in dict.fromkeys(records)
        ]
        ordered = sorted(placed, key=lambda record: record.at)
        if not self.text:
            return []
        pods = {record.container_id for record in ordered if self.names_pod(record.pod)}
        chosen: list[HistoryRecord] = []
        for record in ordered:
            if record.event in MARKS:
                fits = True
            elif pods:
                fits = self.names_pod(record.pod) or (record.container_id != "" and record.container_id in pods)
            else:
                fits = self.fits(record)
            if fits:
                chosen.append(record)
        return chosen if any(record.event not in MARKS for record in chosen) else []


# Who had which address from when until when, read from records. Pure.
#
# A history has holes: it begins somewhere, a reboot ends every sandbox without a word, and a crash may swallow an end. So an end
# is the earliest instant that the records give for it, and says which record that was.


BEGINS = frozenset({LedgerEvent.ASSIGNED, LedgerEvent.ADOPTED, HistoryEvent.HELD})
ENDS = frozenset({LedgerEvent.UNASSIGNED, LedgerEvent.REAPED})


@dataclass(frozen=True, slots=True)
class Tenure:
    """One sandbox's time with one address. `until` None: it has it still, as far as the records tell."""

    address: str
    container_id: str
    ifname: str
    pod: str
    since: datetime
    until: datetime | None = None
    ended_by: str = ""

    def covers(self, at: datetime) -> bool:
        """Whether it held at this instant."""
        return self.since <= at and (self.until is None or at < self.until)

    def overlaps(self, since: datetime) -> bool:
        """Whether any of it was at or after this instant."""
        return self.until is None or self.until >= since

    @property
    def sentence(self) -> str:
        """The same for people."""
        return str(self)

    def __str__(self) -> str:
        """One sentence."""
        sandbox = f"sandbox {self.container_id}/{self.ifname}"
        name = f"{self.pod} ({sandbox})" if self.pod else sandbox
        end = f"until {rfc3339(self.until)}, ended by {self.ended_by}" if self.until else "and no end is recorded"
        return f"{self.address} was with {name} from {rfc3339(self.since)} {end}"


def tenures(records: Iterable[HistoryRecord]) -> list[Tenure]:
    """Read the tenures from records in order of time.

    Returns: in the order of their beginning.
    """
    running: dict[str, Tenure] = {}
    ended: list[Tenure] = []
    over: dict[tuple[str, str, str], datetime] = {}  # the beginning of what has ended: a clock that was set back tells it later
    boot_id = ""
    for record in records:
        who = record.address, record.container_id, record.ifname
        if record.event in BEGINS:
            # What is adopted or held may be known since long ago, and begin anew all the same.
            began = (record.since or record.at) if record.event == LedgerEvent.ASSIGNED else record.at
            if who not in over or began > over[who]:
                _begin(record, running, ended)
        elif record.event in ENDS:
            ended += _end(record, running)
            if record.since is not None:
                over[who] = record.since
        elif record.event == HistoryEvent.BOOTED and record.detail != boot_id:  # each segment repeats the mark of its boot
            boot_id, at = record.detail, record.since or record.at
            ended += [replace(one, until=max(at, one.since), ended_by="the node's boot") for one in running.values()]
            running = {}
    return sorted([*ended, *running.values()], key=lambda one: one.since)


def _begin(record: HistoryRecord, running: dict[str, Tenure], ended: list[Tenure]) -> None:
    since = record.since or record.at
    new = Tenure(record.address, record.container_id, record.ifname, record.pod, since)
    known = running.get(record.address)
    if known is not None and _is_same(known, record):
        running[record.address] = replace(known, since=min(known.since, since), pod=known.pod or record.pod)
        return
    if known is not None:
        ended.append(replace(known, until=since, ended_by="another sandbox, which had the address then"))
    running[record.address] = new


def _end(record: HistoryRecord, running: dict[str, Tenure]) -> list[Tenure]:
    known = running.get(record.address)
    cause = f"{record.event} ({record.detail})" if record.detail else record.event
    if known is not None and _is_same(known, record):
        del running[record.address]
        return [replace(known, until=record.at, ended_by=cause, pod=known.pod or record.pod)]
    if record.since is None:
        return []  # its beginning is before the history's own
    until = max(record.at, record.since)
    return [Tenure(record.address, record.container_id, record.ifname, record.pod, record.since, until, cause)]


def _is_same(known: Tenure, record: HistoryRecord) -> bool:
    return (known.container_id, known.ifname) == (record.container_id, record.ifname)


# Answer a question about the past from records. The daemon does, and `ipamctl` from the file when the daemon is away.


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
